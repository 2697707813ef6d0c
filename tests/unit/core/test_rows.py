"""The rows of a table: which of them are best."""

from __future__ import annotations

import numpy as np

from voicevault_retrievers.core.rows import best_by_id


def test_the_best_of_scores_come_by_id_where_equal() -> None:
    scores, ids = np.array([1.0, 3.0, -1.0, 3.0, 0.0, 1.0]), ["f", "e", "d", "c", "b", "a"]
    assert best_by_id(ids, scores, 3) == [3, 1, 5]
    assert best_by_id(ids, scores, 9) == [3, 1, 5, 0, 4, 2]
    assert best_by_id(ids, scores, 9, positive=True) == [3, 1, 5, 0]
    assert best_by_id(ids, scores, 0) == []
    assert best_by_id([], np.array([]), 3) == []
