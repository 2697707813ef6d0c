"""Hits and results as plain data: for every way in which they are found."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import replace
from datetime import date
from typing import Any

import numpy as np
import pytest

from tests.helpers import FailingChannel, GivenChannel, ListChannel
from voicevault_retrievers.core.channel import Rewriter
from voicevault_retrievers.core.types import Chunk, Hit, Query, Result, Variant, Vote
from voicevault_retrievers.display import BADGES, Lists, alists, analyzer_of, hit_data, marked, result_data, result_html
from voicevault_retrievers.display.data import MOST, MOST_MARKED
from voicevault_retrievers.errors import SearchError
from voicevault_retrievers.fusion import RRF, fuse
from voicevault_retrievers.lexical import BM25
from voicevault_retrievers.pipeline.builder import compose
from voicevault_retrievers.pipeline.options import Expand, Rerank
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.query import RuleRouter
from voicevault_retrievers.rerank import CallableScorer, CrossEncoderRerank, PageCap, WeightedRerank
from voicevault_retrievers.structure.graph import EmbeddedGraph, Entry, GraphChannel, Link
from voicevault_retrievers.text import Analyzer

CHUNKS = [
    Chunk("a", "The contract ends; see ERR_2043.", metadata={"source_file": "x.pdf", "page_number": 3, "section": "S"}),
    Chunk("b", "Two contracts, no notice.", kb="laws"),
    Chunk("c", "Nothing of that kind."),
]


LENGTH = CallableScorer(lambda query, passages: [float(len(text)) for text in passages], name="length")


class Also(Rewriter):
    name = "also"

    def rewrite(self, query: Query) -> Query:
        return replace(query, variants=(Variant("notices", 0.5, frozenset({"keyword"})),))


def bm25() -> BM25:
    return BM25.from_chunks(CHUNKS)


def dense() -> GivenChannel:
    """Finds each chunk, as a channel of vectors does."""
    hits = (Hit(chunk, 0.9 - at / 10) for at, chunk in enumerate(CHUNKS))
    return GivenChannel(hits, name="dense", kind="semantic")


def strict(data: Any) -> Any:
    """The data after a way through JSON that takes no NaN, and whose text goes into UTF-8."""
    again = json.loads(json.dumps(data, allow_nan=False, ensure_ascii=False).encode())
    assert again == data
    return again


def without_times(data: dict[str, Any]) -> dict[str, Any]:
    timings = sorted((timing["name"], timing["kind"], timing["texts"]) for timing in data["timings"])
    return {**data, "timings": timings, "total_ms": None}


def test_a_fused_hit_says_what_each_channel_added() -> None:
    result = compose({"bm25": bm25(), "dense": dense()}, fusion=RRF(60)).search("contract ERR_2043")
    data = strict(result_data(result))
    first = data["hits"][0]
    assert (first["id"], first["badge"], first["header"]) == ("a", "hybrid", "[Source: x.pdf, p.3 | Section: S]")
    assert first["source"] == {"file": "x.pdf", "page": 3, "section": "S"}
    assert [part["stage"] for part in first["parts"]] == ["bm25", "dense"]
    assert math.fsum(part["contribution"] for part in first["parts"]) == first["fused"] == first["score"]
    assert sum(part["share"] for part in first["parts"]) == pytest.approx(1.0)
    assert first["parts"][0]["terms"] == ["contract", "err_2043", "err", "2043"]
    assert [text for text, is_marked in first["pieces"] if is_marked] == ["contract", "ERR_2043"]
    assert "".join(text for text, _ in first["pieces"]) == first["text"]
    assert data["counts"] == {**dict.fromkeys(BADGES, 0), "hybrid": 2, "semantic": 1}
    assert data["context"]["text"] == result.context.text


def test_one_channel_has_a_score_and_no_contribution() -> None:
    data = strict(result_data(Pipeline(bm25()).search("contract")))
    (part,) = data["hits"][0]["parts"]
    assert (part["score"], part["contribution"], part["share"]) == (data["hits"][0]["score"], None, None)
    assert data["hits"][0]["fused"] is None
    assert [hit["badge"] for hit in data["hits"]] == ["keyword", "keyword"]
    assert [hit["kb"] for hit in data["hits"] if hit["id"] == "b"] == ["laws"]


def test_a_fusion_inside_a_fusion_has_parts() -> None:
    inner = fuse(bm25=bm25(), dense=dense(), method=RRF(60))
    outer = fuse({"inner": inner, "listed": ListChannel([("a", 1.0)], kind="question")}, method=RRF(60))
    first = strict(result_data(Pipeline(outer).search("contract")))["hits"][0]
    (nested,) = [part for part in first["parts"] if part["stage"] == "inner"]
    assert [part["stage"] for part in nested["parts"]] == ["bm25", "dense"]
    assert sum(part["share"] for part in nested["parts"]) == pytest.approx(1.0)
    assert ["contract", True] in first["pieces"]
    assert first["header_pieces"] == []


def test_what_a_channel_takes_off_has_no_share() -> None:
    votes = (Vote("bm25", 1, 2.0, contribution=2.0, kind="keyword"), Vote("dense", None, -1.0, 1.0, -0.5))
    data = hit_data(Hit(CHUNKS[0], 1.5, votes), 1)
    assert [(part["share"], part["found"]) for part in data["parts"]] == [(1.0, True), (0.0, False)]
    nothing = Hit(CHUNKS[0], -1.0, (Vote("dense", 1, -1.0, contribution=-1.0, kind="semantic"),))
    assert hit_data(nothing, 1)["parts"][0]["share"] == 0.0
    strange = Hit(CHUNKS[0], 1.0, (Vote("a", 1, math.nan, contribution=math.nan), Vote("b", 1, 1.0, contribution=1.0)))
    assert [part["share"] for part in strict(hit_data(strange, 1))["parts"]] == [None, 1.0]


def test_later_stages_stand_beside_the_channels() -> None:
    pipeline = compose({"bm25": bm25(), "dense": dense()}, rerank=CrossEncoderRerank(LENGTH))
    first = strict(result_data((pipeline >> WeightedRerank()).search("contract")))["hits"][0]
    assert [stage["stage"] for stage in first["stages"]] == ["rerank", "weighted"]
    assert first["stages"][0]["score"] == float(len(first["text"]))
    assert math.fsum(part["contribution"] for part in first["stages"][1]["parts"]) == first["score"]


def test_graph_and_question_hits_say_what_led_to_them() -> None:
    graph = GraphChannel(EmbeddedGraph([Entry(CHUNKS[0], (Link("is", "section:1:a"),))]))
    (hit,) = strict(result_data(Pipeline(graph).search("section 1")))["hits"]
    assert (hit["badge"], hit["parts"][0]["via"]) == ("graph", ["section 1 a", "is", "a"])
    vote = Vote("questions", 1, 0.5, kind="question", via=("When does it end?",))
    hit = hit_data(Hit(CHUNKS[0], 0.5, (vote,)), 1)
    assert (hit["badge"], hit["parts"][0]["via"]) == ("question", ["When does it end?"])


def test_a_hit_of_nobody_knows_is_other() -> None:
    data = strict(hit_data(Hit(CHUNKS[2]), 7))
    assert (data["rank"], data["badge"], data["score"], data["parts"], data["fused"]) == (7, "other", None, [], None)


def test_nothing_found_is_data_too() -> None:
    data = strict(result_data(Pipeline(bm25()).search("unheard")))
    assert (data["hits"], data["confidence"], sum(data["counts"].values())) == ([], "none", 0)
    data = strict(result_data(Result(Query("q"), Pipeline(bm25()).search("unheard").ranking)))
    assert (data["timings"], data["total_ms"], data["wordings"][0]["text"]) == ([], 0.0, "q")


def test_what_was_skipped_is_named() -> None:
    channels = {"bm25": bm25(), "broken": FailingChannel(ValueError("no server"))}
    data = strict(result_data(compose(channels).search("contract")))
    assert data["degraded"]
    assert {"stage": "broken", "kind": "ValueError", "message": "", "degrades": True} in data["errors"]
    assert [one["error"] for one in data["timings"] if one["name"] == "broken"] == ["ValueError"]
    own = compose({"bm25": bm25(), "broken": FailingChannel(SearchError("no server"))}).search("contract")
    data = strict(result_data(own))
    assert {"stage": "broken", "kind": "SearchError", "message": "no server", "degrades": True} in data["errors"]
    assert [one["error"] for one in data["timings"] if one["name"] == "broken"] == ["SearchError: no server"]


def test_timings_begin_one_after_the_other() -> None:
    channels = {"bm25": bm25(), "dense": dense()}
    data = result_data(compose(channels, expansion=Also(), rerank=Rerank(max_chunks_per_page=2)).search("contract"))
    starts = {one["name"]: one["start_ms"] for one in reversed(data["timings"])}
    ends = {one["name"]: one["start_ms"] + one["ms"] for one in data["timings"]}
    assert list(starts.values()) == sorted(starts.values(), reverse=True)
    assert 0 <= starts["also"] < ends["also"] <= starts["bm25"] < starts["fused"] < starts["page_cap"]
    assert data["total_ms"] == max(ends.values())


def test_wordings_are_what_channels_were_asked_for() -> None:
    data = result_data(
        compose({"bm25": bm25(), "dense": dense()}, expansion=Expand(Also(), route=True)).search("contract")
    )
    assert data["wordings"] == [
        {"text": "contract", "weight": 1.0, "channels": ["bm25", "dense"]},
        {"text": "notices", "weight": 0.5, "channels": ["bm25"]},
    ]
    assert data["route"] == RuleRouter().rewrite(Query("contract")).route


def test_sync_and_async_say_the_same() -> None:
    pipeline = compose({"bm25": bm25(), "dense": dense()}, expansion=Also(), rerank=CrossEncoderRerank(LENGTH))
    lists, others = Lists(), Lists()
    one = pipeline.search("contract", observe=lists)
    other = asyncio.run(pipeline.asearch("contract", observe=alists(others)))
    assert list(lists) == list(others)
    told = [without_times(result_data(result, lists=lists)) for result in (one, other)]
    assert told[0] == told[1]


def test_lists_say_what_each_call_found() -> None:
    channels = {"bm25": bm25(), "dense": dense(), "broken": FailingChannel(ValueError("no server"))}
    lists = Lists()
    result = compose(channels, expansion=Also(), rerank=CrossEncoderRerank(LENGTH)).search("contract", observe=lists)
    told = [(entry["name"], entry["kind"], entry["query"]) for entry in lists]
    assert told == [
        ("also", "rewriter", "contract"),
        ("bm25", "channel", "contract"),
        ("bm25", "channel", "notices"),
        ("dense", "channel", "contract"),
        ("broken", "channel", "contract"),
        ("fused", "fusion", "contract"),
        ("rerank", "stage", "contract"),
    ]
    by_name = {entry["name"]: entry for entry in lists}
    assert by_name["also"]["wordings"] == ["contract", "notices"]
    assert by_name["broken"]["error"] == "ValueError"
    assert by_name["rerank"]["before"] == [hit["id"] for hit in by_name["fused"]["hits"]]
    assert [hit["rank"] for hit in by_name["dense"]["hits"]] == [1, 2, 3]
    data = strict(result_data(result, lists=lists))
    assert data["lists"][:-1] == lists[:-1]
    assert [hit["id"] for hit in data["lists"][-1]["hits"]] == [hit.id for hit in result.hits]


def test_a_list_of_scores_has_the_hits_that_came_to_the_next_stage() -> None:
    lists = Lists()
    pipeline = compose({"dense": dense()}, rerank=Rerank(CrossEncoderRerank(LENGTH), max_chunks_per_page=1))
    result = pipeline.search("contract", 1, observe=lists)
    told = {entry["name"]: [hit["id"] for hit in entry["hits"]] for entry in lists}
    assert told == {
        "dense": ["a", "b", "c"],
        "fused": ["a", "b", "c"],
        "rerank": ["a", "b", "c"],
        "page_cap": list("abc"),
    }
    assert [hit.id for hit in result.hits] == ["a"]
    assert lists[2]["hits"][0] == {"id": "a", "rank": 1, "score": float(len(CHUNKS[0].text))}


def test_lists_are_short_and_what_a_stage_was_given_is_named_only_where_it_is_known() -> None:
    many = ListChannel([(f"c{at:03}", None) for at in range(80)], name="many")
    lists = Lists()
    Pipeline(many >> PageCap(1), k=80).search("q", observe=lists)
    assert [len(entry["hits"]) for entry in lists[:2]] == [MOST, MOST]
    assert len(lists[1]["before"]) == 80
    scored = Lists()
    Pipeline(many >> CrossEncoderRerank(LENGTH, depth=80), k=60).search("q", observe=scored)
    assert [(entry["name"], len(entry["hits"]), len(entry.get("before", ()))) for entry in scored] == [
        ("many", MOST, 0),
        ("rerank", 0, 80),
    ]
    asked = Lists()
    Pipeline(Also() >> bm25() >> CrossEncoderRerank(LENGTH)).search("contract", observe=asked)
    assert "before" not in asked[-1]


def test_metadata_is_made_fit_for_json() -> None:
    odd = {
        "when": date(2024, 5, 1),
        "n": np.int64(3),
        "x": np.float32(0.5),
        "nan": math.nan,
        "deep": {"a": (1, {"b"})},
        "half": "\ud800",
        "none": None,
        "yes": True,
    }
    data = strict(hit_data(Hit(Chunk("a", "half \ud800", metadata=odd)), 1))
    assert data["metadata"] == {
        "when": "2024-05-01", "n": 3, "x": 0.5, "nan": None, "deep": {"a": [1, ["b"]]}, "half": "?", "none": None,
        "yes": True,
    }  # fmt: skip
    assert data["text"] == "half ?"


def test_a_context_is_beside_the_text_that_was_found() -> None:
    data = hit_data(Hit(CHUNKS[0], context="The wider contract."), 1)
    assert (data["text"], data["context"]) == (CHUNKS[0].text, "The wider contract.")


def test_only_the_beginning_of_a_very_long_text_is_marked() -> None:
    text = "contract " * (MOST_MARKED // 9 + 10)
    data = hit_data(Hit(Chunk("a", text), votes=(Vote("bm25", 1, terms=("contract",), kind="keyword"),)), 1)
    assert "".join(piece for piece, _ in data["pieces"]) == text
    assert data["pieces"][-1] == [text[MOST_MARKED:], False]


def test_the_analyzer_is_that_of_the_keyword_channel() -> None:
    plain = Analyzer(None)
    channel = fuse(dense=dense(), bm25=BM25.from_chunks(CHUNKS, plain))
    assert analyzer_of(channel) == plain
    assert analyzer_of(dense()) is None
    assert marked("contracts", ["contract"], plain) == [("contracts", False)]


def test_a_header_is_shown_above_the_text_with_its_own_marks() -> None:
    chunk = Chunk("a", "The default value is 3.", header="Zephyr > Settings")
    result = Pipeline(BM25.from_chunks([chunk])).search("default of the Zephyr", 1)
    (hit,) = result_data(result)["hits"]
    assert hit["header_pieces"] == [["Zephyr", True], [" > Settings", False]]
    assert "".join(piece for piece, _ in hit["pieces"]) == chunk.text
    html = result_html(result)
    assert html.index("Settings") < html.index("value is 3")
