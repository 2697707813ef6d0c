"""Hits and results as plain data for people: what a notebook and a page are made of. It goes into JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any

from voicevault_retrievers.answers import header
from voicevault_retrievers.answers.citations import citation_of
from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.core.execution.plan import Span
from voicevault_retrievers.core.explanation import finite, wordings
from voicevault_retrievers.core.types import Failure, Hit, Result, Vote
from voicevault_retrievers.display.lists import scored
from voicevault_retrievers.display.marking import marked
from voicevault_retrievers.errors import told as told_of_error
from voicevault_retrievers.lexical.analysis import AnyAnalyzer

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
"""How a hit was found, and what to call that: by several channels, by one of a kind, or by none that is known."""

MOST_MARKED = 50_000
"""Characters of a chunk in which words are marked."""

_DEEPEST = 16
"""What is nested deeper is shown as text."""


def analyzer_of(channel: Channel) -> AnyAnalyzer | None:
    """The analyzer of the first keyword channel below a channel; None where there is none."""
    return next((one for leaf in channel.leaves() if callable(one := getattr(leaf, "analyzer", None))), None)


def hit_data(hit: Hit, rank: int = 1, analyzer: AnyAnalyzer | None = None) -> dict[str, Any]:
    """A hit as plain data.

    `rank`, `id`, `kb`, `text` (the chunk's own), `context` (what a model reads, where that is another text),
    `metadata`, `source` (`file`, `page`, `section`) and the `header` of these, `score`; `badge`, a key of `BADGES`;
    `parts`, the channels' votes (see `_part`), and `fused`, the sum of their contributions; `stages`, the votes of
    those that came later; `pieces`, the text as of `marked` for all words that matched.
    `analyzer` is that of the keyword channel, `Analyzer()` unless given.
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
            "pieces": _pieces(hit, analyzer),
        }
    )
    return data


def result_data(
    result: Result, *, lists: Iterable[Mapping[str, Any]] = (), analyzer: AnyAnalyzer | None = None
) -> dict[str, Any]:
    """A result as plain data: its `account`, the `context` (`text`, `tokens`, `over_budget`), and the given `lists`.

    For these see `Lists`.
    """
    context = result.context
    read = {"text": context.text, "tokens": context.tokens, "over_budget": context.over_budget}
    return {
        **account(result, analyzer),
        "context": _plain(read),
        "lists": _plain([scored(one, result.hits) for one in lists]),
    }


def account(result: Result, analyzer: AnyAnalyzer | None = None) -> dict[str, Any]:
    """What was found and how, as plain data, without a context, which is made when it is asked for.

    `query` (its text), `wordings` (each `text` that channels were asked for, its `weight`, the `channels`), `route`,
    `hits` (see `hit_data`), `counts` of the hits by badge; `timings` of all calls in the order in which they began
    (`name`, `kind`, `start_ms`, `ms`, `error`, `texts`) and `total_ms`, when the last one ended; `channels_used`,
    `confidence`, `degraded`, `errors` (`stage`, `kind`, `message`, `degrades`).
    """
    hits = [hit_data(hit, rank, analyzer) for rank, hit in enumerate(result.hits, 1)]
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
    """A channel's vote, `found` where the hit is in its list; `share` is that of the contributions above 0."""
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


def _pieces(hit: Hit, analyzer: AnyAnalyzer | None) -> list[tuple[str, bool]]:
    terms = dict.fromkeys(term for vote in hit.votes for leaf in vote.leaves() for term in leaf.terms)
    text = hit.chunk.text
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
    """A value as JSON has it, NaN as None; as text, where JSON has none. Half a character (a surrogate) becomes `?`."""
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
    return str(value).encode("utf-8", "replace").decode()
