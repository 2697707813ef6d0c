"""Values of a wrong kind: a ConfigError says what is expected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.helpers import HashEmbedder
from voicevault_retrievers import BM25, Chunk, Query, VectorChannel, compose, fuse
from voicevault_retrievers.core.queries import Variant
from voicevault_retrievers.core.rows import Rows
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.lexical import BM25F
from voicevault_retrievers.rerank import WeightedRerank
from voicevault_retrievers.store.codec import Limits, kept, limits_of
from voicevault_retrievers.store.embedding import describe


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: BM25.from_chunks(["the pump"]), "expected a Chunk, not a str"),
        (lambda: BM25F.from_chunks([None]), "expected a Chunk, not a NoneType"),
        (lambda: VectorChannel.from_chunks(["the pump"], HashEmbedder()), "expected a Chunk, not a str"),
        (lambda: Rows.of(["the pump"]), "expected a Chunk, not a str"),
        (lambda: fuse([BM25.from_chunks([])]), "channels is a mapping of names to channels, not a list"),
        (lambda: compose([BM25.from_chunks([])]), "channels is a mapping of names to channels, not a list"),
        (lambda: compose(BM25.from_chunks([])), "channels is a mapping of names to channels, not a BM25"),
        (lambda: Chunk("1", "the pump", None, None), "chunk '1': metadata is a mapping, not None"),
        (lambda: Chunk("1", "the pump", None, [("a", 1)]), "chunk '1': metadata is a mapping, not "),
        (lambda: Query("pump", history=3), "history is a sequence of turns, not 3"),
        (lambda: Query("pump", variants=3), "variants are texts or Variants in a sequence, not 3"),
        (lambda: Query("pump", variants="pump"), "variants are texts or Variants in a sequence, not 'pump'"),
        (lambda: Query("pump", sparse=3), "the words of a sparse vector"),
        (lambda: Query("pump", vectors="x"), "a query vector is one row of finite numbers"),
        (lambda: Query("pump", vectors={"": [[1], [1, 2]]}), "a query vector is one row of finite numbers"),
        (lambda: Variant("pump", weight="b"), "the weight of a variant is above 0 and at most 1, not 'b'"),
        (lambda: WeightedRerank([0.5, 0.5]), "weights is a mapping of signals to numbers, such as "),
        (lambda: kept(Chunk("a", "pump"), "", Limits()), "chunks is a list of chunks, not a Chunk"),
        (lambda: kept(3, "", Limits()), "chunks is a list of chunks, not a int"),
        (lambda: limits_of({"text": 3}), "limits is a Limits"),
        (
            lambda: describe("all-MiniLM-L6-v2"),
            r"embedder is an object, not a name: load_embedder\(",
        ),
    ],
)
def test_a_value_of_a_wrong_kind_is_told(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make()
