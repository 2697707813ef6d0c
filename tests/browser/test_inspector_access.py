"""Everybody: no serious fault by axe-core and no sideways scrolling, in each state, theme and width."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.driving import NARROW, QUESTION, WIDE, address, overflow, shown

Opened = Callable[..., Any]


def start(page: Any) -> None:
    page.goto("/")
    page.get_by_role("heading", name="See why each hit is there").wait_for()


def results(page: Any) -> None:
    shown(page, address(QUESTION))


def expanded(page: Any) -> None:
    shown(page, address(QUESTION))
    hit = page.locator(".hit").first
    hit.locator(".title").click()
    hit.get_by_role("button", name="Right").click()
    page.get_by_role("status").filter(has_text="marked right").wait_for()
    hit.get_by_role("button", name="Right").click()  # the base is shared: taken back again
    hit.get_by_role("button", name="Wrong").click()
    page.get_by_role("status").filter(has_text="marked wrong").wait_for()
    hit.locator(".score").focus()


def lists(page: Any) -> None:
    shown(page, address(QUESTION, view="lists"))
    page.get_by_text("The lists as a table").click()


def compare(page: Any) -> None:
    shown(page, address(QUESTION, compare=1, k2=3, where2='{"source_file": "operations-manual.pdf"}'))
    page.locator(".title").first.click()


def nothing(page: Any) -> None:
    shown(page, address(QUESTION, preset="broken", where='{"source_file": "none.pdf"}'))


# No colour depends on the width, nor anything but colours on the theme; contrast takes most of the time.
RUNS = [
    (WIDE, "light", {}),
    (WIDE, "dark", {"runOnly": ["color-contrast"]}),
    (NARROW, "dark", {"rules": {"color-contrast": {"enabled": False}}}),
]


@pytest.mark.parametrize("state", [start, results, expanded, lists, compare, nothing], ids=lambda state: state.__name__)
def test_no_serious_fault(opened: Opened, state: Callable[[Any], None]) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = opened()
    state(page)
    for (width, height), theme, rules in RUNS:
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=theme)
        assert overflow(page) == 0, width
        found = axe.run(page, options={"resultTypes": ["violations"], **rules}).response["violations"]
        serious = [one for one in found if one["impact"] in ("serious", "critical")]
        assert [f"{one['id']}: {one['nodes'][0]['html']}" for one in serious] == [], (width, theme)
