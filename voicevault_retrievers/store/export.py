"""A knowledge base as JSON Lines, to move it to another place, version or program.

The first line is the header: format and version, analyzer and embedder, and the count of each kind of entry. Every
other line is an object of one key, which says what it holds: a `source`, a `parent` or a `chunk`, in this order, by
ascending name or id. A chunk's `vector` is little-endian float32 in base64. The last line, `end`, has the counts again
and the sha256 of all lines before it, so that a file that was cut or changed is recognised.

Where there are questions about the chunks the version is 2. After the chunks come each `note` that a chunk has no
questions, and each `question`, in the form of a chunk. Where there is a curation the version is 3, and its text comes
last. Without either the version is 1; readers of a version refuse newer ones.
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

from voicevault_retrievers.core.protocols import Embedder
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import ConfigError, DocumentError, IncompatibleIndexError, StorageError
from voicevault_retrievers.store import analyzers, disk, embedding
from voicevault_retrievers.store.analyzers import SavedAnalyzer
from voicevault_retrievers.store.codec import Limits
from voicevault_retrievers.store.commit import begin, checked, moved_to
from voicevault_retrievers.store.embedding import Progress
from voicevault_retrievers.store.export_format import CURATION, KINDS, QUESTION_KINDS, Exported, Header
from voicevault_retrievers.store.knowledge_base import KnowledgeBase
from voicevault_retrievers.store.live_curation import install
from voicevault_retrievers.store.manifest import Manifest
from voicevault_retrievers.store.names import free
from voicevault_retrievers.store.questions import LIMITS, question_snapshot
from voicevault_retrievers.store.reader import View
from voicevault_retrievers.store.snapshot import Snapshot
from voicevault_retrievers.store.writer import reporting
from voicevault_retrievers.structure.questions import COLLECTION
from voicevault_retrievers.structure.questions.records import MARK

File: TypeAlias = str | Path | IO[bytes]


def export(kb: KnowledgeBase, file: File, *, vectors: bool = True, progress: Progress | None = None) -> int:
    """Write a knowledge base, with the questions about its chunks and its curation; returns the number of chunks.

    The same chunks give the same bytes. A path receives the whole file or stays as it was; an open file is written from
    its current position. Without `vectors`, the import embeds the chunks again. `progress` is told (done, total) of the
    chunks. Raises ConfigError for a path that is not a file's, IndexDamagedError where the base is damaged,
    StorageError where the file cannot be written, and IncompatibleIndexError where questions have vectors of another
    embedder.
    """
    view = kb.view()
    snapshot, questions = view.snapshot, question_snapshot(kb)
    for one in (snapshot, questions) if vectors else ():
        if one is not None:
            checked(one, range(len(one.segments)))
    if (
        vectors
        and questions is not None
        and not embedding.are_of_one_model(questions.manifest.embedder, snapshot.manifest.embedder)
    ):
        raise IncompatibleIndexError(
            f"the questions about {snapshot.folder.name!r} were not embedded as its chunks are: remove "
            f"{questions.folder} and make them again, or export without vectors"
        )
    curation = None if kb.curation is None else kb.curation.text
    lines = _sealed(view, questions, curation, vectors and snapshot.manifest.embedder is not None, progress)
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
    """Make a new knowledge base of what `export` wrote, completely or not at all.

    Keywords are indexed again, by the given `analyzer` or else the one that the file names, as installed here. Vectors
    are taken from the file; where it has none, the given `embedder` makes them, or else the one that the file names.
    `progress` is told (done, total) of the chunks. Raises DocumentError, naming the line, for a file that is no export
    and for an invalid line; IndexDamagedError for a file that was cut or changed; IncompatibleIndexError for a newer
    version, an embedder that did not make the vectors, and a custom analyzer that is not given; ConfigError for a base
    that exists already.
    """
    target = free(base, root)
    with _opened(file) as stream:
        exported = Exported(stream, limits or Limits())
        first = _manifest(exported.header, analyzer, embedder, target.name)
        with reporting(target, "made"), moved_to(target) as folder:
            begin(folder, first)
            with (
                KnowledgeBase.open(folder, analyzer=analyzer, embedder=embedder, limits=limits) as kb,
                _questions(kb, exported.header, analyzer, embedder) as questions,
            ):
                for block in exported.blocks():
                    kb.add(block.chunks, block.vectors, parents=block.parents, sources=block.sources)
                    if block.curation is not None:
                        install(kb.path, block.curation)
                    if questions is not None:
                        questions.add(block.questions, block.question_vectors, parents=block.notes)
                    if progress:
                        progress(len(kb), exported.header.counts["chunk"])
    return KnowledgeBase.open(target, analyzer=analyzer, embedder=embedder, limits=limits)


def _questions(
    kb: KnowledgeBase, header: Header, analyzer: SavedAnalyzer | None, embedder: Embedder | None
) -> AbstractContextManager[KnowledgeBase | None]:
    """An empty base for an export's questions, inside the base of its chunks; None where it has no questions."""
    if not header.questions:
        return nullcontext()
    folder = kb.path / COLLECTION
    begin(folder, Manifest.first(kb.analyzer, kb.manifest.embedder, kb.manifest.vectors))
    makes = embedder if header.vectors else kb.embedder
    return KnowledgeBase.open(folder, analyzer=analyzer, embedder=makes, limits=LIMITS)


def _sealed(
    view: View, questions: Snapshot | None, curation: str | None, vectors: bool, progress: Progress | None
) -> Iterator[bytes]:
    """All lines, ending with the one that seals them with counts and sha256."""
    snapshot = view.snapshot
    totals = (len(snapshot.sources), sum(1 for _ in snapshot.parent_ids()), len(snapshot))
    counts = dict(zip(KINDS, totals, strict=True))
    if questions is not None:
        noted = sum(1 for _ in _notes(questions))
        counts |= dict(zip(QUESTION_KINDS, (noted, len(questions)), strict=True))
    if curation is not None:
        counts |= {CURATION: 1}
    digest = hashlib.sha256()
    done = 0
    for entry in _entries(view, questions, curation, vectors, counts):
        line = json.dumps(entry, allow_nan=False).encode() + b"\n"
        digest.update(line)
        yield line
        if progress and "chunk" in entry:
            done += 1
            progress(done, counts["chunk"])
    yield json.dumps({"end": {**counts, "sha256": digest.hexdigest()}}).encode() + b"\n"


def _entries(
    view: View, questions: Snapshot | None, curation: str | None, vectors: bool, counts: dict[str, int]
) -> Iterator[dict[str, Any]]:
    snapshot = view.snapshot
    yield asdict(Header.of(snapshot.folder.name, snapshot.manifest, vectors, counts))
    for name in sorted(snapshot.sources):
        source = asdict(snapshot.sources[name])
        del source["state"]  # of the file in this machine
        yield {"source": source}
    yield from ({"parent": _fields(parent)} for parent in view.iter_parents())
    yield from ({"chunk": chunk} for chunk in _chunks(view, vectors))
    if questions is not None:
        yield from ({"note": _fields(note)} for note in _notes(questions))
        yield from ({"question": question} for question in _chunks(View(questions, lambda: None), vectors))
    if curation is not None:
        yield {CURATION: {"text": curation}}


def _chunks(view: View, vectors: bool) -> Iterator[dict[str, Any]]:
    for chunks, rows in view.batches(vectors=vectors):
        for at, chunk in enumerate(chunks):
            row = {} if rows is None else {"vector": b64encode(rows[at].astype("<f4").tobytes()).decode()}
            yield {**_fields(chunk), **row}


def _notes(questions: Snapshot) -> Iterator[Chunk]:
    """The notes among the questions, without the mark that records which commit of the base they belong to."""
    return (note for note in View(questions, lambda: None).iter_parents() if note.id != MARK)


def _fields(chunk: Chunk) -> dict[str, Any]:
    return {
        "id": chunk.id,
        "text": chunk.text,
        "parent_id": chunk.parent_id,
        "metadata": chunk.metadata,
        "header": chunk.header,
    }


def _save(path: Path, lines: Iterable[bytes]) -> None:
    """Write to a new file, and move it to the path when it is whole."""
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
    """The manifest of the new base; a given embedder is described only where it will make the vectors."""
    chosen = analyzers.named(analyzer) if analyzer else analyzers.make(header.analyzer, None, kb)
    entry = header.embedder
    if embedder is not None and header.vectors:
        embedding.check(entry, embedder, header.name)
    elif embedder is not None:
        entry = embedding.describe(embedder)
    return Manifest.first(chosen, entry, header.vector_search)
