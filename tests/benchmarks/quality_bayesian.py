"""bayesian-bm25: BM25 scores as probabilities, fused with cosines in log-odds, as that package does it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from bayesian_bm25.fusion import balanced_log_odds_fusion, cosine_to_probability, log_odds_conjunction
from bayesian_bm25.scorer import BayesianBM25Scorer
from numpy.typing import NDArray

from tests.benchmarks.quality import DEPTH, Ahead
from voicevault_retrievers import Chunk
from voicevault_retrievers.dense import ExactVectors
from voicevault_retrievers.evaluation import Judged, ndcg
from voicevault_retrievers.text import Analyzer

BALANCED, CONJUNCTION = "bayesian-bm25, balanced log-odds", "bayesian-bm25, log-odds conjunction"


def ndcgs(
    chunks: Sequence[Chunk], index: ExactVectors, ahead: Ahead, asked: Sequence[Judged]
) -> dict[str, list[float]]:
    """The nDCG@10 of each question by both of its fusions, over this package's terms and the same vectors."""
    analyzer, ordered = Analyzer(), sorted(chunks, key=lambda chunk: chunk.id)
    analyzed = analyzer.analyse([chunk.text for chunk in ordered])
    tags = "".join(sorted({term[0] for at in range(len(analyzed)) for term in analyzed.document(at) if term[0] < " "}))
    scorer = BayesianBM25Scorer(k1=1.5, b=0.75, method="lucene", base_rate="auto")
    scorer.index([analyzed.document(at) for at in range(len(analyzed))], show_progress=False)
    (part,) = index.parts
    found: dict[str, list[float]] = {BALANCED: [], CONJUNCTION: []}
    for question in asked:
        tokens = [form for term in analyzer.query(question.text, tags) for form in term.forms]
        words: NDArray[np.float64] = scorer.get_probabilities(tokens) if tokens else np.full(len(ordered), 0.5)
        cosines = (part.matrix @ ahead.rows[question.text]).astype(np.float64)
        both = np.stack([words, np.asarray(cosine_to_probability(cosines))], axis=-1)
        for name, scores in (
            (BALANCED, balanced_log_odds_fusion(words, cosines)),
            (CONJUNCTION, log_odds_conjunction(both)),
        ):
            best = np.argsort(-np.asarray(scores), kind="stable")[:DEPTH]
            found[name].append(ndcg([ordered[at].id for at in best.tolist()], question.grades, DEPTH))
    return found
