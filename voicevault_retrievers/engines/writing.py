"""Writing to an engine: upserts and deletions."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias

from numpy.typing import ArrayLike

from voicevault_retrievers._support.checks import id_list
from voicevault_retrievers.core.execution.steps import Compute, Steps
from voicevault_retrievers.core.filters import Filter, compile_filter, says_nothing
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.engines.recipe import Recipe
from voicevault_retrievers.engines.server import Record, Server, WriteCounts
from voicevault_retrievers.errors import ConfigError, SearchError
from voicevault_retrievers.lexical.analysis import analyse
from voicevault_retrievers.store import codec, embedding
from voicevault_retrievers.text import Analyzed

Progress: TypeAlias = Callable[[int, int], None]

BATCH = 500
"""The number of chunks in a batch; an interrupted upsert resumes after the last batch written."""


class WritableEngine(Server):
    """An engine with upserts and deletions of chunks."""

    def upsert(
        self,
        chunks: Iterable[Chunk],
        vectors: ArrayLike | None = None,
        *,
        parents: Iterable[Chunk] = (),
        progress: Progress | None = None,
    ) -> WriteCounts:
        """Write chunks, replacing those with the same id; unchanged chunks are left as they are.

        Chunks are written in batches of `BATCH`; after an interruption, the same call resumes. `vectors`, a row of
        length 1 per chunk, replaces embedding, and the vector that a chunk has. `parents`, and chunks whose
        `chunk_type` is "parent", are stored without a vector, not searched, and not counted. `progress` is told (done,
        total) of the chunks after each batch. Raises ConfigError for invalid chunks or vectors, before anything is
        written.
        """
        return self.run(self._upserting(chunks, vectors, parents, progress))

    async def aupsert(
        self,
        chunks: Iterable[Chunk],
        vectors: ArrayLike | None = None,
        *,
        parents: Iterable[Chunk] = (),
        progress: Progress | None = None,
    ) -> WriteCounts:
        """`upsert` on the running event loop."""
        return await self.arun(self._upserting(chunks, vectors, parents, progress))

    def delete(self, ids: Iterable[str] | None = None, *, where: Filter | None = None) -> int:
        """Delete chunks by ids or by a filter; returns how many. Parents are deleted with their last chunk.

        Raises ConfigError unless exactly one of the two is given, and for a filter with no condition (see `clear`).
        """
        return self.run(self._deleting(ids, where))

    async def adelete(self, ids: Iterable[str] | None = None, *, where: Filter | None = None) -> int:
        """`delete` on the running event loop."""
        return await self.arun(self._deleting(ids, where))

    def _deleting(self, ids: Iterable[str] | None, where: Filter | None) -> Steps[int]:
        if (ids is None) == (where is None):
            raise ConfigError("say which chunks to delete by ids or by where=...")
        if where is not None and says_nothing(where):
            raise ConfigError(f"where={where!r} has a part that says nothing: say what is to go, or use clear()")
        if not (yield from self._ready()):
            return 0
        wanted = list(dict.fromkeys(id_list(ids))) if ids is not None else (yield from self._passing(where))
        gone = 0
        for start in range(0, len(wanted), BATCH):
            gone += yield from self._remove(wanted[start : start + BATCH])
        return gone

    def _passing(self, where: Filter | None) -> Steps[list[str]]:
        passes, found = compile_filter(where), list[str]()
        cursor: Any = None
        while True:
            page, cursor = yield from self._page(cursor, BATCH, where)
            chunks = yield from self._get([entry.id for entry in page], False)
            found += [one for one, chunk in chunks.items() if passes(chunk.metadata)]
            if cursor is None:
                return found

    def _removing(self) -> Steps[None]:
        """Remove the collection, of whatever recipe."""
        if (yield from self._read_recipe()) is not None:
            yield from self._drop()
        self.forget()

    def _upserting(
        self,
        chunks: Iterable[Chunk],
        vectors: ArrayLike | None,
        parents: Iterable[Chunk],
        progress: Progress | None,
    ) -> Steps[WriteCounts]:
        every: list[Chunk] = yield Compute(partial(codec.kept, chunks, self.name, self._limits))
        given, own_parents = _parted(every)
        kept: list[Chunk] = yield Compute(partial(codec.kept, [*own_parents, *parents], self.name, self._limits))
        above = {parent.id: parent for parent in kept}
        if not given and not above:
            return WriteCounts()
        yield from self._ready()
        entry = (self._recipe or Recipe.of(*self._given, self._options)).embedder
        if entry is None and vectors is not None:
            raise ConfigError(f"collection {self.name!r} was made without an embedder and keeps no vectors")
        rows: Any = None
        if entry is not None and vectors is not None:
            rows = yield Compute(partial(embedding.given_rows, vectors, every, entry.dimension))
        yield from self._ready(create=True)
        if own_parents and (searched := (yield from self._digests([parent.id for parent in own_parents]))):
            yield from self._remove(list(searched))
        written = WriteCounts()
        for start in range(0, max(len(given), 1), BATCH):
            part = given[start : start + BATCH]
            own = None if rows is None else rows[start : start + len(part)]
            last = start + BATCH >= len(given)
            named = list(above) if last else [c.parent_id for c in part if c.parent_id is not None]
            new = yield from self._changed(part, own)
            records = yield from self._records(part, new, own)
            with_them = [above.pop(one) for one in dict.fromkeys(named) if one in above]
            if records or with_them:
                yield from self._write(records, with_them)
            there = sum(known for known in new.values())
            written = WriteCounts(
                written.added + len(new) - there, written.replaced + there, written.unchanged + len(part) - len(new)
            )
            if progress is not None:
                progress(start + len(part), len(given))
        return written

    def _changed(self, chunks: Sequence[Chunk], rows: Any) -> Steps[dict[str, bool]]:
        """The ids of chunks that are new or changed, also in their given vector, each with whether the id is there."""
        held = (yield from self._digests([chunk.id for chunk in chunks])) if chunks else {}
        changed = {c.id: c.id in held for c in chunks if held.get(c.id) != self.digest(c)}
        if rows is not None and (left := {c.id: rows[at] for at, c in enumerate(chunks) if c.id not in changed}):
            stored = yield from self._vectors(list(left))
            other = (one for one, row in left.items() if one not in stored or embedding.differ(row, stored[one]))
            changed |= dict.fromkeys(other, True)
        return changed

    def _records(self, chunks: Sequence[Chunk], new: Collection[str], rows: Any) -> Steps[list[Record]]:
        chosen = [at for at, chunk in enumerate(chunks) if chunk.id in new]
        if not chosen:
            return []
        written = [chunks[at] for at in chosen]
        embedder = (yield from self.embedding()) if rows is None else None
        if rows is not None:
            vectors: Any = [rows[at] for at in chosen]
        elif embedder is None:
            vectors = [None] * len(chosen)
        else:
            vectors = yield Compute(partial(embedding.embed, embedder, written, None))
        analyzed = yield Compute(partial(self._analysed, [chunk.indexed_text for chunk in written]))
        return [
            Record(chunks[at], vector, Counter(analyzed.document(number)), self.digest(chunks[at]))
            for number, (at, vector) in enumerate(zip(chosen, vectors, strict=True))
        ]

    def _analysed(self, texts: Sequence[str]) -> Analyzed:
        if self._analyzer is None:
            raise SearchError(f"collection {self.name!r} was removed while chunks were put into it: put them in again")
        return analyse(self._analyzer, texts)

    def digest(self, chunk: Chunk) -> str:
        """A digest of a chunk and of the embedder and analyzer of its vector and terms: 32 hexadecimal digits."""
        recipe = self._recipe
        made = "" if recipe is None else recipe.analyzer_fingerprint
        vector = "" if recipe is None or recipe.embedder is None else recipe.embedder.fingerprint
        told = b"\0".join([made.encode(), vector.encode(), codec.encode(chunk)])
        return hashlib.blake2b(told, digest_size=16).hexdigest()


def _parted(chunks: Sequence[Chunk]) -> tuple[list[Chunk], list[Chunk]]:
    """The chunks to be searched, and the parents."""
    parents = [chunk for chunk in chunks if chunk.is_parent]
    return [chunk for chunk in chunks if not chunk.is_parent], parents
