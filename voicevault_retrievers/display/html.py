"""Hits and results as HTML for notebooks: badges, bars, marked words; without scripts, links or images.

All text from documents, queries and names is escaped, and is not interpreted as markup or mathematics. Styles are
inline, with colours that are legible on light and dark pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from html import escape
from typing import Any, NamedTuple

from voicevault_retrievers.core.explanation import explain as in_words
from voicevault_retrievers.core.explanation import explain_result as result_in_words
from voicevault_retrievers.core.types import Hit, Result
from voicevault_retrievers.display.data import BADGES, account, hit_data
from voicevault_retrievers.lexical.analysis import AnyAnalyzer

COLOURS: Mapping[str, str] = {
    "hybrid": "#7c3aed",
    "keyword": "#c2410c",
    "semantic": "#2563eb",
    "graph": "#15803d",
    "question": "#be1f62",
    "other": "#6b7280",
}
"""A colour for each badge, legible with white text on it, and as text on white and on near black."""

MOST_HITS = 20
MOST_TEXT = 600
"""The most hits of a result, and characters of a hit's text, that are shown."""

_BEFORE = 150
"""The characters shown before the first marked word, where that is far from the beginning."""

# The classes prevent notebooks from reading a dollar sign in a document as the start of a formula.
_ROOT = '<div class="tex2jax_ignore mathjax_ignore" style="max-width:60em;line-height:1.45">{}</div>'
_BADGE = '<span style="background:{};color:#fff;border-radius:4px;padding:1px 6px;font-size:85%">{}</span>'
_BAR = '<div role="img" aria-label="{0}" title="{0}" style="display:flex;height:10px;margin:4px 0">{1}</div>'
_FILL = '<span style="box-sizing:border-box;border-right:1px solid #fff9;background:{};width:{:.2f}%"></span>'
_FAINT = _FILL.replace("box-sizing", "opacity:.6;box-sizing")
_GAP = '<span style="width:{:.2f}%"></span>'
_ZERO = '<span style="width:2px;margin:0 -1px;background:currentColor"></span>'
_SMALL = '<div style="font-size:90%">{}</div>'
_MARK = '<mark style="background:#fde047;color:#000">{}</mark>'


class _Scale(NamedTuple):
    """The largest negative and positive sums of contributions among the hits shown together."""

    below: float
    above: float


def result_html(result: Result, analyzer: AnyAnalyzer | None = None) -> str:
    """A result as HTML: query, counts of hits by kind, failures, the best hits, and a waterfall of calls.

    The bars of contributions share one scale.
    """
    told = account(result, analyzer)
    hits = told["hits"][:MOST_HITS]
    scale = _scale(hits)
    items = "".join(f'<li style="margin:10px 0">{_hit(hit, scale)}</li>' for hit in hits)
    more = len(told["hits"]) - len(hits)
    parts = [
        f"<div><b>{_text(told['query'])}</b></div>",
        _SMALL.format(" · ".join(_figures(told))),
        _wordings(told["wordings"]),
        *(_failure(failure) for failure in told["errors"]),
        f"<ol>{items}</ol>",
        _SMALL.format(f"and {more} more") if more else "",
        _waterfall(told["timings"], told["total_ms"]),
    ]
    return _ROOT.format("".join(parts))


def explanation_html(hit: Hit, analyzer: AnyAnalyzer | None = None) -> str:
    """A hit as HTML, with a line for each channel and stage that voted on it."""
    data = hit_data(hit, analyzer=analyzer)
    return _ROOT.format(_hit(data, _scale([data])) + _votes([*data["parts"], *data["stages"]]))


def _hit(hit: Mapping[str, Any], scale: _Scale) -> str:
    badge = _BADGE.format(COLOURS[hit["badge"]], BADGES[hit["badge"]])
    score = "not scored" if hit["score"] is None else f"score {hit['score']:.4g}"
    score += f", from {_text(hit['kb'])}" if hit["kb"] else ""
    score += "".join(f", also {_text(one)}" for one in hit["copies"])
    score += ", irrelevant" if hit["irrelevant"] else ""
    return "".join(
        [
            f"<div>{badge} {_text(hit['header'])} {score}</div>",
            _bar(hit["parts"], scale, _hover(hit)),
            _SMALL.format(" · ".join(_summary(hit))),
            _SMALL.format("".join(_shown(hit["header_pieces"]))) if hit["header_pieces"] else "",
            f'<div dir="auto" style="overflow-wrap:anywhere">{"".join(_shown(hit["pieces"]))}</div>',
        ]
    )


def _hover(hit: Mapping[str, Any]) -> str:
    """The contributions of channels to a hit, and of the parts of later stages, as text."""
    said = [", ".join(f"{part['stage']} {_added(part)}" for part in hit["parts"] if part["contribution"])]
    for stage in hit["stages"]:
        parts = (part for part in stage["parts"] if part["contribution"] is not None)
        added = ", ".join(f"{part['stage']} {_added(part)}" for part in parts)
        said += [f"{stage['stage']}: {added}"] if added else []
    return "; ".join(filter(None, said))


def _bar(parts: Sequence[Mapping[str, Any]], scale: _Scale, told: str) -> str:
    """The contributions as a bar: positive right of a line, negative left of it; `told` is the same as text."""
    added = [part for part in parts if part["contribution"]]
    width = scale.below + scale.above
    if not added or width <= 0:
        return ""

    def fill(part: Mapping[str, Any]) -> str:
        look = _FILL if part["found"] else _FAINT
        return look.format(_colour(part), 100 * abs(part["contribution"]) / width)

    more = "".join(fill(part) for part in added if part["contribution"] > 0)
    less = "".join(fill(part) for part in added if part["contribution"] < 0)
    room = scale.below - _scale([{"parts": parts}]).below
    line = f"{_GAP.format(100 * room / width)}{less}{_ZERO}" if scale.below else ""
    return _BAR.format(escape(told), line + more)


def _added(part: Mapping[str, Any]) -> str:
    if part["contribution"] < 0:
        return f"takes off {-part['contribution']:.4g}"
    return f"adds {part['contribution']:.4g} ({100 * part['share']:.0f} %)"


def _summary(hit: Mapping[str, Any]) -> Iterator[str]:
    """The rank of a hit in each channel and stage, in short."""
    for vote in (*hit["parts"], *hit["stages"]):
        rank = "not among its best" if vote["rank"] is None else f"#{vote['rank']}"
        added = vote.get("contribution")
        own = f"score {vote['score']:.4g}" if vote["score"] is not None else ""
        yield f"{_text(vote['stage'])} {rank} {own if added is None else f'{added:+.4g}'}".rstrip()
    if hit["fused"] is not None:
        yield f"sum {hit['fused']:.4g}"
    if hit["context"] is not None:
        yield f"read in a context of {len(hit['context'])} characters"


def _votes(votes: Iterable[Mapping[str, Any]]) -> str:
    items = "".join(f"<li>{', '.join(_said(vote))}{_votes(vote['parts'])}</li>" for vote in votes)
    return f"<ul>{items}</ul>" if items else ""


def _said(vote: Mapping[str, Any]) -> Iterator[str]:
    """The vote of a channel or stage on a hit."""
    rank = "not among its best" if vote["rank"] is None else f"rank {vote['rank']}"
    yield f"<b>{_text(vote['stage'])}</b>: {rank}"
    if vote["score"] is not None:
        yield f"score {vote['score']:.6g}"
    if vote.get("probability") is not None:
        yield f"probability {vote['probability']:.3f}"
    if vote.get("contribution") is not None:
        yield f"adds {vote['contribution']:.6g}" + ("" if vote["weight"] == 1 else f" (weight {vote['weight']:g})")
    if vote.get("terms"):
        yield f"words {' '.join(_MARK.format(_text(term)) for term in vote['terms'])}"
    if vote["via"]:
        yield f"via {' → '.join(_text(step) for step in vote['via'])}"
    if vote.get("query") and vote["kind"] is not None:
        yield f"for {_text(vote['query'])}"


def _shown(pieces: Sequence[Sequence[Any]]) -> Iterator[str]:
    """The text from its beginning, or from near its first marked word, up to the space available."""
    first = 0
    for text, is_marked in pieces:
        if is_marked:
            break
        first += len(text)
    else:
        first = 0
    start = 0 if first <= MOST_TEXT // 2 else first - _BEFORE
    at, end = 0, start + MOST_TEXT
    yield "…" if start else ""
    for text, is_marked in pieces:
        cut = text[max(start - at, 0) : max(end - at, 0)]
        at += len(text)
        yield (_MARK if is_marked else "{}").format(_text(cut)) if cut else ""
    yield "…" if at > end else ""


def _figures(told: Mapping[str, Any]) -> Iterator[str]:
    count = len(told["hits"])
    yield f"{count} hit{'' if count == 1 else 's'}" if count else "Nothing found"
    for badge, count in told["counts"].items():
        if count:
            yield f"{_BADGE.format(COLOURS[badge], BADGES[badge])} {count}"
    if told["route"]:
        yield f"route {told['route']}"
    yield f"confidence {told['confidence']}"
    yield f"{told['total_ms']:.1f} ms"


def _wordings(wordings: Sequence[Mapping[str, Any]]) -> str:
    """The wordings searched for, where there are others than the query."""
    asked = "".join(f"<li>{_text(one['text'])} (weight {one['weight']:g})</li>" for one in wordings)
    count = f"{len(wordings)} wordings were asked for"
    return f"<details><summary>{count}</summary><ul>{asked}</ul></details>" if len(wordings) > 1 else ""


def _failure(failure: Mapping[str, Any]) -> str:
    label = "Degraded" if failure["degrades"] else "Note"
    return _SMALL.format(f"<b>{label}</b> {_text(failure['stage'])}: {_text(failure['message'] or failure['kind'])}")


def _waterfall(timings: Sequence[Mapping[str, Any]], total: float) -> str:
    """The start and duration of each call, to one scale."""
    if not timings or total <= 0:
        return ""
    return f"<details><summary>Timings</summary>{''.join(_call(timing, total) for timing in timings)}</details>"


def _call(timing: Mapping[str, Any], total: float) -> str:
    said = f"{timing['name']}: began at {timing['start_ms']:.1f} ms, took {timing['ms']:.1f} ms"
    fill = _FILL.format(COLOURS["other"], 100 * timing["ms"] / total)
    failed = f" {_text(timing['error'])}" if timing["error"] else ""
    bar = _BAR.format(escape(said), _GAP.format(100 * timing["start_ms"] / total) + fill)
    return _SMALL.format(f"{_text(timing['name'])} {timing['ms']:.1f} ms{failed}{bar}")


def _scale(hits: Iterable[Mapping[str, Any]]) -> _Scale:
    added = [[part["contribution"] or 0.0 for part in hit["parts"]] for hit in hits]
    below = max((-sum(value for value in values if value < 0) for values in added), default=0.0)
    return _Scale(below, max((sum(value for value in values if value > 0) for values in added), default=0.0))


def _colour(part: Mapping[str, Any]) -> str:
    return COLOURS.get(part["kind"], COLOURS["other"])


def _text(text: Any) -> str:
    """Escaped text, isolated from the direction of the text around it."""
    return f"<bdi>{escape(str(text))}</bdi>"


class Explanation(str):
    """Text that a notebook shows as HTML, which `made` makes on request."""

    _made: Callable[[], str] | None

    def __new__(cls, text: str, made: Callable[[], str] | None = None) -> Explanation:
        told = super().__new__(cls, text)
        told._made = made
        return told

    def _repr_html_(self) -> str | None:
        return None if self._made is None else self._made()


def explain(hit: Hit) -> Explanation:
    """Why a hit was found, with a line for each channel and stage; contributions add up to the fused score."""
    return Explanation(in_words(hit), partial(explanation_html, hit))


def explain_result(result: Result) -> Explanation:
    """A result in words: hits with reasons, wordings, channels, timings in milliseconds, and failures."""
    return Explanation(result_in_words(result), partial(result_html, result))
