"""References: a section, an article, a case, a defined term, with a key that does not depend on the spelling."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from voicevault_retrievers.errors import ConfigError

CHUNK = "chunk:"
"""The prefix of a chunk's node in the graph; no reference has this kind."""

_PINPOINT = re.compile(r"\([^()]{1,8}\)\Z")
_KIND = re.compile(r"[a-z_]{1,40}")


@dataclass(frozen=True)
class Reference:
    """A place in a text, of characters `start` to `end`, that names something; `text` is its spelling there.

    `kind` is section, article, case, paragraph, chapter, term and so on; `number` is the number or name within its
    `work`, the canonical name of a law or document, empty where none is named. `defines` is true where the place
    defines a term, or says what the chunk itself is.
    """

    kind: str
    number: str
    work: str = ""
    start: int = 0
    end: int = 0
    text: str = ""
    defines: bool = False

    def __post_init__(self) -> None:
        if not _KIND.fullmatch(self.kind) or self.kind == CHUNK[:-1] or not self.number or ":" in self.number:
            raise ConfigError(
                "a reference has a kind of small letters, not 'chunk', and a number that is not empty and has no "
                f"colon, not {self.kind!r} and {self.number!r}"
            )

    @property
    def key(self) -> str:
        """The same key for the same thing: "section:420:indian penal code"."""
        return f"{self.kind}:{self.number}:{self.work}"

    @property
    def name(self) -> str:
        """The key without the work: "section:420"."""
        return f"{self.kind}:{self.number}"

    def levels(self) -> tuple[Reference, ...]:
        """The reference itself, then those that contain it: 12(3)(a), 12(3), 12."""
        found, number = [self], self.number
        while self.kind != "case" and (part := _PINPOINT.search(number)) and part.start():
            number = number[: part.start()]
            found.append(Reference(self.kind, number, self.work, self.start, self.end, self.text, self.defines))
        return tuple(found)


@runtime_checkable
class ReferenceReader(Protocol):
    """Reads references from a text. Async searches await `aread`, where a reader has it."""

    def read(self, text: str) -> Sequence[Reference]:
        """The references in a text, in the order of their places."""
        ...


def name_of(key: str) -> str:
    """The name in a reference's key: its kind and number."""
    return ":".join(key.split(":", 2)[:2])


def work_of(key: str) -> str:
    """The work in a reference's key."""
    return key.split(":", 2)[-1] if key.count(":") > 1 else ""


def label(node: str) -> str:
    """A node as text for people: "section 420 indian penal code"; for a chunk its id."""
    return node.removeprefix(CHUNK) if node.startswith(CHUNK) else node.replace(":", " ", 2).strip()


def chunk_node(chunk_id: str) -> str:
    """The graph node of a chunk."""
    return CHUNK + chunk_id


def is_chunk(node: str) -> bool:
    """Whether a node is that of a chunk."""
    return node.startswith(CHUNK)


def chunk_id(node: str) -> str:
    """The id of a chunk's node."""
    return node[len(CHUNK) :]
