"""Documents to chunks, hits to documents, and messages to the turns of a conversation."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, convert_to_messages

from voicevault_retrievers.core.explanation import finite, of_search, votes_of
from voicevault_retrievers.core.queries import Turn
from voicevault_retrievers.core.types import Chunk, Hit
from voicevault_retrievers.errors import ConfigError

SCORE = "relevance_score"
PROVENANCE = "voicevault"


def chunk_of(document: Document) -> Chunk:
    """The chunk of a document: its id, else a digest of text and metadata, so that equal documents are one chunk.

    The parent is `metadata["parent_id"]`. What a search wrote into the metadata is left out, and for a document whose
    text is a wider context the chunk has the text that was found. Raises ConfigError for what is no Document.
    """
    if not isinstance(document, Document):
        raise ConfigError(f"expected a LangChain Document, not {type(document).__name__}")
    told = told_of(document)
    metadata = {key: value for key, value in document.metadata.items() if key not in (SCORE, PROVENANCE)}
    parent, text, kb = told.get("parent_id", metadata.get("parent_id")), told.get("text"), told.get("kb")
    return Chunk(
        document.id or _digest(document.page_content, metadata),
        text if isinstance(text, str) else document.page_content,
        parent_id=str(parent) if isinstance(parent, str | int) else None,
        metadata=copy.deepcopy(metadata),
        kb=kb if isinstance(kb, str) else "",
    )


def chunks_of(documents: Iterable[Document]) -> list[Chunk]:
    """The chunks of documents; one given twice is one."""
    return list(dict.fromkeys(map(chunk_of, documents)))


def hit_of(document: Document, chunk_id: str | None = None) -> Hit:
    """The hit that a document was made of (see `document_of`): its chunk, score, votes and wider context.

    `chunk_id` takes the place of the document's own id. What is not of this form, in a document of somebody else's, is
    left out.
    """
    chunk = chunk_of(document if chunk_id is None else document.model_copy(update={"id": chunk_id}))
    told = told_of(document)
    over = told.get("over_budget") is True
    read = isinstance(told.get("text"), str) and (document.page_content or not over)
    context = document.page_content if read else None
    return Hit(chunk, finite(document.metadata.get(SCORE)), votes_of(told), context, over_budget=over)


def document_of(hit: Hit, degraded: Sequence[str] = (), wordings: Sequence[str] = ()) -> Document:
    """A new document of a hit; its text is what a model is to read, and empty where that is over a budget.

    `metadata["relevance_score"]` is its score, absent where it has none. `metadata["voicevault"]` says how it was found
    (see `provenance`); `degraded` are the failures that may have cost hits or their order, `wordings` what was asked.
    """
    document = kept_document(hit.chunk)
    document.page_content = hit.text
    document.metadata[PROVENANCE] = of_search(hit, degraded, wordings)
    if hit.score is not None:
        document.metadata[SCORE] = float(hit.score)
    return document


def kept_document(chunk: Chunk) -> Document:
    """A new document of a chunk; what a search would say is a parent alone, where the metadata does not name it."""
    metadata = copy.deepcopy(dict(chunk.metadata))
    if chunk.parent_id and chunk.parent_id != str(metadata.get("parent_id")):
        metadata[PROVENANCE] = {"parent_id": chunk.parent_id}
    return Document(page_content=chunk.text, id=chunk.id, metadata=metadata)


def told_of(document: Document) -> Mapping[str, Any]:
    """What a search said of a document; empty where none did."""
    told = document.metadata.get(PROVENANCE)
    return told if isinstance(told, Mapping) else {}


def _digest(text: str, metadata: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps([text, _sorted(metadata)], default=_plain).encode()).hexdigest()[:32]


def _sorted(value: Any) -> Any:
    """The value with its mappings in the order of their keys, whatever kinds these are of."""
    if isinstance(value, Mapping):
        return {key: _sorted(item) for key, item in sorted(value.items(), key=lambda item: str(item[0]))}
    return [_sorted(item) for item in value] if isinstance(value, list | tuple) else value


def _plain(value: Any) -> Any:
    """A set in a fixed order; anything else that JSON does not know as its repr."""
    return sorted(value, key=repr) if isinstance(value, set | frozenset) else repr(value)


_ROLES = ("human", "user", "ai", "assistant", "system", "developer")


def turns_of(history: Sequence[Any]) -> list[Any]:
    """Turns as they are, or of messages each question with the last answer to it."""
    messages = list(history)
    if all(isinstance(turn, BaseMessage) or _says_role(turn) for turn in messages):
        messages = list(convert_to_messages(messages))
    if not any(isinstance(turn, BaseMessage) for turn in messages):
        return messages
    turns: list[Turn] = []
    for message in messages:
        if not isinstance(message, BaseMessage):
            raise ConfigError(f"a history is of messages or of turns, not of both: {message!r:.200}")
        if isinstance(message, HumanMessage):
            turns.append(Turn(str(message.text), ""))
        elif isinstance(message, AIMessage) and message.text and turns:
            turns[-1] = Turn(turns[-1].question, str(message.text))
    return [turn for turn in turns if turn.answer]


def _says_role(turn: object) -> bool:
    """Whether a pair is a message in LangChain's short form, a role with a text, rather than a question and answer."""
    return isinstance(turn, tuple | list) and len(turn) == 2 and turn[0] in _ROLES and isinstance(turn[1], str)
