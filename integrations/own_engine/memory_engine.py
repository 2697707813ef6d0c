"""An engine in as few lines as one takes: collections in a dict. See docs/how-to/extending.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from threading import RLock
from typing import Any

import numpy as np

from voicevault_retrievers.core.execution.steps import Steps, asking
from voicevault_retrievers.core.filters import Filter, both, compile_filter
from voicevault_retrievers.core.protocols import Found
from voicevault_retrievers.core.types import Chunk, Vector
from voicevault_retrievers.engines.engine import Capabilities, Engine, Record, Stored
from voicevault_retrievers.engines.keywords import CollectionCounts, KeywordHit, Keywords, best, score, weigh
from voicevault_retrievers.engines.recipe import Recipe
from voicevault_retrievers.errors import SearchError

ONE_AT_A_TIME = RLock()


class Shelf:
    """What a collection holds."""

    def __init__(self, recipe: str) -> None:
        self.recipe = recipe
        self.records: dict[str, Record] = {}
        self.parents: dict[str, Chunk] = {}


class MemoryEngine(Engine):
    """Collections in a dict that is given; what it is asked are functions."""

    capabilities = Capabilities(exact_vectors=True, atomic=True, native_async=False)

    def __init__(self, name: str, *, shelves: dict[str, Shelf], **options: Any) -> None:
        super().__init__(name, **options)
        self._shelves = shelves

    def _now(self, ask: Any) -> Any:
        with ONE_AT_A_TIME:
            return ask()

    @property
    def shelf(self) -> Shelf:
        found, recipe = self._shelves.get(self.name), self._recipe
        if found is None or recipe is None or found.recipe != recipe.text():
            self.forget()
            raise SearchError(f"the collection {self.name!r} was removed or made anew: ask again")
        return found

    @property
    def held(self) -> dict[str, Record]:
        return self.shelf.records

    def _read_recipe(self) -> Steps[str | None]:
        return asking(lambda: self._shelves[self.name].recipe if self.name in self._shelves else None)

    def _create(self, recipe: Recipe) -> Steps[None]:
        yield lambda: self._shelves.setdefault(self.name, Shelf(recipe.text()))

    def _drop(self) -> Steps[None]:
        yield lambda: self._shelves.pop(self.name, None)

    def _digests(self, ids: Sequence[str]) -> Steps[Mapping[str, str]]:
        return asking(lambda: {one: self.held[one].digest for one in ids if one in self.held})

    def _write(self, records: Sequence[Record], parents: Sequence[Chunk]) -> Steps[None]:
        yield lambda: self._put(records, parents)

    def _put(self, records: Sequence[Record], parents: Sequence[Chunk]) -> None:
        before = [self.held[record.chunk.id] for record in records if record.chunk.id in self.held]
        self.held.update((record.chunk.id, record) for record in records)
        self._leave(before)
        self.shelf.parents.update((parent.id, parent) for parent in parents)

    def _remove(self, ids: Sequence[str]) -> Steps[int]:
        return asking(lambda: self._removed(ids))

    def _removed(self, ids: Sequence[str]) -> int:
        gone = [self.held.pop(one) for one in ids if one in self.held]
        self._leave(gone)
        return len(gone)

    def _leave(self, gone: Sequence[Record]) -> None:
        """Parents go with the last chunk that names them."""
        named = {record.chunk.parent_id for record in self.held.values()}
        for above in {record.chunk.parent_id for record in gone} - named - {None}:
            self.shelf.parents.pop(str(above), None)

    def _count(self) -> Steps[int]:
        return asking(lambda: len(self.held))

    def _get(self, ids: Sequence[str], parents: bool) -> Steps[Mapping[str, Chunk]]:
        return asking(lambda: {one: chunk for one, chunk in self._chunks(parents).items() if one in set(ids)})

    def _chunks(self, parents: bool) -> dict[str, Chunk]:
        return self.shelf.parents if parents else {one: record.chunk for one, record in self.held.items()}

    def _page(self, cursor: Any, limit: int, where: Filter | None = None) -> Steps[tuple[Sequence[Stored], Any]]:
        return asking(lambda: self._listed(cursor or 0, limit, where))

    def _listed(self, start: int, limit: int, where: Filter | None) -> tuple[Sequence[Stored], Any]:
        stored = sorted((record.chunk.id, record.digest) for record in self._records_of(where))
        page = [Stored(*each) for each in stored[start : start + limit]]
        return page, start + limit if start + limit < len(stored) else None

    def _records_of(self, where: Filter | None) -> list[Record]:
        passes = compile_filter(where)
        return [record for record in self.held.values() if passes(record.chunk.metadata)]

    def _population(self, asked: Keywords) -> Steps[CollectionCounts]:
        return asking(lambda: self._counted(asked))

    def _counted(self, asked: Keywords) -> CollectionCounts:
        counted = self._records_of(asked.counting)
        frequencies = Counter(term for record in counted for term in record.terms)
        length = sum(record.length for record in counted)
        return CollectionCounts(len(counted), length, frequencies, lambda: Counter(frequencies.values()).items())

    def _scored(self, asked: Keywords) -> Iterator[KeywordHit]:
        among = self._counted(asked)
        terms = weigh(asked, among)
        for record in self._records_of(asked.passing):
            found = score(asked.formula, terms, among.mean, record.terms, record.length)
            if found is not None:
                yield KeywordHit(record.chunk, *found)

    def _nearest(self, vector: Vector, k: int, where: Filter | None, require: Filter | None) -> Steps[Sequence[Found]]:
        return asking(lambda: self._near(vector.astype(np.float64), both(where, require))[:k])

    def _near(self, vector: Any, where: Filter | None) -> list[Found]:
        held = [(one.chunk, one.vector) for one in self._records_of(where)]
        found = [Found(chunk, float(np.float64(row) @ vector)) for chunk, row in held if row is not None]
        return sorted(found, key=lambda each: (-each.score, each.chunk.id))

    def _vectors(self, ids: Sequence[str]) -> Steps[Mapping[str, Vector]]:
        return asking(lambda: {one: row for one, row in self._rows().items() if one in set(ids)})

    def _rows(self) -> dict[str, Vector]:
        return {one: record.vector for one, record in self.held.items() if record.vector is not None}

    def _keywords(self, asked: Keywords, k: int) -> Steps[Sequence[KeywordHit]]:
        return asking(lambda: best(self._scored(asked), k, positive=asked.positive))

    def _keyword_scores(self, asked: Keywords, ids: Sequence[str]) -> Steps[Mapping[str, float]]:
        return asking(lambda: self._scores(asked, ids))

    def _scores(self, asked: Keywords, ids: Sequence[str]) -> dict[str, float]:
        scores = {hit.chunk.id: hit.score for hit in self._scored(asked)}
        passing = {record.chunk.id for record in self._records_of(asked.passing)}
        return {one: scores.get(one, 0.0) for one in ids if one in passing}

    def _tags(self, require: Filter | None) -> Steps[str]:
        return asking(lambda: "".join(sorted({term[0] for term in self._terms(require) if term < " "})))

    def _terms(self, where: Filter | None) -> set[str]:
        return {term for record in self._records_of(where) for term in record.terms}

    def sibling(self, suffix: str, **options: Any) -> MemoryEngine:
        given: dict[str, Any] = {"analyzer": self._given[0], "embedder": self._given[1], **options}
        return MemoryEngine(self.name + suffix, shelves=self._shelves, **given)

    def _close(self) -> None:
        """Nothing is open."""

    async def _aclose(self) -> None:
        """Nothing is open."""
