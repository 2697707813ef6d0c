"""Reads a whole knowledge base and says what is wrong with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from voicevault_retrievers.errors import IncompatibleIndexError, IndexDamagedError
from voicevault_retrievers.store import log, manifest, segment
from voicevault_retrievers.store.manifest import Manifest
from voicevault_retrievers.store.snapshot import Snapshot


def problems(folder: Path) -> list[str]:
    """What is wrong in a knowledge base's folder, a line each; empty when all is sound.

    Sizes, sha256 and crc32 of every file; that chunks, ids, postings and vectors join; that no chunk is live twice;
    that the log is whole. What is seen while another process seals is looked at again.
    """
    try:
        present = manifest.read(folder)
        found = list(_problems(folder, present))
        return problems(folder) if found and manifest.read(folder) != present else found
    except (IndexDamagedError, IncompatibleIndexError) as error:
        return [str(error)]


def _problems(folder: Path, present: Manifest) -> Iterator[str]:
    dimension = present.embedder.dimension if present.embedder else None
    found = [line for entry in present.segments for line in segment.problems(folder, entry, dimension)]
    yield from found
    if found:
        return
    snapshot = Snapshot.open(folder)
    broken = log.broken_end(folder / present.log, snapshot.end)
    if broken:
        yield broken
    twice = [chunk_id for chunk_id, n in Counter(snapshot.ids()).items() if n > 1]
    yield from (f"chunk {chunk_id!r} is live in two places" for chunk_id in twice)
