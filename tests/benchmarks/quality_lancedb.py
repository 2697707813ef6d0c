"""LanceDB's own rerankers of hybrid search, as its queries call them, over the lists that the other fusions get.

LanceDB first brings the distances and the BM25 scores each to [0, 1] by the least and the greatest of their list.
`RRFReranker` adds 1 / (60 + rank) over the lists; `LinearCombinationReranker` adds 0.7 times (1 - distance) and 0.3
times the BM25 score, which it does not invert, and a chunk that a list lacks gets 0 from it, as that list's last does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
from lancedb.query import LanceHybridQueryBuilder
from lancedb.rerankers import LinearCombinationReranker, RRFReranker
from lancedb.rerankers.base import Reranker

from tests.benchmarks.quality import DEPTH, FETCHED
from voicevault_retrievers import Channel
from voicevault_retrievers.evaluation import Judged, ndcg

RERANKERS: Mapping[str, Reranker] = {
    "LanceDB RRFReranker": RRFReranker(),
    "LanceDB LinearCombinationReranker": LinearCombinationReranker(),
}


def ndcgs(words: Channel, sense: Channel, asked: Sequence[Judged]) -> dict[str, list[float]]:
    """The nDCG@10 of each question by each of its rerankers, over the best of both channels."""
    found: dict[str, list[float]] = {name: [] for name in RERANKERS}
    for question in asked:
        said, near = words.search(question.text, FETCHED), sense.search(question.text, FETCHED)
        ids = list(dict.fromkeys((*near.ids, *said.ids)))
        places = {chunk_id: at for at, chunk_id in enumerate(ids)}
        keywords = _table((places[chunk_id] for chunk_id in said.ids), "_score", said.scores)
        vectors = _table(
            (places[chunk_id] for chunk_id in near.ids), "_distance", 1 - np.array(near.scores, dtype=np.float64)
        )
        for name, reranker in RERANKERS.items():
            best = LanceHybridQueryBuilder._combine_hybrid_results(
                keywords, vectors, "score", question.text, reranker, DEPTH, with_row_ids=True
            )
            found[name].append(ndcg([ids[at] for at in best["_rowid"].to_pylist()], question.grades, DEPTH))
    return found


def _table(places: Iterable[int], column: str, values: Iterable[float | None]) -> pa.Table:
    """A list as LanceDB's searches give it: row ids, best first, and what each scored."""
    return pa.table({"_rowid": pa.array(places, pa.uint64()), column: pa.array(values, pa.float32())})
