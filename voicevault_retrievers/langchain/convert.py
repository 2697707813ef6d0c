"""Conversion of documents to chunks, of hits to documents, and of messages to turns of a conversation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, convert_to_messages

from voicevault_retrievers._support.checks import metadata_copy
from voicevault_retrievers._support.duplicates import duplicate
from voicevault_retrievers.core.explanation import (
    PassageText,
    current,
    finite,
    of_search,
    passages_in,
    rights_in,
    sealed,
    votes_of,
)
from voicevault_retrievers.core.queries import turns_from
from voicevault_retrievers.core.types import Chunk, Hit
from voicevault_retrievers.errors import ConfigError

TextOf: TypeAlias = Callable[[Document], str] | Sequence[str] | None
"""What is indexed before a document's text: a function's result, or the values of metadata keys; None for nothing."""

SCORE = "relevance_score"
PROVENANCE = "voicevault"
_WRITTEN = {"found_by", "degraded", "citation"}
"""Keys of a provenance, by which it is told from a document's own metadata; entries of stages have a rank."""


def chunk_of(document: Document, text_of: TextOf = None) -> Chunk:
    """The chunk of a document. Its id is the document's, else a digest of text and metadata.

    `text_of` makes its header; without it, a document that was found keeps the header that it was found with.

    Equal documents without an id are therefore one chunk. The parent is `metadata["parent_id"]`. Metadata that a search
    wrote is left out. Where a search replaced the text by a wider context, the chunk has the text that was found.
    Raises ConfigError for anything that is not a Document.
    """
    return _chunk(document, *_read(document), text_of)


def _read(document: Document) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """A document's own metadata, and its provenance as far as that still holds."""
    if not isinstance(document, Document):
        raise ConfigError(f"expected a LangChain Document, not {type(document).__name__}")
    metadata = _own(document)
    return metadata, current(told_of(document), document.page_content, metadata)


def _chunk(
    document: Document, metadata: Mapping[str, Any], told: Mapping[str, Any], text_of: TextOf, own_id: str | None = None
) -> Chunk:
    parent, text, kb = told.get("parent_id", metadata.get("parent_id")), told.get("text"), told.get("kb")
    return Chunk(
        own_id or document.id or _digest(document.page_content, metadata),
        text if isinstance(text, str) else document.page_content,
        parent_id=str(parent) if isinstance(parent, str | int) else None,
        metadata=metadata_copy(f"document {document.id!r}", metadata),
        kb=kb if isinstance(kb, str) else "",
        header=str(told.get("header", "")) if text_of is None else _header(document, text_of),
    )


def chunks_of(documents: Iterable[Document], text_of: TextOf = None) -> list[Chunk]:
    """The chunks of documents; equal chunks once."""
    return list(dict.fromkeys(chunk_of(document, text_of) for document in documents))


def checked_text_of(text_of: TextOf) -> TextOf:
    """A `text_of` as it is; ConfigError for what is none."""
    if not (text_of is None or callable(text_of) or isinstance(text_of, Sequence)):
        raise ConfigError(f"text_of is a function of a document, or metadata keys, not {text_of!r}")
    return text_of


def header_of(hit: Hit, text_of: Callable[[Document], str] | Sequence[str]) -> str:
    """What `text_of` says of the document of a hit."""
    return _header(kept_document(hit.chunk), text_of)


def _header(document: Document, text_of: Callable[[Document], str] | Sequence[str]) -> str:
    checked_text_of(text_of)
    if not callable(text_of):
        keys = [text_of] if isinstance(text_of, str) else text_of
        return " > ".join(str(value) for key in keys if (value := document.metadata.get(key)) not in (None, ""))
    header = text_of(document)
    if not isinstance(header, str):
        raise ConfigError(f"text_of gives the text that is indexed before a document's, not a {type(header).__name__}")
    return header.removesuffix(document.page_content).strip()


def hit_of(document: Document, chunk_id: str | None = None, text_of: TextOf = None) -> Hit:
    """The hit from which `document_of` made a document: its chunk, score, votes and wider context.

    `chunk_id` replaces the document's own id; `text_of` is as of `chunk_of`. Provenance that is not in the form that
    `document_of` writes, as in a document of another package, is ignored.
    """
    metadata, told = _read(document)
    chunk = _chunk(document, metadata, told, text_of, chunk_id)
    over = told.get("over_budget") is True
    read = isinstance(told.get("text"), str) and (document.page_content or not over)
    context = document.page_content if read else None
    score, require = finite(document.metadata.get(SCORE)), rights_in(told)
    return Hit(chunk, score, votes_of(told), context, over_budget=over, require=require)


def document_of(hit: Hit, degraded: Sequence[str] = (), wordings: Sequence[str] = ()) -> Document:
    """A new document of a hit. Its text is what a model is to read; it is empty where the hit is over a budget.

    `metadata["relevance_score"]` is the hit's score, absent where it has none. `metadata["voicevault"]` says how the
    hit was found (see `provenance`): `degraded` are the failures that may have cost hits or changed their order,
    `wordings` the wordings that were searched.
    """
    document = kept_document(hit.chunk)
    document.page_content = hit.text
    write_provenance(document, of_search(hit, degraded, wordings))
    document.metadata.pop(SCORE, None)
    if hit.score is not None:
        document.metadata[SCORE] = float(hit.score)
    return document


def write_provenance(document: Document, told: Mapping[str, Any]) -> None:
    """Write a provenance into the metadata of a document, which must be the caller's own."""
    document.metadata[PROVENANCE] = told
    document.metadata[PROVENANCE] = sealed(told, document.page_content, _own(document))


def kept_document(chunk: Chunk) -> Document:
    """A new document of a chunk, without a search's provenance; only a parent id that the metadata lacks is added."""
    metadata = duplicate(dict(chunk.metadata))
    if chunk.parent_id and chunk.parent_id != str(metadata.get("parent_id")):
        metadata[PROVENANCE] = {"parent_id": chunk.parent_id}
    return Document(page_content=chunk.text, id=chunk.id, metadata=metadata)


def passages_of(documents: Iterable[Document]) -> list[Document]:
    """The documents, those that are groups as a document for each passage (see `group_by`), as a citation needs it."""
    found: list[Document] = []
    for document in documents:
        told = told_of(document) if isinstance(document, Document) else {}
        passages = passages_in(told, document.page_content, _own(document)) if "passages" in told else []
        found += map(_passage, passages) if passages else [document]
    return found


def _passage(passage: PassageText) -> Document:
    scored = {} if passage.score is None else {SCORE: passage.score}
    metadata = duplicate({**passage.metadata, PROVENANCE: passage.told, **scored})
    return Document(page_content=passage.text, id=passage.id, metadata=metadata)


def flatten_provenance(documents: Iterable[Document]) -> list[Document]:
    """New documents whose provenance is texts, numbers and flags, which are all that stores such as Chroma keep.

    `metadata["voicevault"]` becomes keys such as `voicevault_found_by`, `voicevault_bm25_rank`, `voicevault_fused`;
    `metadata["relevance_score"]` stays. The documents cannot be made hits again: to what reads provenance they are as
    another package's. When they are indexed or found, this package leaves out the keys as it does any provenance.
    """
    flat: list[Document] = []
    for document in documents:
        metadata = {key: value for key, value in document.metadata.items() if key != PROVENANCE}
        flat.append(_with(document, metadata | dict(_flat(told_of(document), PROVENANCE))))
    return flat


def remove_provenance(documents: Iterable[Document]) -> list[Document]:
    """New documents without what a search wrote into their metadata; the text is still that which a model reads."""
    return [_with(document, _own(document)) for document in documents]


def told_of(document: Document) -> Mapping[str, Any]:
    """The provenance that a search wrote into a document's metadata; empty where there is none."""
    told = document.metadata.get(PROVENANCE)
    return told if isinstance(told, Mapping) else {}


def _own(document: Document) -> dict[str, Any]:
    """The metadata that no search wrote: the score is a search's only beside a search's provenance."""
    told, searched = told_of(document), set[str]()
    if f"{PROVENANCE}_found_by" in document.metadata:
        searched = {SCORE} | {key for key in document.metadata if str(key).startswith(f"{PROVENANCE}_")}
    if told.keys() == {"parent_id"}:
        searched |= {PROVENANCE}
    elif told.keys() & _WRITTEN or any(isinstance(entry, Mapping) and "rank" in entry for entry in told.values()):
        searched |= {PROVENANCE, SCORE}
    return {key: value for key, value in document.metadata.items() if key not in searched}


def _with(document: Document, metadata: Mapping[str, Any]) -> Document:
    return document.model_copy(update={"metadata": duplicate(metadata)})


def _flat(told: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str | int | float | bool]]:
    for key, value in told.items():
        if key == "require":
            continue
        name = prefix if key in ("channels", "also_scored") else f"{prefix}_{key}"
        if isinstance(value, Mapping):
            yield from _flat(value, name)
        elif isinstance(value, str | int | float):
            yield name, value
        elif value:
            yield name, ", ".join(str(one["id"] if isinstance(one, Mapping) else one) for one in value)


def _digest(text: str, metadata: Mapping[str, Any]) -> str:
    unscored = {key: value for key, value in metadata.items() if key != SCORE}
    return hashlib.sha256(json.dumps([text, _sorted(unscored)], default=_plain).encode()).hexdigest()[:32]


def _sorted(value: Any) -> Any:
    """The value with its mappings sorted by key, whatever the keys' types."""
    if isinstance(value, Mapping):
        return {_key(key): _sorted(item) for key, item in sorted(value.items(), key=lambda item: str(item[0]))}
    return [_sorted(item) for item in value] if isinstance(value, list | tuple) else value


def _key(key: Any) -> Any:
    return key if key is None or isinstance(key, str | int | float) else repr(key)


def _plain(value: Any) -> Any:
    """A set as a sorted list, an array as a list; any other value that JSON lacks as its repr."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return sorted(value, key=repr) if isinstance(value, set | frozenset) else repr(value)


def before_question(messages: Sequence[Any]) -> list[Any]:
    """The messages of a conversation before its last question."""
    last = max((at for at, one in enumerate(messages) if isinstance(one, HumanMessage)), default=len(messages))
    return list(messages[:last])


_ROLES = ("human", "user", "ai", "assistant", "system", "developer")


def turns_of(history: Iterable[Any] | None) -> list[Any]:
    """The turns of a conversation: turns unchanged, or from messages each question with its last answer."""
    if not isinstance(history, Iterable | None):
        raise ConfigError(f"history is a sequence of messages or of turns, not {history!r}")
    messages = list(history or ())
    if all(isinstance(turn, BaseMessage) or _says_role(turn) for turn in messages):
        messages = list(convert_to_messages(messages))
    if not any(isinstance(turn, BaseMessage) for turn in messages):
        return messages
    return list(turns_from(messages, BaseMessage, _said))


def _said(message: BaseMessage) -> tuple[bool, str] | None:
    """Whether a message is a question, and its text; None for one that is neither question nor answer."""
    is_question = isinstance(message, HumanMessage)
    return (is_question, str(message.text)) if is_question or isinstance(message, AIMessage) else None


def _says_role(turn: object) -> bool:
    """Whether a pair is a message in LangChain's short form (role, text) rather than a question and its answer."""
    return isinstance(turn, tuple | list) and len(turn) == 2 and turn[0] in _ROLES and isinstance(turn[1], str)
