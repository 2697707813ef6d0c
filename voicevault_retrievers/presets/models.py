"""The language models that a preset names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.models import OllamaModel, OpenAIModel

_SERVED: dict[str, Callable[..., OllamaModel | OpenAIModel]] = {"ollama": OllamaModel, "openai": OpenAIModel}
MODEL_OPTIONS = (*_SERVED, "base_url", "request")


def text_model(options: dict[str, Any]) -> OllamaModel | OpenAIModel | None:
    """The model that options name, which are taken out of them; None where they name none."""
    named = [kind for kind in _SERVED if kind in options]
    given = {key: options.pop(key) for key in ("base_url", "request") if key in options}
    if len(named) > 1 or (given and not named):
        raise ConfigError(f"a language model is named once, by {' or '.join(_SERVED)}, not {named or sorted(given)}")
    return _SERVED[named[0]](options.pop(named[0]), **given) if named else None
