"""Scores as probabilities, and "nothing relevant was found": are they right?

    python -m tests.benchmarks.rerank_abstention DATA [COLLECTION ...]

A calibration is fitted on the development questions of the collections in `LEARNT`, each question of each of them with
its first 20 hits and whether they are judged relevant, and a threshold is chosen on these. Both are then measured on
other questions, of all collections: each asked twice, as it is where a relevant chunk is among the first 20, and with
its relevant chunks removed. Precision and recall are of "none". Writes results/rerank_abstention.json; the constants
that it prints are those of `CALIBRATIONS`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.benchmarks.quality import run
from tests.benchmarks.reranking import PACKAGES, Collection, collection, embedder, scorer
from tests.benchmarks.results import Row, write
from voicevault_retrievers import Channel
from voicevault_retrievers.core.types import Ranking
from voicevault_retrievers.evaluation import Judged
from voicevault_retrievers.rerank import Calibration, CrossEncoderRerank, brier_score, calibration_error
from voicevault_retrievers.rerank import fit_calibration as fit

DEPTH = 20
LEARNT = ("scifact", "covidqa-passages", "mmlongbench-pages", "xquad-en", "xquad-r-en")
"""English, with judgements that leave little out, and with questions that are not reported."""
SYSTEM = "calibrated on others"


class Seen(NamedTuple):
    """The logits of a question's first hits, and which of these are relevant; and the logits where none is."""

    logits: list[float]
    relevant: list[bool]
    without: list[float]


def seen(given: Collection, questions: Sequence[Judged], stage: CrossEncoderRerank) -> list[Seen]:
    """What the cross-encoder says of each question's hits, with the relevant ones and without."""
    return [_seen(given.fused, question, stage) for question in questions]


def _seen(fused: Channel, question: Judged, stage: CrossEncoderRerank) -> Seen:
    relevant = {chunk_id for chunk_id, grade in question.grades.items() if grade > 0}
    found = fused.search(question.text, DEPTH + len(relevant))
    others = Ranking(tuple(hit for hit in found if hit.id not in relevant))
    logits = _logits(stage, question.text, found.top(DEPTH))
    ids = found.ids[:DEPTH]
    without = _logits(stage, question.text, others.top(DEPTH))
    return Seen([logits[i] for i in ids], [i in relevant for i in ids], list(without.values()))


def _logits(stage: CrossEncoderRerank, text: str, found: Ranking) -> dict[str, float]:
    from voicevault_retrievers import Query

    votes = {hit.id: hit.vote(stage.name) for hit in stage.refine(Query(text), found)}
    return {chunk_id: float(vote.score or 0.0) for chunk_id, vote in votes.items() if vote is not None}


def fitted(found: Sequence[Seen]) -> Calibration:
    """The calibration of all judgements."""
    logits = [logit for one in found for logit in one.logits]
    return fit(logits, [judged for one in found for judged in one.relevant])


def threshold(found: Sequence[Seen], known: Calibration) -> float:
    """The probability in hundredths under which "none" is right most often, of questions asked both ways."""
    return max((at / 100 for at in range(1, 100)), key=lambda least: (_accuracy(found, known, least), -least))


def _accuracy(found: Sequence[Seen], known: Calibration, least: float) -> float:
    answerable = [one for one in found if any(one.relevant)]
    right = sum(_best(one.logits, known) >= least for one in answerable)
    return (right + sum(_best(one.without, known) < least for one in answerable)) / max(1, 2 * len(answerable))


def _best(logits: Sequence[float], known: Calibration) -> float:
    return max((known.probability(logit) for logit in logits), default=0.0)


def measured(case: str, found: Sequence[Seen], known: Calibration, least: float) -> Iterator[Row]:
    """Precision and recall of "none", what is kept of the answerable, and how far probabilities are right."""
    answerable = [one for one in found if any(one.relevant)]
    wrong = sum(_best(one.logits, known) < least for one in answerable)
    none = sum(_best(one.without, known) < least for one in answerable)
    probabilities = [known.probability(logit) for one in found for logit in one.logits]
    judged = [relevant for one in found for relevant in one.relevant]
    yield Row(SYSTEM, case, "questions asked both ways", float(len(answerable)))
    yield Row(SYSTEM, case, "precision of none", none / (none + wrong) if none + wrong else 1.0)
    yield Row(SYSTEM, case, "recall of none", none / max(1, len(answerable)))
    yield Row(SYSTEM, case, "answerable, none said", wrong / max(1, len(answerable)))
    yield Row(SYSTEM, case, "calibration error", calibration_error(probabilities, judged))
    yield Row(SYSTEM, case, "Brier score", brier_score(probabilities, judged))
    yield Row(SYSTEM, case, "Brier score of the base rate", float(np.var(judged)))


def main(data: Path, names: Sequence[str]) -> None:
    """Fit, choose, and measure each collection."""
    stage = CrossEncoderRerank(scorer(), depth=10 * DEPTH, max_candidates=10 * DEPTH, timeout=None)
    sense = embedder()
    every = [collection(name, data / name, sense) for name in names]
    learnt = [one for given in every if given.name in LEARNT for one in seen(given, given.development, stage)]
    known = fitted(learnt)
    least = threshold(learnt, known)
    sys.stdout.write(f"{known!r}, least={least}\n")
    rows = [
        Row(SYSTEM, "all", "slope", known.slope),
        Row(SYSTEM, "all", "intercept", known.intercept),
        Row(SYSTEM, "all", "threshold", least),
    ]
    for given in every:
        rows += measured(given.name, seen(given, given.questions, stage), known, least)
        sys.stdout.write("".join(f"{row}\n" for row in rows if row.case == given.name))
        sys.stdout.flush()
    write("rerank_abstention", rows, PACKAGES)


if __name__ == "__main__":
    run(main)
