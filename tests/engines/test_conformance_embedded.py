"""A knowledge base keeps what engines promise."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tests.engines.conformance import Conformance
from voicevault_retrievers.engines.embedded import EmbeddedEngine
from voicevault_retrievers.store import KnowledgeBase


class TestEmbedded(Conformance):
    system = "embedded"
    ways = ("sync",)
    alone = True  # it writes under a lock that it keeps until it is closed


def test_threads_that_ask_first_at_once_have_one_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one each, the first that writes would keep the lock from the others."""
    KnowledgeBase.create("kb", root=tmp_path).close()
    opening, again, go = Event(), Event(), Event()
    opened = KnowledgeBase.open

    def held(*arguments: Any, **options: Any) -> KnowledgeBase:
        (again if opening.is_set() else opening).set()
        assert go.wait(30)
        return opened(*arguments, **options)

    monkeypatch.setattr(KnowledgeBase, "open", held)
    engine = EmbeddedEngine("kb", root=tmp_path)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(lambda: engine.kb)
        assert opening.wait(30)
        second = threads.submit(lambda: engine.kb)
        again.wait(0.2)
        go.set()
        assert first.result() is second.result()
    assert not again.is_set()
    engine.close()
