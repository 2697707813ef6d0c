"""The file of a graph in memory: a line of JSON with version, size and checksum, then one line per chunk."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from voicevault_retrievers.errors import IncompatibleIndexError, IndexDamagedError, StorageError
from voicevault_retrievers.structure.graph.store import Entry, Link, as_json, packed, unpacked

FORMAT = 1
RULES = 1
"""The version of the rules that read references; entries of another version are read again."""

_REMEDY = "restore it from a copy, or build the graph again from the chunks"


class Saved(NamedTuple):
    """The content of a file; `reader` identifies the reader of its references, empty if unknown or of other rules."""

    entries: list[Entry]
    reader: str = ""


def write(path: Path, entries: Sequence[Entry], reader: str = "") -> None:
    """Write entries to a file, replacing it atomically: after a crash there is the old file or the new one.

    `reader` identifies the reader of the references, with this version's rules. Raises StorageError where the file
    system refuses.
    """
    lines = (as_json([packed(entry.chunk), entry.links]) for entry in entries)
    body = "".join(f"{line}\n" for line in lines).encode()
    head = {"graph": FORMAT, "size": len(body), "sha256": hashlib.sha256(body).hexdigest()}
    head |= {"rules": RULES, "reader": reader} if reader else {}
    new = path.with_name(f"{path.name}.{uuid.uuid4().hex}.new")
    try:
        with new.open("wb") as file:
            file.write(json.dumps(head).encode() + b"\n" + body)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        _flush_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            new.unlink()
        raise StorageError(f"the graph cannot be written to {path}: {error}") from error


def read(path: Path) -> list[Entry]:
    """The entries in a file; raises as `EmbeddedGraph.load`."""
    return load(path).entries


def load(path: Path) -> Saved:
    """The content of a file; raises as `read` does."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StorageError(f"the graph in {path} cannot be read: {error}") from error
    head, _, body = content.partition(b"\n")
    version, size, sha256, reader = _head(path, head)
    if version > FORMAT:
        raise IncompatibleIndexError(
            f"the graph in {path} has format {version}, and this version reads up to {FORMAT}: "
            "install a newer voicevault-retrievers, or build the graph again from the chunks"
        )
    if len(body) != size or hashlib.sha256(body).hexdigest() != sha256:
        raise IndexDamagedError(f"the graph in {path} is not what was written ({len(body)} of {size} bytes): {_REMEDY}")
    return Saved([_entry(line) for line in body.decode().split("\n")[:-1]], reader)


def _entry(line: str) -> Entry:
    chunk, links = json.loads(line)
    return Entry(unpacked(chunk), tuple(Link(*link) for link in links))


def _head(path: Path, line: bytes) -> tuple[int, int, str, str]:
    try:
        head = json.loads(line)
        reader = str(head.get("reader", "")) if head.get("rules") == RULES else ""
        return int(head["graph"]), int(head["size"]), str(head["sha256"]), reader
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise IndexDamagedError(f"{path} does not begin as the file of a graph does: {_REMEDY}") from error


def _flush_folder(folder: Path) -> None:
    with suppress(OSError):  # some systems cannot open folders; the file itself is flushed
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
