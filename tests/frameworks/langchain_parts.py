"""What the tests of the LangChain classes share."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableConfig, ensure_config

from tests.helpers import HashEmbedder
from voicevault_retrievers.langchain import HybridRetriever

TEXTS = {
    "flush": "Flush the pump housing before the seal is changed",
    "seal": "The pump seal is rated for hot water",
    "hose": "A hose joins pump and filter",
    "lamp": "The warning lamp blinks red",
    "door": "Close the door of the cabinet",
}


def documents() -> list[Document]:
    return [
        Document(text, id=key, metadata={"source": "manual.pdf", "page": at // 2, "tags": {"of": [key]}})
        for at, (key, text) in enumerate(TEXTS.items())
    ]


def hybrid(**options: Any) -> HybridRetriever:
    """By rank, for the vectors of a hash say nothing but their order."""
    return HybridRetriever.from_documents(documents(), HashEmbedder(), **{"fusion": "rrf", **options})


def ids(found: Sequence[Document]) -> list[str | None]:
    return [document.id for document in found]


class Hashed(Embeddings):
    """Texts that share words are near."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return HashEmbedder().embed_documents(texts).tolist()  # type: ignore[no-any-return]  # numpy says Any

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


class Child(BaseRetriever):
    """Gives its documents, and says under which configuration it was asked."""

    found: list[Document]
    seen: list[RunnableConfig]

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        self.seen.append(ensure_config())
        return self.found


class AsyncChild(Child):
    async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        self.seen.append(ensure_config())
        await asyncio.sleep(0)
        return self.found


class Fails(BaseRetriever):
    error: Exception

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        raise self.error


class Starts(BaseCallbackHandler):
    """The names of what was started, each behind its parent's."""

    def __init__(self) -> None:
        self.names: dict[UUID | None, str] = {None: ""}
        self.below: list[tuple[str, str]] = []

    def on_chain_start(self, serialized: Any, inputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self.names[run_id] = kwargs["name"]
        self.below.append((self.names.get(kwargs["parent_run_id"], ""), kwargs["name"]))

    def on_chat_model_start(self, serialized: Any, messages: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self.below.append((self.names[kwargs["parent_run_id"]], "model"))


class Runs(BaseCallbackHandler):
    """The runs that were started: name, own id, parent's id; and the events that were dispatched."""

    def __init__(self) -> None:
        self.started: dict[str, tuple[UUID, UUID | None, list[str]]] = {}
        self.events: list[tuple[str, Any, UUID]] = []

    def on_retriever_start(self, serialized: Any, query: str, *, run_id: UUID, **kwargs: Any) -> None:
        self.started[kwargs["name"]] = run_id, kwargs["parent_run_id"], kwargs["tags"]

    def on_chain_start(self, serialized: Any, inputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self.started[kwargs["name"]] = run_id, kwargs["parent_run_id"], kwargs["tags"]

    def on_custom_event(self, name: str, data: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self.events.append((name, data, run_id))

    def told(self, name: str) -> list[tuple[Any, UUID]]:
        """The data of the events of one name, and the runs that dispatched them."""
        return [(data, run_id) for event, data, run_id in self.events if event == name]


def by_length(query: str, passages: Sequence[str]) -> list[float]:
    return [float(len(passage)) for passage in passages]
