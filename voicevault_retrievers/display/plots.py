"""A result as a picture: the contributions of channels to each hit, and the timings of calls."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

from voicevault_retrievers._support.extras import require
from voicevault_retrievers.core.types import Result
from voicevault_retrievers.display.data import account
from voicevault_retrievers.display.html import COLOURS

MOST_HITS = 20
"""The most hits drawn."""

_LONGEST = 40
_HEIGHT = 0.3
_HATCHES = ("", "//", "..", "xx", "\\\\", "++")
"""Hatches that distinguish channels of one kind, and all channels without colours."""


def plot_result(result: Result) -> Any:
    """A matplotlib Figure: `figure.savefig("out.png")` writes it, and a notebook shows it.

    The upper part has a bar for each of the best 20 hits: the contributions of channels to its score, or, without
    fusion, the score itself. The lower part shows the start and duration of each call. Raises MissingExtraError without
    matplotlib.
    """
    told = account(result)
    hits = told["hits"][:MOST_HITS]
    rows = max(1, len(hits)), max(1, len(told["timings"]))
    figure = require("matplotlib.figure", extra="eval").Figure(
        figsize=(8.0, 2.0 + _HEIGHT * sum(rows)), layout="constrained"
    )
    above, below = figure.subplots(2, 1, height_ratios=[rows[0] + 1, rows[1] + 1])
    above.set_title(_label(told["query"], 2 * _LONGEST), fontsize="medium", parse_math=False)
    _contributions(above, hits)
    _waterfall(below, told["timings"])
    # Without pyplot a notebook has no formatter for figures, and calls this method instead.
    figure._repr_png_ = lambda: _png(figure)
    return figure


def _contributions(axes: Any, hits: Sequence[Mapping[str, Any]]) -> None:
    if not hits:
        return _say(axes, "nothing found")
    fused = any(hit["fused"] is not None for hit in hits)
    looks: dict[str, dict[str, Any]] = {}
    for place, hit in enumerate(hits):
        reached = {True: 0.0, False: 0.0}  # bars above 0 extend to the right, those below 0 to the left
        for part in hit["parts"]:
            value = part["contribution"] if fused else part["score"]
            look = looks.setdefault(part["stage"], _look(part, looks))
            if value:
                axes.barh(place, value, 0.7, left=reached[value > 0], **look)
                reached[value > 0] += value
    _name(axes, [f"{hit['rank']}. {_label(hit['header'].strip('[]').removeprefix('Source: '))}" for hit in hits])
    axes.set_xlabel("added to the fused score" if fused else "score")
    _legend(axes, looks)


def _look(part: Mapping[str, Any], others: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The colour of a channel's kind, and a hatch that no other channel has."""
    hatch = _HATCHES[len(others) % len(_HATCHES)]
    colour = COLOURS.get(part["kind"], COLOURS["other"])
    return {"facecolor": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0}


def _legend(axes: Any, looks: Mapping[str, Mapping[str, Any]]) -> None:
    patch = require("matplotlib.patches", extra="eval").Patch
    handles = [patch(label=f" {_label(name)}", **look) for name, look in looks.items()]  # names may begin with _
    if handles:
        legend = axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1, 1), fontsize="small")
        for text in legend.get_texts():
            text.set_parse_math(False)


def _waterfall(axes: Any, timings: Sequence[Mapping[str, Any]]) -> None:
    if not timings:
        return _say(axes, "nothing ran")
    for place, timing in enumerate(timings):
        colour = "#b91c1c" if timing["error"] else COLOURS["other"]
        axes.barh(place, timing["ms"], 0.7, left=timing["start_ms"], color=colour, edgecolor=colour)
        axes.annotate(
            f"{timing['ms']:.1f}", (_end(timing), place), (4, 0), textcoords="offset points", va="center", size=7
        )
    _name(axes, [f"{_label(timing['name'])}{' (failed)' if timing['error'] else ''}" for timing in timings])
    axes.set_xlim(0, 1.1 * max(map(_end, timings)) or 1.0)
    axes.set_xlabel("milliseconds since the search began")


def _end(timing: Mapping[str, Any]) -> float:
    return float(timing["start_ms"] + timing["ms"])


def _name(axes: Any, labels: Sequence[str]) -> None:
    """Label the rows, the first row on top."""
    axes.set_yticks(range(len(labels)), labels, fontsize="small", parse_math=False)
    axes.set_ylim(len(labels) - 0.5, -0.5)


def _say(axes: Any, text: str) -> None:
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, ha="center", va="center", color="grey", transform=axes.transAxes)


def _label(text: str, longest: int = _LONGEST) -> str:
    """A name on one line, shortened to `longest` characters."""
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def _png(figure: Any) -> bytes:
    written = BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing", category=UserWarning)
        figure.savefig(written, format="png")
    return written.getvalue()
