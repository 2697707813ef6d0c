"""Writes the tables of the documents from the benchmarks' results: `python -m tests.benchmarks.tables`.

A table stands between `<!-- NAME:begin -->` and `<!-- NAME:end -->`, where NAME is that of a file in results/. It stays
as it is where that benchmark has not been run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from tests.benchmarks.choices import choices
from tests.benchmarks.results import FOLDER, Row

ROOT = Path(__file__).parents[2]
DEFAULT = "ours, by default"
LOST = 0.005
"""Below the best part by less is taken as no loss."""
PAGES = [
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if ":begin -->" in page.read_text("utf-8")
]
COLUMNS = {
    "lexical": [
        *((size, metric) for size in ("10k", "100k", "1M") for metric in ("p50 ms", "batch q/s")),
        ("100k text", "build s"),
        ("100k text", "bytes per posting"),
    ],
    "store": [
        ("100k", "batches of 1,000: chunks/s"),
        ("100k", "bytes per chunk"),
        ("100k", "open ms"),
        ("100k", "add p50 ms"),
        ("100k", "delete p50 ms"),
        ("100k", "adds/s of 8 threads"),
    ],
}
"""Cases and metrics of the tables that do not show all that was measured."""

ACROSS = ("store", "quality_rivals", "rerank_quality", "frame_clients")
"""Tables that have the systems across, for they show more of each than there are systems."""

SHOWN: Mapping[str, tuple[str, Callable[[Row], bool]]] = {
    "quality_rivals": (
        "quality",
        lambda row: (
            "," not in row.case
            and row.metric == "nDCG@10"
            and " of the lists" not in row.system
            and "hindsight" not in row.system
        ),
    ),
    "fusion_ablation": (
        "fusion_ablation",
        lambda row: row.metric == "nDCG@10" and not row.system.startswith(("semantic=", "bayesian-bm25")),
    ),
    "quality_stores": (
        "quality_stores",
        lambda row: (
            (row.case == "mean" or row.metric == "over exact scores") and row.system not in ("BM25", "all-MiniLM-L6-v2")
        ),
    ),
    "rerank": ("rerank", lambda row: "50 candidates" in row.case and row.metric == "pairs a second"),
    "rerank_quality": (
        "rerank_quality",
        lambda row: row.metric == "nDCG@10" and row.system != "reranked, but where the first is sure",
    ),
    "rerank_abstention": (
        "rerank_abstention",
        lambda row: row.metric in ("precision of none", "recall of none", "answerable, none said"),
    ),
    "engines": (
        "engines",
        lambda row: (
            row.case == "100k" and row.metric in ("ingest chunks/s", "bm25 p50 ms", "dense p50 ms", "hybrid q/s")
        ),
    ),
    "store": ("store", lambda row: not row.system.startswith("index()")),
    "sizing_measured": (
        "sizing",
        lambda row: row.case == "20,000" and row.metric.startswith("bytes a chunk") and "Lite" not in row.system,
    ),
    "sizing_formulas": (
        "sizing",
        lambda row: row.case == "formula" and row.metric in ("bytes a chunk", "GB of 10 million"),
    ),
    "frame": (
        "frame",
        lambda row: row.case.endswith("1 segment") and row.metric in ("CPU ms p50", "CPU p50, times by hand"),
    ),
    "frame_clients": (
        "frame",
        lambda row: "threads: " in row.case and row.metric == "queries/s",
    ),
    "frame_peers": ("frame", lambda row: " / " in row.system and row.case.startswith("10 hits")),
    "frame_first": ("frame", lambda row: row.metric == "seconds"),
}
"""The files of tables, and which of their rows they show."""


def table(name: str) -> str | None:
    """Systems down, cases and metrics across, a dash for what was not measured; None where there are no results."""
    if name == "choices":
        return choices()
    if name == "quality_summary":
        return quality_summary()
    file, shown = SHOWN.get(name, (name, lambda row: True))
    path = FOLDER / f"{file}.json"
    if not path.is_file():
        return None
    every = (Row(**row) for row in json.loads(path.read_text(encoding="utf-8"))["rows"])
    rows = [row for row in every if shown(row)]
    if name in IN_WORDS:
        return IN_WORDS[name](rows)
    columns = COLUMNS.get(name) or list(dict.fromkeys((row.case, row.metric) for row in rows))
    values = {row[:3]: row.value for row in rows}
    systems = list(dict.fromkeys(row.system for row in rows if (row.case, row.metric) in columns))
    lines = [(system, *(_cell(values.get((system, *column))) for column in columns)) for system in systems]
    one = len({metric for _, metric in columns}) == 1  # which the text above the table names
    lines.insert(0, ("system", *(case if one else f"{case}, {metric}" for case, metric in columns)))
    return _rendered(list(zip(*lines, strict=True)) if name in ACROSS else lines)


def quality_summary() -> str:
    """For each embedder the means of the collections alone, and those where the default is surely below a part."""
    shown = ("BM25", "RRF(60)", "best fixed convex, in hindsight", DEFAULT)
    lines = [("embedder", "its vectors", *shown, f"surely more than {LOST} below the best part")]
    for file, embedder in (("quality", "all-MiniLM-L6-v2"), ("quality_multilingual", "use-multilingual-v3")):
        data = json.loads((FOLDER / f"{file}.json").read_text(encoding="utf-8"))
        rows = {(row["system"], row["case"], row["metric"]): row["value"] for row in data["rows"]}
        cases = [case for system, case, metric in rows if system == embedder and _is_alone(case, metric)]
        means = [fmean(rows[system, case, "nDCG@10"] for case in cases) for system in (embedder, *shown)]
        ends = {case: [rows[DEFAULT, case, f"difference, {end} end"] for end in ("lower", "upper")] for case in cases}
        lost = [f"{case} ({low:.3f} to {high:.3f})" for case, (low, high) in ends.items() if high < -LOST]
        lines.append((embedder, *map(_cell, means), ", ".join(lost) or "none"))
    return _rendered(lines)


def _is_alone(case: str, metric: str) -> bool:
    """Whether it is one collection's figure, searched for its own questions alone."""
    return metric == "nDCG@10" and "," not in case and " " not in case and case not in ("mean", "filings")


def steps_in_words(rows: Sequence[Row]) -> str:
    """A line for each command with its seconds, and one for all of them."""
    lines = [(f"`{row.system}`", f"{row.value:.1f}") for row in rows]
    cases = ", ".join(dict.fromkeys(row.case for row in rows))
    head = (f"command ({cases})", "seconds")
    all_of_it = ("all of it", f"{sum(row.value for row in rows):.1f}")
    return _rendered([head, *lines, all_of_it])


def metrics_across(rows: Sequence[Row]) -> str:
    """A line for each case, with the metrics of one system across."""
    values = {row[1:3]: row.value for row in rows}
    metrics = list(dict.fromkeys(row.metric for row in rows))
    lines = [("collection", *metrics)]
    lines += [
        (case, *(_cell(values.get((case, metric))) for metric in metrics))
        for case in dict.fromkeys(row.case for row in rows)
    ]
    return _rendered(lines)


def times_in_words(rows: Sequence[Row]) -> str:
    """A line for each case, with the milliseconds of each system and how many times those of the first they are."""
    values = {row[:3]: row.value for row in rows}
    own, times = dict.fromkeys(row.metric for row in rows)
    systems = dict.fromkeys(row.system for row in rows)
    lines = [("case", *systems)]
    for case in dict.fromkeys(row.case for row in rows):
        found = [(_cell(values.get((system, case, own))), values.get((system, case, times))) for system in systems]
        cells = [cell if more is None else f"{cell} ({more:.2f}x)" for cell, more in found]
        lines.append((case.removesuffix(", 1 segment"), *cells))
    return _rendered(lines)


IN_WORDS: Mapping[str, Callable[[Sequence[Row]], str]] = {
    "frame": times_in_words,
    "newcomer": steps_in_words,
    "rerank_abstention": metrics_across,
}
"""What has words beside its numbers, and how they are made."""


def with_tables(text: str) -> str:
    """The text with every marked table made anew."""
    pattern = re.compile(r"(<!-- (?P<name>\w+):begin -->\n).*?(<!-- (?P=name):end -->)", re.DOTALL)
    return pattern.sub(_made_anew, text)


def _made_anew(place: re.Match[str]) -> str:
    made = table(place["name"])
    return place[0] if made is None else f"{place[1]}{made}\n{place[3]}"


def _rendered(lines: Sequence[Sequence[str]]) -> str:
    """Lines of cells as a table; the first is its head."""
    head, *body = lines
    return "\n".join([_line(head), "|---" * len(head) + "|", *map(_line, body)])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(value: float | None) -> str:
    if value is None:
        return "—"
    if 0.99 < value < 1:
        return f"{value:.4f}"  # cosines, which begin to differ there
    return f"{value:,.0f}" if value >= 100 else f"{value:.3f}"


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
