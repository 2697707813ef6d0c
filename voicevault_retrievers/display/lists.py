"""What each call of a search found, in order."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from voicevault_retrievers.core.execution.plan import AsyncObserver, Span
from voicevault_retrievers.core.telemetry import found_in
from voicevault_retrievers.core.types import Hit, Query, Ranking
from voicevault_retrievers.errors import told

MOST = 50
"""Hits of a list that are kept."""

MOST_BEFORE = 200
"""Ids that are kept of what a stage was given."""


class Lists(list[dict[str, Any]]):
    """What each call of a search found: `pipeline.search(query, observe=lists)` fills it, `alists` for `asearch`.

    The calls are in the order in which they began. An entry has `name`, `kind`, `query` and `hits` (`id`, `rank`,
    `score`), at most 50; a channel's call has one for each wording. A stage's has `before` too, the ids that it was
    given, in the order of the last list, where that is known. A rewriter's has `wordings`, and one that failed an
    `error`. A stage that gives scores instead of a list, as a cross-encoder does, has one entry; its hits are those
    that came to the next stage, or where there is none, to the result (`result_data` adds them).
    """

    def __init__(self) -> None:
        super().__init__()
        self._starts: list[float] = []
        self._found: list[tuple[str, list[str]]] = []
        self._asked: defaultdict[str, set[str]] = defaultdict(set)

    def __call__(self, span: Span, outcome: Any) -> None:
        """Note a call of the search and its outcome."""
        text = span.texts[0] if span.texts else ""
        if span.kind == "other":
            return
        if span.error is not None:
            self._add(span, " ".join(span.texts), error=told(span.error))
        elif isinstance(outcome, Query):
            wordings = dict.fromkeys([outcome.text, *(variant.text for variant in outcome.variants)])
            self._add(span, text, wordings=list(wordings))
        elif span.kind == "channel":
            self._note_channel(span, outcome)
        elif span.kind == "fusion" or isinstance(outcome, Ranking):
            self._note(span, text, outcome)
        elif isinstance(outcome, Sequence) and all(entry["name"] != span.name for entry in self):
            self._add(span, text, (), **self._before(()))

    def _note_channel(self, span: Span, outcome: Any) -> None:
        for text, found in zip(span.texts, outcome if isinstance(outcome, Sequence) else (), strict=False):
            self._add(span, text, found_in(found))
        self._asked[span.name].update(span.texts)
        self._found.append((span.name, _ids(outcome)))

    def _note(self, span: Span, text: str, outcome: Any) -> None:
        ids = _ids(outcome)
        if isinstance(outcome, Ranking):
            self[:] = [scored(entry, outcome.hits) for entry in self]
        self._add(span, text, found_in(outcome), **(self._before(ids) if span.kind == "stage" else {}))
        self._found.append(("", ids))

    def _before(self, ids: Iterable[str]) -> dict[str, list[str]]:
        """The last list that has all of these, unless several wordings made it, whose common order is not known."""
        left = set(ids)
        for name, known in reversed(self._found):
            if len(self._asked[name]) < 2 and left <= set(known):
                return {"before": known[:MOST_BEFORE]}
        return {}

    def _add(self, span: Span, query: str, found: Iterable[tuple[str, float | None]] = (), **more: Any) -> None:
        hits = [{"id": chunk_id, "rank": rank, "score": score} for rank, (chunk_id, score) in enumerate(found, 1)]
        at = bisect_right(self._starts, span.started)
        self._starts.insert(at, span.started)
        self.insert(at, {"name": span.name, "kind": span.kind, "query": query, "hits": hits[:MOST], **more})


def alists(lists: Lists) -> AsyncObserver:
    """What `asearch` takes to fill lists: `await pipeline.asearch(query, observe=alists(lists))`."""

    async def observe(span: Span, outcome: Any) -> None:
        lists(span, outcome)

    return observe


def scored(entry: Mapping[str, Any], hits: Iterable[Hit]) -> dict[str, Any]:
    """An entry; that of a stage which gave scores alone with hits, as its votes have them."""
    if entry["kind"] != "stage" or entry["hits"] or "error" in entry:
        return dict(entry)
    votes = [(vote.rank, hit.id, vote.score) for hit in hits if (vote := hit.vote(entry["name"])) and vote.rank]
    found = [{"id": chunk_id, "rank": rank, "score": score} for rank, chunk_id, score in sorted(votes)]
    return {**entry, "hits": found[:MOST]}


def _ids(outcome: Any) -> list[str]:
    return [chunk_id for chunk_id, _ in found_in(outcome)]
