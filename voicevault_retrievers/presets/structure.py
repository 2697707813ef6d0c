"""Questions and the graph as channels of a retriever, beside those of words and vectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from voicevault_retrievers.channel import Channel
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.presets.sections import channel_of


def structural(base: Any, questions: Any, graph: Any) -> dict[str, Channel]:
    """The channels `questions` and `graph` that are asked for: True, or their options, over a base, or a channel.

    Raises ConfigError for anything else, and where one is to be made and there is no base.
    """
    found: dict[str, Channel] = {}
    for name, given in (("questions", questions), ("graph", graph)):
        if isinstance(given, Channel):
            found[name] = given.named(name)
        elif (options := options_of(name, given)) is not None:
            if base is None:
                raise ConfigError(f"{name} is made of knowledge bases: give kb_names, or a channel as {name}")
            found[name] = channel_of(base, name, options)
    return found


def options_of(name: str, given: Any) -> Mapping[str, Any] | None:
    """The options of a channel that is asked for; None where it is not, ConfigError for what asks for none."""
    if given is None or given is False:
        return None
    if given is True:
        return {}
    if isinstance(given, Mapping):
        return given
    raise ConfigError(f"{name} is true, a mapping of options, or a channel, not a {type(given).__name__}")
