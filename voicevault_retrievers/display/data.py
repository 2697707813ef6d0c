"""Hits, results and the calls of a search as plain data that fits into JSON, for notebooks and the inspector."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any

from voicevault_retrievers._support.characters import encodable
from voicevault_retrievers.answers import header
from voicevault_retrievers.answers.citations import citation_of
from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.core.execution.plan import AsyncObserver, Span
from voicevault_retrievers.core.explanation import finite, wordings
from voicevault_retrievers.core.tracing import found_in
from voicevault_retrievers.core.types import Failure, Hit, Query, Ranking, Result, Vote
from voicevault_retrievers.display.marking import marked
from voicevault_retrievers.errors import told
from voicevault_retrievers.errors import told as told_of_error
from voicevault_retrievers.lexical.analysis import AnyAnalyzer
from voicevault_retrievers.rerank.calibration import Confidence
from voicevault_retrievers.rerank.grouping import copies_of
from voicevault_retrievers.rerank.relevance import is_irrelevant

MOST = 50
"""The most hits of a list that are kept."""

MOST_BEFORE = 200
"""The most input ids of a stage that are kept."""


class Lists(list[dict[str, Any]]):
    """What each call of a search found: `pipeline.search(query, observe=lists)` fills it, `alists` for `asearch`.

    The calls are in the order of their start. An entry has `name`, `kind`, `query` and at most 50 `hits` (`id`, `rank`,
    `score`); a channel's call has one entry for each wording. A stage's entry also has `before`, the ids of its input,
    in the order of the last list, where known. A rewriter's entry has `wordings`, and that of a failed call an `error`.
    A stage that returns scores instead of a list, such as a cross-encoder, has one entry; its hits are those that
    reached the next stage, or, for the last stage, the result (`result_data` adds them).
    """

    def __init__(self) -> None:
        super().__init__()
        self._starts: list[float] = []
        self._found: list[tuple[str, list[str]]] = []
        self._asked: defaultdict[str, set[str]] = defaultdict(set)

    def __call__(self, span: Span, outcome: Any) -> None:
        """Record a call of the search and its result."""
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
        """The last list that has all these ids, unless it merged several wordings, whose common order is unknown."""
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
    """The observer for `asearch` that fills lists: `await pipeline.asearch(query, observe=alists(lists))`."""

    async def observe(span: Span, outcome: Any) -> None:
        lists(span, outcome)

    return observe


def scored(entry: Mapping[str, Any], hits: Iterable[Hit]) -> dict[str, Any]:
    """The entry; for a stage that returned only scores, with hits from their votes."""
    if entry["kind"] != "stage" or entry["hits"] or "error" in entry:
        return dict(entry)
    votes = [(vote.rank, hit.id, vote.score) for hit in hits if (vote := hit.vote(entry["name"])) and vote.rank]
    found = [{"id": chunk_id, "rank": rank, "score": score} for rank, chunk_id, score in sorted(votes)]
    return {**entry, "hits": found[:MOST]}


def _ids(outcome: Any) -> list[str]:
    return [chunk_id for chunk_id, _ in found_in(outcome)]


BADGES: Mapping[str, str] = MappingProxyType(
    {
        "hybrid": "Hybrid",
        "keyword": "Keyword",
        "semantic": "Semantic",
        "graph": "Graph",
        "question": "Question",
        "other": "Other",
    }
)
"""The badges of hits, with their labels: found by several channels, by channels of one kind, or by unknown means."""

MOST_MARKED = 50_000
"""The most characters of a chunk in which words are marked."""

_DEEPEST = 16
"""Values nested deeper are shown as text."""


def analyzer_of(channel: Channel) -> AnyAnalyzer | None:
    """The analyzer of the first keyword channel below a channel; None where there is none."""
    return next((one for leaf in channel.leaves() if callable(one := getattr(leaf, "analyzer", None))), None)


def hit_data(
    hit: Hit, rank: int = 1, analyzer: AnyAnalyzer | None = None, confidence: Confidence = "ok"
) -> dict[str, Any]:
    """A hit as plain data.

    `rank`, `id`, `kb`, `text` (the chunk's own), `context` (what a model reads, where different), `metadata`, `source`
    (`file`, `page`, `section`) and their `header`, `score`; `badge`, a key of `BADGES`; `parts`, the channels' votes
    (see `_part`), and `fused`, the sum of their contributions; `stages`, the votes of later stages; `pieces`, the text
    as of `marked` for all matched words, and `header_pieces`, the chunk's header; `copies`, the headers of the other
    sources of the same text; `irrelevant`, see `is_irrelevant`.

    `analyzer` is that of the keyword channel, by default `Analyzer()`.
    """
    votes, fused, chunk = hit.votes, hit.fused, hit.chunk
    parts = [vote for vote in votes if (fused is None and vote.kind is not None) or vote.contribution is not None]
    source = citation_of(rank, hit, "")
    data: dict[str, Any] = _plain(
        {
            "rank": rank,
            "id": chunk.id,
            "kb": chunk.kb,
            "text": chunk.text,
            "context": hit.context,
            "metadata": chunk.metadata,
            "source": {"file": source.source_file, "page": source.page_number, "section": source.section},
            "header": header(source),
            "score": hit.score,
            "badge": hit.found_by or "other",
            "parts": _parts(parts),
            "fused": fused,
            "stages": [_stage(vote) for vote in votes if vote not in parts],
            "pieces": _pieces(hit, chunk.text, analyzer),
            "header_pieces": _pieces(hit, chunk.header, analyzer),
            "copies": [header(citation_of(rank, one, "")) for one in copies_of(hit)],
            "irrelevant": is_irrelevant(hit, confidence),
        }
    )
    return data


def result_data(
    result: Result, *, lists: Iterable[Mapping[str, Any]] = (), analyzer: AnyAnalyzer | None = None
) -> dict[str, Any]:
    """A result as plain data: as `account`, with its context and the given `lists`.

    The `context` has `text`, `tokens` and `over_budget`. See `Lists` for `lists`.
    """
    context = result.context
    read = {"text": context.text, "tokens": context.tokens, "over_budget": context.over_budget}
    return {
        **account(result, analyzer),
        "context": _plain(read),
        "lists": _plain([scored(one, result.hits) for one in lists]),
    }


def account(result: Result, analyzer: AnyAnalyzer | None = None) -> dict[str, Any]:
    """A result as plain data without the context, which is built only on request.

    `query` (its text), `wordings` (each `text` searched for, its `weight`, the `channels`), `route`, `hits` (see
    `hit_data`), `counts` of the hits by badge; `timings` of all calls by start (`name`, `kind`, `start_ms`, `ms`,
    `error`, `texts`) and `total_ms`, the end of the last one; `channels_used`, `confidence`, `degraded`, `errors`
    (`stage`, `kind`, `message`, `degrades`).
    """
    hits = [hit_data(hit, rank, analyzer, result.confidence) for rank, hit in enumerate(result.hits, 1)]
    counted = Counter(hit["badge"] for hit in hits)
    told: dict[str, Any] = _plain(
        {
            "query": result.query.text,
            "wordings": wordings(result),
            "route": None if result.route is None else result.route.value,
            "counts": {badge: counted[badge] for badge in BADGES},
            "timings": [_timing(span) for span in sorted(result.trace, key=lambda span: span.started)],
            "total_ms": max((span.started + span.seconds for span in result.trace), default=0.0) * 1e3,
            "channels_used": result.channels_used,
            "confidence": result.confidence,
            "degraded": result.degraded,
            "errors": [_failure(failure) for failure in result.errors],
        }
    )
    return {**told, "hits": hits}


def _parts(votes: Sequence[Vote]) -> list[dict[str, Any]]:
    gained = sum(max(finite(vote.contribution) or 0.0, 0.0) for vote in votes)
    return [_part(vote, gained) for vote in votes]


def _part(vote: Vote, gained: float) -> dict[str, Any]:
    """A channel's vote; `found` says whether the hit is in its list, `share` is its share of positive contributions."""
    added = finite(vote.contribution)
    return {
        "stage": vote.stage,
        "kind": vote.kind,
        "rank": vote.rank,
        "score": vote.score,
        "weight": vote.weight,
        "contribution": added,
        "share": None if added is None else max(added, 0.0) / gained if gained > 0 else 0.0,
        "query": vote.query,
        "terms": vote.terms,
        "via": vote.via,
        "found": vote.rank is not None,
        "parts": _parts(vote.parts),
    }


def _stage(vote: Vote) -> dict[str, Any]:
    return {
        "stage": vote.stage,
        "rank": vote.rank,
        "score": vote.score,
        "probability": vote.probability,
        "via": vote.via,
        "parts": _parts(vote.parts),
    }


def _pieces(hit: Hit, text: str, analyzer: AnyAnalyzer | None) -> list[tuple[str, bool]]:
    terms = dict.fromkeys(term for vote in hit.votes for leaf in vote.leaves() for term in leaf.terms)
    pieces = marked(text[:MOST_MARKED], tuple(terms), analyzer)
    return [*pieces, (text[MOST_MARKED:], False)] if len(text) > MOST_MARKED else pieces


def _failure(failure: Failure) -> dict[str, Any]:
    return {
        "stage": failure.stage,
        "kind": failure.kind,
        "message": failure.message,
        "degrades": failure.degrades,
    }


def _timing(span: Span) -> dict[str, Any]:
    return {
        "name": span.name,
        "kind": span.kind,
        "start_ms": span.started * 1e3,
        "ms": span.seconds * 1e3,
        "error": None if span.error is None else told_of_error(span.error),
        "texts": span.texts,
    }


def _plain(value: Any, depth: int = 0) -> Any:
    """A JSON value: NaN becomes None, other types become text, and lone surrogates become `?`."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Real):
        return int(value) if isinstance(value, Integral) else finite(value)
    if depth < _DEEPEST and isinstance(value, Mapping):
        return {_text(key): _plain(item, depth + 1) for key, item in value.items()}
    if depth < _DEEPEST and isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, depth + 1) for item in value]
    return _text(value)


def _text(value: Any) -> str:
    return encodable(str(value))
