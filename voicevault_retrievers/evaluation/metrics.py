"""Metrics of a ranking against judgements: 0 is worst, 1 is best."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence


def recall(ranking: Sequence[str], grades: Mapping[str, int], k: int) -> float:
    """The share of the relevant ids (grade above 0) that are among the first k; 0 where none is relevant."""
    relevant = {name for name, grade in grades.items() if grade > 0}
    return len(relevant.intersection(ranking[:k])) / len(relevant) if relevant else 0.0


def ndcg(ranking: Sequence[str], grades: Mapping[str, int], k: int) -> float:
    """Normalised discounted cumulative gain at k, gain linear in the grade.

    Järvelin, Kekäläinen (2002), "Cumulated gain-based evaluation of IR techniques", with the discount
    `1 / log2(rank + 1)`, as trec_eval has it.
    """
    gains = [max(0, grades.get(name, 0)) for name in ranking[:k]]
    ideal = sorted((grade for grade in grades.values() if grade > 0), reverse=True)[:k]
    return _dcg(gains) / _dcg(ideal) if ideal else 0.0


def _dcg(gains: Sequence[int]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, 1))
