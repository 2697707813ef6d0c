"""The prompts of a retriever's components, under LlamaIndex's names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.prompts.mixin import PromptDictType, PromptMixin, PromptMixinType


class PostprocessorPrompts(PromptMixin):
    """The prompts of a node postprocessor as a PromptMixin: a postprocessor has the mixin's hooks, but not its type."""

    def __init__(self, postprocessor: BaseNodePostprocessor) -> None:
        self._postprocessor = postprocessor

    def _get_prompts(self) -> PromptDictType:
        return self._postprocessor._get_prompts()

    def _get_prompt_modules(self) -> PromptMixinType:
        return self._postprocessor._get_prompt_modules()

    def _update_prompts(self, prompts: PromptDictType) -> None:
        self._postprocessor._update_prompts(prompts)


def modules_of(parts: Iterable[tuple[str, Any]]) -> PromptMixinType:
    """The components that have prompts, by name; the second of one name is "name 2"."""
    found: PromptMixinType = {}
    seen: Counter[str] = Counter()
    for name, part in parts:
        if isinstance(part, PromptMixin | BaseNodePostprocessor):
            seen[name] += 1
            unique = name if seen[name] == 1 else f"{name} {seen[name]}"
            found[unique] = part if isinstance(part, PromptMixin) else PostprocessorPrompts(part)
    return found
