"""What LangChain's callbacks are told of a search: a child run for each part, and an event for what was skipped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForChainRun, CallbackManager, CallbackManagerForChainRun
from langchain_core.documents import Document
from langchain_core.runnables import RunnableConfig, ensure_config, patch_config
from langchain_core.runnables.config import (
    get_async_callback_manager_for_config,
    get_callback_manager_for_config,
    var_child_runnable_config,
)

from voicevault_retrievers.core.tracing import Recorder, Work, data_of

DEGRADED_EVENT = "voicevault_degraded"
"""The name of the custom event that says what a search skipped; `degraded` is the list of messages."""


@contextmanager
def below(config: RunnableConfig) -> Iterator[RunnableConfig]:
    """Set `config` as the current config of this context: LangChain itself sets none for a retriever."""
    token = var_child_runnable_config.set(config)
    try:
        yield config
    finally:
        var_child_runnable_config.reset(token)


class RunRecorder(Recorder):
    """Records each rewriter, channel, fusion and stage as a child run, such as `channel bm25`.

    The inputs are `queries` and `k`, where the part takes one. The run of a channel has the type `retriever` and gives
    documents with the metadata `rank` and `score`, without text unless `texts` are asked for. Any other run is a chain
    and gives `hits` with the same, or the `wordings` of a rewriter. All runs are told as chains, since handlers of
    retrievers expect the documents of an answer.
    """

    def __init__(self, *, texts: bool = False) -> None:
        super().__init__()
        self.texts = texts

    def begin(self, work: Work) -> CallbackManagerForChainRun:
        manager = get_callback_manager_for_config(ensure_config())
        return manager.on_chain_start(None, _inputs(work), **_named(work))

    async def abegin(self, work: Work) -> AsyncCallbackManagerForChainRun:
        manager = get_async_callback_manager_for_config(ensure_config())
        return await manager.on_chain_start(None, _inputs(work), **_named(work))

    def inside(self, run: Any) -> AbstractContextManager[object]:
        return below(patch_config(None, callbacks=run.get_child()))

    def end(self, run: Any, work: Work, outcome: Any) -> None:
        told = run.get_sync() if isinstance(run, AsyncCallbackManagerForChainRun) else run
        if isinstance(outcome, BaseException):
            told.on_chain_error(outcome)
        else:
            told.on_chain_end(self._outputs(work, outcome))

    async def aend(self, run: Any, work: Work, outcome: Any) -> None:
        if not isinstance(run, AsyncCallbackManagerForChainRun):
            self.end(run, work, outcome)
        elif isinstance(outcome, BaseException):
            await run.on_chain_error(outcome)
        else:
            await run.on_chain_end(self._outputs(work, outcome))

    def _outputs(self, work: Work, value: Any) -> Any:
        data = data_of(value, texts=self.texts)
        if work.kind != "channel" or "hits" not in data:
            return data
        # Who reads `astream_events` finds documents in the output of a retriever.
        return [Document(hit.pop("text", ""), id=hit.pop("id"), metadata=hit) for hit in data["hits"]]


def recorder(config: RunnableConfig, *, texts: bool = False) -> RunRecorder | None:
    """A recorder of the searches below a run; None where no callback listens."""
    return RunRecorder(texts=texts) if is_heard(config) else None


def is_heard(config: RunnableConfig | None) -> bool:
    """Whether any callbacks listen to a run with this config, those of a globally configured tracer included."""
    return bool(CallbackManager.configure(ensure_config(config).get("callbacks")).handlers)


def _inputs(work: Work) -> dict[str, Any]:
    return {"queries": list(work.texts), **({} if work.k is None else {"k": work.k})}


def _named(work: Work) -> dict[str, Any]:
    return {"name": f"{work.kind} {work.name}", "run_type": "retriever" if work.kind == "channel" else "chain"}
