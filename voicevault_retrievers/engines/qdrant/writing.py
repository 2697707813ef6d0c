"""Writes to a Qdrant collection."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from voicevault_retrievers.core.execution.steps import Steps
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.engines.engine import Record
from voicevault_retrievers.engines.qdrant import points, requests, statistics
from voicevault_retrievers.engines.qdrant.collection import PAGE, STATE_ID, Collection
from voicevault_retrievers.engines.qdrant.points import PARENT, VERSION
from voicevault_retrievers.engines.qdrant.statistics import State
from voicevault_retrievers.text.analyzed_texts import languages_of, tags_of

SETTLED = 1000
"""Weights are made anew whenever a collection has doubled, until this many chunks tell the mean length well."""


class WritableCollection(Collection):
    """The part of `QdrantEngine` that writes."""

    def _write(self, records: Sequence[Record], parents: Sequence[Chunk]) -> Steps[None]:
        self._vocabulary = None
        ids = [points.point_id(record.chunk.id) for record in records]
        state, gone = yield from self._held(ids)
        if not state.mean:
            yield from self._begin(records)
            state, gone = yield from self._held(ids)
        tags = set(tags_of(languages_of(chain.from_iterable(record.terms for record in records))))
        tags -= set(state.languages)
        told = requests.payload(STATE_ID, dict.fromkeys(statistics.language_keys("".join(tags)), True))
        rows = [requests.chunk_point(record, state.mean, self._made("prefix")) for record in records]
        rows += [requests.parent_point(parent) for parent in parents]
        yield from self._index(requests.metadata_indexes(records, self._made("indexes"), self._indexed))
        yield from self._batch(*([told] if tags else []), requests.upsert(rows))
        self._languages = "".join(sorted(tags.union(state.languages)))
        if records and state.weighed < SETTLED:
            sums = yield from self._sums(None)
            if sums.total >= 2 * state.weighed:
                yield from self._reweighing(sums)
        named = {record.chunk.parent_id for record in records} | {parent.id for parent in parents}
        yield from self._tidy({point.payload["parent"] for point in gone} - named)

    def _begin(self, records: Sequence[Record]) -> Steps[None]:
        """Store the state of a new collection, unless another writer has."""
        recipe = self._recipe
        if recipe is None:
            raise self._replaced()
        lengths = [record.length for record in records if record.length]
        mean = sum(lengths) / len(lengths) if lengths else 1.0
        digest = statistics.recipe_digest(recipe)
        told = {statistics.RECIPE: digest, statistics.MEAN_LENGTH: mean, statistics.WEIGHED: len(records)}
        state = requests.state_point(STATE_ID, told)
        yield from self._ask("upsert", points=[state], update_filter=requests.other_recipes(digest), wait=True)

    def _remove(self, ids: Sequence[str]) -> Steps[int]:
        self._vocabulary = None
        _, gone = yield from self._held([points.point_id(one) for one in ids])
        if not gone:
            return 0
        selector = [point.id for point in gone]
        yield from self._ask("delete", points_selector=requests.of_ids(selector), wait=True)
        yield from self._tidy({point.payload["parent"] for point in gone})
        return len(gone)

    def _held(self, ids: Sequence[str]) -> Steps[tuple[State, list[Any]]]:
        """The state, and the given points that exist, with their parents' ids."""
        found = yield from self._retrieve([STATE_ID, *ids], requests.without("text"))
        state = yield from self._checked(found.pop(STATE_ID, None))
        return state, list(found.values())

    def _tidy(self, parents: set[str | None]) -> Steps[None]:
        """Remove parents that no chunk names; restore those that a chunk names again meanwhile.

        Concurrent writes of a parent stay: only the version seen here is deleted, and it is restored only where there
        is none.
        """
        orphans = {one for one in parents if one is not None}
        orphans -= yield from self._named(orphans)
        if not orphans:
            return
        ids = [points.point_id(one, PARENT) for one in sorted(orphans)]
        kept = yield from self._retrieve(ids, True)
        versions = [one.payload[VERSION] for one in kept.values() if VERSION in one.payload]
        if not versions:
            return
        yield from self._ask("delete", points_selector=requests.of_versions(list(kept), versions), wait=True)
        again = yield from self._named(orphans)
        back = [requests.point(at, one.payload) for at, one in kept.items() if one.payload["id"] in again]
        if back:
            yield from self._ask("upsert", points=back, update_filter=requests.no_point(), wait=True)

    def _named(self, parents: set[str]) -> Steps[set[str]]:
        """The given parents that chunks name."""
        left, found = set(parents), set[str]()
        while left:
            page, _ = yield from self._scroll(requests.children(sorted(left)), PAGE, None, ["parent"])
            seen = {point.payload["parent"] for point in page}
            if not seen:
                break
            found |= seen
            left -= seen
        return found
