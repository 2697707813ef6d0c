"""Files that are shipped with the package: presets and sample documents."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

_PACKAGE = Path(str(files("voicevault_retrievers")))
_CHECKOUT = {"presets": "integrations/presets", "sample": "notebooks/data"}


def shipped(name: str) -> Path:
    """The folder of the shipped `presets` or `sample` documents: in the wheel, or in the checkout it is built from."""
    built = _PACKAGE / "_data" / name
    return built if built.is_dir() else _PACKAGE.parent / _CHECKOUT[name]
