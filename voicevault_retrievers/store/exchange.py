"""A knowledge base as JSON Lines: for another place, another version, another program.

The first line is the header: format and version, how chunks are analysed and embedded, how many of each kind there
are. Each other line is an object of one key, which says what it holds: a `source`, a `parent` or a `chunk`, in this
order, by ascending name or id. A chunk's `vector` is little-endian float32 in base64. The last line, `end`, has the
counts again and the sha256 of all that comes before it, so that a file that was cut or changed is not taken for whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from base64 import b64encode
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, TypeAlias

from voicevault_retrievers.errors import ConfigError, DocumentError, StorageError
from voicevault_retrievers.protocols import Embedder
from voicevault_retrievers.store import analyzers, disk, embedding
from voicevault_retrievers.store.analyzers import SavedAnalyzer
from voicevault_retrievers.store.commit import begin, checked, moved_to
from voicevault_retrievers.store.embedding import Progress
from voicevault_retrievers.store.exported import KINDS, Exported, Header
from voicevault_retrievers.store.knowledge_base import KnowledgeBase
from voicevault_retrievers.store.limits import Limits
from voicevault_retrievers.store.manifest import Manifest
from voicevault_retrievers.store.names import free
from voicevault_retrievers.store.snapshot import Snapshot
from voicevault_retrievers.store.writer import reporting
from voicevault_retrievers.types import Chunk

File: TypeAlias = str | Path | IO[bytes]


def export(kb: KnowledgeBase, file: File, *, vectors: bool = True, progress: Progress | None = None) -> int:
    """Write all that is in a knowledge base; how many chunks that is.

    The same chunks give the same bytes. A path gets the whole file or stays as it was; an open file is written to from
    where it is. Without `vectors` whoever imports makes them again. `progress` is told (done, total) of the chunks.
    Raises ConfigError for a path that is not a file's, IndexDamagedError where the base is damaged, StorageError where
    the file cannot be written.
    """
    snapshot = kb.view().snapshot
    if vectors:
        checked(snapshot, range(len(snapshot.segments)))
    lines = _sealed(snapshot, vectors and snapshot.manifest.embedder is not None, progress)
    if isinstance(file, str | Path):
        _save(Path(file), lines)
    else:
        file.writelines(lines)
    return len(snapshot)


def restore(
    file: File,
    base: str | Path,
    *,
    root: Path | str | None = None,
    analyzer: SavedAnalyzer | None = None,
    embedder: Embedder | None = None,
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> KnowledgeBase:
    """Make a new knowledge base of what `export` wrote; all of it, or nothing.

    Keywords are indexed anew, by the `analyzer` given or else by the one that the file names, as it is here. Vectors
    are taken over; where the file has none, the `embedder` given makes them, or else the one that the file names.
    `progress` is told (done, total) of the chunks. Raises DocumentError, naming the line, for a file that is no export
    and for a line that is not as it should be; IndexDamagedError for a file that was cut or changed;
    IncompatibleIndexError for a newer version, an embedder that did not make the vectors, and a custom analyzer that is
    not given; ConfigError for a base that is there already.
    """
    target = free(base, root)
    with _opened(file) as stream:
        exported = Exported(stream, limits or Limits())
        first = _manifest(exported.header, analyzer, embedder, target.name)
        with reporting(target, "made"), moved_to(target) as folder:
            begin(folder, first)
            with KnowledgeBase.open(folder, analyzer=analyzer, embedder=embedder, limits=limits) as kb:
                for block in exported.blocks():
                    kb.add(block.chunks, block.vectors, parents=block.parents, sources=block.sources)
                    if progress:
                        progress(len(kb), exported.header.counts["chunk"])
    return KnowledgeBase.open(target, analyzer=analyzer, embedder=embedder, limits=limits)


def _sealed(snapshot: Snapshot, vectors: bool, progress: Progress | None) -> Iterator[bytes]:
    """All lines, and the last one, which seals them."""
    totals = (len(snapshot.sources), sum(1 for _ in snapshot.parent_ids()), len(snapshot))
    counts = dict(zip(KINDS, totals, strict=True))
    digest = hashlib.sha256()
    done = 0
    for entry in _entries(snapshot, vectors, counts):
        line = json.dumps(entry, allow_nan=False).encode() + b"\n"
        digest.update(line)
        yield line
        if progress and "chunk" in entry:
            done += 1
            progress(done, counts["chunk"])
    yield json.dumps({"end": {**counts, "sha256": digest.hexdigest()}}).encode() + b"\n"


def _entries(snapshot: Snapshot, vectors: bool, counts: dict[str, int]) -> Iterator[dict[str, Any]]:
    yield asdict(Header.of(snapshot.folder.name, snapshot.manifest, vectors, counts))
    for name in sorted(snapshot.sources):
        yield {"source": asdict(snapshot.sources[name])}
    parents = map(snapshot.parent, snapshot.parent_ids())
    yield from ({"parent": _fields(parent)} for parent in parents if parent is not None)
    for chunk in snapshot:
        vector = {"vector": b64encode(snapshot.vector(chunk.id).astype("<f4").tobytes()).decode()} if vectors else {}
        yield {"chunk": {**_fields(chunk), **vector}}


def _fields(chunk: Chunk) -> dict[str, Any]:
    return {"id": chunk.id, "text": chunk.text, "parent_id": chunk.parent_id, "metadata": chunk.metadata}


def _save(path: Path, lines: Iterable[bytes]) -> None:
    """Write beside a file, and put it into its place when it is whole."""
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path} is there and is not a file: name a file to export to")
    path = Path(os.path.realpath(path))
    new = path.with_name(f".{uuid.uuid4().hex}")
    try:
        disk.write(new, lines)
        disk.rename(new, path)
        disk.flush_folder(path.parent)
    except OSError as error:
        raise StorageError(f"{path} cannot be written ({error}): see to space and permissions there") from error
    finally:
        if new.exists():
            disk.remove(new)


def _opened(file: File) -> AbstractContextManager[IO[bytes]]:
    if not isinstance(file, str | Path):
        return nullcontext(file)
    try:
        return Path(file).open("rb")
    except OSError as error:
        raise DocumentError(f"{file} cannot be read: {error.strerror or error}") from error


def _manifest(header: Header, analyzer: SavedAnalyzer | None, embedder: Embedder | None, kb: str) -> Manifest:
    """That of the base to be made; an embedder that is given is only asked what it is where it will be needed."""
    chosen = analyzers.named(analyzer) if analyzer else analyzers.make(header.analyzer, None, kb)
    entry = header.embedder
    if embedder is not None and header.vectors:
        embedding.check(entry, embedder, header.name)
    elif embedder is not None:
        entry = embedding.describe(embedder)
    return Manifest.first(chosen, entry, header.vector_search)
