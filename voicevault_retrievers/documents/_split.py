"""Splits a document into chunks, with ids that depend only on a chunk's text and place."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, TypeAlias

from voicevault_retrievers._support.extras import require
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.documents._model import EXTRA, Document, Part
from voicevault_retrievers.errors import ConfigError

if TYPE_CHECKING:
    from semantic_text_splitter import MarkdownSplitter, TextSplitter

    Splitters: TypeAlias = type[TextSplitter] | type[MarkdownSplitter]

Piece: TypeAlias = tuple[int, str]
"""The first character of a piece in its part, and its text."""

_LONG_LINE = 20_000


def split(document: Document, *, max_chars: int = 900, overlap: int = 0) -> list[Chunk]:
    """Chunks of at most `max_chars` characters, split between sections, paragraphs or sentences where possible.

    No chunk crosses a part, and none is only a heading where text follows it. A chunk's `header` is the headings above
    it. Neighbours share up to `overlap` characters. `start` and `end` are character offsets in the
    part's text, `chunk_index` counts from 0 through the document's `chunks_in_file` chunks, `file_id` depends on its
    name. Text added elsewhere does not change an id, unless an equal text is added before it in its own page and
    section. Raises ConfigError for an overlap that is not below `max_chars`.
    """
    if not 0 <= overlap < max_chars:
        raise ConfigError(f"overlap is at least 0 and below max_chars, not {overlap} with max_chars {max_chars}")
    markdown = PurePosixPath(document.source_file).suffix.lower() in {".md", ".markdown"}
    splitters = require("semantic_text_splitter", extra=EXTRA)
    kind: Splitters = splitters.MarkdownSplitter if markdown else splitters.TextSplitter
    splitter = kind(max_chars, overlap=overlap)
    seen: Counter[str] = Counter()
    chunks: list[Chunk] = []
    found = [
        (part, start, text)
        for part in document.parts
        for start, text in _with_heading(kind, max_chars, part, list(_pieces(splitter, part.text)))
    ]
    for part, start, text in found:
        key = json.dumps([document.source_file, part.page_number, part.section, text])
        metadata = place(document, part, start, text) | {"chunk_index": len(chunks), "chunks_in_file": len(found)}
        chunks.append(Chunk(digest(f"{key}{seen[key]}"), text, metadata=metadata, header=part.header(start)))
        seen[key] += 1
    return chunks


def _with_heading(kind: Splitters, max_chars: int, part: Part, pieces: list[Piece]) -> list[Piece]:
    """The pieces of a part, the first of which goes on behind the part's heading where the heading leaves room."""
    below = next((at for at, (start, text) in enumerate(pieces) if start + len(text) > part.body), 0)
    if below == 0:
        return pieces
    start, (after, text), rest = pieces[0][0], pieces[below], pieces[below + 1 :]
    room = max_chars - (after - start)
    if room < max_chars // 2:
        return pieces
    cut = [(after + at, piece) for at, piece in _pieces(kind(room), text)]
    first = part.text[start : cut[0][0] + len(cut[0][1])]
    return [(start, first), *cut[1:], *rest]


def _pieces(splitter: TextSplitter | MarkdownSplitter, text: str) -> Iterator[Piece]:
    """Yield the trimmed pieces that are not blank, with their starts."""
    for window, content in _windows(text):
        for start, piece in splitter.chunk_indices(content):
            if trimmed := piece.strip():
                yield window + start + len(piece) - len(piece.lstrip()), trimmed


def _windows(text: str) -> Iterator[tuple[int, str]]:
    """Yield the whole text, or parts of a text with a very long line: splitting takes quadratic time per sentence."""
    step = _LONG_LINE if max(map(len, text.split("\n"))) > _LONG_LINE else len(text)
    start = 0
    while start < len(text):
        end = start + step
        if end < len(text):
            end = text.rfind(" ", start, end) + 1 or end
        yield start, text[start:end]
        start = end


def place(document: Document, part: Part, start: int, text: str) -> dict[str, Any]:
    """The metadata of a text that starts at this character of a part."""
    own: dict[str, Any] = dict(part.metadata)
    if own.get("line_end", 0) > own.get("line_start", 0):
        own["line_start"] += part.text.count("\n", 0, start)
        own["line_end"] = own["line_start"] + text.count("\n")
    told = named(document, part.page_number, part.section)
    return {**told, **own, "start": start, "end": start + len(text)}


def named(document: Document, page_number: int | None, section: str | None) -> dict[str, Any]:
    """The metadata of a document, with page and section where they are known."""
    told = {"source_file": document.source_file, "page_number": page_number, "section": section}
    known = {key: value for key, value in told.items() if value is not None}
    return known | {"file_id": digest(json.dumps([document.source_file]))}


def digest(key: str) -> str:
    """An id from a key that identifies a chunk."""
    return blake2b(key.encode(), digest_size=10).hexdigest()
