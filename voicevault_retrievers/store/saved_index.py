"""A keyword index in a folder: a knowledge base without vectors, with its scoring options in `retriever.json`.

The file has a checksum, the format, the BM25 formula with its constants, and the options of `BM25` that affect
rankings. It is written before any chunk, so that a non-empty folder without it is known not to be a saved index.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from voicevault_retrievers._support.lazy import Lazy
from voicevault_retrievers.core.rows import Rows
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import ConfigError, IncompatibleIndexError
from voicevault_retrievers.lexical import BM25, LexicalIndex
from voicevault_retrievers.lexical.formulas import FORMULAS, Formula, RankBM25L
from voicevault_retrievers.store import files
from voicevault_retrievers.store.analyzers import SavedAnalyzer, named
from voicevault_retrievers.store.knowledge_base import KnowledgeBase
from voicevault_retrievers.store.manifest import NAME as MANIFEST
from voicevault_retrievers.store.names import locate, vacant

FORMAT = 1
NAME = "retriever.json"

_FORMULAS: dict[str, type[Formula]] = {**FORMULAS, "rank-bm25 bm25l": RankBM25L}
_OPTIONS = ("statistics", "exclude_nonpositive", "operators", "fuzzy")
_KEYS = {"format", "formula", *_OPTIONS}


def live_chunks(index: LexicalIndex) -> list[Chunk]:
    """The chunks in a snapshot of an index."""
    return [segment.rows.chunks[at] for segment in index.segments for at in segment.rows.living]


def save(bm25: BM25, folder: str | Path, stored: Callable[[Chunk], Chunk]) -> None:
    """Make a folder hold exactly the chunks of `bm25`; `stored` gives the stored form of a chunk.

    Raises ConfigError where the folder holds something else, or where terms, formula or metadata cannot be saved;
    IncompatibleIndexError where the folder has another analyzer; LockedError while another process writes to it.
    """
    path, index = locate(Path(folder).resolve()), bm25.index
    scoring = _scoring_of(bm25)
    analyzer = named(bm25.analyzer)  # type: ignore[arg-type]  # it refuses functions
    ours = (path / NAME).exists()
    if ours:
        _read(path)
    elif not vacant(path) and not (path / MANIFEST).is_file():
        raise _foreign(path)
    with KnowledgeBase.open_or_create(path, analyzer=analyzer) as base:
        if not ours:
            if len(base):
                raise _foreign(path)
            files.write_json(path / NAME, scoring)
        base.replace(stored(chunk) for chunk in live_chunks(index))
        if ours:
            files.write_json(path / NAME, scoring)


def load(folder: str | Path, analyzer: SavedAnalyzer | None, restored: Callable[[Chunk], Chunk]) -> BM25:
    """The index that `save` wrote; `restored` turns each stored chunk back. Later commits are not seen.

    Raises ConfigError where nothing was saved, IncompatibleIndexError for a newer format or another analyzer,
    IndexDamagedError where files are not as they were written.
    """
    path = locate(Path(folder).resolve())
    if not (path / NAME).is_file():
        raise ConfigError(
            f"{path} holds no persisted BM25Retriever ({NAME} is not there): give the folder that persist wrote; a "
            "knowledge base is searched by HybridRetriever(kb_names=[Path(...)])"
        )
    options = _read(path)
    base = KnowledgeBase.open(path, analyzer=analyzer)
    segments = [part.renamed(_restored(part.rows, restored)).lexical for part in base.parts]
    return BM25(LexicalIndex(segments), base.analyzer, **options)


def _restored(rows: Rows, restored: Callable[[Chunk], Chunk]) -> Rows:
    return Rows(Lazy(len(rows), lambda at: restored(rows.chunks[at])), rows.ids, rows.live, rows.columns)


def _scoring_of(bm25: BM25) -> dict[str, Any]:
    name = next((name for name, formula in _FORMULAS.items() if type(bm25.formula) is formula), None)
    if name is None:
        raise ConfigError(f"the formula {bm25.formula!r} cannot be kept; those that can: {', '.join(FORMULAS)}")
    options = {option: getattr(bm25, option) for option in _OPTIONS}
    return {"format": FORMAT, "formula": {"name": name, **asdict(bm25.formula)}, **options}


def _read(path: Path) -> dict[str, Any]:
    """The options of `BM25` that a folder was saved with."""
    file = path / NAME
    try:
        found = json.loads(file.read_bytes())
    except ValueError:
        raise files.damaged(file, "is not JSON") from None
    if isinstance(found, dict) and "checksum" in found:  # otherwise something else wrote it
        found = files.read_json(file)
    if not isinstance(found, dict) or found.get("format") != FORMAT or found.keys() != _KEYS:
        raise IncompatibleIndexError(
            f"{file} is not of format {FORMAT}, the newest known here, with the keys {sorted(_KEYS)}, but has {found}: "
            "update voicevault-retrievers, or persist the retriever into a new folder"
        )
    return {"formula": _formula(file, found["formula"]), **{option: found[option] for option in _OPTIONS}}


def _formula(file: Path, recipe: Any) -> Formula:
    try:
        constants = dict(recipe)
        return _FORMULAS[constants.pop("name")](**constants)
    except (KeyError, TypeError, ValueError) as error:
        raise IncompatibleIndexError(
            f"{file} has the formula {recipe!r}, which is not known here; known: {', '.join(_FORMULAS)}"
        ) from error


def _foreign(path: Path) -> ConfigError:
    return ConfigError(
        f"{path} holds something that no BM25Retriever persisted ({NAME} is not there): choose another folder"
    )
