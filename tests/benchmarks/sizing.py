"""What a chunk takes on disk and in memory on each engine that runs here: `python -m tests.benchmarks.sizing DATA`.

20,000 chunks of real text with 384 dimensions and three keys of metadata. Each engine is filled in one process and
opened in another, which searches it by words and by vectors. How much more that process grows with all chunks than with
a quarter of them is what chunks take of memory. Of a server it is the server that is asked, for disk. What is not
installed is left out. Rows for the table of many chunks are bytes a chunk, multiplied.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from tests.benchmarks.lexical_measure import isolated
from tests.benchmarks.results import Row, write
from tests.benchmarks.store_corpus import corpus
from tests.benchmarks.store_systems import DIMENSION, Lookup
from tests.engines.engines import SYSTEMS, PostgresServer, TextSearchServer, running
from voicevault_retrievers.engines.addresses import connect
from voicevault_retrievers.engines.embedded import EmbeddedEngine
from voicevault_retrievers.engines.engine import Engine
from voicevault_retrievers.text import Analyzer

COUNT = 20_000
MANY = (1_000_000, 10_000_000, 100_000_000)
QUESTION = "effects of vitamin D on the immune system"
NAME = "sizing"
PACKAGES = ("voicevault-retrievers", "numpy", "chromadb", "qdrant-client", "pymilvus", "milvus-lite", "pgvector")


class Engined(NamedTuple):
    """An engine that runs in this process, by the scheme of its address and where below a folder it lies."""

    title: str
    place: str


LOCAL = {
    "embedded": Engined("knowledge base", ""),
    "qdrant": Engined("Qdrant, local mode", "qdrant+file://{folder}/qdrant"),
    "chroma": Engined("Chroma, in a folder", "chroma+file://{folder}/chroma"),
    "milvus": Engined("Milvus Lite", "milvus+file://{folder}/milvus.db"),
    "lancedb": Engined("LanceDB", "lancedb://{folder}/lance"),
}
POSTGRES: Mapping[str, tuple[tuple[str, type[PostgresServer], dict[str, Any]], ...]] = {
    "postgres": (("PostgreSQL", PostgresServer, {}), ("PostgreSQL, halfvec", PostgresServer, {"half": True})),
    "postgres-bm25": (("PostgreSQL, pg_textsearch, halfvec", TextSearchServer, {"half": True}),),
}


def opened(address: str, folder: Path, **options: Any) -> Engine:
    """The collection, for words in English."""
    given = {"analyzer": Analyzer("en"), "timeout": 600.0, **options}
    if not address:
        return EmbeddedEngine(NAME, root=folder, **given)
    return connect(f"{address.format(folder=folder)}{'#' if address.startswith('postgresql') else '/'}{NAME}", **given)


def fill(address: str, folder: Path, data: Path, count: int, options: Mapping[str, Any]) -> float:
    """How many seconds it takes to put in so many chunks."""
    made = corpus(count, data)
    with closing(opened(address, folder, embedder=made.lookup, **options)) as engine:
        start = time.perf_counter()
        engine.upsert(made.chunks)
        took = time.perf_counter() - start
        if len(engine) != count:
            raise ValueError(f"{engine!r} holds {len(engine)} of {count} chunks")
        return took


def grown(address: str, folder: Path, data: Path) -> dict[str, float]:
    """How many bytes this process grows by, and how long a second search takes, in milliseconds."""
    made = corpus(1, data)
    lookup = Lookup([QUESTION], made.lookup.embed_documents([made.chunks[0].text]))
    for module in ("chromadb", "qdrant_client", "pymilvus", "milvus_lite.adapter.grpc.server"):
        if module.split(".")[0].split("_")[0] in address:
            import_module(module)
    before = psutil.Process().memory_info().rss
    with closing(opened(address, folder, embedder=lookup)) as engine:
        times = {}
        for kind in ("bm25", "dense"):
            for _ in range(2):
                start = time.perf_counter()
                if not getattr(engine, kind)().search(QUESTION, 10).ids:
                    raise ValueError(f"{engine!r} finds nothing by {kind}")
                times[f"{kind} search, ms"] = (time.perf_counter() - start) * 1e3
        return {"memory": float(psutil.Process().memory_info().rss - before), **times}


def used(folder: Path) -> int:
    """The bytes of all files."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def local(name: str, data: Path) -> Iterator[Row]:
    """Of an engine that runs in this process."""
    engine = LOCAL[name]
    taken: list[float] = []
    for count in (COUNT // 4, COUNT):
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            took = isolated(fill, engine.place, folder, data, count, {})
            disk = used(folder)
            figures = isolated(grown, engine.place, folder, data)
        taken.append(figures["memory"])
    few, all_of_them = taken
    memory = (all_of_them - few) * 4 / 3
    yield from rows(engine.title, {"seconds to fill": took, "disk": disk, **figures, "memory": memory})


def postgres(name: str, data: Path) -> Iterator[Row]:
    """Its tables and indexes, by PostgreSQL's own count; memory is what these take where all are to be in it."""
    for title, kind, options in POSTGRES[name]:
        with running(kind) as server, sized(server) as asked:
            address = f"postgresql://postgres@127.0.0.1:{server.port}/postgres"
            before = asked()
            took = isolated(fill, address, server.folder, data, COUNT, {"index_from": COUNT, **options})
            figures = isolated(grown, address, server.folder, data)
            yield from rows(title, {"seconds to fill": took, "disk": asked() - before, **figures, "memory": None})


@contextmanager
def sized(server: Any) -> Iterator[Any]:
    """A function that says how many bytes the database has."""
    psycopg = import_module("psycopg")
    with psycopg.connect(f"postgresql://postgres@127.0.0.1:{server.port}/postgres", autocommit=True) as connection:

        def size() -> int:
            connection.execute("CHECKPOINT")
            return int(connection.execute("SELECT pg_database_size(current_database())").fetchone()[0])

        yield size


def rows(system: str, figures: Mapping[str, float | None]) -> Iterator[Row]:
    """The figures of 20,000 chunks, and what a chunk takes of disk and memory."""
    for metric, value in figures.items():
        if value is not None and metric in ("disk", "memory"):
            yield Row(system, f"{COUNT:,}", f"bytes a chunk, {metric}", value / COUNT)
            for many in MANY:
                yield Row(system, f"{many // 1_000_000:,} million", f"GB of {metric}", value / COUNT * many / 1e9)
        elif value is not None:
            yield Row(system, f"{COUNT:,}", metric, value)


def formulas(text: float) -> Iterator[Row]:
    """What the makers' own formulas say of as many vectors, and of texts of so many bytes."""
    vector = 4 * DIMENSION
    per = {
        "Qdrant, vectors in memory": vector * 1.5,
        "Qdrant, int8 in memory": (vector / 4) * 1.5,
        "Qdrant, payload on disk": text * 1.5,
        "Chroma, vectors": float(vector),
        "pgvector, vector": vector + 8.0,
        "pgvector, halfvec": vector / 2 + 8.0,
    }
    for system, size in per.items():
        yield Row(system, "formula", "bytes a chunk", size)
        for many in MANY:
            yield Row(system, "formula", f"GB of {many // 1_000_000:,} million", size * many / 1e9)


def main(data: Path, names: list[str]) -> None:
    """Measure the named engines, or all; figures of others that were measured before stay."""
    made = corpus(COUNT, data)
    text = sum(len(chunk.text.encode()) for chunk in made.chunks) / COUNT
    found = [Row("text", f"{COUNT:,}", "bytes a chunk, disk", text), *formulas(text)]
    for name in names or [*LOCAL, *POSTGRES]:
        missing = SYSTEMS[name].missing()
        if missing:
            sys.stderr.write(f"{name} is left out: it needs {missing}\n")
            continue
        found += postgres(name, data) if name in POSTGRES else local(name, data)
        for row in found[-12:]:
            sys.stderr.write(f"{row}\n")
    sys.stderr.write(f"{write('sizing', found, PACKAGES, merge=True)}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
