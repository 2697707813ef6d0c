"""What the package costs around a search, beside fifteen lines that somebody would write instead of it.

    python -m tests.benchmarks.frame [DATA] [SIZE ...]

Writes results/frame.json; DATA is not needed, and the chunks are synthetic (see `frame_systems`). Systems are asked in
turns, question by question, and no question is asked twice of a system. A figure is the median over several rounds,
each with its own questions; BLAS has one thread. Of ten hits all is read that a caller would show, in the package how
each was found too. With "int8" a system searches vectors by their codes, as a knowledge base with `vectors="int8"` does
where a segment is large enough; its ranking is the same.

CPU time is that of the whole process for one search at a time. Clients are threads or coroutines that each ask one
question after another; a stall of the event loop is how much too late a task wakes that sleeps for a millisecond. The
cost of a framework's retriever is its CPU time less that of the pipeline in it for the same question. Fifty searches at
once, and one by one, are compared with the framework's own fusion of the same two retrievers. The first search of a
process is measured after the index is open, with no machine code of numba's on disk.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from langchain_classic.retrievers import EnsembleRetriever
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever as LangChainBase
from llama_index.core.base.base_retriever import BaseRetriever as LlamaIndexBase
from llama_index.core.llms import MockLLM
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.retrievers.fusion_retriever import FUSION_MODES
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # it has no types

from tests.benchmarks.concurrency_measure import Searched
from tests.benchmarks.frame_systems import (
    CONSTANT,
    DEFAULT,
    DEPTH,
    HAND,
    PLAIN,
    Asked,
    Case,
    Collection,
    K,
    Parts,
    Search,
    read,
    save,
    spent,
    turns,
)
from tests.benchmarks.lexical_measure import Figures, medians, percentiles, ratios, seconds
from tests.benchmarks.results import Row, write
from voicevault_retrievers import RRF, Pipeline, langchain, llama_index
from voicevault_retrievers._support.compiled import BESIDE
from voicevault_retrievers.llama_index.convert import chunk_of as chunk_of_node
from voicevault_retrievers.pipeline.options import Fusion

SIZES = (2_000, 20_000, 100_000)
CASES = (
    Case("1 segment"),
    Case("4 segments", segments=4),
    Case("5 % deleted", deleted=True),
    Case("half of the questions filtered", filtered=True),
    Case("4 segments, 5 % deleted, half filtered", segments=4, deleted=True, filtered=True),
)
ROUNDS, ASKED, WARM = 5, 40, 4
THREADS, COROUTINES, SERVED = (1, 8), 64, 192
TICK = 0.001
BATCH = 128
SEARCHES = 50
FIRST_CHUNKS, FIRST_RUNS = 20_000, 3
ALIKE = 0.85
"""The least mean share of hits that both have, by hand and fused alike: equal BM25 scores are in any order there."""

PACKAGES = (
    "voicevault-retrievers", "numpy", "numba", "bm25s", "langchain-core", "langchain-classic", "llama-index-core",
)  # fmt: skip


def main(sizes: Sequence[int]) -> None:
    """Measure, tell each figure when it is there, and write."""
    rows: list[Row] = []
    with threadpool_limits(1, user_api="blas"):
        for row in measured(sizes):
            rows.append(row)
            sys.stdout.write(f"{row.system:45} {row.case:62} {row.metric:28} {row.value:10.3f}\n")
            sys.stdout.flush()
    write("frame", rows, PACKAGES)


def measured(sizes: Sequence[int]) -> Iterator[Row]:
    """All figures."""
    for size in sizes:
        collection = Collection(size)
        yield from cpu(collection)
        yield from clients(collection)
        yield from batches(collection)
        gc.unfreeze()
    yield from faces(Collection(min(sizes)))
    yield from first()


def cpu(collection: Collection) -> Iterator[Row]:
    """The CPU time of a search, in every case."""
    draw = collection.drawn.questions
    for case in CASES:
        systems = searches(collection, case)
        spent(systems, draw(WARM, filtered=case.filtered))
        settle()
        rounds = [spent(systems, draw(ASKED, filtered=case.filtered)) for _ in range(ROUNDS)]
        name = f"{collection.size:,} chunks, {case.name}"
        yield from _cpu_rows(name, rounds)
        if case.filtered:
            alone = [{system: times[1::2] for system, times in one.items()} for one in rounds]
            yield from _cpu_rows(f"{name}: these alone", alone)


def searches(collection: Collection, case: Case) -> dict[str, Search]:
    """The systems; ValueError where two that should find the same do not."""
    systems: dict[str, Search] = {HAND: collection.by_hand(case).search}
    systems |= {name: package.search for name, package in collection.packages(case).items()}
    asked = collection.drawn.questions(ASKED, filtered=case.filtered)
    found: list[list[Any]] = [[systems[name](one) for name in (HAND, PLAIN)] for one in asked]
    shared = sum(len({hit[0] for hit in hand} & {hit[0] for hit in package}) / K for hand, package in found) / ASKED
    if shared < ALIKE:
        raise ValueError(f"{case.name}: {HAND} and {PLAIN} share {shared:.0%} of their hits")
    return systems


def settle() -> None:
    """So that neither compiling nor a collection of millions of objects falls on whoever happens to be measured."""
    BESIDE.wait()
    gc.collect()
    gc.freeze()


def _cpu_rows(case: str, rounds: Sequence[Mapping[str, list[float]]]) -> Iterator[Row]:
    metric = "CPU ms p50"
    found = {name: [{metric: median(one[name]) * 1e3} for one in rounds] for name in rounds[0]}
    for name, figures in found.items():
        yield Row(name, case, metric, medians(figures)[metric])
        if name != HAND:
            yield Row(name, case, "CPU p50, times by hand", ratios(figures, found[HAND])[metric])


def clients(collection: Collection) -> Iterator[Row]:
    """What several clients get at the same time."""
    hand, packages, draw = collection.by_hand(CASES[0]), collection.packages(CASES[0]), collection.drawn.questions
    threaded: dict[str, Search] = {HAND: hand.search, **{name: one.search for name, one in packages.items()}}
    settle()
    for count in THREADS:
        with ThreadPoolExecutor(count) as pool:
            measure = {name: partial(_threads, pool, search, alone=count == 1) for name, search in threaded.items()}
            yield from _client_rows(f"{collection.size:,} chunks, threads: {count}", measure, draw)
    awaited = {name: partial(_coroutines, package.asearch) for name, package in packages.items()}
    yield from _client_rows(f"{collection.size:,} chunks, coroutines: {COROUTINES}", awaited, draw)


def _client_rows(
    case: str,
    systems: Mapping[str, Callable[[Sequence[Asked]], Figures]],
    draw: Callable[[int], Sequence[Asked]],
) -> Iterator[Row]:
    """Each system gets questions that it was not asked yet; the first ones warm up."""
    for measure in systems.values():
        measure(draw(COROUTINES))
    rounds: dict[str, list[Figures]] = {name: [] for name in systems}
    for at in range(ROUNDS):
        questions = draw(SERVED)
        for name in turns(systems, at):
            rounds[name].append(systems[name](questions))
    for name, figures in rounds.items():
        for metric, value in medians(figures).items():
            yield Row(name, case, metric, value)


def _threads(pool: ThreadPoolExecutor, search: Search, questions: Sequence[Asked], *, alone: bool) -> Figures:
    began = time.perf_counter()
    times = list(pool.map(partial(seconds, search), questions))
    served = {"queries/s": len(questions) / (time.perf_counter() - began)}
    return served if alone else {**served, **{name: percentiles(times)[name] for name in ("p50 ms", "p99 ms")}}


def _coroutines(search: Callable[[Asked], Awaitable[object]], questions: Sequence[Asked]) -> Figures:
    async def served() -> Figures:
        waiting, longest, searching = iter(questions), 0.0, True

        async def client() -> None:
            for asked in waiting:
                await search(asked)

        async def watch() -> None:
            nonlocal longest
            while searching:
                began = time.perf_counter()
                await asyncio.sleep(TICK)
                longest = max(longest, time.perf_counter() - began - TICK)

        watching = asyncio.create_task(watch())
        began = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(COROUTINES)))
        took, searching = time.perf_counter() - began, False
        await watching
        return {"queries/s": len(questions) / took, "longest stall ms": longest * 1e3}

    return asyncio.run(served())


def batches(collection: Collection) -> Iterator[Row]:
    """What a batch of questions gains by being searched together, beside the same questions one after the other."""
    packages, draw = collection.packages(CASES[0]), collection.drawn.questions
    settle()
    for name, package in packages.items():
        ways: dict[str, Callable[[Sequence[Asked]], object]] = {
            "one by one": lambda asked, search=package.search: list(map(search, asked)),
            "together": package.search_many,
        }
        for way in ways.values():
            way(draw(BATCH))
        rounds: list[Figures] = []
        for at in range(ROUNDS):
            took = {way: seconds(ways[way], draw(BATCH)) for way in turns(ways, at)}
            rates = {f"queries/s {way}": BATCH / one for way, one in took.items()}
            rounds.append({**rates, "together, times one by one": took["one by one"] / took["together"]})
        for metric, value in medians(rounds).items():
            yield Row(name, f"{collection.size:,} chunks, a batch of {BATCH}", metric, value)


class Framework(NamedTuple):
    """What a framework has of all that is compared: searches of its retrievers, which read what they give.

    `face` is over the package's channels, `pipeline` is what it searches, and `null` has its answer. Both `hybrid`, by
    depth and fusion, and `peer`, by depth, fuse the hits of two retrievers of the package.
    """

    name: str
    call: str
    face: Callable[[str], object]
    pipeline: Pipeline
    null: Callable[[str], object]
    hybrid: Callable[[int, RRF | None], Searched]
    peer_name: str
    peer: Callable[[int], Searched]


class NullLangChain(LangChainBase):
    """Has its answer."""

    found: list[Document]

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return self.found


class NullLlamaIndex(LlamaIndexBase):
    """Has its answer."""

    def __init__(self, found: list[NodeWithScore]) -> None:
        super().__init__()
        self.found = found

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self.found


def _reading(shown: Callable[[Any], object], search: Callable[[str], Any], asearch: Callable[[str], Any]) -> Searched:
    async def awaited(text: str) -> object:
        return shown(await asearch(text))

    return Searched(lambda text: shown(search(text)), awaited)


def in_langchain(collection: Collection) -> Framework:
    """LangChain, with the chunks as documents of its own."""
    documents = [Document(one.text, id=one.id, metadata=dict(one.metadata)) for one in collection.chunks]
    chunks = [langchain.chunk_of(document) for document in documents]
    parts = Parts.of(chunks, collection.matrix, collection.embedder)

    def searched(retriever: LangChainBase) -> Searched:
        def shown(found: Sequence[Document]) -> object:
            return [(one.id, one.page_content, one.metadata) for one in found]

        return _reading(shown, retriever.invoke, retriever.ainvoke)

    def two(depth: int) -> dict[str, Any]:
        dense = langchain.VectorRetriever(index=parts.vectors, embeddings=collection.embedder, k=depth)
        return {"bm25": langchain.BM25Retriever(bm25=parts.fresh_words(), k=depth), "dense": dense}

    def hybrid(depth: int, fusion: RRF | None) -> Searched:
        return searched(langchain.HybridRetriever(channels=two(depth), fusion=Fusion(fusion, depth=depth), k=K))

    def peer(depth: int) -> Searched:
        return searched(EnsembleRetriever(retrievers=list(two(depth).values()), weights=[0.5, 0.5], c=CONSTANT))

    face, twin = (langchain.HybridRetriever(channels=parts.channels(), k=K) for _ in range(2))
    null = NullLangChain(found=face.invoke(collection.drawn.questions(1)[0].text))
    alone = searched(face).search, twin.pipeline, searched(null).search
    return Framework("LangChain", "invoke", *alone, hybrid, "EnsembleRetriever", peer)


def in_llama_index(collection: Collection) -> Framework:
    """LlamaIndex, with the chunks as nodes of its own; its peer asks no model, and one retriever after the other."""
    nodes = [TextNode(id_=one.id, text=one.text, metadata=dict(one.metadata)) for one in collection.chunks]
    parts = Parts.of([chunk_of_node(node) for node in nodes], collection.matrix, collection.embedder)

    def searched(retriever: LlamaIndexBase) -> Searched:
        def shown(found: Sequence[NodeWithScore]) -> object:
            return [(one.node.node_id, one.node.get_content(), one.score, one.node.metadata) for one in found]

        return _reading(shown, retriever.retrieve, retriever.aretrieve)

    def two(depth: int) -> dict[str, Any]:
        dense = llama_index.VectorRetriever(parts.vectors, collection.embedder, k=depth)
        return {"bm25": llama_index.BM25Retriever(parts.fresh_words(), k=depth), "dense": dense}

    def hybrid(depth: int, fusion: RRF | None) -> Searched:
        return searched(llama_index.HybridRetriever(channels=two(depth), fusion=Fusion(fusion, depth=depth), k=K))

    def peer(depth: int) -> Searched:
        mode, given = FUSION_MODES.RECIPROCAL_RANK, list(two(depth).values())
        one = QueryFusionRetriever(given, MockLLM(), mode=mode, similarity_top_k=K, num_queries=1, use_async=False)
        return searched(one)

    face, twin = (llama_index.HybridRetriever(channels=parts.channels(), k=K) for _ in range(2))
    null = NullLlamaIndex(face.retrieve(collection.drawn.questions(1)[0].text))
    alone = searched(face).search, twin.pipeline, searched(null).search
    return Framework("LlamaIndex", "retrieve", *alone, hybrid, "QueryFusionRetriever", peer)


def faces(collection: Collection) -> Iterator[Row]:
    """What the retrievers of the frameworks cost, and what their own fusions take for the same."""
    for framework in (in_langchain(collection), in_llama_index(collection)):
        settle()
        yield from _face_rows(framework, collection)
        for depth in (K, DEPTH):
            yield from _peer_rows(framework, depth, collection)


def _face_rows(framework: Framework, collection: Collection) -> Iterator[Row]:
    systems: dict[str, Callable[[str], object]] = {
        "pipeline": lambda text: read(framework.pipeline.search(text, K)),
        "face": framework.face,
        "null": framework.null,
    }
    rounds = [spent(systems, [asked.text for asked in collection.drawn.questions(ASKED)]) for _ in range(ROUNDS + 1)]
    more = [[face - own for face, own in zip(one["face"], one["pipeline"], strict=True)] for one in rounds[1:]]
    case, metric = f"{K} hits", "CPU ms above the search p50"
    yield Row(f"{framework.name} {framework.call}", case, metric, median(median(one) for one in more) * 1e3)
    null = median(median(one["null"]) for one in rounds[1:]) * 1e3
    yield Row(f"{framework.name} {framework.call}, null retriever", case, metric, null)


def _peer_rows(framework: Framework, depth: int, collection: Collection) -> Iterator[Row]:
    """The first round warms up."""
    systems = {
        DEFAULT: framework.hybrid(depth, None),
        PLAIN: framework.hybrid(depth, RRF(k=CONSTANT)),
        framework.peer_name: framework.peer(depth),
    }
    rounds: dict[str, list[Figures]] = {name: [] for name in systems}
    for at in range(ROUNDS + 1):
        texts = [asked.text for asked in collection.drawn.questions(2 * SEARCHES)]
        for name in turns(systems, at):
            figures = _many(systems[name], texts)
            if at:
                rounds[name].append(figures)
    case, theirs = f"{depth} hits of each retriever", rounds.pop(framework.peer_name)
    for metric, value in medians(theirs).items():
        yield Row(framework.peer_name, case, metric, value)
    for name, ours in rounds.items():
        for metric, value in medians(ours).items():
            yield Row(f"{name}, {framework.name}", case, metric, value)
        for metric, value in ratios(ours, theirs).items():
            yield Row(f"{name} / {framework.peer_name}", case, metric, value)


def _many(searched: Searched, texts: Sequence[str]) -> Figures:
    async def at_once() -> None:
        await asyncio.gather(*(searched.asearch(text) for text in texts[:SEARCHES]))

    def one_by_one() -> None:
        for text in texts[SEARCHES:]:
            searched.search(text)

    return {
        f"{SEARCHES} at once, wall ms": seconds(lambda: asyncio.run(at_once())) * 1e3,
        f"{SEARCHES} one by one, wall ms": seconds(one_by_one) * 1e3,
    }


def first() -> Iterator[Row]:
    """The first search of a new process that finds no machine code on disk."""
    with TemporaryDirectory() as folder:
        save(Path(folder), FIRST_CHUNKS)
        for system in (HAND, DEFAULT):
            times = [_first(system, folder) for _ in range(FIRST_RUNS)]
            yield Row(system, f"first search, {FIRST_CHUNKS:,} chunks", "seconds", median(times))


def _first(system: str, folder: str) -> float:
    command = [sys.executable, "-m", "tests.benchmarks.frame_systems", system, folder]
    with TemporaryDirectory() as cache:
        env = {**os.environ, "NUMBA_CACHE_DIR": cache}
        run = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
        return float(json.loads(run.stdout))


if __name__ == "__main__":
    main([int(given) for given in sys.argv[1:] if given.isdigit()] or SIZES)
