"""Routes and conversations in LlamaIndex's retrievers."""

from __future__ import annotations

import pytest

pytest.importorskip("llama_index.core")

from tests.frameworks.llama_index_parts import hybrid
from voicevault_retrievers.core.queries import Turn
from voicevault_retrievers.core.types import Query, Route
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.pipeline.options import Expand
from voicevault_retrievers.pipeline.presets import Preset
from voicevault_retrievers.query import FollowUp


async def test_a_route_chooses_channels() -> None:
    retriever = hybrid(expansion=Expand(route={"simple": ["bm25"]}))
    for result in (retriever.search("Section 420 IPC"), await retriever.asearch("Section 420 IPC")):
        assert (result.route, result.channels_used) == (Route.SIMPLE, ("bm25",))
    assert retriever.search("how to reset it").channels_used == ("bm25", "dense")
    assert hybrid().search("Section 420 IPC").route is None
    assert "Expand(route=True)" in repr(hybrid(expansion=Expand(route=True)))
    with pytest.raises(ConfigError, match="Did you mean 'simple'"):
        hybrid(expansion=Expand(route={"simpel": ["bm25"]}))
    over = hybrid(preset=Preset.of({"version": 1, "route": "rules"}), expansion=Expand(route={"simple": ["bm25"]}))
    assert over.search("Section 420 IPC").channels_used == ("bm25",)


async def test_a_follow_up_question_is_searched_with_its_topic() -> None:
    retriever = hybrid(expansion=FollowUp())
    asked = Query("and what else?", history=(Turn("How is the pump reset?", "By hand."),))
    result = retriever.search(asked)
    assert (await retriever.asearch(asked)).ranking == result.ranking
    assert "and what else? pump reset" in {
        leaf.query for hit in result.hits for vote in hit.votes for leaf in vote.leaves()
    }
    assert result.context.text.startswith("User: How is the pump reset?")


def test_a_preset_by_vectors_takes_those_of_the_retriever() -> None:
    stages = [{"mmr": {"by": "vectors"}}, {"near_duplicates": {"by": "vectors"}}]
    result = hybrid(preset=Preset.of({"version": 1, "stages": stages})).search("pump")
    assert result.hits
    assert not result.errors
    assert all(hit.vote("mmr") for hit in result.hits)
