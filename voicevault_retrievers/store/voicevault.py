"""Import of the knowledge bases that VoiceVault wrote."""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers._support.extras import require
from voicevault_retrievers.core.protocols import Embedder
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import ConfigError, IncompatibleIndexError, IndexDamagedError
from voicevault_retrievers.store.analyzers import SavedAnalyzer
from voicevault_retrievers.store.commit import moved_to
from voicevault_retrievers.store.embedding import Progress
from voicevault_retrievers.store.knowledge_base import KnowledgeBase
from voicevault_retrievers.store.names import free
from voicevault_retrievers.store.pickle_import import PickledIndex, read_bm25

__all__ = ["import_voicevault", "read_bm25"]

PICKLE, DATABASE = "bm25.pkl", "chroma.sqlite3"

_BATCH = 1000
_SEGMENT = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def import_voicevault(
    folder: Path | str,
    base: str | Path,
    *,
    root: Path | str | None = None,
    analyzer: SavedAnalyzer | None = None,
    embedder: Embedder | None = None,
    collection: str | None = None,
    progress: Progress | None = None,
) -> KnowledgeBase:
    """Make a new knowledge base of the chunks of a VoiceVault base, completely or not at all.

    `folder` holds `bm25.pkl` (see `read_bm25`) and, in itself or in a subfolder, a Chroma database. Texts and metadata
    come from the pickle, and where it lacks them from the collection: the named one, else the only one. The `analyzer`
    makes the index; `bm25(formula="okapi")` then scores as rank-bm25 did on the same terms. With an `embedder` the
    collection's vectors are taken, normalised to length 1; the caller must know that this embedder made them. Where
    there is no collection the embedder embeds the texts, and `progress` is told (done, total).

    The old base stays as it is: Chroma writes to a database that it opens, so it opens a copy, in a temporary folder.
    Nothing outside `folder` is read, and nothing in it is executed. But Chroma's library does not validate its vector
    files, and a damaged one can end the process (chromadb 1.5). They are opened with an `embedder` only, so import a
    base from an untrusted source without one.

    Raises ConfigError for a link that leads out of `folder` and for a base that exists already, IncompatibleIndexError
    where pickle and collection do not match or the vectors do not have the embedder's dimension, IndexDamagedError for
    damaged files, MissingExtraError where a collection has to be read and chromadb is not installed.
    """
    home = _home(folder)
    target = free(base, root)
    index = read_bm25(_own(home, home / PICKLE))
    stored = _read_chroma(home, collection, embedder is not None)
    chunks = _joined(index, stored)
    vectors = None if stored is None or embedder is None else stored.vectors(chunks, embedder)
    with moved_to(target) as made, KnowledgeBase.create(made, analyzer=analyzer, embedder=embedder) as kb:
        kb.add(chunks, vectors, progress=progress)
    return KnowledgeBase.open(target, analyzer=analyzer, embedder=embedder)


@dataclass(frozen=True)
class _Stored:
    """The content of a Chroma collection, by id: a chunk's text (where there is one), metadata and vector."""

    path: Path
    texts: Mapping[str, str | None]
    metadata: Mapping[str, Mapping[str, Any]]
    rows: Mapping[str, NDArray[np.float32]]

    def chunk(self, name: str, text: str | None = None, metadata: Mapping[str, Any] | None = None) -> Chunk:
        """The chunk of an id; the given text and metadata take precedence over the collection's."""
        text = self.texts[name] if text is None else text
        if text is None:
            raise IncompatibleIndexError(f"chunk {name!r} of {self.path} has no text: index the documents again")
        return Chunk(name, text, metadata={**self.metadata[name], **(metadata or {})})

    def vectors(self, chunks: Iterable[Chunk], embedder: Embedder) -> NDArray[np.float32]:
        """A row of length 1 per chunk."""
        rows = np.array([self.rows[chunk.id] for chunk in chunks], dtype=np.float32)
        if rows.shape[1] != embedder.dimension:
            raise IncompatibleIndexError(
                f"the vectors of {self.path} have {rows.shape[1]} dimensions, those of {embedder!r} have "
                f"{embedder.dimension}: import with the embedder that made them, or without one"
            )
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        rows /= np.where(lengths > 0, lengths, 1)
        return rows


def _home(folder: Path | str) -> Path:
    if ".." in Path(folder).parts or not Path(folder).is_dir():
        raise ConfigError(f"{folder} is not the folder of a knowledge base: give its path, without '..'")
    return Path(os.path.realpath(folder))


def _own(home: Path, path: Path) -> Path:
    """A file or folder of the base; ConfigError where it is missing, or a link that leads out."""
    real = Path(os.path.realpath(path))
    if not real.is_relative_to(home):
        raise ConfigError(f"{path} leads out of {home}, to {real}: only what is in the folder itself is imported")
    if not (real.is_file() or real.is_dir()):
        raise ConfigError(f"{path} is not a file: {home} is not a knowledge base of VoiceVault, or not all of it")
    return real


def _joined(pickled: PickledIndex, stored: _Stored | None) -> list[Chunk]:
    """The chunks; the pickle's content takes precedence over the collection's."""
    index = pickled.told_apart(() if stored is None else stored.texts.keys())
    if stored is None:
        if index.texts is None:
            raise IncompatibleIndexError(
                f"{index.path} holds {index.count} documents without their texts, and there is no {DATABASE} in its "
                "folder or the folders in that: index the documents again"
            )
        names = index.ids or [f"{place:0{len(str(index.count))}}" for place in range(index.count)]
        return list(map(Chunk, names, index.texts, repeat(None), index.metadata or repeat({})))
    _check_join(index, stored)
    if index.ids is None:
        return [stored.chunk(name) for name in stored.texts]
    return list(map(stored.chunk, index.ids, index.texts or repeat(None), index.metadata or repeat({})))


def _check_join(index: PickledIndex, stored: _Stored) -> None:
    """Raises IncompatibleIndexError where ids differ, or else texts, or else the numbers of chunks."""
    odd: Counter[str | None] = Counter()
    said = index.ids or index.texts
    if said is not None:
        here = Counter[str | None](said)
        there = Counter[str | None](list(stored.texts) if index.ids else stored.texts.values())
        odd = (here - there) + (there - here)
    if odd or index.count != len(stored.texts):
        example = f"; {str(next(iter(odd)))[:100]!r} is in one of them alone" if odd else ""
        raise IncompatibleIndexError(
            f"{index.path} has {index.count} chunks and the collection of {stored.path} has {len(stored.texts)}: they "
            f"do not join{example}. Name the collection that belongs to it, or index the documents again"
        )


def _read_chroma(home: Path, collection: str | None, vectors: bool) -> _Stored | None:
    """The collection of the database in a folder or its subfolders; None where there is no database."""
    found = [folder for folder in (home, *sorted(home.iterdir())) if (folder / DATABASE).exists()]
    if not found and collection is None:
        return None
    if len(found) != 1:
        raise ConfigError(f"{home} holds {len(found)} Chroma databases ({DATABASE}), expected 1")
    require("chromadb", extra="chroma")
    with TemporaryDirectory(prefix="voicevault-") as copy:
        _copy(home, _own(home, found[0]), Path(copy), vectors)
        return _read_copy(found[0], Path(copy), collection, vectors)


def _copy(home: Path, folder: Path, to: Path, vectors: bool) -> None:
    """Copy the Chroma database, and its folders of vectors where they are needed."""
    for path in folder.iterdir():
        if path.name.startswith(DATABASE):
            shutil.copyfile(_own(home, path), to / path.name)
        elif vectors and _SEGMENT.fullmatch(path.name):
            (to / path.name).mkdir()
            for inner in _own(home, path).iterdir():
                shutil.copyfile(_own(home, inner), to / path.name / inner.name)


def _read_copy(folder: Path, copy: Path, name: str | None, vectors: bool) -> _Stored:
    chromadb = require("chromadb", extra="chroma")
    # This implementation reads the pickles beside the vectors as data; others would execute them.
    settings = chromadb.config.Settings(anonymized_telemetry=False, chroma_api_impl="chromadb.api.rust.RustBindingsAPI")
    try:
        with closing(chromadb.PersistentClient(path=str(copy), settings=settings)) as client:
            return _read(folder, _collection(folder, client.list_collections(), name), vectors)
    except chromadb.errors.ChromaError as error:
        raise IndexDamagedError(f"Chroma cannot read {folder} ({error}): index the documents again") from error


def _collection(folder: Path, collections: Sequence[Any], name: str | None) -> Any:
    found = [each for each in collections if name in (None, each.name)]
    if len(found) != 1:
        known = ", ".join(sorted(each.name for each in collections)) or "none"
        wanted = "give collection=..." if name is None else f"not {name!r}"
        raise ConfigError(f"the collections of {folder} are {known}: {wanted}")
    return found[0]


def _read(folder: Path, collection: Any, vectors: bool) -> _Stored:
    """The whole collection. It is read by ids alone, so that its embedding function is never loaded."""
    texts: dict[str, str | None] = {}
    metadata: dict[str, Mapping[str, Any]] = {}
    rows: dict[str, NDArray[np.float32]] = {}
    ids = sorted(collection.get(include=[])["ids"])
    wanted = ["documents", "metadatas", *(["embeddings"] if vectors else [])]
    for start in range(0, len(ids), _BATCH):
        got = collection.get(ids=ids[start : start + _BATCH], include=wanted)
        texts.update(zip(got["ids"], got["documents"], strict=True))
        metadata.update((name, said or {}) for name, said in zip(got["ids"], got["metadatas"], strict=True))
        if vectors:
            rows.update(zip(got["ids"], got["embeddings"], strict=True))
    return _Stored(folder, texts, metadata, rows)
