"""The embedder of a knowledge base: its manifest entry, and the checked rows of its vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from voicevault_retrievers.core import metrics
from voicevault_retrievers.core.protocols import Embedder
from voicevault_retrievers.core.types import Chunk, Vector
from voicevault_retrievers.core.vectors import embedded, unit_rows
from voicevault_retrievers.dense.probes import are_one_model
from voicevault_retrievers.errors import ConfigError, IncompatibleIndexError, MissingExtraError
from voicevault_retrievers.store.manifest import EmbedderEntry
from voicevault_retrievers.store.snapshot import Snapshot

Progress: TypeAlias = Callable[[int, int], None]
Rows: TypeAlias = NDArray[np.float32]

BATCH = 64

ROUNDED = 1e-6
"""The most by which the cosine of a vector and its stored copy is below 1."""


def describe(embedder: Embedder) -> EmbedderEntry:
    """The manifest entry of an embedder, with what `load_embedder` takes where it is one of its kinds.

    An embedder whose identity is in doubt is asked for its probe.
    """
    from voicevault_retrievers.dense.base import BaseEmbedder
    from voicevault_retrievers.dense.embedders import (
        OnnxEmbedder,
        OpenVinoEmbedder,
        SentenceTransformerEmbedder,
        UniversalSentenceEncoder,
    )

    if isinstance(embedder, str):
        raise ConfigError(f"embedder is an object, not a name: load_embedder({embedder!r}) of `dense` makes one of it")
    kinds = {
        "onnx": OnnxEmbedder,
        "openvino": OpenVinoEmbedder,
        "numpy": UniversalSentenceEncoder,
        "sentence-transformers": SentenceTransformerEmbedder,
    }
    for backend, kind in kinds.items():
        if isinstance(embedder, kind):
            return EmbedderEntry(embedder.fingerprint, embedder.dimension, embedder.model, backend)
    probe = embedder.probe() if isinstance(embedder, BaseEmbedder) and embedder.in_doubt else None
    return EmbedderEntry(embedder.fingerprint, embedder.dimension, probe=probe)


def make(entry: EmbedderEntry, kb: str) -> Embedder:
    """The embedder of an entry: of the runtimes that give the same vectors, the fastest one installed.

    Raises ConfigError where the embedder has to be passed, IncompatibleIndexError where the loaded one differs.
    """
    from voicevault_retrievers.dense.embedders import load_embedder

    if entry.model is None or entry.backend is None:
        raise ConfigError(
            f"the vectors of knowledge base {kb!r} were made by {entry.fingerprint!r}, which cannot be loaded by name: "
            "open it with embedder=..."
        )
    with suppress(ConfigError, MissingExtraError):  # the one below says what is missing
        likely = load_embedder(entry.model, "auto")
        if likely.fingerprint == entry.fingerprint:
            return likely
    embedder = load_embedder(entry.model, entry.backend)
    check(entry, embedder, kb)
    return embedder


def check(entry: EmbedderEntry | None, embedder: Embedder, kb: str) -> None:
    """Raises IncompatibleIndexError where the embedder did not make a knowledge base's vectors."""
    if entry is None:
        raise IncompatibleIndexError(
            f"knowledge base {kb!r} was created without an embedder and holds no vectors, given "
            f"{embedder.fingerprint!r}: open it without one, or index the documents into a new one created with it"
        )
    if not made_by(entry, embedder):
        given = repr(embedder.fingerprint)
        if embedder.fingerprint == entry.fingerprint:
            given += f" with {embedder.dimension} dimensions in place of {entry.dimension}"
        raise IncompatibleIndexError(
            f"the vectors of knowledge base {kb!r} were made by {entry.fingerprint!r}, given {given}: open it with the "
            "embedder that made them, or index the documents into a new knowledge base"
        )


def made_by(entry: EmbedderEntry, embedder: Embedder) -> bool:
    """Whether an embedder is the model of an entry; computes a probe only where the identity of one is in doubt."""
    from voicevault_retrievers.dense.base import BaseEmbedder

    if isinstance(embedder, BaseEmbedder):
        return embedder.made(entry.fingerprint, entry.dimension, entry.probe)
    return embedder.fingerprint == entry.fingerprint


def are_of_one_model(one: EmbedderEntry | None, other: EmbedderEntry | None) -> bool:
    """Whether two indexes have vectors of one model, or neither has any."""
    if one is None or other is None:
        return one is other
    if one.dimension != other.dimension:
        return False
    probed = one.probe is not None and other.probe is not None and are_one_model(one.probe, other.probe)
    return probed or one.fingerprint == other.fingerprint


def embed(embedder: Embedder, chunks: Sequence[Chunk], progress: Progress | None) -> Rows:
    """A row per chunk, made in batches. Raises EmbeddingError, naming the chunk, where its text has no vector."""
    rows = np.empty((len(chunks), embedder.dimension), dtype=np.float32)
    for at in range(0, len(chunks), BATCH):
        batch = chunks[at : at + BATCH]
        with metrics.IngestClock("embed"):
            rows[at : at + len(batch)] = embedded(embedder, batch)
        metrics.embedded(len(batch))
        if progress:
            progress(at + len(batch), len(chunks))
    return rows


def given_rows(vectors: ArrayLike, chunks: Sequence[Chunk], dimension: int) -> Rows:
    """A unit row for each chunk that is no parent, from vectors for all chunks or for those alone.

    Vectors of parents are ignored and not checked. Raises ConfigError as `unit_rows` does.
    """
    searched = [at for at, chunk in enumerate(chunks) if not chunk.is_parent]
    rows: Any = vectors
    if len(searched) < len(chunks) == len(rows):
        rows = [rows[at] for at in searched] or np.empty((0, dimension), np.float32)
    return unit_rows(rows, len(searched), dimension, [chunks[at] for at in searched])


def differ(one: Vector, other: Vector) -> bool:
    """Whether two vectors point elsewhere, beyond what a store in half precision rounds."""
    wide, stored = one.astype(np.float64), other.astype(np.float64)
    return float(wide @ stored) < (1 - ROUNDED) * float(np.linalg.norm(wide) * np.linalg.norm(stored))


class Prepared:
    """The vectors of chunks to be added, by id: the given ones, and those that `prepare` makes."""

    def __init__(self, embedder: Callable[[], Embedder | None], given: dict[str, Vector]) -> None:
        self._embedder = embedder
        self._given = frozenset(given)
        self._rows = given
        self._present: tuple[Snapshot | None, dict[str, Chunk | None]] = (None, {})

    def present(self, snapshot: Snapshot, chunk_id: str) -> Chunk | None:
        """The chunk that a snapshot has under an id; looked up once."""
        if self._present[0] is not snapshot:
            self._present = (snapshot, {})
        known = self._present[1]
        if chunk_id not in known:
            known[chunk_id] = snapshot.get(chunk_id)
        return known[chunk_id]

    def changes(self, snapshot: Snapshot, chunk_id: str) -> bool:
        """Whether the vector that was given for a chunk of the snapshot is not the one that it has."""
        if chunk_id not in self._given or snapshot.manifest.embedder is None:
            return False
        return differ(self._rows[chunk_id], snapshot.vector(chunk_id))

    def __call__(self, snapshot: Snapshot, chunks: Sequence[Chunk]) -> Rows | None:
        """A row per chunk; None where the knowledge base keeps no vectors."""
        entry = snapshot.manifest.embedder
        if entry is None:
            return None
        self.prepare(snapshot, chunks, None)
        rows = np.empty((len(chunks), entry.dimension), dtype=np.float32)
        for at, chunk in enumerate(chunks):
            rows[at] = self._rows[chunk.id]
        return rows

    def prepare(self, snapshot: Snapshot, chunks: Sequence[Chunk], progress: Progress | None) -> None:
        """Make the missing vectors; a chunk that the snapshot has with this text takes the stored vector."""
        if snapshot.manifest.embedder is None:
            return
        new: list[Chunk] = []
        for chunk in chunks:
            old = None if chunk.id in self._rows else self.present(snapshot, chunk.id)
            if old is not None and old.indexed_text == chunk.indexed_text:
                self._rows[chunk.id] = snapshot.vector(chunk.id)
            elif chunk.id not in self._rows:
                new.append(chunk)
        embedder = self._embedder() if new else None
        if embedder is not None:
            rows = embed(embedder, new, progress)
            self._rows.update(zip((chunk.id for chunk in new), rows, strict=True))
