"""What each choice of a pipeline was worth: the table of docs/explanation/choosing.md, from the results."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import NamedTuple

from tests.benchmarks.results import FOLDER

SAME = 0.001
"""Differences below this are none."""


class Choice(NamedTuple):
    """Two systems of a file of results, by one measure."""

    what: str
    file: str
    before: str
    after: str
    metric: str = "nDCG@10"
    case: Callable[[str], bool] = lambda case: case != "mean" and "," not in case


def _statutes(case: str) -> bool:
    return case in ("statute book", "aila2019-statutes")


CHOICES = (
    Choice("vectors beside BM25", "quality", "BM25", "ours, by default"),
    Choice("BM25 beside vectors", "quality", "all-MiniLM-L6-v2", "ours, by default"),
    Choice("the default fusion, not RRF(60)", "quality", "RRF(60)", "ours, by default"),
    Choice("not EnsembleRetriever", "quality", "LangChain EnsembleRetriever", "ours, by default"),
    Choice("not QueryFusionRetriever", "quality", "LlamaIndex QueryFusionRetriever", "ours, by default"),
    Choice("a preset tuned on 40 questions", "quality_tuning", "default", "tuned"),
    Choice("a reranker, blended", "rerank_quality", "without reranking", "reranked, by default"),
    Choice("a reranker that decides alone", "rerank_quality", "without reranking", "in the cross-encoder's order"),
    Choice("expansion by rules", "quality_expansion", "hybrid", "hybrid + rules"),
    Choice("acronyms", "quality_expansion", "hybrid", "hybrid + acronyms"),
    Choice("compounds", "quality_expansion", "hybrid", "hybrid + compounds"),
    Choice("spelling", "quality_expansion", "hybrid", "hybrid + spelling"),
    Choice("RM3", "quality_expansion", "hybrid", "hybrid + rm3"),
    Choice("at most 2 chunks of a page", "quality_pages", "no cap", "at most 2 of a page", "nDCG@10 by page"),
    Choice(
        "parents read",
        "structure",
        "children alone",
        "with parents",
        "recall of the answer's pages",
        lambda case: case.startswith("mmlongbench-pages"),
    ),
    Choice(
        "headers, where questions name their document",
        "chunk_headers",
        "ours, by default, text alone",
        "ours, by default, with headers",
        case=lambda case: case == "names its document, all 100",
    ),
    Choice(
        "headers, where they name none",
        "chunk_headers",
        "ours, by default, text alone",
        "ours, by default, with headers",
        case=lambda case: case == "names no document, test",
    ),
    Choice("questions made by rules", "structure", "bm25 + dense", "+ questions", case=_statutes),
    Choice("a graph of references", "structure", "bm25 + dense", "+ graph", case=_statutes),
)


def choices() -> str:
    """A line for each choice: the mean without it and with it, and on how many collections it was better or worse."""
    head = ("choice", "measure", "without", "with", "higher on", "lower on", "of")
    return "\n".join(map(_line, (head, ("---",) * len(head), *map(_measured, CHOICES))))


def _measured(choice: Choice) -> tuple[str, ...]:
    rows = json.loads((FOLDER / f"{choice.file}.json").read_text(encoding="utf-8"))["rows"]
    values = {(row["system"], row["metric"], row["case"]): row["value"] for row in rows if choice.case(row["case"])}
    cases = [case for system, metric, case in values if (system, metric) == (choice.before, choice.metric)]
    before = {case: values[choice.before, choice.metric, case] for case in cases}
    gains = {case: gain for case in cases if (gain := _gain(choice, values, case)) is not None}
    mean = fmean(before[case] for case in gains)
    better, worse = (sum(sign * gain >= SAME for gain in gains.values()) for sign in (1, -1))
    counts = (str(better), str(worse), str(len(gains)))
    return (choice.what, choice.metric, f"{mean:.3f}", f"{mean + fmean(gains.values()):.3f}", *counts)


def _gain(choice: Choice, values: Mapping[tuple[str, str, str], float], case: str) -> float | None:
    """What it was better by on a collection: the difference, or what the benchmark calls the gain."""
    after = values.get((choice.after, choice.metric, case))
    if after is not None:
        return after - values[choice.before, choice.metric, case]
    names = ("gain", f"gain in {choice.metric}")
    return next((values[key] for name in names if (key := (choice.after, name, case)) in values), None)


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"
