"""Retrieval measures by ir-measures: nDCG@k, RR@k (whose mean is MRR), R@k, Success@k, and all others it has."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

from voicevault_retrievers._support.extras import require
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.evaluation.judgements import DEPTH, Judged

MAX_GRADE = 2**31 - 1
MEASURES = ("nDCG@10", "RR@10", "R@5", "Success@5")


def parsed(names: Sequence[str]) -> list[Any]:
    """Measures by name, each once; ConfigError for a measure that ir-measures does not know or cannot compute."""
    measures = [_parsed(name) for name in names]
    if not measures:
        raise ConfigError(f"name at least one measure, such as {', '.join(MEASURES)}")
    return list(dict.fromkeys(measures))


def depth_of(measures: Sequence[Any]) -> int:
    """The number of hits to search for these measures: the deepest cutoff, and at least `DEPTH`."""
    return max([DEPTH, *(int(measure.params.get("cutoff", 0)) for measure in measures)])


def check_grades(questions: Sequence[Judged]) -> None:
    """Raises ConfigError for a grade that is not whole, or beyond 32 bits, which trec_eval's measures cannot count."""
    for question in questions:
        for name, grade in question.grades.items():
            if not isinstance(grade, Integral) or abs(int(grade)) > MAX_GRADE:
                raise ConfigError(
                    f"the grade of {name!r} for question {question.id!r} is a whole number of 32 bits, not {grade!r}"
                )


def measured(
    found: Sequence[Sequence[str]], questions: Sequence[Judged], measures: Sequence[str]
) -> dict[str, tuple[float, ...]]:
    """Each measure's value for each question. `found` are the judged names found for it, best first, each once.

    The order given counts, so that ties cannot arise. A question for which nothing is found, or nothing is judged
    relevant, has the value 0. Raises MissingExtraError without ir-measures, else ConfigError as `parsed`.
    """
    wanted = parsed(measures)
    check_grades(questions)
    qrels = {
        str(at): {name: int(grade) for name, grade in question.grades.items()} for at, question in enumerate(questions)
    }
    runs = {str(at): {name: float(-rank) for rank, name in enumerate(names)} for at, names in enumerate(found) if names}
    values: dict[str, list[float]] = {str(measure): [0.0] * len(questions) for measure in wanted}
    try:
        for value in require("ir_measures", extra="eval").iter_calc(wanted, qrels, runs):
            values[str(value.measure)][int(value.query_id)] = float(value.value)
    except ZeroDivisionError as error:
        raise ConfigError(
            f"one of {', '.join(values)} divides by the irrelevant results, and a question has none: leave it out"
        ) from error
    return {name: tuple(own) for name, own in values.items()}


def _parsed(name: str) -> Any:
    engine = require("ir_measures", extra="eval")
    try:
        measure = engine.parse_measure(name)
        computable = engine.DefaultPipeline.supports(measure) and measure.params.get("cutoff", 1) > 0
    except (NameError, ValueError, TypeError, AssertionError) as error:
        raise ConfigError(f"unknown measure {name!r}. Known are {', '.join(MEASURES)} and others: {error}") from error
    if not computable:
        raise ConfigError(
            f"the measure {name!r} cannot be computed: its program is not installed, or it counts nothing"
        )
    return measure
