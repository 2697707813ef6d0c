"""Routes and conversations in LangChain's retrievers."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("langchain_core")

from langchain_core.messages import AIMessage, HumanMessage

from tests.frameworks.langchain_parts import hybrid, ids
from voicevault_retrievers.core.types import Route
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.pipeline.options import Expand
from voicevault_retrievers.pipeline.presets import Preset
from voicevault_retrievers.query import FollowUp

HISTORY = [HumanMessage("How is the seal of a pump replaced?"), AIMessage("By hand.")]


async def test_a_route_chooses_channels() -> None:
    retriever = hybrid(expansion=Expand(route={"simple": ["bm25"]}))
    for result in (retriever.search("Section 420 IPC"), await retriever.asearch("Section 420 IPC")):
        assert (result.route, result.channels_used) == (Route.SIMPLE, ("bm25",))
    assert retriever.search("how to reset it").channels_used == ("bm25", "dense")
    assert hybrid(expansion=Expand(route=True)).search("Section 420 IPC").channels_used == ("bm25", "dense")
    assert hybrid().search("Section 420 IPC").route is None
    for wrong in ({"simpel": ["bm25"]}, "rules", {"simple": ["graph"]}):
        with pytest.raises(ConfigError):
            hybrid(expansion=Expand(route=wrong)).search("pump")
    over = hybrid(preset=Preset.of({"version": 1, "route": "rules"}), expansion=Expand(route={"simple": ["bm25"]}))
    assert over.search("Section 420 IPC").channels_used == ("bm25",)


@pytest.mark.parametrize("history", [HISTORY, [("How is the seal of a pump replaced?", "By hand.")]])
async def test_a_follow_up_question_is_searched_with_its_topic(history: list[Any]) -> None:
    retriever = hybrid(expansion=FollowUp(), k=2)
    found = retriever.invoke("and what tool?", history=history)
    assert "seal" in ids(found)
    assert await retriever.ainvoke("and what tool?", history=history) == found
    said = {vote["query"] for document in found for vote in document.metadata["voicevault"]["channels"].values()}
    assert "and what tool? seal pump replaced" in said
    assert retriever.search("and what tool?", history=history).context.text.startswith("User: How is the seal")
