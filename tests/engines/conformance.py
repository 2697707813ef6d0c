"""What every engine has to keep: the suite, over an engine that is started for its tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from tests.engines import awkward
from tests.engines.engines import SYSTEMS
from voicevault_retrievers.testing import EngineConformance
from voicevault_retrievers.testing.clients import Connect
from voicevault_retrievers.testing.suite import Suite


class Started(Suite):
    """An engine to derive from beside some parts of the suite."""

    system: ClassVar[str]
    given: ClassVar[dict[str, Any]] = {}
    """Options of the engine."""

    values = awkward.VALUES
    filters = awkward.FILTERS

    @pytest.fixture(scope="class")
    @classmethod
    def connect(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connect]:
        SYSTEMS[cls.system].skip()
        with SYSTEMS[cls.system].opened(tmp_path_factory.mktemp(cls.system)) as opened:
            yield lambda name, **options: opened(name, **{**cls.given, **options})


class Conformance(Started, EngineConformance):
    """The whole suite."""
