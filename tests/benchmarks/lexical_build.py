"""From raw text to an index that can be searched: time, memory at the peak, size. Each build has a process of its own.

The text is in memory before: as chunks for this project, as strings for the others. Memory is what is resident at the
peak beyond what was before the build; Linux alone tells it, elsewhere the figure is left out.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from tests.benchmarks.lexical_corpora import Collection, chunks_of
from tests.benchmarks.lexical_measure import Case, Figures, isolated, medians
from tests.benchmarks.lexical_systems import (
    BACKENDS,
    THREADS,
    index_bm25s,
    index_tantivy,
    reader_of_tantivy,
)
from tests.benchmarks.results import Row
from voicevault_retrievers.core.rows import Rows
from voicevault_retrievers.lexical import LexicalIndex
from voicevault_retrievers.text import Analyzer

T = TypeVar("T")
ROUNDS = 3
SYSTEMS = ("bm25s", "bm25s+numba", "tantivy", *(f"ours {backend}" for backend in BACKENDS))
PROC = Path("/proc/self")


def measure(cases: Sequence[Case]) -> Iterator[list[Row]]:
    """The figures of each collection: medians of rounds, of one round above 100,000 documents."""
    for case in cases:
        rounds: dict[str, list[Figures]] = {system: [] for system in SYSTEMS}
        name = ""
        for _ in range(ROUNDS if case.documents <= 100_000 else 1):
            for system, found in rounds.items():
                name, figures = isolated(build, case, system)
                found.append(figures)
        yield [Row(system, name, metric, v) for system, found in rounds.items() for metric, v in medians(found).items()]


def build(case: Case, system: str) -> tuple[str, Figures]:
    """The collection's name and the figures of one build, after one of few documents that loads code."""
    collection = case.load()
    raw = Collection(collection.name, list(collection.texts), ())
    del collection
    few = Collection("", raw.texts[:100], ())
    with TemporaryDirectory() as first, TemporaryDirectory() as second:
        _build(system, few, Path(first))
        return raw.name, _build(system, raw, Path(second))


def _build(system: str, raw: Collection, folder: Path) -> Figures:
    family, _, backend = system.partition(" ")
    if family == "ours":
        return _ours(raw, backend)
    return _tantivy(raw, folder) if family == "tantivy" else _bm25s(raw, numba=system.endswith("numba"))


def _ours(raw: Collection, backend: str) -> Figures:
    chunks = chunks_of(raw, texts=True)
    index, figures = _metered(
        lambda: LexicalIndex.build(Rows.of(chunks), Analyzer().analyse(raw.texts), backend=backend)
    )
    return {**figures, "bytes per posting": index.nbytes / index.postings}


def _bm25s(raw: Collection, *, numba: bool) -> Figures:
    index, figures = _metered(lambda: index_bm25s(raw, numba=numba))
    arrays = [index.scores[name] for name in ("data", "indices", "indptr")]
    return {**figures, "bytes per posting": sum(array.nbytes for array in arrays) / len(arrays[0])}


def _tantivy(raw: Collection, folder: Path) -> Figures:
    _, figures = _metered(lambda: index_tantivy(raw, folder, THREADS))
    reader = reader_of_tantivy(raw)
    postings = sum(len(set(reader.analyze(text))) for text in raw.texts)
    return {**figures, "bytes per posting": sum(path.stat().st_size for path in folder.iterdir()) / postings}


def _metered(work: Callable[[], T]) -> tuple[T, Figures]:
    gc.collect()
    linux = (PROC / "clear_refs").exists()
    if linux:
        (PROC / "clear_refs").write_text("5")  # the peak is from now on
    before = _megabytes("VmRSS") if linux else 0.0
    start = time.perf_counter()
    made = work()
    took = time.perf_counter() - start
    return made, {"build s": took, **({"build peak MB": _megabytes("VmHWM") - before} if linux else {})}


def _megabytes(name: str) -> float:
    lines = (PROC / "status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(name))
