"""What the store benchmark measures of a system: each step in a process of its own, over what the one before left."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.benchmarks.lexical_measure import Figures, isolated, medians, percentiles, seconds
from tests.benchmarks.store_corpus import Corpus, corpus
from tests.benchmarks.store_systems import BATCH, Opens, loaded

AT_ONCE = ("ours", "Chroma")
"""Systems that are also given as many chunks at once as they take."""

OPENED = 5
CHANGES = 200
THREADS = 8


def measure(size: int, data: Path, systems: Sequence[str]) -> Iterator[tuple[str, Figures]]:
    """Figures of the systems over so many chunks, as they come; at every step the systems take turns."""
    with TemporaryDirectory() as parent:
        folders = {system: Path(parent) / system for system in systems}
        for system, folder in folders.items():
            yield system, {**isolated(ingest, system, size, data, folder, BATCH), **space(folder, size)}
        for system in AT_ONCE:
            yield system, isolated(ingest, system, size, data, Path(parent) / f"{system} at once", None)
        rounds = [{system: opening(system, folder) for system, folder in folders.items()} for _ in range(OPENED)]
        for system, folder in folders.items():
            yield system, medians([one[system] for one in rounds])
            yield system, isolated(change, system, size, data, folder)


def ingest(system: str, size: int, data: Path, folder: Path, batch: int | None) -> Figures:
    """From the first add until it is searched and closed, after an ingest of few chunks that loads code.

    Without a batch, the system is given as much at once as it takes.
    """
    made, opens = corpus(size, data), loaded(system)
    with TemporaryDirectory() as first:
        _fill(opens, made, Path(first), 100, batch)
    took = _fill(opens, made, folder, size, batch)
    name = "largest batches" if batch is None else f"batches of {batch:,}"
    return {f"{name}: chunks/s": size / took, f"{name}: s": took}


def change(system: str, size: int, data: Path, folder: Path) -> Figures:
    """All again unchanged; then chunks more and less, one at a time; then chunks more, from threads at once."""
    made = corpus(size + 2 * CHANGES, data)
    alone, together = made.chunks[size:-CHANGES], made.chunks[-CHANGES:]
    store = loaded(system)(folder, made.lookup)
    figures = {}
    if store.again is not None:
        figures["again, unchanged: s"] = seconds(store.again, made.chunks[:size])
    figures |= _named("add", [seconds(store.add, [chunk]) for chunk in alone])
    if store.delete is not None:
        figures |= _named("delete", [seconds(store.delete, [chunk.id]) for chunk in alone])
    if store.threads:
        with ThreadPoolExecutor(THREADS) as pool:
            took = seconds(lambda: list(pool.map(store.add, [[chunk] for chunk in together])))
        figures[f"adds/s of {THREADS} threads"] = CHANGES / took
    store.close()
    return figures


def opening(system: str, folder: Path) -> Figures:
    """What `store_open` says, in a fresh process."""
    command = [sys.executable, "-m", "tests.benchmarks.store_open", system, str(folder)]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    figures: Figures = json.loads(run.stdout)
    return figures


def space(folder: Path, size: int) -> Figures:
    """Of all files."""
    used = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return {"bytes": used, "bytes per chunk": used / size}


def _fill(opens: Opens, made: Corpus, folder: Path, size: int, batch: int | None) -> float:
    folder.mkdir(exist_ok=True)
    store = opens(folder, made.lookup)
    step = batch or store.largest or size
    start = time.perf_counter()
    for at in range(0, size, step):
        store.add(made.chunks[at : min(at + step, size)])
    found = store.searches["vector"](made.chunks[0].text)
    store.close()
    took = time.perf_counter() - start
    if not found:
        raise ValueError("what was added is not found")
    return took


def _named(what: str, times: Sequence[float]) -> Figures:
    return {f"{what} {metric}": value for metric, value in percentiles(times).items()}
