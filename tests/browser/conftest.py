"""One browser a module, one server and one set of bases for all of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.browser.driving import WIDE, Watch, documents, hostile, presets, served


@pytest.fixture(scope="session")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an inspector over the sample documents and hostile ones."""
    pytest.importorskip("starlette")
    from voicevault_retrievers.inspector import app

    root = tmp_path_factory.mktemp("inspector")
    bases = [documents(root / "kb"), hostile(root / "kb")]
    with served(app(bases, presets=presets(root), judgments=root / "judgments.jsonl")) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """The system's Chromium; of a module, for its loop would stand in the way of other modules' async tests."""
    api = pytest.importorskip("playwright.sync_api")
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("there is no chromium on the PATH")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        yield browser
        browser.close()


@pytest.fixture
def opened(browser: Any, origin: str) -> Iterator[Callable[..., Any]]:
    """Makes pages; at the end none of them has asked for anything elsewhere, raised, warned or shown a dialog.

    `failing` lets the server refuse something, which browsers put into the console.
    """
    watches: list[tuple[Watch, bool]] = []
    contexts: list[Any] = []

    def open_page(size: tuple[int, int] = WIDE, *, theme: str = "light", failing: bool = False, **options: Any) -> Any:
        width, height = size
        context = browser.new_context(
            base_url=origin, viewport={"width": width, "height": height}, color_scheme=theme, **options
        )
        context.set_default_timeout(10_000)
        watch = Watch(origin)
        contexts.append(context)
        watches.append((watch, failing))
        return watch.over(context.new_page())

    yield open_page
    for context in contexts:
        context.close()
    for watch, failing in watches:
        assert watch.elsewhere == []
        assert [said for said in watch.problems if not (failing and "Failed to load resource" in said)] == []
