"""Chroma as a vector index: it receives only vectors, never the text of a query."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from voicevault_retrievers._support.extras import require
from voicevault_retrievers.core.filters import Filter, both, compile_filter
from voicevault_retrievers.core.protocols import Embedder, Found
from voicevault_retrievers.core.rows import Rows
from voicevault_retrievers.core.types import Chunk, Vector
from voicevault_retrievers.core.vectors import embedded
from voicevault_retrievers.engines.filters import Chroma, translate
from voicevault_retrievers.errors import ConfigError, IncompatibleIndexError
from voicevault_retrievers.store import embedding
from voicevault_retrievers.store.manifest import EmbedderEntry

PRIVATE_KEY = "_voicevault"
"""The metadata key of what Chroma's own metadata cannot hold: the parent, and values that are not scalars."""

OTHERS_KEY = "_voicevault_others"
"""True where the metadata has a value that Chroma would compare differently: a list, or a non-finite number."""

EMBEDDER = "voicevault_embedder"
"""The key of a collection's metadata for the embedder that made its vectors."""

BATCH = 1000


class ChromaVectors:
    """A Chroma collection of cosine space. Scores are `1 - distance`, the cosine, higher is better.

    Chroma's search is approximate: at its defaults it can miss near neighbours. Filters keep this package's meaning:
    Chroma applies the part that it evaluates exactly, and the rest is tested on its results, requesting more until k
    pass or the collection is exhausted.
    """

    def __init__(self, collection: Any) -> None:
        self.collection = collection
        space = _space(collection)
        if space != "cosine":
            raise IncompatibleIndexError(
                f"the Chroma collection {collection.name!r} measures {space!r}; similarities need 'cosine': "
                "create it anew with configuration={'hnsw': {'space': 'cosine'}}, or search it as a vector store of "
                "its framework"
            )

    @classmethod
    def open(cls, path: Path | str, name: str) -> ChromaVectors:
        """The collection of this name in a folder; created, without an embedding function, where there is none."""
        if not isinstance(path, Path | str):
            raise ConfigError(f"a Chroma collection is kept in a folder, given as a path, not as {path!r}")
        chromadb = require("chromadb", extra="chroma")
        settings = chromadb.config.Settings(anonymized_telemetry=False)
        client = chromadb.PersistentClient(path=str(path), settings=settings)
        collection = client.get_or_create_collection(
            name, embedding_function=None, configuration={"hnsw": {"space": "cosine"}}
        )
        return cls(collection)

    def __len__(self) -> int:
        return int(self.collection.count())

    @property
    def dimension(self) -> int:
        """The length of the vectors; ConfigError while the collection is empty."""
        sample = self.collection.peek(1)["embeddings"]
        if sample is None or len(sample) == 0:
            raise ConfigError(
                f"the Chroma collection {self.collection.name!r} is empty: its dimension is not known yet"
            )
        return len(sample[0])

    def check_embedder(self, embedder: Embedder) -> None:
        """Raises IncompatibleIndexError where the collection records another embedder as the maker of its vectors."""
        told = (self.collection.metadata or {}).get(EMBEDDER)
        if told is not None:
            embedding.check(EmbedderEntry(**json.loads(told)), embedder, self.collection.name)

    def add(self, chunks: Iterable[Chunk], embedder: Embedder) -> None:
        """Embed and store chunks, except parents, replacing those with the same id.

        An empty collection records the embedder. Raises as `check_embedder` does, and EmbeddingError, naming the chunk,
        where its text has no vector.
        """
        batch = list(Rows.searched(chunks).chunks)
        self.check_embedder(embedder)
        known = self.collection.metadata or {}
        # Chroma refuses to change metadata that contains a distance setting, as other programs write it.
        if batch and EMBEDDER not in known and not any(key.startswith("hnsw:") for key in known) and not len(self):
            entry = json.dumps(asdict(embedding.describe(embedder)))
            self.collection.modify(metadata={**known, EMBEDDER: entry})
        for start in range(0, len(batch), BATCH):
            part = batch[start : start + BATCH]
            self.collection.upsert(
                ids=[chunk.id for chunk in part],
                embeddings=embedded(embedder, part).tolist(),
                documents=[chunk.text for chunk in part],
                metadatas=[_packed(chunk) for chunk in part],
            )

    def delete(self, ids: Sequence[str]) -> None:
        """Remove chunks; unknown ids are ignored."""
        if ids:
            self.collection.delete(ids=list(ids))

    def nearest(
        self, vector: Vector, k: int, *, where: Filter | None = None, require: Filter | None = None
    ) -> list[Found]:
        """At most k chunks that pass, by falling cosine, ties by ascending id."""
        wanted = both(require, where)
        passes = compile_filter(wanted)
        size = len(self)
        ask = min(k, size)
        while ask > 0:
            near = self._query(vector, ask, _native(wanted))
            found = [one for one in near if not one.chunk.is_parent and passes(one.chunk.metadata)]
            if len(found) >= k or len(near) < ask or ask >= size:
                return sorted(found, key=lambda entry: (-entry.score, entry.chunk.id))[:k]
            ask = min(2 * ask, size)
        return []

    def similarities(
        self, vector: Vector, ids: Sequence[str], *, where: Filter | None = None, require: Filter | None = None
    ) -> dict[str, float]:
        """The cosines of the given chunks that exist and pass the filters, computed from their stored vectors."""
        got = self._got(ids)
        if not got["ids"]:
            return {}
        passes = compile_filter(both(require, where))
        rows = np.asarray(got["embeddings"], dtype=np.float64)
        cosines = (rows * vector).sum(axis=1) / np.linalg.norm(rows, axis=1)
        found = zip(got["ids"], cosines.tolist(), got["metadatas"], strict=True)
        return {name: cosine for name, cosine, metadata in found if passes(_unpacked(name, "", metadata).metadata)}

    def vectors(self, ids: Iterable[str]) -> dict[str, Vector]:
        """The vectors, at length 1, of the given chunks that exist."""
        got = self._got(ids)
        if not got["ids"]:
            return {}
        rows = np.asarray(got["embeddings"], dtype=np.float32)
        return dict(zip(got["ids"], rows / np.linalg.norm(rows, axis=1, keepdims=True), strict=True))

    def _got(self, ids: Iterable[str]) -> Mapping[str, Any]:
        wanted = list(dict.fromkeys(ids))
        return self.collection.get(ids=wanted, include=["embeddings", "metadatas"]) if wanted else {"ids": []}

    def _query(self, vector: Vector, k: int, where: Mapping[str, Any] | None) -> list[Found]:
        got = self.collection.query(
            query_embeddings=[vector.tolist()],
            n_results=k,
            where=where,
            include=["documents", "metadatas", "distances"],
        )
        return [
            Found(_unpacked(chunk_id, text, metadata), 1.0 - float(distance))
            for chunk_id, text, metadata, distance in zip(
                got["ids"][0], got["documents"][0], got["metadatas"][0], got["distances"][0], strict=True
            )
        ]

    def __repr__(self) -> str:
        return f"ChromaVectors({self.collection.name!r})"


def _space(collection: Any) -> str:
    configuration = collection.configuration_json.get("hnsw") or collection.configuration_json.get("spann") or {}
    return str(configuration.get("space") or (collection.metadata or {}).get("hnsw:space") or "l2")


def _packed(chunk: Chunk) -> dict[str, Any]:
    keys = (key for key in chunk.metadata if key not in (PRIVATE_KEY, OTHERS_KEY))
    own = {key: chunk.metadata[key] for key in keys if _comparable(chunk.metadata[key])}
    rest = {key: value for key, value in chunk.metadata.items() if key not in own}
    try:
        told = {"parent_id": chunk.parent_id, "kb": chunk.kb, "metadata": rest, "header": chunk.header}
        private = json.dumps(told, ensure_ascii=False)
    except TypeError as error:
        raise ConfigError(
            f"the metadata of chunk {chunk.id!r} cannot be kept as JSON ({error}): use strings, numbers, booleans, "
            "None, and lists and dicts of these"
        ) from error
    others = {OTHERS_KEY: True} if any(isinstance(value, list | tuple | float) for value in rest.values()) else {}
    return {**own, **others, PRIVATE_KEY: private}


def _comparable(value: Any) -> bool:
    return isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))


def _unpacked(chunk_id: str, text: str | None, metadata: Mapping[str, Any] | None) -> Chunk:
    own = dict(metadata or {})
    private = json.loads(own.pop(PRIVATE_KEY, "{}"))
    own.pop(OTHERS_KEY, None)
    return Chunk(
        chunk_id,
        text or "",
        private.get("parent_id"),
        {**own, **private.get("metadata", {})},
        private.get("kb", ""),
        private.get("header", ""),
    )


def _native(where: Filter | None) -> dict[str, Any] | None:
    """The part of a filter that Chroma can apply: passes all chunks that the filter passes, and often more."""
    language = Chroma((PRIVATE_KEY, OTHERS_KEY))
    clause, _ = translate(where, language)
    return None if clause is None else language.some([clause, {OTHERS_KEY: True}])
