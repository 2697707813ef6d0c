"""A person with a mouse: search, hover, highlight, expand, compare, lists, filters, errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.browser.driving import QUESTION, Watch, address, hostile, presets, served, settled, shown, statutes
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.store import KnowledgeBase

Opened = Callable[..., Any]


def test_a_search_shows_hits_with_their_reasons(opened: Opened) -> None:
    page = opened()
    page.goto("/")
    page.get_by_label("Question").fill(QUESTION)
    page.get_by_label("Hits").first.fill("5")
    page.get_by_role("button", name="Search", exact=True).click()
    page.locator(".hit").nth(4).wait_for()
    assert page.locator(".hit").count() == 5
    assert "5 hits" in page.get_by_role("status").inner_text()
    badges = page.locator(".hit .badge").all_inner_texts()
    assert set(badges) <= {"Hybrid", "Keyword", "Semantic"}
    assert page.locator(".hit .badge svg").count() == 5  # a shape beside each word
    counted = {
        row.locator("span").first.inner_text(): row.locator(".n").inner_text()
        for row in page.locator(".counts li").all()
    }
    assert sum(int(count) for count in counted.values()) == 5
    assert all(counted[badge] == str(badges.count(badge)) for badge in badges)
    assert "alarm" in {text.lower() for text in page.locator(".hit mark").all_inner_texts()}
    assert page.locator(".waterfall tbody tr").count() >= 5
    assert page.locator(".wordings li").count() >= 2
    assert page.title().startswith(QUESTION)


def test_the_parts_of_a_score_show_on_hover_and_go_by_escape(opened: Opened) -> None:
    page = opened()
    shown(page, address(QUESTION))
    tip, score = page.locator(".tip").first, page.locator(".score").first
    assert not tip.is_visible()
    score.hover()
    assert tip.is_visible()
    rows = tip.locator("tbody tr").all()
    adds = [
        float(row.locator("td").last.inner_text()) for row in rows if "–" not in row.locator("td").last.inner_text()
    ]
    assert sum(adds) == pytest.approx(float(tip.locator("tfoot td").inner_text()), abs=2e-4)
    widths = [part.bounding_box()["width"] for part in score.locator(".segment").all()]
    assert len(widths) == len(adds)
    tip.hover()  # what is over the page stays while it is read
    assert tip.is_visible()
    page.keyboard.press("Escape")
    assert not tip.is_visible()


def test_an_open_hit_shows_what_a_model_reads_its_parent_and_its_page(opened: Opened) -> None:
    page = opened()
    shown(page, address(QUESTION, where=json.dumps({"source_file": "operations-manual.pdf"})))
    hit = page.locator(".hit").first
    hit.locator(".title").click()
    own, read = hit.locator(".text").nth(0).inner_text(), hit.locator(".text").nth(1).inner_text()
    assert len(read) > len(own)
    assert " ".join(hit.locator(".own").inner_text().split()) == " ".join(own.split())
    assert "operations-manual.pdf" in hit.locator(".facts-list").inner_text()
    hit.get_by_role("button", name="Show its parent").click()
    hit.locator(".shown .own").wait_for()
    hit.get_by_role("button", name="Show the page").click()
    image = hit.get_by_role("img", name="of operations-manual.pdf")
    image.wait_for()
    assert image.evaluate("image => image.decode().then(() => image.naturalWidth)") > 300
    hit.locator(".title").click()
    assert not hit.locator(".body").is_visible()


def test_lists_are_joined_by_lines_and_told_in_a_table(opened: Opened) -> None:
    page = opened()
    shown(page, address(QUESTION))
    page.get_by_role("tab", name="Lists").click()
    page.locator(".lines path").first.wait_for(state="attached")
    heads = page.locator(".list h4").all_inner_texts()
    assert [head.split()[0] for head in heads][:3] == ["bm25", "dense", "fused"]
    entry = page.locator(".column").nth(1).locator(".entry").first
    chunk = entry.get_attribute("data-id")
    lines = page.locator(f'.lines path[data-id="{chunk}"]')
    assert lines.count() >= 2
    entry.hover()
    assert all("lit" in line.get_attribute("class") for line in lines.all())
    page.get_by_text("The lists as a table").click()
    fused = page.locator(".table-of thead th").all_inner_texts().index("fused") - 1
    ranks = [row.locator("td").nth(fused).inner_text() for row in page.locator(".table-of tbody tr").all()]
    assert "1" in ranks
    told = page.locator(".effects").inner_text()
    assert "page_cap" in told
    assert "wordings" in told
    entry.click()
    page.get_by_role("dialog").locator(".text").wait_for()
    page.keyboard.press("Escape")
    assert not page.locator("#chunk").is_visible()


def test_the_context_is_what_a_model_gets(opened: Opened) -> None:
    page = opened()
    shown(page, address(QUESTION, view="context"))
    assert "[Source: " in page.locator(".context").inner_text()
    assert "tokens" in page.get_by_role("tabpanel").inner_text()


def test_two_configurations_stand_side_by_side(opened: Opened) -> None:
    page = opened()
    shown(page, address(QUESTION))
    page.get_by_role("button", name="Compare").click()
    assert page.locator("#k2").input_value() == "5"  # as on the left, to begin with
    page.locator("#k2").fill("3")
    page.locator("#where2").fill('{"source_file": "operations-manual.pdf"}')
    page.get_by_role("button", name="Search", exact=True).click()
    page.locator(".side").nth(1).wait_for()
    left, right = (page.locator(".side").nth(side) for side in (0, 1))
    assert (left.locator(".hit").count(), right.locator(".hit").count()) == (5, 3)
    tally = dict(
        zip(page.locator(".tally dt").all_inner_texts(), page.locator(".tally dd").all_inner_texts(), strict=True)
    )
    both, only = int(tally["In both"]), int(tally["Only left"])
    assert both + only == 5
    assert both + int(tally["Only right"]) == 3
    assert page.locator(".note.only", has_text="only left").count() == only
    assert left.get_by_role("heading", level=3).first.inner_text().startswith("Left: plain")


def test_a_theme_is_the_systems_until_one_is_chosen_and_kept(opened: Opened) -> None:
    page = opened(theme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    page.goto("/")
    dark = page.evaluate(ground)
    page.get_by_role("button", name="Light", exact=True).click()
    light = page.evaluate(ground)
    assert light != dark
    page.reload()
    assert page.evaluate(ground) == light
    assert page.get_by_role("button", name="Light", exact=True).get_attribute("aria-pressed") == "true"
    page.get_by_role("button", name="Dark", exact=True).click()
    assert page.evaluate(ground) == dark


def test_what_is_wrong_is_said(opened: Opened) -> None:
    page = opened(failing=True)
    shown(page, address(QUESTION))
    where, go = page.get_by_label("Filter (JSON)").first, page.get_by_role("button", name="Search", exact=True)
    where.fill("{page: 3}")
    go.click()
    assert "not JSON" in page.get_by_role("alert").inner_text()
    assert where.get_attribute("aria-invalid") == "true"
    assert page.locator(".hit").count() == 5  # what was found before stays
    where.fill('{"page_number": {"$near": 3}}')
    go.click()
    page.get_by_role("alert").filter(has_text="$near").wait_for()
    page.route("**/api/search", lambda route: route.abort())
    where.fill("")
    go.click()
    page.get_by_role("alert").filter(has_text="does not answer").wait_for()


def test_nothing_found_and_parts_that_failed_are_said(opened: Opened) -> None:
    page = opened()
    shown(page, address(QUESTION, where=json.dumps({"source_file": "none.pdf"})))
    assert page.get_by_role("heading", name="Nothing found").is_visible()
    assert "A filter is set" in page.locator(".empty").inner_text()
    shown(page, address(QUESTION, preset="broken"))
    assert "llm_rerank" in page.locator(".notice.bad").inner_text()
    assert page.locator(".hit").count() == 5


def test_the_page_can_be_a_part_of_a_larger_site(browser: Any, tmp_path: Path) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    from voicevault_retrievers.inspector import app

    token = "a token & of a test"  # noqa: S105
    part = app([hostile(tmp_path / "kb")], root=tmp_path / "kb", presets=presets(tmp_path), token=token)
    with served(Starlette(routes=[Mount("/inspect", part)])) as origin:
        page = browser.new_page(base_url=origin)
        page.goto(f"/inspect?token={quote(token)}#q=zebra")
        page.locator(".hit").first.wait_for()
        assert page.url == f"{origin}/inspect/#q=zebra"
        page.close()


def test_a_text_of_two_files_is_one_hit_and_an_irrelevant_hit_says_so(browser: Any, tmp_path: Path) -> None:
    from voicevault_retrievers.inspector import app

    preset = tmp_path / "sure.yaml"
    preset.write_text("version: 1\nchannels: {bm25: {}}\nstages: [{relevance: {slope: 10, intercept: -3}}]\n")
    texts = {"a": "the pump hums", "b<b>": "the pump  hums", "c": "a pump, a valve, a seal and a very long lever"}
    with KnowledgeBase.create("twins", root=tmp_path / "kb") as base:
        base.add([Chunk(name, text, None, {"source_file": f"{name}.md"}) for name, text in texts.items()])
    with served(app([base], presets=[str(preset)])) as origin:
        watch = Watch(origin)
        page = watch.over(browser.new_page(base_url=origin))
        shown(page, address("the pump hums", kb="twins", preset="sure"))
        twin, other = page.locator(".hit").all()
        assert "Also in [Source: b<b>.md]" in twin.inner_text()
        assert twin.locator(".doubt").count() == 0
        assert other.locator(".doubt").inner_text() == "Irrelevant"
        assert "Also in" not in other.inner_text()
        page.close()
    assert watch.problems == []


def test_a_graph_and_questions_say_what_led_to_a_hit(browser: Any, tmp_path: Path) -> None:
    from voicevault_retrievers.inspector import app

    preset = tmp_path / "law.yaml"
    preset.write_text("version: 1\nchannels: {graph: {}, questions: {by: both}}\n")
    with served(app([statutes(tmp_path / "kb")], presets=[str(preset)])) as origin:
        watch = Watch(origin)
        page = watch.over(browser.new_page(base_url=origin))
        asked = "Do sailing boats pay less, and what does section 32 HNA require?"
        shown(page, address(asked, kb="law", preset="law", k=20))
        badges = dict(zip(ids(page), page.locator(".hit .badge").all_inner_texts(), strict=True))
        assert (badges["HNA-32"], badges["HNA-80"]) == ("Graph", "Question")
        for chunk, way in (("HNA-32", "section 32"), ("HNA-80", "via Do sailing boats pay less?")):
            hit = page.locator(f'.hit[data-id="{chunk}"]')
            hit.locator(".title").click()
            assert way in hit.locator(".body .parts").inner_text()
        page.get_by_role("tab", name="Lists").click()
        heads = page.locator(".list h4").all_inner_texts()
        assert [head.split()[0] for head in heads][:3] == ["graph", "questions", "fused"]
        page.locator('.lines path[data-id="HNA-80"]').first.wait_for(state="attached")
        page.locator('.list:nth-child(2) .entry[data-id="HNA-80"]').click()
        page.get_by_role("dialog").get_by_text("Section 80 HNA").wait_for()
        page.close()
    assert watch.problems == []


def ids(page: Any) -> list[str]:
    return [hit.get_attribute("data-id") for hit in page.locator(".hit").all()]


def test_what_is_typed_before_the_bases_are_known_is_asked(opened: Opened) -> None:
    page = opened()
    held: list[Any] = []
    page.route("**/api/bases", lambda route: held.append(route))
    page.goto("/")
    page.get_by_label("Question").fill(QUESTION)
    page.get_by_label("Filter (JSON)").first.fill('{"page_number": {"$gte": 2}}')
    page.keyboard.press("Enter")
    page.locator("#results[aria-busy=true]").wait_for(state="attached")
    held[0].continue_()
    page.locator(".hit").first.wait_for()
    assert "page_number" in page.url


def test_a_search_that_takes_long_says_so_and_a_newer_one_wins(opened: Opened) -> None:
    page = opened()
    held: list[Any] = []
    page.goto("/")
    page.route("**/api/search", lambda route: held.append(route) if not held else route.continue_())
    page.get_by_label("Question").fill("the first")
    page.keyboard.press("Enter")
    assert page.locator("#results").get_attribute("aria-busy") == "true"
    page.get_by_role("status").filter(has_text="Still searching").wait_for()
    page.get_by_label("Question").fill(QUESTION)
    page.keyboard.press("Enter")
    page.locator(".hit").first.wait_for()
    held[0].abort()
    settled(page)
    assert page.title().startswith(QUESTION)
