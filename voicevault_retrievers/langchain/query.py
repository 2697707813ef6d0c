"""Query expansion for LangChain."""

from __future__ import annotations

import logging
from typing import Any, Literal

from langchain_core.callbacks import AsyncCallbackManagerForChainRun
from langchain_core.prompts import StringPromptTemplate
from langchain_core.runnables import RunnableConfig, RunnableSerializable, patch_config
from pydantic import Field, InstanceOf

from voicevault_retrievers.core.channel import Rewriter
from voicevault_retrievers.core.execution.driver import aexecute, execute
from voicevault_retrievers.core.execution.plan import Call, Plan, value_of
from voicevault_retrievers.core.failures import log_failures
from voicevault_retrievers.core.types import Query
from voicevault_retrievers.errors import ConfigError, unknown
from voicevault_retrievers.langchain.events import below
from voicevault_retrievers.langchain.models import as_text_model
from voicevault_retrievers.langchain.validation import STRICT, Checked
from voicevault_retrievers.query import HyDE, ModelExpansion, RuleExpansion, Together

_LOG = logging.getLogger(__name__)
_VARIABLES = {"query": "{query}", "question": "{query}", "count": "{count}"}


class QueryExpander(Checked[Together], RunnableSerializable[str, list[str]]):
    """Returns a question and other wordings of it: `size` in all, the question itself always first.

    The wordings are made by rules, or by `llm`: a chat model, an LLM, a runnable, a function, or a chat model's name.
    `hyde` appends the hypothetical answer that the model writes. In a retriever only the semantic channels search it,
    and with `size` 1 it is all that the model is asked for. `prompt`, and `hyde` where it is not a flag, are your own
    prompts: a text or template with `{query}` in it, and in `prompt` also `{count}`, the number of wordings. `timeout`
    is in seconds for each call of the model. When the model fails, `on_error` "skip" returns the other wordings and
    logs a warning; "raise" raises the model's error. In a retriever the retriever's own `on_error` applies.
    """

    model_config = STRICT
    llm: Any = None
    size: int = Field(default=3, ge=1)
    hyde: bool | str | InstanceOf[StringPromptTemplate] = False
    prompt: str | InstanceOf[StringPromptTemplate] | None = None
    timeout: float | None = 10.0
    on_error: Literal["skip", "raise"] = "skip"

    @property
    def rewriter(self) -> Rewriter:
        """The rewriter that expands a query in a pipeline."""
        return self._built()

    def invoke(self, input: str, config: RunnableConfig | None = None, **kwargs: Any) -> list[str]:
        return self._call_with_config(self._expand, input, config, **kwargs)

    async def ainvoke(self, input: str, config: RunnableConfig | None = None, **kwargs: Any) -> list[str]:
        return await self._acall_with_config(self._aexpand, input, config, **kwargs)

    def _check(self) -> None:
        if self.llm is None and (self.hyde is not False or self.prompt is not None):
            raise ConfigError("hyde and prompt are for a language model: give QueryExpander an llm as well")
        self._built()

    def _build(self) -> Together:
        if self.llm is None:
            return Together([RuleExpansion(self.size)])
        model = as_text_model(self.llm)
        wordings = ModelExpansion(model, self.size, prompt=_text_of(self.prompt), timeout=self.timeout)
        if self.hyde is False:
            return Together([wordings])
        answer = HyDE(model, prompt=None if self.hyde is True else _text_of(self.hyde), timeout=self.timeout)
        return Together([wordings, answer])

    def _expand(self, question: str) -> list[str]:
        return execute(self._plan(question))

    async def _aexpand(
        self, question: str, run_manager: AsyncCallbackManagerForChainRun, config: RunnableConfig
    ) -> list[str]:
        with below(patch_config(config, callbacks=run_manager.get_child())):
            return await aexecute(self._plan(question))

    def _plan(self, question: str) -> Plan[list[str]]:
        (outcome,) = yield (Call("open", self._built, inline=self._is_built()),)
        together: Together = value_of(outcome)
        query, failures = yield from together.plan(Query(question))
        for failure in failures:
            if self.on_error == "raise" and failure.error is not None:
                raise failure.error
        log_failures(_LOG, self.get_name(), failures)
        return list(dict.fromkeys((query.text, *(variant.text for variant in query.variants))))


def _text_of(prompt: str | StringPromptTemplate | None) -> str | None:
    """A prompt as a template text into which the core puts the question and the number of wordings."""
    if not isinstance(prompt, StringPromptTemplate):
        return prompt
    for name in prompt.input_variables:
        if name not in _VARIABLES:
            raise unknown("variable in the prompt", name, _VARIABLES)
    return prompt.format(**{name: _VARIABLES[name] for name in prompt.input_variables})
