"""Takes the pictures of the inspector for the documentation: `python -m tests.browser.screenshots [FOLDER]`.

The sample documents are searched with the models of the preset `voicevault`; FOLDER is docs/images unless given.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from tests.browser.driving import address, served, shown
from voicevault_retrievers.dense import load_embedder
from voicevault_retrievers.inspector import app
from voicevault_retrievers.pipeline.samples import shipped
from voicevault_retrievers.store import KnowledgeBase, update

IMAGES = Path(__file__).parents[2] / "docs" / "images"

EXACT = {"kb": "sample", "preset": "voicevault", "k": 8}
QUESTION = "What does ERR_2043 mean on unit T4?"
VAGUE = "What should I do if the machine gets too hot?"


def main(folder: Path) -> None:
    documents = shipped("sample") / "documents"
    with tempfile.TemporaryDirectory() as root, sync_playwright() as playwright:
        base = KnowledgeBase.create("sample", root=root, embedder=load_embedder())
        update(base, documents)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        with served(app([base], documents=[documents], judgments=Path(root, "judgments.jsonl"))) as origin:
            for name, (size, theme, path, act) in PICTURES.items():
                width, height = size
                page = browser.new_page(
                    base_url=origin, viewport={"width": width, "height": height}, color_scheme=theme
                )
                page.set_default_timeout(60_000)
                shown(page, path)
                shown(page, path)  # once more: the first search of a preset loads its models
                act(page)
                _save(page.screenshot(), folder / f"inspector-{name}.png")
                page.close()
        browser.close()
        base.close()


def tip(page: Any) -> None:
    page.locator(".score").first.hover()


def followed(page: Any) -> None:
    page.locator(".column").nth(1).locator(".entry").nth(6).hover()


PICTURES: dict[str, tuple[tuple[int, int], str, str, Callable[[Any], None]]] = {
    "results": ((1440, 900), "light", address(QUESTION, **EXACT), tip),
    "lists": ((1440, 1000), "light", address(VAGUE, view="lists", **EXACT), followed),
}


def _save(png: bytes, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.open(io.BytesIO(png)).convert("RGB")  # a palette is a third of the size, and keeps every colour
    image.quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES)
