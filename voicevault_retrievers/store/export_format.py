"""The lines of an export (see `export`), read and validated one at a time."""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import IO, Any, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers._support.checks import whole
from voicevault_retrievers.core.types import Chunk, Vector
from voicevault_retrievers.core.vectors import unit_rows
from voicevault_retrievers.dense import probes
from voicevault_retrievers.errors import DocumentError, IncompatibleIndexError, IndexDamagedError
from voicevault_retrievers.store import codec
from voicevault_retrievers.store.codec import Limits
from voicevault_retrievers.store.curation import Curation
from voicevault_retrievers.store.manifest import EmbedderEntry, Manifest, VectorSearch
from voicevault_retrievers.store.sources import Source
from voicevault_retrievers.structure.questions.records import RESERVED

Entry: TypeAlias = Source | Chunk | str
"""An entry of a line; the text of a curation is a string."""

FORMAT = "voicevault"
VERSION = 3
"""The newest version, with a curation; 2 has questions alone. An export with neither is written as version 1."""
KINDS = ("source", "parent", "chunk")
"""The kinds of lines, in their order."""
QUESTION_KINDS = ("note", "question")
"""The kinds of lines about questions, after the others: chunks without questions, and the questions."""
CURATION = "curation"
"""The kind of the line with the text of the curation, the last before the end."""

BLOCK = 4096
BLOCK_BYTES = 32 * 1024 * 1024
"""The most lines, and bytes of lines, that are held at a time."""

_HEADER_BYTES = 1024 * 1024
_LARGEST_DIMENSION = 65_536
_ESCAPED = 12
"""The most bytes that a character takes in JSON, as two escapes."""


@dataclass(frozen=True)
class Header:
    """The first line: the base's `name`, whether chunks have `vectors`, and the `counts` by kind."""

    format: str
    version: int
    name: str
    analyzer: Mapping[str, Any]
    analyzer_fingerprint: str
    embedder: EmbedderEntry | None
    vector_search: VectorSearch
    vectors: bool
    counts: Mapping[str, int]

    @property
    def questions(self) -> bool:
        """Whether questions about the chunks are exported with them."""
        return set(QUESTION_KINDS) <= set(self.counts)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of lines of this export, in their order."""
        return tuple(kind for kind in (*KINDS, *QUESTION_KINDS, CURATION) if kind in self.counts)

    @classmethod
    def of(cls, name: str, present: Manifest, vectors: bool, counts: Mapping[str, int]) -> Header:
        version = VERSION if CURATION in counts else 2 if set(counts) > set(KINDS) else 1
        return cls(
            FORMAT, version, name, present.analyzer, present.analyzer_fingerprint, present.embedder, present.vectors,
            vectors, counts,
        )  # fmt: skip

    @classmethod
    def read(cls, line: dict[str, Any]) -> Header:
        """The header of a line; ValueError for an invalid field, IncompatibleIndexError for a newer version."""
        if line.get("format") != FORMAT:
            raise ValueError("this is no export of a knowledge base: its first line does not say so")
        if whole("version", line.get("version")) > VERSION:
            raise IncompatibleIndexError(
                f"the export is of version {line['version']}, newer than {VERSION}, the newest known here: update "
                "voicevault-retrievers"
            )
        _check(line, format=str, version=int, name=str, analyzer=dict, analyzer_fingerprint=str,
               embedder=dict | None, vector_search=str, vectors=bool, counts=dict)  # fmt: skip
        if not all(isinstance(value, str | bool | None) for value in line["analyzer"].values()):
            raise ValueError(f"the analyzer is made of names, true, false and null, not of {line['analyzer']}")
        if line["vector_search"] not in get_args(VectorSearch):
            raise ValueError(f"vector_search is one of {get_args(VectorSearch)}, not {line['vector_search']!r}")
        entry = None if line["embedder"] is None else _embedder(line["embedder"])
        if line["vectors"] and entry is None:
            raise ValueError("there are vectors, and no embedder that made them")
        _check(line["counts"], **dict.fromkeys(_kinds(line["version"], line["counts"]), int))
        return cls(**{**line, "embedder": entry})


class Block(NamedTuple):
    """A block of an export's entries.

    `vectors` has a row per chunk and `question_vectors` per question; they are None where the file has none.
    """

    sources: list[Source]
    parents: list[Chunk]
    chunks: list[Chunk]
    vectors: NDArray[np.float32] | None
    notes: list[Chunk]
    questions: list[Chunk]
    question_vectors: NDArray[np.float32] | None
    curation: str | None = None


class Exported:
    """The content of an export stream, read once.

    Raises DocumentError, naming the line, for an invalid line; IndexDamagedError where the stream ends early or has
    changed.
    """

    def __init__(self, stream: IO[bytes], limits: Limits) -> None:
        self._stream = stream
        self._limits = limits
        self._name = str(getattr(stream, "name", "the export"))
        self._digest = hashlib.sha256()
        self._line = b""
        self._number = 0

    @cached_property
    def header(self) -> Header:
        line = self._next(_HEADER_BYTES)
        try:
            return Header.read(line)
        except (TypeError, ValueError) as error:
            raise self._wrong(error) from error

    def blocks(self) -> Iterator[Block]:
        """The entries after the header; the last block is yielded once the file has been found whole."""
        held, rows, size = _nothing(), _nothing(), 0
        for kind, entry, row in self._entries():
            held[kind].append(entry)
            rows[kind] += [] if row is None else [row]
            size += len(self._line)
            if size >= BLOCK_BYTES or sum(map(len, held.values())) >= BLOCK:
                yield self._block(held, rows)
                held, rows, size = _nothing(), _nothing(), 0
        yield self._block(held, rows)

    def _block(self, held: Mapping[str, list[Any]], rows: Mapping[str, Sequence[Vector]]) -> Block:
        vectors, others = (self._stacked(rows[kind]) for kind in ("chunk", "question"))
        source, parent, chunk, note, question = (held[kind] for kind in (*KINDS, *QUESTION_KINDS))
        return Block(source, parent, chunk, vectors, note, question, others, next(iter(held[CURATION]), None))

    def _stacked(self, rows: Sequence[Vector]) -> NDArray[np.float32] | None:
        return np.array(rows, dtype=np.float32).reshape(-1, self._dimension) if self.header.vectors else None

    def _entries(self) -> Iterator[tuple[str, Entry, Vector | None]]:
        kinds = self.header.kinds
        counts = dict.fromkeys(kinds, 0)
        last = (-1, "")
        while "end" not in (line := self._next(self._longest)):
            try:
                kind, entry, row = self._read(line)
                name = entry.name if isinstance(entry, Source) else entry.id if isinstance(entry, Chunk) else ""
                place = kinds.index(kind), name
                if place <= last:
                    raise ValueError(f"{kind} {place[1]!r} comes after {last[1]!r}: names and ids ascend, each is once")
            except (TypeError, ValueError) as error:
                raise self._wrong(error) from error
            last = place
            counts[kind] += 1
            yield kind, entry, row
        sealed = {"end": {**counts, "sha256": self._digest.hexdigest()}}
        if line != sealed or counts != self.header.counts or self._stream.read(1):
            raise self._damaged("has changed: its lines are not those that its last line seals")

    def _read(self, line: dict[str, Any]) -> tuple[str, Entry, Vector | None]:
        kind = next(iter(line), "")
        kinds = self.header.kinds
        if kind not in kinds or len(line) != 1:
            raise ValueError(f"expected one key of {', '.join(kinds)} and end, found {sorted(line)}")
        held = line[kind]
        if kind == "source":
            _check(held, **{field.name: str for field in fields(Source) if field.compare})
            return kind, Source(**held), None
        if kind == CURATION:
            _check(held, text=str)
            Curation.from_text(held["text"])  # raises ConfigError, a ValueError
            return kind, held["text"], None
        vector = {"vector": str} if kind in ("chunk", "question") and self.header.vectors else {}
        _check(held, id=str, text=str, parent_id=str | None, metadata=dict, header=str, **vector)
        limits = _of_questions(self._limits) if kind in QUESTION_KINDS else self._limits
        given = Chunk(held["id"], held["text"], held["parent_id"], held["metadata"], header=held["header"])
        (chunk,) = codec.kept([given], "", limits)
        return kind, chunk, self._row(held["vector"]) if vector else None

    def _row(self, encoded: str) -> Vector:
        found = np.frombuffer(b64decode(encoded, validate=True), dtype="<f4").reshape(1, -1)
        row: Vector = unit_rows(found, 1, self._dimension)[0]
        return row

    @property
    def _dimension(self) -> int:
        return self.header.embedder.dimension if self.header.embedder else 0

    @property
    def _longest(self) -> int:
        """The most bytes of a line within the limits."""
        limits = _of_questions(self._limits) if self.header.questions else self._limits
        return _ESCAPED * (limits.text + limits.metadata + 2 * limits.id) + 6 * self._dimension + _HEADER_BYTES

    def _next(self, longest: int) -> dict[str, Any]:
        """The next line; afterwards the digest covers all lines before it."""
        self._digest.update(self._line)
        self._number += 1
        self._line = self._stream.readline(longest + 1)
        if len(self._line) > longest:
            raise self._wrong(f"it has more than {longest} bytes")
        if not self._line.endswith(b"\n") and self._number > 1:
            raise self._damaged(f"ends in line {self._number}, before its end: it was cut")
        try:
            found = json.loads(self._line)
        except (ValueError, RecursionError) as error:
            raise self._wrong(error) from error
        if not isinstance(found, dict):
            raise self._wrong("it is not an object")
        return found

    def _wrong(self, what: object) -> DocumentError:
        return DocumentError(f"{self._name}, line {self._number}: {str(what)[:500]}")

    def _damaged(self, what: str) -> IndexDamagedError:
        return IndexDamagedError(f"{self._name} {what}; export the knowledge base again, or get a whole copy")


def _embedder(held: dict[str, Any]) -> EmbedderEntry:
    _check(held, fingerprint=str, dimension=int, model=str | None, backend=str | None, probe=str | None)
    if whole("dimension", held["dimension"]) > _LARGEST_DIMENSION:
        raise ValueError(f"the vectors have {held['dimension']} dimensions, more than {_LARGEST_DIMENSION}")
    if held["probe"] is not None and not probes.fits(held["probe"], held["dimension"]):
        raise ValueError("the probe of the embedder has another size than its vectors")
    return EmbedderEntry(**held)


def _nothing() -> dict[str, list[Any]]:
    return {kind: [] for kind in (*KINDS, *QUESTION_KINDS, CURATION)}


def _kinds(version: int, counts: Mapping[str, Any]) -> tuple[str, ...]:
    """The kinds of lines in a version; the newest need not have questions."""
    asked = QUESTION_KINDS if version == 2 or (version > 2 and set(QUESTION_KINDS) & set(counts)) else ()
    return (*KINDS, *asked, *((CURATION,) if version > 2 else ()))


def _of_questions(limits: Limits) -> Limits:
    """The limits on a question about a chunk within `limits`: a question has its chunk's metadata and id."""
    return replace(
        limits,
        text=max(limits.text, Limits().text),
        metadata=limits.metadata + 8 * limits.id + 1024,
        keys=limits.keys + len(RESERVED),
        id=limits.id + 32,
    )


def _check(held: Any, **types: Any) -> None:
    """Raises ValueError unless an object has exactly these keys, with values of these types."""
    if not isinstance(held, dict) or held.keys() != types.keys():
        raise ValueError(f"expected an object with the keys {sorted(types)}, found {str(held)[:200]}")
    wrong = [key for key, kind in types.items() if not isinstance(held[key], kind)]
    if wrong:
        raise ValueError(f"{wrong[0]} has a value of another type: {str(held[wrong[0]])[:200]}")
