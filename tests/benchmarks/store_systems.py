"""The systems that the store benchmark compares, as one shape: each keeps chunks with their vectors in a folder.

Chroma measures cosines, and is at its defaults otherwise. LangChain's `index()` notes what it has indexed in SQLite. A
system's code is imported when the system is loaded: a process that opens one holds the code of no other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from voicevault_retrievers import Chunk, KnowledgeBase

K = 10
BATCH = 1_000
DIMENSION = 384
PACKAGES = ("voicevault-retrievers", "numpy", "PyStemmer", "chromadb", "langchain-core", "langchain-chroma")
COSINE: Any = {"hnsw": {"space": "cosine"}}
Search = Callable[[str], Sized]


class Lookup:
    """An embedder that computes nothing: each text's row, of length 1, was made before."""

    fingerprint = "lookup"
    dimension = DIMENSION

    def __init__(self, texts: Sequence[str], rows: NDArray[np.float32]) -> None:
        self._places = {text: at for at, text in enumerate(texts)}
        self._rows = rows

    def embed_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return self._rows[[self._places[text] for text in texts]]

    embed_queries = embed_documents


@dataclass(frozen=True)
class Store:
    """An open store: its kinds of search by name, and ways to change it, None where it has none.

    `again` takes all chunks there are, none of which has changed. `largest` is how many chunks `add` takes at most,
    `threads` whether several may call it at once.
    """

    searches: Mapping[str, Search]
    add: Callable[[Sequence[Chunk]], object]
    close: Callable[[], None]
    delete: Callable[[list[str]], object] | None = None
    again: Callable[[Sequence[Chunk]], None] | None = None
    largest: int | None = None
    threads: bool = True


Opens = Callable[[Path, Lookup], Store]


def loaded(system: str) -> Opens:
    """What opens a system's store in a folder, or makes one there."""
    return SYSTEMS[system]()


def _ours(**options: Any) -> Opens:
    knowledge_base = _knowledge_base()

    def opens(folder: Path, lookup: Lookup) -> Store:
        base = knowledge_base.open_or_create(folder / "base", embedder=lookup, **options)
        return Store(_searches(base), base.add, base.close, base.delete, partial(_replace, base))

    return opens


def _chroma() -> Opens:
    connect = _connect()

    def opens(folder: Path, lookup: Lookup) -> Store:
        client = connect(folder)
        collection = client.get_or_create_collection("chunks", embedding_function=None, configuration=COSINE)

        def add(chunks: Sequence[Chunk]) -> None:
            texts = [chunk.text for chunk in chunks]
            collection.add(
                ids=[chunk.id for chunk in chunks],
                embeddings=lookup.embed_documents(texts),
                documents=texts,
                metadatas=[dict(chunk.metadata) for chunk in chunks],
            )

        def search(text: str) -> Sized:
            found = collection.query(query_embeddings=lookup.embed_queries([text]), n_results=K)
            ids: list[str] = found["ids"][0]
            return ids

        return Store({"vector": search}, add, client.close, collection.delete, largest=client.get_max_batch_size())

    return opens


def _index_into_chroma() -> Opens:
    from langchain_chroma import Chroma
    from langchain_core.embeddings import Embeddings

    connect, index_into = _connect(), _index_into()

    class Lists(Embeddings):
        def __init__(self, lookup: Lookup) -> None:
            self._lookup = lookup

        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            rows: list[list[float]] = self._lookup.embed_documents(texts).tolist()
            return rows

        def embed_query(self, text: str) -> list[float]:
            return self.embed_documents([text])[0]

    def opens(folder: Path, lookup: Lookup) -> Store:
        client = connect(folder)
        store = Chroma("chunks", Lists(lookup), client=client, collection_configuration=COSINE)
        return index_into(store, folder, {"vector": partial(store.similarity_search, k=K)}, client.close)

    return opens


def _index_into_ours() -> Opens:
    from voicevault_retrievers.langchain import HybridIndex

    knowledge_base, index_into = _knowledge_base(), _index_into()

    def opens(folder: Path, lookup: Lookup) -> Store:
        base = knowledge_base.open_or_create(folder / "base", embedder=lookup)
        return index_into(HybridIndex(kb=base), folder, _searches(base), base.close)

    return opens


def _index_into() -> Callable[[Any, Path, Mapping[str, Search], Callable[[], None]], Store]:
    from langchain_classic.indexes import SQLRecordManager
    from langchain_core.documents import Document
    from langchain_core.indexing import index

    def opens(destination: Any, folder: Path, searches: Mapping[str, Search], close: Callable[[], None]) -> Store:
        records = SQLRecordManager("benchmark", db_url=f"sqlite:///{folder / 'records.sqlite3'}")
        records.create_schema()

        def add(chunks: Sequence[Chunk], **options: Any) -> int:
            documents = (Document(chunk.text, metadata=dict(chunk.metadata)) for chunk in chunks)
            done = index(documents, records, destination, batch_size=BATCH, key_encoder="blake2b", **options)
            return done["num_skipped"]

        def again(chunks: Sequence[Chunk]) -> None:
            _unchanged(add(chunks, cleanup="full"), len(chunks))

        return Store(searches, add, close, again=again, largest=BATCH, threads=False)

    return opens


def _knowledge_base() -> type[KnowledgeBase]:
    from voicevault_retrievers import KnowledgeBase

    return KnowledgeBase


def _connect() -> Callable[[Path], Any]:
    import chromadb

    return partial(chromadb.PersistentClient, settings=chromadb.config.Settings(anonymized_telemetry=False))


def _searches(base: KnowledgeBase) -> Mapping[str, Search]:
    return {"vector": lambda text: base.dense().search(text, K), "keyword": lambda text: base.bm25().search(text, K)}


def _replace(base: KnowledgeBase, chunks: Sequence[Chunk]) -> None:
    _unchanged(base.replace(chunks).unchanged, len(chunks))


def _unchanged(skipped: int, chunks: int) -> None:
    if skipped != chunks:
        raise ValueError(f"{chunks} chunks had not changed, and {skipped} were left as they are")


SYSTEMS: Mapping[str, Callable[[], Opens]] = {
    "ours": _ours,
    "ours int8": partial(_ours, vectors="int8"),
    "ours chroma": partial(_ours, vectors="chroma"),
    "Chroma": _chroma,
    "index() into ours": _index_into_ours,
    "index() into Chroma": _index_into_chroma,
}
