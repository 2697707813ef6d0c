"""Questions and the graph as channels of a retriever, beside those of words and vectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from voicevault_retrievers.channel import Channel
from voicevault_retrievers.errors import ConfigError


def structural(questions: Any, graph: Any, *, based: bool) -> tuple[dict[str, Channel], dict[str, Mapping[str, Any]]]:
    """Of `questions` and `graph` those that are given as channels, and the options of those that a base is to make.

    Raises ConfigError for what asks for neither, and where one is to be made and nothing is `based` on a base.
    """
    given: dict[str, Channel] = {}
    made: dict[str, Mapping[str, Any]] = {}
    for name, asked in (("questions", questions), ("graph", graph)):
        if isinstance(asked, Channel):
            given[name] = asked.named(name)
        elif (options := _options(name, asked)) is not None:
            if not based:
                raise ConfigError(f"{name} is made of knowledge bases: give kb_names, or a channel as {name}")
            made[name] = options
    return given, made


def _options(name: str, given: Any) -> Mapping[str, Any] | None:
    """The options of a channel that is asked for; None where it is not, ConfigError for what asks for none."""
    if given is None or given is False:
        return None
    if given is True:
        return {}
    if isinstance(given, Mapping):
        return given
    raise ConfigError(f"{name} is true, a mapping of options, or a channel, not a {type(given).__name__}")
