"""Documents that try to be a part of the page stay text, in every place where they are shown."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import voicevault_retrievers
from tests.browser.driving import HOSTILE, QUESTION, address, settled, shown

Opened = Callable[..., Any]

STATIC = Path(voicevault_retrievers.__file__).parent / "inspector" / "static"
FOREIGN = "#results :is(script, img, iframe, a, object, embed, style, form, link, meta, base, title, b)"
QUERY = 'zebra <img src=x onerror="window.hurt=1"><script>window.hurt=1</script>'


def unhurt(page: Any) -> None:
    """No script of a document has run, and none of its markup has become an element."""
    assert page.evaluate("typeof window.hurt") == "undefined"
    assert page.evaluate("({}).polluted ?? typeof ({}).source_file") == "undefined"
    assert page.locator(FOREIGN).count() == 0
    handlers = (
        "[...document.querySelectorAll('*')].flatMap(n => [...n.attributes]).filter(a => /^on/i.test(a.name)).length"
    )
    assert page.evaluate(handlers) == 0
    assert page.locator("script").count() == 2  # the page's own


@pytest.mark.parametrize("more", [{}, {"view": "lists"}, {"view": "context"}, {"compare": 1, "k2": 2}], ids=str)
def test_a_hostile_document_stays_text(opened: Opened, more: dict[str, Any]) -> None:
    page = opened()
    shown(page, address(QUERY, kb="hostile", **more))
    for title in page.locator(".title:visible").all():
        title.click()
    for score in page.locator(".score:visible").all():
        score.focus()
    for button in page.get_by_role("button", name="Show its parent").all():
        button.click()
    for entry in page.locator(".entry").all()[:2]:
        entry.click()
        page.get_by_role("dialog").locator(".text").wait_for()
        unhurt(page)
        page.keyboard.press("Escape")
    text = page.locator("#results").inner_text()
    visible = HOSTILE.split("\u202e")[0] if more.get("view") != "lists" else "<img src=x onerror="
    assert " ".join(visible.split()) in " ".join(text.replace("\u2026", "").split()) or more.get("view") == "lists"
    assert "onerror=" in text
    assert not re.search("[\u202a-\u202e\u2066-\u2069]", text)  # shown as U+202E, so that nothing is turned about
    assert ("U+202E" in text) is (more.get("view") != "context")  # a model does not read it at all
    unhurt(page)


def test_a_hostile_address_and_answer_stay_text(opened: Opened) -> None:
    page = opened(failing=True)
    page.route("**/api/search", lambda route: route.fulfill(status=500, json={"error": HOSTILE}))
    shown(page, address(QUERY, kb="hostile", where='{"<img src=x onerror=alert(1)>": "javascript:alert(1)"}'))
    assert "<script>window.hurt=1</script>" in page.get_by_role("alert").inner_text()
    assert page.title().startswith("voicevault")
    unhurt(page)


def test_marks_of_a_hostile_chunk_reach_its_base(opened: Opened) -> None:
    page = opened()
    shown(page, address("zebra", kb="hostile"))
    page.locator(".hit").first.get_by_role("button", name="Right").click()
    page.get_by_role("status").filter(has_text="marked right").wait_for()
    page.reload()
    settled(page)
    assert page.locator(".hit").first.get_by_role("button", name="Right").get_attribute("aria-pressed") == "true"
    unhurt(page)


def test_two_bases_are_searched_together(opened: Opened) -> None:
    page = opened()
    page.goto("/")
    page.get_by_label("Question").fill(f"{QUESTION} zebra")
    page.get_by_label("Hits").first.fill("40")
    for box in page.locator("[name=kb]").all():
        box.check()
    page.keyboard.press("Tab")
    page.get_by_role("button", name="Search", exact=True).click()
    page.locator(".hit").first.wait_for()
    assert {hit.get_attribute("data-kb") for hit in page.locator(".hit").all()} == {"manuals", "hostile"}
    page.get_by_role("tab", name="Lists").click()
    page.locator(".entry .thin").first.wait_for()
    unhurt(page)


def test_no_file_of_the_page_reads_markup_or_loads_from_elsewhere() -> None:
    forbidden = re.compile(
        r"(inner|outer|set)HTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser|ContextualFragment"
        r"|srcdoc|javascript:|\bon(click|load|error)\s*=|style=|@import|url\(|https?://(?!www\.w3\.org/2000/svg)"
    )
    for path in sorted(STATIC.iterdir()):
        text = path.read_text(encoding="utf-8")
        assert forbidden.search(text) is None, path.name
        assert len(text.splitlines()) < 400, path.name
