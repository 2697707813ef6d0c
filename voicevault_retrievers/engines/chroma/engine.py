"""Chroma as an engine: one collection holds vectors, texts and BM25 statistics, over HTTP or in this process."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

import numpy as np

from voicevault_retrievers._support.checks import header, whole
from voicevault_retrievers.core.execution.steps import Compute, Steps
from voicevault_retrievers.core.filters import Filter, Predicate, both, compile_filter
from voicevault_retrievers.core.protocols import Embedder, Found
from voicevault_retrievers.core.rows import Rows
from voicevault_retrievers.core.types import Chunk, Vector
from voicevault_retrievers.engines.chroma.clients import ChromaRequest, CollectionState, HttpChroma, LocalChroma
from voicevault_retrievers.engines.chroma.collection import OPEN, PAGE, PARENTS, STATE, ChromaCollection, replaced
from voicevault_retrievers.engines.chroma.records import id_of, native, terms_of
from voicevault_retrievers.engines.filters import nothing_passes
from voicevault_retrievers.engines.keywords import KeywordHit, Keywords
from voicevault_retrievers.engines.server import Capabilities
from voicevault_retrievers.errors import ConfigError, NotIndexedError
from voicevault_retrievers.lexical.index import LexicalIndex, TermScore
from voicevault_retrievers.store.analyzers import SavedAnalyzer
from voicevault_retrievers.text.analyzed_texts import Analyzed
from voicevault_retrievers.text.analyzer import AUTO

FEW = 100
"""Up to this many chunks that pass a filter are scored exactly: Chroma's HNSW graph may miss them."""

TRIES = 3
TIES = 1000
"""How many neighbours are requested at most to order equally near chunks by id."""

KEYWORD_LIMIT = 200_000
"""How many chunks a keyword search reads at most into its index, by default."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,490}[A-Za-z0-9]")


class _Held(NamedTuple):
    """The keyword index of a collection, with the collection state that it was built from."""

    stamp: tuple[str, Any, int]
    lexical: LexicalIndex


class ChromaEngine(ChromaCollection):
    """A Chroma collection, by its name, on the server at `url` or in the folder `path`; see `Engine`.

    Chroma searches the vectors approximately, so it may miss near neighbours; equally near chunks come by ascending id,
    except beyond the nearest 1000. Keywords are scored here, exactly, from the statistics in each chunk's metadata
    (`tokens`, `term_frequencies`, `doc_length`): the first keyword search after a write reads them all, and keeps an
    index of them in memory. In a collection of more than `keyword_limit` chunks it raises NotIndexedError.
    `avg_doc_length` is the average at the time of the batch, and is not used for scoring. Chroma never receives a word
    of a query.

    A folder is for one process at a time. Chunks and their parents are written by several requests, parents first.
    `token` is sent as `x-chroma-token`.
    """

    capabilities = Capabilities(exact_vectors=False, atomic=False, native_async=True)

    def __init__(
        self,
        name: str,
        *,
        url: str | None = None,
        path: Path | str | None = None,
        token: str | None = None,
        tenant: str = "default_tenant",
        database: str = "default_database",
        keyword_limit: int = KEYWORD_LIMIT,
        **options: Any,
    ) -> None:
        super().__init__(name, **options)
        if not _NAME.fullmatch(name) or PARENTS in name:
            raise ConfigError(
                f"a Chroma collection's name has 3 to 492 of the characters A-Z a-z 0-9 . _ - and begins and ends with "
                f"a letter or digit, not {name!r}"
            )
        if (url is None) == (path is None):
            raise ConfigError("say where the Chroma is: by the url of a server, or the path of a folder")
        self._where: dict[str, Any] = {"path": path}
        if url is not None:
            if not re.fullmatch(r"https?://[^/@?#]+", url):
                raise ConfigError("the url of a Chroma is like http://localhost:8000; a token is given as token=")
            if token is not None:
                header("token", token)
            self._where = {"url": url, "token": token, "tenant": tenant, "database": database}
            self._client = HttpChroma(url, timeout=self.timeout, token=token, tenant=tenant, database=database)
        else:
            self._client = LocalChroma(Path(path or "").absolute())
            self.capabilities = replace(self.capabilities, native_async=False)
        self.keyword_limit = whole("keyword_limit", keyword_limit)
        self._held: _Held | None = None

    def sibling(self, suffix: str, **options: Any) -> ChromaEngine:
        given: dict[str, Any] = {
            "embedder": self._given[1],
            "analyzer": self._given[0],
            "timeout": self.timeout,
            "limits": self._limits,
            "keyword_limit": self.keyword_limit,
        }
        return ChromaEngine(self.name + suffix, **{**self._where, **given, **options})

    def forget(self) -> None:
        super().forget()
        with self._mutex:
            self._held = None

    # What is searched.

    def _nearest(self, vector: Vector, k: int, where: Filter | None, require: Filter | None) -> Steps[Sequence[Found]]:
        wanted = both(require, where)
        passes = compile_filter(wanted)
        place = yield from self._here(same=True)
        if place is None or k <= 0 or nothing_passes(wanted):
            return []
        told = native(wanted)
        few = None if told is None else (yield from self._few(place, vector, told))
        if few is not None:
            return sorted((one for one in few if passes(one.chunk.metadata)), key=_order)[:k]
        size = int((yield ChromaRequest("count", self.name, place.key)))
        ask = min(2 * k, size)
        while ask > 0:
            near = yield from self._near(place, vector, ask, told)
            found = sorted((one for one in near if passes(one.chunk.metadata)), key=_order)
            if len(near) < ask and len(found) < k:
                return (yield from self._nearest_of_all(place, vector, k, told, passes))
            settled = len(found) >= k and (found[k - 1].score > near[-1].score or ask >= max(TIES, 2 * k))
            if settled or len(near) < ask or ask >= size:
                return found[:k]
            ask = min(4 * ask, size)
        return []

    def _few(self, place: CollectionState, vector: Vector, where: Any) -> Steps[list[Found] | None]:
        """All chunks that pass Chroma's part of the filter, with exact cosines; None where they are more than `FEW`."""
        options = {"where": where, "limit": FEW + 1, "include": []}
        passing = yield ChromaRequest("get", self.name, place.key, options)
        if len(passing["ids"]) > FEW:
            return None
        return (yield from self._compared(place, vector, passing["ids"]))

    def _nearest_of_all(
        self, place: CollectionState, vector: Vector, k: int, where: Any, passes: Predicate
    ) -> Steps[list[Found]]:
        """The nearest of all that pass, by comparing each: Chroma's index can miss many, as where vectors are equal."""
        passing = yield ChromaRequest("get", self.name, place.key, {"where": where, "include": []})
        found: list[Found] = []
        for start in range(0, len(passing["ids"]), PAGE):
            some = yield from self._compared(place, vector, passing["ids"][start : start + PAGE])
            found = sorted([*found, *(one for one in some if passes(one.chunk.metadata))], key=_order)[:k]
        return found

    def _compared(self, place: CollectionState, vector: Vector, keys: Sequence[str]) -> Steps[list[Found]]:
        """The chunks of some rows, with exact cosines."""
        got = yield from self._rows(place, [*map(id_of, keys)], ["documents", "metadatas", "embeddings"])
        if not got["ids"]:
            return []
        rows = np.asarray(got["embeddings"], dtype=np.float64)
        lengths = np.linalg.norm(rows, axis=1)
        products = (rows * vector.astype(np.float64)).sum(axis=1)  # not by BLAS, where equal rows can differ in a bit
        cosines = products / np.where(lengths, lengths, 1)
        chunks = self._chunks(got["ids"], got["documents"], got["metadatas"])
        return [Found(chunk, cosine) for chunk, cosine in zip(chunks, cosines.tolist(), strict=True)]

    def _near(self, place: CollectionState, vector: Vector, k: int, where: Any) -> Steps[list[Found]]:
        """The k nearest chunks that pass Chroma's part of the filter, nearest first."""
        options = {
            "query_embeddings": [vector.tolist()],
            "n_results": k,
            "where": where,
            "include": ["documents", "metadatas", "distances"],
        }
        got = yield ChromaRequest("query", self.name, place.key, options)
        chunks = self._chunks(got["ids"][0], got["documents"][0], got["metadatas"][0])
        scores = [min(1.0, 1.0 - float(distance)) for distance in got["distances"][0]]
        return [Found(chunk, score) for chunk, score in zip(chunks, scores, strict=True)]

    def _keywords(self, asked: Keywords, k: int) -> Steps[Sequence[KeywordHit]]:
        index = yield from self._index_as_asked()
        if index is None:
            return []
        hits: list[KeywordHit] = yield Compute(partial(asked.best_in, index, k))
        return hits

    def _keyword_scores(self, asked: Keywords, ids: Sequence[str]) -> Steps[Mapping[str, float]]:
        index = yield from self._index_as_asked()
        if index is None:
            return {}
        found: Mapping[str, float] = yield Compute(
            partial(index.scores, asked.terms, ids, asked.formula, **asked.filters)
        )
        return found

    def _coverage(self, asked: Keywords) -> Steps[float | None]:
        index = yield from self._index_as_asked()
        if index is None:
            return None
        told: float | None = yield Compute(partial(index.coverage, asked.terms, **asked.filters))
        return told

    def _parts(self, asked: Keywords, chunk: Chunk) -> Steps[list[TermScore]]:
        index = yield from self._index_as_asked()
        if index is None:
            return []
        parts: list[TermScore] = yield Compute(
            partial(index.explain, asked.terms, chunk.id, asked.formula, **asked.filters)
        )
        return parts

    def _tags(self, require: Filter | None) -> Steps[str]:
        if getattr(self._analyzer, "language", None) != AUTO:
            return ""  # terms of one language have no tags
        index = yield from self._index()
        if index is None:
            return ""
        tags: str = yield Compute(partial(index.tags, require))
        return tags

    def _index_as_asked(self) -> Steps[LexicalIndex | None]:
        """The keyword index; GoneError where the collection has been replaced by one with another recipe."""
        before = self._recipe
        index = yield from self._index()
        if index is not None and self._recipe != before:
            raise replaced(self.name)
        return index

    def _index(self) -> Steps[LexicalIndex | None]:
        """The keyword index of the collection as it is now; None where there is no collection.

        The index is cached where nothing was written during the read. A collection that keeps changing is read `TRIES`
        times; the last read is then searched, and not cached.
        """
        index: LexicalIndex | None = None
        for _ in range(TRIES):
            place = yield from self._here()
            if place is None:
                return None
            stamp = yield from self._stamp(place)
            held = self._held
            if held is not None and held.stamp == stamp:
                return held.lexical
            if stamp[2] > self.keyword_limit:
                raise NotIndexedError(
                    f"the Chroma collection {self.name!r} has {stamp[2]} chunks, and a keyword search would read them "
                    f"all into this process (keyword_limit={self.keyword_limit}): copy it into a knowledge base, "
                    "Qdrant, PostgreSQL or LanceDB (voicevault engine copy), or raise keyword_limit"
                )
            index = yield from self._scanned(place)
            after: CollectionState | None = yield ChromaRequest("find", self.name)
            if after is None or stamp != (yield from self._stamp(after)):
                continue
            if not after.metadata.get(OPEN):
                with self._mutex:
                    self._held = _Held(stamp, index)
            return index
        return index

    def _stamp(self, place: CollectionState) -> Steps[tuple[str, Any, int]]:
        return place.id, place.metadata.get(STATE), int((yield ChromaRequest("count", self.name, place.key)))

    def _scanned(self, place: CollectionState) -> Steps[LexicalIndex]:
        found: dict[str, tuple[Chunk, Sequence[str]]] = {}
        start = 0
        while True:
            options = {"limit": PAGE, "offset": start, "include": ["documents", "metadatas"]}
            got = yield ChromaRequest("get", self.name, place.key, options)
            found.update((yield Compute(partial(self._read, got))))
            if len(got["ids"]) < PAGE:
                index: LexicalIndex = yield Compute(partial(_built, found))
                return index
            start += PAGE

    def _read(self, got: Mapping[str, Any]) -> dict[str, tuple[Chunk, Sequence[str]]]:
        chunks = self._chunks(got["ids"], got["documents"], got["metadatas"])
        rows = zip(chunks, got["ids"], got["metadatas"], strict=True)
        return {chunk.id: (chunk, terms_of(key, row, self.name)) for chunk, key, row in rows}

    def __repr__(self) -> str:
        return f"ChromaEngine({self.name!r}, {self._client!r})"


def at(
    address: str, *, embedder: Embedder | None = None, analyzer: SavedAnalyzer | None = None, **options: Any
) -> ChromaEngine:
    """The collection at `chroma://[token@]host[:8000]/COLLECTION`, `chromas://` for TLS, `?tenant=` and `?database=`.

    `chroma+file:///FOLDER/COLLECTION` is a collection in a folder. Raises ConfigError for any other address.
    """
    try:
        parts = urlsplit(address)
        port, told = parts.port, dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
    except ValueError as error:
        raise _wrong() from error
    local = parts.scheme == "chroma+file"
    folder, _, name = parts.path.rpartition("/")
    known = () if local else ("tenant", "database")
    if parts.fragment or not name or any(key not in known for key in told) or parts.password is not None:
        raise _wrong()
    given: dict[str, Any] = {"embedder": embedder, "analyzer": analyzer, **told, **options}
    if local and not parts.netloc and folder:
        return ChromaEngine(unquote(name), path=unquote(folder), **given)
    if local or folder or not parts.hostname or parts.scheme not in ("chroma", "chromas"):
        raise _wrong()
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    url = f"{'https' if parts.scheme == 'chromas' else 'http'}://{host}:{port or 8000}"
    token = None if parts.username is None else unquote(parts.username)
    return ChromaEngine(unquote(name), url=url, **{"token": token, **given})


def _wrong() -> ConfigError:
    return ConfigError(
        "the address of a Chroma collection is like chroma://host:8000/COLLECTION, with a token before the host as "
        "token@ and ?tenant=...&database=... behind, or chroma+file:///FOLDER/COLLECTION"
    )


def _built(found: Mapping[str, tuple[Chunk, Sequence[str]]]) -> LexicalIndex:
    rows = Rows.of(chunk for chunk, _ in found.values())
    return LexicalIndex.build(rows, Analyzed.of(found[chunk_id][1] for chunk_id in rows.ids))


def _order(found: Found) -> tuple[float, str]:
    return -found.score, found.chunk.id
