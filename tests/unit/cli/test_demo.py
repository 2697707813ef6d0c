"""The demo after an upgrade."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from tests.helpers import HashEmbedder
from voicevault_retrievers.cli import demo
from voicevault_retrievers.pipeline.presets import load_preset
from voicevault_retrievers.store import KnowledgeBase, manifest


@pytest.mark.program
def test_a_base_that_another_version_made_is_repaired_and_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "load_embedder", lambda *_: HashEmbedder())
    preset = load_preset("voicevault")
    with demo.indexed(Console(quiet=True), tmp_path, preset) as base:
        folder, before = base.path, base.ids()
    manifest.write(folder, replace(manifest.read(folder), analyzer_fingerprint="of another version"))
    told = StringIO()
    console = Console(file=told)
    with demo.indexed(console, tmp_path, preset) as base:
        assert base.ids() == before
        assert KnowledgeBase.open(folder, embedder=HashEmbedder()).verify() == []
    assert "repairing what other versions have made" in told.getvalue()
