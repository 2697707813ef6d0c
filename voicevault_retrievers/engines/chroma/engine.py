"""Chroma as an engine: one collection holds vectors, texts and BM25's statistics, over HTTP or in this process."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit
from uuid import uuid4

import numpy as np

from voicevault_retrievers.engines.chroma.clients import Ask, GoneError, HttpChroma, LocalChroma, Place
from voicevault_retrievers.engines.chroma.records import (
    NO_VECTOR,
    PARENT_KEY,
    id_of,
    key_of,
    native,
    packed,
    private_of,
    replacing,
    requests,
    row_of,
    terms_of,
    text_of,
    unpacked,
)
from voicevault_retrievers.engines.engine import Engine
from voicevault_retrievers.engines.keywords import KeywordHit, Keywords
from voicevault_retrievers.engines.languages import MAX_CONDITIONS, nothing_passes
from voicevault_retrievers.engines.recipe import Recipe
from voicevault_retrievers.engines.records import Capabilities, Record, Stored, Written
from voicevault_retrievers.engines.steps import Steps, Work, in_thread
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.filters import Filter, both, compile_filter
from voicevault_retrievers.lexical.index import LexicalIndex
from voicevault_retrievers.protocols import Embedder, Found
from voicevault_retrievers.rows import Rows
from voicevault_retrievers.store.analyzers import SavedAnalyzer
from voicevault_retrievers.text.analyzed import Analyzed
from voicevault_retrievers.text.analyzer import AUTO
from voicevault_retrievers.types import Chunk, Vector

RECIPE, STATE, OPEN = "voicevault_recipe", "voicevault_state", "voicevault_open"
CHUNKS, LENGTH = "voicevault_chunks", "voicevault_length"
"""What the collection's own metadata have: how it was made; a name for what it holds, another after each write;
whether a write is under way; how many chunks have been written in all, and how many terms."""

PARENTS = ".voicevault.parents"
"""What the collection of the parents has behind the name."""

PAGE = 1000
FEW = 100
"""So many chunks are compared one by one where a filter leaves no more: Chroma's graph of neighbours may miss them."""

TRIES = 3
TIES = 1000
"""How many of the nearest are asked for to tell which of equally near ones have the smallest ids."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,490}[A-Za-z0-9]")


class _Held(NamedTuple):
    """The keyword index of a collection: of which state, and with how many chunks."""

    stamp: tuple[str, Any, int]
    lexical: LexicalIndex


class ChromaEngine(Engine):
    """The collection of this name in a Chroma: at the `url` of a server, or in the folder `path`; see `Engine`.

    Its vectors are searched by Chroma, which may miss near neighbours; equally near ones come by ascending id, but for
    those beyond the nearest 1000. Keywords are scored here, exactly, from the statistics that each chunk's metadata
    have (`tokens`, `term_frequencies`, `doc_length`): the first keyword search after a write reads them all, and keeps
    an index of them in memory. So a collection of more than a million chunks belongs in another engine.
    `avg_doc_length` is as of the batch that wrote it, and nothing is scored by it. No word of a query is sent.

    A folder is for one process at a time. Chunks and their parents are written by several requests, parents first.
    `token` is sent as `x-chroma-token`.
    """

    capabilities = Capabilities(exact_keywords=True, exact_vectors=False, atomic=False, native_async=True)

    def __init__(
        self,
        name: str,
        *,
        url: str | None = None,
        path: Path | str | None = None,
        token: str | None = None,
        tenant: str = "default_tenant",
        database: str = "default_database",
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
        self._client: HttpChroma | LocalChroma
        if url is not None:
            if not re.fullmatch(r"https?://[^/@?#]+", url):
                raise ConfigError("the url of a Chroma is like http://localhost:8000; a token is given as token=")
            self._where = {"url": url, "token": token, "tenant": tenant, "database": database}
            self._client = HttpChroma(url, timeout=self.timeout, token=token, tenant=tenant, database=database)
        else:
            self._client = LocalChroma(Path(path or "").absolute())
            self.capabilities = replace(self.capabilities, native_async=False)
        self._id: str | None = None
        self._held: _Held | None = None

    def sibling(self, suffix: str, **options: Any) -> ChromaEngine:
        given: dict[str, Any] = {
            "embedder": self._given[1],
            "analyzer": self._given[0],
            "timeout": self.timeout,
            "limits": self._limits,
        }
        return ChromaEngine(self.name + suffix, **{**self._where, **given, **options})

    def _close(self) -> None:
        self._client.close()

    async def _aclose(self) -> None:
        await self._client.aclose()

    def forget(self) -> None:
        super().forget()
        with self._mutex:
            self._id = self._held = None

    def _now(self, ask: Any) -> Any:
        return self._client.ask(ask)

    async def _later(self, ask: Any) -> Any:
        if self._client.native_async:
            return await self._client.aask(ask)
        return await in_thread(partial(self._now, ask))

    # The collection.

    def _read_recipe(self) -> Steps[str | None]:
        place: Place | None = yield Ask("find", self.name)
        if place is None:
            return None
        with self._mutex:
            self._id = place.id
        return str(place.metadata.get(RECIPE, ""))

    def _create(self, recipe: Recipe) -> Steps[None]:
        metadata = {RECIPE: recipe.text(), STATE: uuid4().hex, OPEN: False, CHUNKS: 0, LENGTH: 0}
        yield Ask("create", self.name, options={"metadata": metadata})

    def _drop(self) -> Steps[None]:
        yield Ask("drop", self.name + PARENTS)
        yield Ask("drop", self.name)

    def _here(self, create: bool = False) -> Steps[Place | None]:
        """The collection as it is now; `create` makes it again, as it was, where it is gone.

        Raises GoneError where it is to be written to and another, made in another way, has taken its place.
        """
        place: Place | None = yield Ask("find", self.name)
        if place is None and create and self._recipe is not None:
            yield from self._create(self._recipe)
            place = yield Ask("find", self.name)
        if place is None or place.id == self._id:
            return place
        if Recipe.parse(str(place.metadata.get(RECIPE, "")), self.name) != self._recipe:
            self.forget()
            if create:
                raise _replaced(self.name)
            yield from self._ready()
        with self._mutex:
            self._id = place.id
        return place

    # What is written.

    def _upserting(self, chunks: Any, vectors: Any, parents: Any, progress: Any) -> Steps[Written]:
        written = yield from super()._upserting(chunks, vectors, parents, progress)
        place: Place | None = None if self._recipe is None else (yield Ask("find", self.name))
        if place is not None and place.metadata.get(OPEN):  # left so by a writer that was killed
            yield _marked(place, self.name, open=False)
        return written

    def _digests(self, ids: Sequence[str]) -> Steps[Mapping[str, str]]:
        place = yield from self._here(create=True)
        if place is None:
            return {}
        got = yield from self._rows(place, ids, ["metadatas"])
        rows = zip(got["ids"], got["metadatas"], strict=True)
        return {id_of(key): str(private_of(key, row, self.name)["digest"]) for key, row in rows}

    def _write(self, records: Sequence[Record], parents: Sequence[Chunk]) -> Steps[None]:
        place = yield from self._here(create=True)
        if place is None:
            raise GoneError(f"the collection {self.name!r} is removed as soon as it is made: ask again")
        if parents:
            yield from self._write_parents(parents)
        if not records:
            return
        yield _marked(place, self.name, open=True)
        chunks = int(place.metadata.get(CHUNKS, 0)) + len(records)
        length = int(place.metadata.get(LENGTH, 0)) + sum(record.length for record in records)
        for part in requests(records):
            held = yield from self._rows(place, [record.chunk.id for record in part], ["metadatas"])
            before = dict(zip(held["ids"], held["metadatas"], strict=True))
            rows = [
                replacing(row_of(record, length / chunks), before.get(key_of(record.chunk.id)) or {}) for record in part
            ]
            vectors = [list(NO_VECTOR) if r.vector is None else r.vector.tolist() for r in part]
            yield self._put(place.key, [record.chunk for record in part], vectors, rows)
        yield _marked(place, self.name, open=False, chunks=chunks, length=length)

    def _write_parents(self, parents: Sequence[Chunk]) -> Steps[None]:
        yield Ask("create", self.name + PARENTS, options={"metadata": {"voicevault_parents_of": self.name}})
        place: Place | None = yield Ask("find", self.name + PARENTS)
        if place is None:
            raise GoneError(f"the parents of {self.name!r} are removed as soon as they are made: ask again")
        yield self._put(place.key, parents, [list(NO_VECTOR)] * len(parents), [packed(parent) for parent in parents])

    def _put(self, key: Any, chunks: Sequence[Chunk], vectors: Sequence[Any], rows: Sequence[Any]) -> Ask:
        options = {
            "ids": [key_of(chunk.id) for chunk in chunks],
            "embeddings": vectors,
            "documents": [text_of(chunk) for chunk in chunks],
            "metadatas": rows,
        }
        return Ask("upsert", self.name, key, options)

    def _remove(self, ids: Sequence[str]) -> Steps[int]:
        place = yield from self._here()
        if place is None:
            return 0
        got = yield from self._rows(place, ids, ["metadatas"])
        if not got["ids"]:
            return 0
        yield _marked(place, self.name, open=True)
        yield Ask("delete", self.name, place.key, {"ids": got["ids"]})
        yield _marked(place, self.name, open=False)
        parents = {row[PARENT_KEY] for row in got["metadatas"] if PARENT_KEY in row}
        yield from self._remove_parents(place, sorted(parents))
        return len(got["ids"])

    def _remove_parents(self, place: Place, parents: Sequence[str]) -> Steps[None]:
        """Those that no chunk names."""
        held: Place | None = (yield Ask("find", self.name + PARENTS)) if parents else None
        for start in range(0, len(parents) if held else 0, MAX_CONDITIONS):
            some = list(parents[start : start + MAX_CONDITIONS])
            where = {PARENT_KEY: {"$in": some}}
            got = yield Ask("get", self.name, place.key, {"where": where, "include": ["metadatas"]})
            left = sorted({*some} - {row[PARENT_KEY] for row in got["metadatas"]})
            if held and left:
                yield Ask("delete", self.name + PARENTS, held.key, {"ids": left})

    # What is read.

    def _count(self) -> Steps[int]:
        place = yield from self._here()
        return 0 if place is None else int((yield Ask("count", self.name, place.key)))

    def _get(self, ids: Sequence[str], parents: bool) -> Steps[Mapping[str, Chunk]]:
        place: Place | None = (yield Ask("find", self.name + PARENTS)) if parents else (yield from self._here())
        if place is None:
            return {}
        got = yield from self._rows(place, ids, ["documents", "metadatas"])
        return {chunk.id: chunk for chunk in self._chunks(got["ids"], got["documents"], got["metadatas"])}

    def _page(self, cursor: Any, limit: int) -> Steps[tuple[Sequence[Stored], Any]]:
        place = yield from self._here()
        if place is None:
            return (), None
        start = int(cursor or 0)
        got = yield Ask("get", self.name, place.key, {"limit": limit, "offset": start, "include": ["metadatas"]})
        rows = zip(got["ids"], got["metadatas"], strict=True)
        page = [Stored(id_of(key), str(private_of(key, row, self.name)["digest"])) for key, row in rows]
        return page, start + limit if len(page) == limit else None

    def _vectors(self, ids: Sequence[str]) -> Steps[Mapping[str, Vector]]:
        place = yield from self._here()
        if place is None or self._recipe is None or self._recipe.embedder is None or not ids:
            return {}
        got = yield from self._rows(place, ids, ["embeddings"])
        if not got["ids"]:
            return {}
        rows = np.asarray(got["embeddings"], dtype=np.float32)
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        rows /= np.where(lengths, lengths, 1)
        return dict(zip(map(id_of, got["ids"]), rows, strict=True))

    def _rows(self, place: Place, ids: Sequence[str], include: Sequence[str]) -> Steps[Any]:
        """The rows of given chunks that are here, of each what is named."""
        wanted = list(dict.fromkeys(map(key_of, ids)))
        found: dict[str, list[Any]] = {name: [] for name in ("ids", *include)}
        for start in range(0, len(wanted), PAGE):
            options = {"ids": wanted[start : start + PAGE], "include": list(include)}
            got = yield Ask("get", self.name, place.key, options)
            for name, rows in found.items():
                rows.extend(got[name])
        return found

    def _chunks(self, keys: Sequence[str], texts: Sequence[Any], rows: Sequence[Any]) -> list[Chunk]:
        return [unpacked(*one, self.name) for one in zip(keys, texts, rows, strict=True)]

    # What is searched.

    def _nearest(self, vector: Vector, k: int, where: Filter | None, require: Filter | None) -> Steps[Sequence[Found]]:
        wanted = both(require, where)
        passes = compile_filter(wanted)
        place = yield from self._here()
        if place is None or k <= 0 or nothing_passes(wanted):
            return []
        told = native(wanted)
        few = None if told is None else (yield from self._few(place, vector, told))
        if few is not None:
            return sorted((one for one in few if passes(one.chunk.metadata)), key=_order)[:k]
        size = int((yield Ask("count", self.name, place.key)))
        ask = min(2 * k, size)
        while ask > 0:
            near = yield from self._near(place, vector, ask, told)
            found = sorted((one for one in near if passes(one.chunk.metadata)), key=_order)
            everything = len(near) < ask or ask >= size
            if everything or (len(found) >= k and (found[k - 1].score > near[-1].score or ask >= max(TIES, 2 * k))):
                return found[:k]
            ask = min(4 * ask, size)
        return []

    def _few(self, place: Place, vector: Vector, where: Any) -> Steps[list[Found] | None]:
        """All that pass what Chroma is told, with their exact cosines; None where they are more than `FEW`."""
        options = {"where": where, "limit": FEW + 1, "include": []}
        passing = yield Ask("get", self.name, place.key, options)
        if len(passing["ids"]) > FEW:
            return None
        got = yield from self._rows(place, [*map(id_of, passing["ids"])], ["documents", "metadatas", "embeddings"])
        if not got["ids"]:
            return []
        rows = np.asarray(got["embeddings"], dtype=np.float64)
        lengths = np.linalg.norm(rows, axis=1)
        cosines = rows @ vector.astype(np.float64) / np.where(lengths, lengths, 1)
        chunks = self._chunks(got["ids"], got["documents"], got["metadatas"])
        return [Found(chunk, cosine) for chunk, cosine in zip(chunks, cosines.tolist(), strict=True)]

    def _near(self, place: Place, vector: Vector, k: int, where: Any) -> Steps[list[Found]]:
        """The k nearest of those that pass what Chroma is told, nearest first."""
        options = {
            "query_embeddings": [vector.tolist()],
            "n_results": k,
            "where": where,
            "include": ["documents", "metadatas", "distances"],
        }
        got = yield Ask("query", self.name, place.key, options)
        chunks = self._chunks(got["ids"][0], got["documents"][0], got["metadatas"][0])
        scores = [min(1.0, 1.0 - float(distance)) for distance in got["distances"][0]]
        return [Found(chunk, score) for chunk, score in zip(chunks, scores, strict=True)]

    def _keywords(self, asked: Keywords, k: int) -> Steps[Sequence[KeywordHit]]:
        index = yield from self._index_as_asked()
        if index is None:
            return []
        options = {**_filters(asked), "positive": asked.positive}
        hits = yield Work(partial(index.search, asked.terms, k, asked.formula, **options))
        return [KeywordHit(hit.chunk, hit.score, hit.terms) for hit in hits]

    def _keyword_scores(self, asked: Keywords, ids: Sequence[str]) -> Steps[Mapping[str, float]]:
        index = yield from self._index_as_asked()
        if index is None:
            return {}
        found: Mapping[str, float] = yield Work(
            partial(index.scores, asked.terms, ids, asked.formula, **_filters(asked))
        )
        return found

    def _tags(self, require: Filter | None) -> Steps[str]:
        if getattr(self._analyzer, "language", None) != AUTO:
            return ""  # its terms have none
        index = yield from self._index()
        if index is None:
            return ""
        tags: str = yield Work(partial(index.tags, require=require))
        return tags

    def _index_as_asked(self) -> Steps[LexicalIndex | None]:
        """The index; GoneError where the collection is another now, whose words another analyzer made."""
        before = self._recipe
        index = yield from self._index()
        if index is not None and self._recipe != before:
            raise _replaced(self.name)
        return index

    def _index(self) -> Steps[LexicalIndex | None]:
        """The keyword index of the collection as it is now; None where there is none.

        It is kept where nothing was written while it was read. Of a collection that is written all the while it is read
        `TRIES` times, and searched as it was then.
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
            index = yield from self._scanned(place)
            after: Place | None = yield Ask("find", self.name)
            if after is None or stamp != (yield from self._stamp(after)):
                continue
            if not after.metadata.get(OPEN):
                with self._mutex:
                    self._held = _Held(stamp, index)
            return index
        return index

    def _stamp(self, place: Place) -> Steps[tuple[str, Any, int]]:
        return place.id, place.metadata.get(STATE), int((yield Ask("count", self.name, place.key)))

    def _scanned(self, place: Place) -> Steps[LexicalIndex]:
        found: dict[str, tuple[Chunk, Sequence[str]]] = {}
        start = 0
        while True:
            options = {"limit": PAGE, "offset": start, "include": ["documents", "metadatas"]}
            got = yield Ask("get", self.name, place.key, options)
            found.update((yield Work(partial(self._read, got))))
            if len(got["ids"]) < PAGE:
                index: LexicalIndex = yield Work(partial(_built, found))
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

    `chroma+file:///FOLDER/COLLECTION` is one in a folder. Raises ConfigError for any other address.
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


def _replaced(name: str) -> GoneError:
    return GoneError(f"the collection {name!r} has been replaced by another meanwhile: ask again")


def _wrong() -> ConfigError:
    return ConfigError(
        "the address of a Chroma collection is like chroma://host:8000/COLLECTION, with a token before the host as "
        "token@ and ?tenant=...&database=... behind, or chroma+file:///FOLDER/COLLECTION"
    )


def _marked(place: Place, name: str, *, open: bool, chunks: int | None = None, length: int | None = None) -> Ask:
    """The collection's metadata with another name for what it holds."""
    said = {CHUNKS: chunks, LENGTH: length}
    own = {**place.metadata, **{key: value for key, value in said.items() if value is not None}}
    return Ask("mark", name, place.key, {"metadata": {**own, STATE: uuid4().hex, OPEN: open}})


def _built(found: Mapping[str, tuple[Chunk, Sequence[str]]]) -> LexicalIndex:
    rows = Rows.of(chunk for chunk, _ in found.values())
    return LexicalIndex.build(rows, Analyzed.of(found[chunk_id][1] for chunk_id in rows.ids))


def _filters(asked: Keywords) -> dict[str, Any]:
    return {"where": asked.where, "require": asked.require, "filtered": asked.filtered}


def _order(found: Found) -> tuple[float, str]:
    return -found.score, found.chunk.id
