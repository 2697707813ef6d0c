"""Explanations of a hit: as plain data, and as text."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple, get_args

from voicevault_retrievers._support.characters import without_controls
from voicevault_retrievers.core.filters import NOTHING, Filter, canonical, plain, scope
from voicevault_retrievers.core.pages import shown_page
from voicevault_retrievers.core.types import ChannelKind, Failure, Hit, Query, Result, Vote
from voicevault_retrievers.errors import ConfigError


def provenance(hit: Hit) -> dict[str, Any]:
    """How a hit was found, as data that JSON can hold.

    `found_by`; `channels`: for each channel that found the hit, its kind, rank (from 1), score, weight, contribution to
    the fused score, the wording that found it, the words that matched, and those of them in the header; `also_scored`:
    the same for channels that only scored the hit for the fusion, as it was not among their best; `fused`, the sum of
    the contributions; and for each later stage, under its name, its rank and score, with the `parts` of a sum.
    `relevance`, in [0, 1], where a stage calibrates its scores. `parent_id`, `kb` and `header` where the chunk has
    them. `text`, the chunk's own text, where a model reads a wider context; `over_budget` where a model reads a
    shortened text or nothing, as the budget was spent. `passages`, of a group of several: of each its `id`,
    `score`, `page` where it has one, where in the text that a model reads it starts (`start`, from 0), and the
    `metadata` that differ from the group's. `votes_of` parses the data again.
    """
    votes = hit.votes
    fused = hit.fused
    channels = [vote for vote in votes if (fused is None and vote.kind is not None) or vote.contribution is not None]
    told: dict[str, Any] = {
        "found_by": hit.found_by,
        "channels": {vote.stage: _channel(vote) for vote in channels if vote.rank is not None},
    }
    if others := {vote.stage: _channel(vote) for vote in channels if vote.rank is None}:
        told["also_scored"] = others
    if fused is not None:
        told["fused"] = fused
    if hit.relevance is not None:
        told["relevance"] = hit.relevance
    for vote in votes:
        if vote not in channels:
            told[vote.stage] = stage_entry(vote)
    chunk = hit.chunk
    own = ("parent_id", chunk.parent_id), ("kb", chunk.kb), ("header", chunk.header)
    told |= {key: value for key, value in own if value}
    if len(hit.passages) > 1:
        told["passages"] = [_passage(hit, passage) for passage in hit.passages]
    return told | _read(hit)


def _passage(group: Hit, passage: Hit) -> dict[str, Any]:
    own, best = passage.chunk.metadata, group.chunk.metadata
    page, start = shown_page(own), group.text.find(passage.text)
    told = {"id": passage.chunk.id, "score": passage.score, "page": page, "start": None if start < 0 else start}
    other = {key: plain(own.get(key)) for key in {**best, **own} if repr(own.get(key)) != repr(best.get(key))}
    return {key: value for key, value in told.items() if value is not None} | ({"metadata": other} if other else {})


class PassageText(NamedTuple):
    """A passage of a group, as a model reads it in the group's text, with its provenance."""

    id: str
    text: str
    score: float | None
    metadata: dict[str, Any]
    told: dict[str, Any]


def passages_in(told: Mapping[str, Any], text: str, metadata: Mapping[str, Any]) -> list[PassageText]:
    """The passages of a group in the order of its text, from its provenance; empty where it is no group of several.

    Empty also where the text or the metadata have changed since: their places are not known then.
    """
    entries = told.get("passages")
    if not isinstance(entries, list) or current(told, text, metadata) is not told:
        return []
    known = [one for one in entries if isinstance(one, Mapping) and isinstance(one.get("start"), int)]
    by_start = {one["start"]: one for one in reversed(known)}
    starts, own_told = sorted(by_start), {key: told[key] for key in told if key not in ("passages", *_OF_TEXT)}
    found = []
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        one = by_start[start]
        own = {key: value for key, value in {**metadata, **one.get("metadata", {})}.items() if value is not None}
        found.append(PassageText(str(one.get("id")), text[start:end].rstrip(), finite(one.get("score")), own, own_told))
    return found if len(found) > 1 else []


def stage_entry(vote: Vote) -> dict[str, Any]:
    """The provenance entry of a stage's vote."""
    told: dict[str, Any] = {"rank": vote.rank, "score": vote.score}
    if vote.probability is not None:
        told["probability"] = vote.probability
    if vote.via:
        told["via"] = list(vote.via)
    if vote.parts:
        told["parts"] = {
            part.stage: {key: value for key, value in _channel(part).items() if key != "query"} for part in vote.parts
        }
    return told


def after_stage(known: Mapping[str, Any], before: Hit, hit: Hit, degraded: Sequence[str]) -> dict[str, Any]:
    """A hit's provenance extended by a stage: its new votes, the text that was found, and what was skipped."""
    told = dict(known)
    told |= {vote.stage: stage_entry(vote) for vote in hit.votes if vote not in before.votes}
    told |= {} if hit.relevance is None else {"relevance": hit.relevance}
    if "checksum" in told:
        told = {key: value for key, value in told.items() if key not in _OF_TEXT}
        told |= {"header": hit.chunk.header} if "header" in known and hit.chunk.header else {}
    told |= _read(hit)
    if degraded:
        earlier = told.get("degraded")
        told["degraded"] = [*(earlier if isinstance(earlier, list) else ()), *degraded]
    return told


def _read(hit: Hit) -> dict[str, Any]:
    """The chunk's own text, where a model reads another text or none, and whether the budget is the reason."""
    if hit.context is None and not hit.over_budget:
        return {}
    return {"text": hit.chunk.text, **({"over_budget": True} if hit.over_budget else {})}


def votes_of(told: Mapping[str, Any]) -> tuple[Vote, ...]:
    """The votes in a provenance, channels first. Malformed entries are left out."""
    stages = {name: entry for name, entry in told.items() if name not in ("channels", "also_scored")}
    return (*_votes_in(told.get("channels")), *_votes_in(told.get("also_scored")), *_votes_in(stages))


def finite(value: Any) -> float | None:
    """The value as a float; None where it is not a finite number."""
    try:
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def explain(hit: Hit) -> str:
    """Why a hit was found, with a line for each channel and stage. The contributions add up to the fused score.

    Control and bidirectional characters are left out; `provenance` has them.
    """
    return without_controls("\n".join([_headline(hit), *_lines(hit)]))


def explain_result(result: Result) -> str:
    """A result as text: hits with their reasons, wordings, channels, timings in milliseconds, failures."""
    lines = [f"{rank}. {explain(hit)}" for rank, hit in enumerate(result.hits, 1)]
    lines += told_wordings(result)
    timings = ", ".join(f"{name} {seconds * 1e3:.1f} ms" for name, seconds in result.timings.items())
    lines.append(f"channels: {', '.join(result.channels_used) or 'none'}; {timings or 'nothing ran'}")
    lines += [f"{'degraded' if failure.degrades else 'note'}: {failure}" for failure in result.errors]
    return without_controls("\n".join(lines))


def wordings(result: Result) -> list[dict[str, Any]]:
    """The texts that channels were asked for, in that order, each once, with its `weight` and the `channels` asked."""
    weights = {result.query.text: 1.0}
    for query in (span.query for span in result.trace if isinstance(span.query, Query)):
        weights |= {query.text: 1.0} | {one.text: one.weight for one in query.variants if one.text not in weights}
    asked: dict[str, dict[str, None]] = {}
    for span in sorted(result.trace, key=lambda span: span.started):
        for text in span.texts if span.kind == "channel" else ():
            asked.setdefault(text, {})[span.name] = None
    asked = asked or {result.query.text: {}}
    return [{"text": text, "weight": weights.get(text, 1.0), "channels": list(of)} for text, of in asked.items()]


def of_search(hit: Hit, degraded: Sequence[str] = (), wordings: Sequence[str] = ()) -> dict[str, Any]:
    """`provenance` with `degraded`, what the search skipped, and `wordings`, what channels were asked for.

    `require` are the access rights of the search, so that whatever adds a text beside the hit applies them too.
    """
    told = provenance(hit)
    if hit.require is not None:
        told["require"] = rights_as_data(hit.require)
    return told | {key: list(said) for key, said in (("degraded", degraded), ("wordings", wordings)) if said}


_OF_TEXT = ("header", "text", "over_budget", "checksum")
"""Entries of a provenance that say what belongs to a text: they hold as long as text and metadata do."""


def sealed(told: Mapping[str, Any], text: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """A provenance with a `checksum` of the text and metadata beside it, where it has a `header` or a `text`."""
    belongs = isinstance(told.get("header"), str) or isinstance(told.get("text"), str)
    return {**told, "checksum": _checksum(text, metadata)} if belongs else dict(told)


def current(told: Mapping[str, Any], text: str, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """A provenance without what belongs to an earlier text or metadata: whoever changed these may have masked them."""
    if not any(key in told for key in _OF_TEXT) or told.get("checksum") == _checksum(text, metadata):
        return told
    return {key: value for key, value in told.items() if key not in _OF_TEXT}


def _checksum(text: str, metadata: Mapping[str, Any]) -> int:
    return zlib.crc32(repr((text, sorted(map(repr, metadata.items())))).encode("utf-8", "surrogatepass"))


def rights_as_data(require: Filter) -> Filter:
    """Access rights as JSON can hold them, without dates and other objects; equal rights to `rights_in`."""
    data: Filter = json.loads(canonical(require) or "{}")
    return data


def rights_in(told: Mapping[str, Any]) -> Filter | None:
    """The `require` of provenance; what is no filter permits nothing."""
    given = told.get("require")
    try:
        return None if given is None else scope(given)
    except ConfigError:
        return NOTHING


def failures_in(provenances: Iterable[Mapping[str, Any]]) -> tuple[Failure, ...]:
    """The failures that the `degraded` of any provenance names."""
    texts = dict.fromkeys(text for told in provenances for text in degraded_in(told))
    return tuple(Failure(stage, "", said) for stage, _, said in (text.partition(": ") for text in texts))


def degraded_in(told: Mapping[str, Any]) -> tuple[str, ...]:
    """The `degraded` of provenance."""
    return _texts(told.get("degraded"))


def reworded(result: Result) -> list[str]:
    """The wordings that channels were asked for; empty where that is the query's text alone."""
    texts = [one["text"] for one in wordings(result)]
    return texts if texts != [result.query.text] else []


def told_wordings(result: Result) -> list[str]:
    """A line for each wording, with the channels that were asked for it; empty where there is only one wording."""
    asked = wordings(result)
    lines = [f"wording: {one['text']!r}" + _asked_of(one) for one in asked]
    return lines if len(lines) > 1 else []


def _asked_of(wording: Mapping[str, Any]) -> str:
    weight = "" if wording["weight"] == 1 else f", weight {wording['weight']:g}"
    return f" ({', '.join(wording['channels'])}{weight})"


def _channel(vote: Vote) -> dict[str, Any]:
    told: dict[str, Any] = {} if vote.rank is None else {"rank": vote.rank}
    if vote.kind is not None:
        told["kind"] = vote.kind
    if vote.score is not None:
        told["score"] = vote.score
    if vote.contribution is not None:
        told |= {"weight": vote.weight, "contribution": vote.contribution}
    if vote.rank is not None:
        told["query"] = vote.query
    if vote.terms:
        told["matched_terms"] = list(vote.terms)
    if vote.header_terms:
        told["header_terms"] = list(vote.header_terms)
    if vote.via:
        told["via"] = list(vote.via)
    if vote.parts:
        told["parts"] = {part.stage: _channel(part) for part in vote.parts}
    return told


def _votes_in(told: Any) -> Iterator[Vote]:
    for stage, entry in told.items() if isinstance(told, Mapping) else ():
        known = entry if isinstance(entry, Mapping) else {}
        rank = known.get("rank")
        ranked = isinstance(rank, int) and not isinstance(rank, bool) and rank >= 1
        if isinstance(stage, str) and (ranked or (rank is None and finite(known.get("contribution")) is not None)):
            yield _vote(stage, rank, known)


def _vote(stage: str, rank: int | None, told: Mapping[str, Any]) -> Vote:
    query, terms, kind = (told.get(key) for key in ("query", "matched_terms", "kind"))
    weight = finite(told.get("weight"))
    return Vote(
        stage,
        rank,
        finite(told.get("score")),
        1.0 if weight is None else weight,
        finite(told.get("contribution")),
        query=query if isinstance(query, str) else "",
        terms=_texts(terms),
        parts=tuple(_votes_in(told.get("parts"))),
        kind=kind if kind in get_args(ChannelKind) else None,
        via=_texts(told.get("via")),
        probability=finite(told.get("probability")),
        header_terms=_texts(told.get("header_terms")),
    )


def _texts(values: Any) -> tuple[str, ...]:
    return tuple(text for text in values if isinstance(text, str)) if isinstance(values, list | tuple) else ()


def _headline(hit: Hit) -> str:
    score = "not scored" if hit.score is None else f"score {hit.score:.6g}"
    return f"{hit.chunk.id}: {score}, found by {hit.found_by or 'an unknown channel'}"


def _lines(hit: Hit) -> Iterator[str]:
    for vote in hit.votes:
        yield from _vote_lines(vote, "   ")
    if hit.fused is not None:
        yield f"   fused = {' + '.join(f'{v.contribution:.6g}' for v in hit.votes if v.contribution is not None)}" + (
            f" = {hit.fused:.6g}"
        )
    for passage in hit.passages[1:]:
        yield f"   with {_headline(passage)}"


def _vote_lines(vote: Vote, indent: str) -> Iterator[str]:
    said = ["not among its best" if vote.rank is None else f"rank {vote.rank}"]
    if vote.score is not None:
        said.append(f"score {vote.score:.6g}")
    if vote.probability is not None:
        said.append(f"probability {vote.probability:.3f}")
    if vote.contribution is not None:
        said.append(f"adds {vote.contribution:.6g}" + (f" (weight {vote.weight:g})" if vote.weight != 1 else ""))
    if vote.terms:
        words = f"words {', '.join(vote.terms)}"
        said.append(words + (f" (in the header: {', '.join(vote.header_terms)})" if vote.header_terms else ""))
    if vote.via:
        said.append(f"via {' -> '.join(vote.via)}")
    if vote.query and vote.kind is not None:
        said.append(f"for {vote.query!r}")
    yield f"{indent}{vote.stage}: {', '.join(said)}"
    for part in vote.parts:
        yield from _vote_lines(part, indent + "   ")
