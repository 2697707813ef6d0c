"""A person without a mouse, addresses that can be shared, and marks that are taken along."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.browser.driving import QUESTION, address, settled, shown
from voicevault_retrievers.evaluation import load_judged

Opened = Callable[..., Any]

FOCUSED = "document.activeElement.closest('.hit')?.querySelector('.rank').firstChild.data ?? document.activeElement.id"


def test_the_whole_way_by_keys(opened: Opened) -> None:
    page = opened()
    page.goto("/")
    page.get_by_role("heading", name="See why each hit is there").wait_for()
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("/")
    assert page.evaluate(FOCUSED) == "q"
    page.keyboard.type(QUESTION)
    page.keyboard.press("Enter")
    page.locator(".hit").first.wait_for()
    page.keyboard.type("jk")  # in the field a key is a letter
    assert page.get_by_label("Question").input_value() == f"{QUESTION}jk"
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.className") == "title":
            break
    assert page.evaluate(FOCUSED) == "1"
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("j")
    page.keyboard.press("ArrowDown")
    assert page.evaluate(FOCUSED) == "3"
    page.keyboard.press("k")
    assert page.evaluate(FOCUSED) == "2"
    hit = page.locator(".hit").nth(1)
    page.keyboard.press("Enter")
    assert hit.locator(".body").is_visible()
    page.keyboard.press("Tab")
    assert hit.locator(".tip").is_visible()  # the parts of the score, on focus
    page.keyboard.press("Escape")
    assert not hit.locator(".tip").is_visible()
    page.keyboard.press("Escape")
    assert not hit.locator(".body").is_visible()
    assert page.evaluate(FOCUSED) == "2"
    page.keyboard.press("y")
    page.get_by_role("status").filter(has_text="Hit 2 is marked right").wait_for()
    page.keyboard.press("n")
    page.get_by_role("status").filter(has_text="Hit 2 is marked wrong").wait_for()
    assert [one.get_attribute("aria-pressed") for one in hit.locator(".judge").all()] == ["false", "true"]
    page.keyboard.press("n")
    page.get_by_role("status").filter(has_text="taken back").wait_for()


def test_keys_are_listed_and_can_be_switched_off(opened: Opened) -> None:
    page = opened()
    shown(page, address(QUESTION))
    page.locator("#results").focus()
    page.keyboard.press("?")
    assert page.get_by_role("dialog", name="Keys").is_visible()
    page.get_by_label("Single keys do this").uncheck()
    page.get_by_role("button", name="Close").click()
    assert not page.get_by_role("dialog").is_visible()
    page.locator("#results").focus()
    page.keyboard.press("j")
    page.keyboard.press("/")
    assert page.evaluate(FOCUSED) == "results"


def test_views_are_tabs(opened: Opened) -> None:
    page = opened()
    shown(page, address(QUESTION))
    page.get_by_role("tab", name="Hits").focus()
    page.keyboard.press("ArrowRight")
    assert page.get_by_role("tab", name="Lists").get_attribute("aria-selected") == "true"
    assert page.locator(".merge").is_visible()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert page.locator(".context").is_visible()
    assert "view=context" in page.url


def test_the_skip_link_leads_to_the_results(opened: Opened) -> None:
    page = opened()
    shown(page, address(QUESTION))
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the results"
    page.keyboard.press("Enter")
    assert page.evaluate(FOCUSED) == "results"
    assert page.locator(".hit").count() == 5


def test_the_address_holds_the_search(opened: Opened) -> None:
    page = opened()
    page.goto("/")
    for text in ("pump seal", QUESTION):
        page.get_by_label("Question").fill(text)
        page.get_by_label("Filter (JSON)").first.fill('{"page_number": {"$gte": 2}}')
        page.keyboard.press("Enter")
        page.wait_for_url(lambda url, text=text: text.split()[0] in url)
        settled(page)
    found = page.locator(".hit .title").all_inner_texts()
    assert "pump+seal" not in page.url
    page.reload()
    settled(page)
    assert page.locator(".hit .title").all_inner_texts() == found
    assert page.get_by_label("Filter (JSON)").first.input_value() == '{"page_number": {"$gte": 2}}'
    page.go_back()
    page.get_by_role("status").filter(has_text="hits").wait_for()
    assert page.get_by_label("Question").input_value() == "pump seal"
    page.go_back()
    page.get_by_role("heading", name="See why each hit is there").wait_for()
    assert page.get_by_label("Question").input_value() == ""


def test_marks_are_exported_as_tune_reads_them(opened: Opened, tmp_path: Path) -> None:
    page = opened()
    asked = "How is the gearbox oil exchanged?"
    shown(page, address(asked))
    ids = [hit.get_attribute("data-id") for hit in page.locator(".hit").all()]
    for rank, name in ((0, "Right"), (1, "Wrong"), (2, "Right")):
        page.locator(".hit").nth(rank).get_by_role("button", name=name).click()
        page.get_by_role("status").filter(has_text=f"Hit {rank + 1} is marked").wait_for()
    page.reload()
    settled(page)
    assert page.locator('.judge[aria-pressed="true"]').count() == 3  # the server keeps them
    page.get_by_text("Judgements").click()
    page.locator(".exports li").first.get_by_text(re.compile(r"\d+ marks")).wait_for()
    files = {}
    for name in ("queries.jsonl", "qrels.tsv"):
        with page.expect_download() as coming:
            page.locator(".exports li").first.get_by_text(name).click()
        files[name] = tmp_path / name
        coming.value.save_as(files[name])
    (question,) = (one for one in load_judged(files["queries.jsonl"], files["qrels.tsv"]) if one.text == asked)
    assert dict(question.grades) == {ids[0]: 1, ids[1]: 0, ids[2]: 1}
    page.keyboard.press("Escape")
    assert not page.locator("#judged-sheet").is_visible()
