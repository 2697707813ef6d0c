"""Several knowledge bases searched as one collection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from voicevault_retrievers.channel import Leaf, Match
from voicevault_retrievers.errors import ConfigError, IncompatibleIndexError
from voicevault_retrievers.lexical.bm25 import BM25
from voicevault_retrievers.protocols import Embedder
from voicevault_retrievers.rows import Rows
from voicevault_retrievers.store import analyzers
from voicevault_retrievers.store.analyzers import SavedAnalyzer
from voicevault_retrievers.store.channels import keyword_channel, vector_channel
from voicevault_retrievers.store.codec import Lazy
from voicevault_retrievers.store.knowledge_base import KnowledgeBase
from voicevault_retrievers.store.names import locate, names, vacant
from voicevault_retrievers.store.snapshot import Part
from voicevault_retrievers.types import Chunk, Failure, Query, Variant


class Bases:
    """Knowledge bases, by name, folder or open, whose chunks share document counts and lengths as those of one would.

    Where more than one is named, a chunk's id is `base:id`, whichever of them exist, and its `kb` says which. A base
    that does not exist or is empty is left out, and `notes` names it: `degrades` where others are searched, a mere
    note where there is nothing to search. `analyzer` and `embedder` are those of `KnowledgeBase.open`. Raises
    ConfigError when one is named twice, IncompatibleIndexError when two differ in analyzer or embedder, and what
    `KnowledgeBase.open` does for one that is damaged.
    """

    def __init__(
        self,
        bases: Iterable[str | Path | KnowledgeBase],
        *,
        root: Path | str | None = None,
        analyzer: SavedAnalyzer | None = None,
        embedder: Embedder | None = None,
    ) -> None:
        given = list(bases)
        if not given:
            raise ConfigError("name at least one knowledge base")
        self._opened = {b.path: b for b in given if isinstance(b, KnowledgeBase)}
        self._paths = [b.path if isinstance(b, KnowledgeBase) else locate(b, root) for b in given]
        self._analyzer = analyzer
        self._embedder = embedder
        self._prefixed: dict[Path, tuple[tuple[Part, ...], tuple[Part, ...]]] = {}
        if len(set(self.names)) != len(self.names):
            raise ConfigError(f"each knowledge base is named once, not {self.names}")
        self._open()
        self._searched()

    @property
    def names(self) -> list[str]:
        return [path.name for path in self._paths]

    @property
    def notes(self) -> tuple[Failure, ...]:
        """The bases that are not searched, and why."""
        searched = {base.path for base in self._searched()}
        return tuple(self._note(path, bool(searched)) for path in self._paths if path not in searched)

    def __len__(self) -> int:
        return sum(len(base) for base in self._searched())

    def bm25(self, **options: Any) -> BM25:
        """The keyword channel over the present chunks of all; `options` are those of `BM25`."""
        searched = self._searched()
        analyzer = searched[0].analyzer if searched else analyzers.named(self._analyzer)
        return keyword_channel(self._parts(searched), analyzer, **options)

    def dense(self, **options: Any) -> Leaf:
        """The vector channel over the present chunks of all; options and errors are those of `KnowledgeBase.dense`.

        Where there is nothing to search, a channel that finds nothing and loads no embedder.
        """
        searched = self._searched()
        if not searched:
            return _Nothing(**options)
        return vector_channel(self._parts(searched), searched[0].embedder, searched[0].name, **options)

    def reload(self) -> bool:
        """See what was committed or created since; whether there was anything."""
        changed = [base.reload() for base in self._opened.values()]
        return self._open() or any(changed)

    def _open(self) -> bool:
        """Open those that exist by now; whether there were any."""
        new = [path for path in self._paths if path not in self._opened and not vacant(path)]
        given: dict[str, Any] = {"analyzer": self._analyzer, "embedder": self._embedder}
        self._opened |= {path: KnowledgeBase.open(path, **given) for path in new}
        return bool(new)

    def _searched(self) -> list[KnowledgeBase]:
        found = [self._opened[path] for path in self._paths if path in self._opened and len(self._opened[path])]
        for other in found[1:]:
            _check_alike(found[0], other)
        return found

    def _parts(self, bases: Iterable[KnowledgeBase]) -> list[Part]:
        return [part for base in bases for part in (self._named(base) if len(self._paths) > 1 else base.parts)]

    def _named(self, base: KnowledgeBase) -> tuple[Part, ...]:
        """The parts of a base with its name in every id; kept while they are the same, for the filters' masks."""
        own, named = self._prefixed.get(base.path, ((), ()))
        if own is not base.parts:
            own = base.parts
            named = tuple(part.renamed(_prefixed(part.rows, f"{base.name}:")) for part in own)
            self._prefixed[base.path] = own, named
        return named

    def _note(self, path: Path, degrades: bool) -> Failure:
        what = "empty" if path in self._opened else "missing"
        known = ", ".join(names(path.parent)) or "none"
        found = "holds no chunks" if path in self._opened else f"does not exist in {path.parent} (known: {known})"
        return Failure(path.name, what, f"knowledge base {path.name!r} {found} and is not searched", degrades)

    def __repr__(self) -> str:
        return f"Bases({[str(path) for path in self._paths]})"


class _Nothing(Leaf):
    """The vector channel of no chunks."""

    def __init__(self, *, timeout: float | None = None, name: str = "dense") -> None:
        super().__init__(name, "semantic", timeout=timeout)

    def find(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        return [()] * len(wordings)

    def scores(self, query: Query, ids: Iterable[str]) -> Mapping[str, float]:
        return {}


def _prefixed(rows: Rows, prefix: str) -> Rows:
    def chunk(at: int) -> Chunk:
        found = rows.chunks[at]
        return replace(found, id=prefix + found.id)

    ids = Lazy(len(rows), lambda at: prefix + rows.ids[at])
    return Rows(Lazy(len(rows), chunk), ids, rows.live, rows.columns)


def _check_alike(one: KnowledgeBase, other: KnowledgeBase) -> None:
    first, second = one.manifest, other.manifest
    if first.analyzer_fingerprint != second.analyzer_fingerprint:
        raise _unlike(one, other, "analyzers", repr(one.analyzer), repr(other.analyzer))
    prints = [entry.fingerprint if entry else "none" for entry in (first.embedder, second.embedder)]
    if prints[0] != prints[1]:
        raise _unlike(one, other, "embedders", *prints)


def _unlike(one: KnowledgeBase, other: KnowledgeBase, what: str, first: str, second: str) -> IncompatibleIndexError:
    return IncompatibleIndexError(
        f"knowledge bases {one.name!r} and {other.name!r} were made with different {what} ({first}; {second}) and "
        "cannot be searched as one: search them apart and fuse the rankings, or index one of them again"
    )
