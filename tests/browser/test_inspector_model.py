"""What the page works out of a result, and what it draws of results that no sample document gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.driving import QUESTION, address, shown

Opened = Callable[..., Any]


@pytest.fixture
def model(opened: Opened) -> Callable[..., Any]:
    """Calls a function of model.js with plain data."""
    page = opened()
    page.goto("/")

    def call(name: str, *given: object) -> Any:
        asked = "([name, given]) => import('/static/model.js').then((model) => model[name](...given))"
        return page.evaluate(asked, [name, list(given)])

    return call


def listed(name: str, kind: str, ids: str, *, query: str = "q", **more: Any) -> dict[str, Any]:
    hits = [{"id": chunk_id, "rank": rank, "score": 1 / rank} for rank, chunk_id in enumerate(ids, 1)]
    return {"name": name, "kind": kind, "query": query, "hits": hits, **more}


def result(ids: str, *lists: dict[str, Any], wordings: str = "q") -> dict[str, Any]:
    hits = [{"id": one, "kb": "kb", "rank": rank, "stages": [], "parts": []} for rank, one in enumerate(ids, 1)]
    return {
        "query": "q",
        "hits": hits,
        "lists": list(lists),
        "wordings": [{"text": one, "weight": 1} for one in wordings],
    }


def test_a_snippet_is_cut_where_most_of_the_words_are(model: Callable[..., Any]) -> None:
    short = [["a ", False], ["word", True]]
    assert model("snippet", short) == short
    cut = model("snippet", [["before " * 100, False], ["word", True], [" after" * 100, False]], 100)
    assert ["word", True] in cut
    assert (cut[0][0], cut[-1][0]) == ("… ", " …")
    assert 80 <= sum(len(text) for text, _ in cut[1:-1]) <= 100
    assert all(word in ("before", "after") for text, matched in cut[1:-1] if not matched for word in text.split())
    gap = ["between " * 50, False]
    cut = model(
        "snippet", [["a", True], [" ", False], ["a", True], gap, ["a", True], [" ", False], ["ERR_2043", True], gap]
    )
    assert [text for text, matched in cut if matched] == ["a", "ERR_2043"]


def test_a_snippet_of_a_text_without_spaces_is_as_long(model: Callable[..., Any]) -> None:
    cut = model("snippet", [["水" * 500, False], ["泵", True], ["🙂" * 500, False]], 100)
    assert "".join(text for text, _ in cut) == f"… {'水' * 25}泵{'🙂' * 37} …"


def test_a_channel_keeps_the_best_score_of_each_wording(model: Callable[..., Any]) -> None:
    lists = [listed("bm25", "channel", "abc"), listed("bm25", "channel", "cd", query="r")]
    (channels, hits) = model("columns", result("ca", *lists, wordings="qr"))
    (bm25,) = channels
    assert [(hit["id"], hit["rank"], hit["original"]) for hit in bm25["hits"]] == [
        ("a", 1, 1), ("c", 2, 3), ("b", 3, 2), ("d", 4, None),
    ]  # fmt: skip
    assert hits[0]["name"] == "hits"
    (effect,) = model("effects", result("ca", *lists, wordings="qr"))
    assert (effect["fresh"], effect["up"]) == (["d"], ["c", 1])


def test_a_stage_that_passes_hits_over_names_them(model: Callable[..., Any]) -> None:
    lists = [listed("bm25", "channel", "abcdef"), listed("cap", "stage", "acf", before=list("abcdef"))]
    (effect,) = model("effects", result("acf", *lists))
    assert [hit["id"] for hit in effect["dropped"]] == ["b", "d", "e"]
    assert effect["cut"] == 3
    (cut,) = model("effects", result("ab", lists[0], listed("top", "stage", "ab", before=list("abcdef"))))
    assert (cut["cut"], cut["moved"]) == (0, 0)  # what lies below the last is not passed over


def test_of_a_stage_that_gives_scores_only_gaps_are_counted(model: Callable[..., Any]) -> None:
    found = result("ba", listed("bm25", "channel", "abcd"))
    for hit, rank in zip(found["hits"], (1, 3), strict=True):
        hit["stages"] = [{"stage": "rerank", "rank": rank}]
    told = [{"id": "b", "rank": 1, "score": 2}, {"id": "a", "rank": 3, "score": 1}]
    found["lists"] += [
        {"name": "rerank", "kind": "stage", "query": "q", "hits": told, "before": list("abcd")},
        listed("cap", "stage", "ba", before=list("abcd")),
    ]
    rerank, cap = model("effects", found)
    assert (rerank["moved"], rerank["cut"], rerank["up"]) == (2, 0, ["b", 1])
    assert cap["cut"] == 1
    assert cap["dropped"] == []  # which one it was, nobody knows
    assert model("trail", found, "a") == [
        {"name": "rerank", "rank": 3, "change": None}, {"name": "cap", "rank": 2, "change": 1},
    ]  # fmt: skip


def test_two_results_are_compared_hit_by_hit(model: Callable[..., Any]) -> None:
    said = model("compared", result("abc"), result("bad"))
    assert {key: value for key, value in said.items() if key != "other"} == {
        "both": 2, "moved": 2, "onlyLeft": 1, "onlyRight": 1,
    }  # fmt: skip


def test_a_parents_text_shows_where_the_chunk_stands(model: Callable[..., Any]) -> None:
    assert model("within", " b ", "a b c") == [["a ", False], ["b", True], [" c", False]]
    assert model("within", "x", "a b c") == [["a b c", False]]


def test_every_badge_has_a_word_and_a_shape_of_its_own(opened: Opened) -> None:
    page = opened()
    kinds = ["hybrid", "keyword", "semantic", "graph", "question", "unheard <b>of</b>"]

    def dressed(route: Any) -> None:
        data = route.fetch().json()
        nested = data["hits"][0]["parts"][0]
        for hit, kind in zip(data["hits"], kinds, strict=True):
            hit["badge"] = kind
            part = {
                **nested,
                "stage": "graph",
                "kind": "graph",
                "via": ["s. 7", "cites", "s. 9"],
                "terms": [],
                "contribution": 1.5,
            }
            hit["parts"] = [
                {
                    **part,
                    "kind": None,
                    "stage": "inner",
                    "via": [],
                    "parts": [part, {**part, "contribution": -0.25, "share": 0}],
                }
            ]
        data["confidence"] = "none"
        route.fulfill(json=data)

    page.route("**/api/search", dressed)
    shown(page, address(QUESTION, k=6))
    badges = page.locator(".hit .badge")
    assert badges.all_inner_texts() == ["Hybrid", "Keyword", "Semantic", "Graph", "Question", "Other"]
    assert len(set(badges.locator("svg").evaluate_all("shapes => shapes.map((shape) => shape.outerHTML)"))) == 6
    page.locator(".title").first.click()
    table = page.locator(".body:visible .parts")
    assert "s. 7 → cites → s. 9" in table.inner_text()
    assert "−0.250" in table.inner_text()
    assert table.locator(".nested").count() == 2
    assert page.locator(".notice", has_text="Low confidence").is_visible()
