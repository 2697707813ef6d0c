"""Optional dependencies: imported on first use; where one is missing, the error has the pip line."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from voicevault_retrievers.errors import MissingExtraError

DISTRIBUTION = "voicevault-retrievers"


def require(module: str, *, extra: str) -> ModuleType:
    """Import `module`, which the extra `extra` installs.

    Raises MissingExtraError, with the pip line, where the module or one of its imports is not installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"{module} is needed here and {error.name or module} is not installed: "
            f"pip install '{DISTRIBUTION}[{extra}]'"
        ) from error
