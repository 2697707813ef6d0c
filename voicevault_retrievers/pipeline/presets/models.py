"""The language models that a preset names, or is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from voicevault_retrievers.core.protocols import TextModel
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.models.language import OllamaModel, OpenAIModel

NO_PRESET = (
    "llm= is for a preset: without one, give it to what asks it, such as expansion=QueryExpander(llm=...) or flare="
)
_SERVED: dict[str, Callable[..., OllamaModel | OpenAIModel]] = {"ollama": OllamaModel, "openai": OpenAIModel}
MODEL_OPTIONS = (*_SERVED, "base_url", "request")


def text_model(options: dict[str, Any]) -> OllamaModel | OpenAIModel | None:
    """The model that options name, which are taken out of them; None where they name none."""
    named = [kind for kind in _SERVED if kind in options]
    given = {key: options.pop(key) for key in ("base_url", "request") if key in options}
    if len(named) > 1 or (given and not named):
        raise ConfigError(f"a language model is named once, by {' or '.join(_SERVED)}, not {named or sorted(given)}")
    return _SERVED[named[0]](options.pop(named[0]), **given) if named else None


def given_model(name: str, llm: TextModel | None) -> TextModel:
    """The model that a part of a preset asks that names none; ConfigError where none is given."""
    if llm is None:
        raise ConfigError(
            f"{name} needs a language model: name one in the preset, as `llm: {{ollama: NAME}}` or "
            "`llm: {openai: NAME}`, or give llm="
        )
    return llm
