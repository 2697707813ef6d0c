"""Query expansion for LlamaIndex."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from llama_index.core.base.llms.base import BaseLLM
from llama_index.core.indices.query.query_transform.base import BaseQueryTransform
from llama_index.core.prompts import BasePromptTemplate, ChatPromptTemplate, PromptTemplate
from llama_index.core.prompts.mixin import PromptDictType
from llama_index.core.schema import QueryBundle, QueryType
from llama_index_instrumentation import get_dispatcher

from voicevault_retrievers._support.foreign_options import checks_options
from voicevault_retrievers.core.channel import Rewriter
from voicevault_retrievers.core.execution.driver import aexecute, execute
from voicevault_retrievers.core.execution.plan import Plan
from voicevault_retrievers.core.failures import log_failures
from voicevault_retrievers.core.protocols import TextModel
from voicevault_retrievers.core.types import Query, Variant
from voicevault_retrievers.errors import ConfigError, unknown
from voicevault_retrievers.llama_index.models import as_text_model
from voicevault_retrievers.models.generation import filled
from voicevault_retrievers.query import HyDE, ModelExpansion, RuleExpansion, Together
from voicevault_retrievers.query.model import ModelRewriter

_LOG = logging.getLogger(__name__)
_PLACES = {
    **dict.fromkeys(("query", "query_str", "question", "context_str"), "{query}"),
    **dict.fromkeys(("count", "num_queries"), "{count}"),
}
"""LlamaIndex's names of prompt variables, with this package's."""

dispatcher = get_dispatcher(__name__)


class QueryExpander(BaseQueryTransform):
    """Adds other wordings to a question: `size` in all, the question itself always first.

    The wordings are made by rules, or by `llm`: an LLM, or a function from a prompt to a text. `hyde` appends the
    hypothetical answer that the model writes; with `size` 1 it is all that the model is asked for. `prompt`, and `hyde`
    where it is not a flag, are your own prompts: a text or a template with `{query}` or `{query_str}` in it, and in
    `prompt` also `{count}` or `{num_queries}`, the number of wordings. `timeout` is in seconds for each call of the
    model. When the model fails, `on_error` "skip" returns the other wordings and logs a warning; "raise" raises the
    model's error.

    As a query transform it puts the wordings into a new bundle's `custom_embedding_strs`, which are for vector search
    alone: this package's retrievers search each of them, LlamaIndex's the mean of their vectors. A bundle's own
    `embedding` stays, and where there is one LlamaIndex's retrievers search for nothing else. `HybridRetriever` takes
    the `rewriter` as its `expansion`: then keyword channels search every wording too, failures of the model are
    reported under `degraded`, and no model blocks the event loop, as it does in `TransformQueryEngine.aquery`.
    """

    @checks_options
    def __init__(
        self,
        llm: BaseLLM | TextModel | Callable[[str], str] | None = None,
        *,
        size: int = 3,
        hyde: bool | str | BasePromptTemplate = False,
        prompt: str | BasePromptTemplate | None = None,
        timeout: float | None = 10.0,
        on_error: Literal["skip", "raise"] = "skip",
    ) -> None:
        if llm is None and (hyde is not False or prompt is not None):
            raise ConfigError("hyde and prompt are for a language model: give QueryExpander an llm as well")
        if on_error not in ("skip", "raise"):
            raise unknown("on_error", on_error, ("skip", "raise"))
        self.on_error = on_error
        self._asking: dict[str, ModelRewriter] = {}
        if llm is not None:
            model = as_text_model(llm)
            own = None if prompt is None else _text_of(prompt)
            self._asking["expansion"] = ModelExpansion(model, size, prompt=own, timeout=timeout)
            if hyde is not False:
                own = None if hyde is True else _text_of(hyde)
                self._asking["hyde"] = HyDE(model, prompt=own, timeout=timeout)
        self._together = Together(self._asking.values() or [RuleExpansion(size)])

    @property
    def rewriter(self) -> Rewriter:
        """The rewriter that expands a query in a pipeline; updates of this expander's prompts change its prompts."""
        return self._together

    def wordings(self, query: QueryType) -> list[str]:
        """The question and its other wordings; a hypothetical answer comes last."""
        return execute(self._plan(query))

    async def awordings(self, query: QueryType) -> list[str]:
        """`wordings` on the running event loop."""
        return await aexecute(self._plan(query))

    @dispatcher.span
    async def arun(self, query_bundle_or_str: QueryType, metadata: dict[str, Any] | None = None) -> QueryBundle:
        """`run` on the running event loop."""
        return _bundle(query_bundle_or_str, await self.awordings(query_bundle_or_str))

    def _run(self, query_bundle: QueryBundle, metadata: dict[str, Any]) -> QueryBundle:
        return _bundle(query_bundle, self.wordings(query_bundle))

    def _plan(self, asked: QueryType) -> Plan[list[str]]:
        query, failures = yield from self._together.plan(_query(asked))
        for failure in failures:
            if self.on_error == "raise" and failure.error is not None:
                raise failure.error
        log_failures(_LOG, type(self).__name__, failures)
        return list(dict.fromkeys((query.text, *(variant.text for variant in query.variants))))

    def _get_prompts(self) -> PromptDictType:
        return {name: PromptTemplate(asking.prompt) for name, asking in self._asking.items()}

    def _update_prompts(self, prompts: PromptDictType) -> None:
        texts = {name: _text_of(prompts[name]) for name in self._asking if name in prompts}
        for name, text in texts.items():
            self._asking[name].prompt = text

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._together!r}, on_error={self.on_error!r})"


def _query(asked: QueryType) -> Query:
    """A query of texts alone; a bundle's own embedding strings count as wordings."""
    if isinstance(asked, str):
        return Query(asked)
    return Query(asked.query_str, variants=tuple(Variant(text) for text in asked.custom_embedding_strs or ()))


def _bundle(asked: QueryType, wordings: list[str]) -> QueryBundle:
    bundle = QueryBundle(asked) if isinstance(asked, str) else asked
    return replace(bundle, custom_embedding_strs=wordings)


def _text_of(prompt: str | BasePromptTemplate) -> str:
    """A prompt as a template text into which the core puts the question and the number of wordings."""
    if isinstance(prompt, BasePromptTemplate):
        text = _formatted(prompt)
    elif isinstance(prompt, str):
        text = filled(prompt, **_PLACES)
    else:
        raise ConfigError(f"a prompt is a text or a PromptTemplate, not {prompt!r}")
    if "{query}" not in text:
        raise ConfigError(f"a prompt has {{query}} or {{query_str}} in it, which the question replaces, not {prompt!r}")
    return text


def _formatted(prompt: BasePromptTemplate) -> str:
    if isinstance(prompt, ChatPromptTemplate) or getattr(prompt, "is_chat_template", False):
        raise ConfigError("a prompt for wordings is one text: give a PromptTemplate, not one of chat messages")
    renamed = prompt.template_var_mappings or {}
    known = {renamed.get(name, name) for name in (*_PLACES, *prompt.kwargs, *(prompt.function_mappings or ()))}
    for name in prompt.template_vars:
        if name not in known:
            raise unknown("variable in the prompt", name, _PLACES)
    places: dict[str, Any] = {name: place for name, place in _PLACES.items() if name not in prompt.kwargs}
    return prompt.format(**places)
