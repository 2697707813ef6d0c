"""YAML as a user writes it: a key that is there twice is an error, where YAML itself takes the last alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from voicevault_retrievers._support.extras import require
from voicevault_retrievers.errors import ConfigError


def read(path: Path) -> Any:
    """What a file says, as of `loaded`. Raises OSError where it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not YAML: {error}") from error
    return loaded(text, path)


def loaded(text: str, origin: object) -> Any:
    """What a text says; `origin` names it in errors.

    Raises ConfigError for a text that is not YAML, and for a mapping with a key twice: what the first one says, such as
    a filter of access rights, would be lost.
    """
    yaml = require("yaml", extra="cli")
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        _check_keys(node, origin, set())
        return None if node is None else loader.construct_document(node)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{origin} is not YAML: {error}") from error
    finally:
        loader.dispose()


def _check_keys(node: Any, origin: object, seen: set[int]) -> None:
    """Look at a node and all below it, each once, however often aliases name it."""
    if id(node) in seen:
        return
    seen.add(id(node))
    pairs = node.value if getattr(node, "id", "") == "mapping" else ()
    keys = [key.value for key, _ in pairs if isinstance(key.value, str)]
    if twice := next((key for at, key in enumerate(keys) if key in keys[:at]), None):
        raise ConfigError(f"{origin}: the key {twice!r} is there twice, near line {node.start_mark.line + 1}")
    inner = [value for _, value in pairs] if pairs else node.value if getattr(node, "id", "") == "sequence" else ()
    for one in inner:
        _check_keys(one, origin, seen)
