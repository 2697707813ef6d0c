"""numba, where it is installed: functions that run as machine code, without the interpreter's lock."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import TypeVar

from voicevault_retrievers.extras import require

F = TypeVar("F", bound=Callable[..., object])


@cache
def installed() -> bool:
    """Whether the extra `fast` is there; importing it takes half a second, which this does not do."""
    return find_spec("numba") is not None


def compiled(function: F) -> F:
    """The function as machine code: made at its first call, kept on disk where there is a place to keep it."""
    numba = require("numba", extra="fast")
    try:
        made: F = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # numba's word for "no folder that can be written"
        made = numba.njit(nogil=True)(function)
    return made
