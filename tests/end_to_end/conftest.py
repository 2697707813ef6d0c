"""What the tests of whole searches share."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.docs.shared_runs import runs, shared, unhurried


@pytest.fixture(scope="module", autouse=True)
def _shared_runs() -> Iterator[None]:
    """What a graph gave in one module's tests it need not compute again in another's, or in a program.

    All of them run graphs by onnxruntime, whose 8-bit sums are the same on every processor.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "openvino", None)
        for replacement in shared(runs()):
            patch.setattr(*replacement)
        yield


@pytest.fixture(scope="module")
def patient() -> Iterator[None]:
    """No search is late, whatever else the machine does."""
    with pytest.MonkeyPatch.context() as patch:
        for replacement in unhurried():
            patch.setattr(*replacement)
        yield
