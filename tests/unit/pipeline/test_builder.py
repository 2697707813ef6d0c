"""A pipeline from options has what they say, those of a `Pipeline` among them."""

from __future__ import annotations

import pytest

from voicevault_retrievers.answers import ContextBuilder
from voicevault_retrievers.answers.flare import Flare
from voicevault_retrievers.core.filters import Filter
from voicevault_retrievers.core.types import Chunk, Failure, Query, Ranking
from voicevault_retrievers.errors import AccessError
from voicevault_retrievers.lexical import BM25
from voicevault_retrievers.models.generation import CallableTextModel
from voicevault_retrievers.pipeline.builder import compose
from voicevault_retrievers.pipeline.options import Expand
from voicevault_retrievers.rerank.calibration import Confidence

CHANNELS = {"bm25": BM25.from_chunks([Chunk("a", "pump", metadata={"open": True}), Chunk("b", "pump valve")])}


def unsure(ranking: Ranking) -> Confidence:
    return "none"


def test_options_of_a_pipeline_reach_it() -> None:
    flare, context, note = Flare(CallableTextModel(str)), ContextBuilder(), Failure("kb", "Note", "said beforehand")
    pipeline = compose(
        CHANNELS, k=1, context=context, confidence=unsure, notes=[note], timeout=9.0, expansion=Expand(flare=flare)
    )
    assert (pipeline.flare, pipeline.context, pipeline.timeout) == (flare, context, 9.0)
    result = pipeline.search("pump")
    assert (len(result.hits), result.confidence) == (1, "none")
    assert note in result.errors


def test_mandatory_access_is_asked_for() -> None:
    pipeline = compose(CHANNELS, access="mandatory")
    with pytest.raises(AccessError, match="names no access rights"):
        pipeline.search("pump")
    assert pipeline.search(Query("pump", require={"open": True})).ranking.ids == ("a",)


def test_empty_rights_are_told_from_rights_that_find_nothing() -> None:
    pipeline = compose(CHANNELS)
    empty: tuple[Filter, ...] = ({}, {"$or": []}, {"$and": [{"open": True}, {}]})
    for require in empty:
        for found in (
            pipeline.search(Query("pump", require=require)),
            pipeline.search(Query("zebra", require=require)),
        ):
            (note,) = found.errors
            assert (note.kind, note.degrades, found.hits) == ("EmptyRights", False, ())
            assert str(note).endswith("the access rights (require) are empty: they permit nothing, whatever is asked")
    for rights in ({"open": False}, {"closed": True}, {"$not": {"open": {"$exists": True}}}):
        assert pipeline.search(Query("zebra", require=rights)).errors == ()
