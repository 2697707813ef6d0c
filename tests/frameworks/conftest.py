"""What the tests of the frameworks' classes share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def watched() -> Iterator[Any]:
    """Blocking calls on an event loop raise BlockingError, whoever makes them."""
    blockbuster = pytest.importorskip("blockbuster", reason="blockbuster is not installed")
    with blockbuster.blockbuster_ctx():
        yield blockbuster
