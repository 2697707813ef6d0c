"""A knowledge base as an engine, so that code for engines works without a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from voicevault_retrievers._support.mutex import Mutex
from voicevault_retrievers.core.execution.steps import Steps, asking
from voicevault_retrievers.core.filters import Filter, Predicate, compile_filter
from voicevault_retrievers.core.protocols import Found
from voicevault_retrievers.core.types import Chunk, Vector
from voicevault_retrievers.engines.engine import Capabilities, Engine, Record, Stored
from voicevault_retrievers.engines.keywords import KeywordHit, Keywords
from voicevault_retrievers.engines.recipe import Recipe
from voicevault_retrievers.errors import SearchError
from voicevault_retrievers.lexical.index import TermScore
from voicevault_retrievers.store import KnowledgeBase, remove
from voicevault_retrievers.store.names import locate, vacant


class EmbeddedEngine(Engine):
    """The knowledge base of this name under `root` (or at a path) as an engine; see `Engine`."""

    capabilities = Capabilities(exact_vectors=True, atomic=True, native_async=False)

    def __init__(self, name: str, *, root: Path | str | None = None, **options: Any) -> None:
        super().__init__(name, **options)
        self._root = root
        self._base: KnowledgeBase | None = None
        self._opening = Mutex()

    @property
    def kb(self) -> KnowledgeBase:
        """The knowledge base at its last commit."""
        with self._opening:  # one base for all threads, so that no second one waits for the lock
            if self._base is None:
                analyzer, embedder = self._given
                self._base = KnowledgeBase.open(self.name, root=self._root, analyzer=analyzer, embedder=embedder)
            base = self._base
        base.reload()
        return base

    def _now(self, ask: Any) -> Any:
        made = self._recipe
        if made is not None and self._recipe_text() != made.text():
            self._close()
            self.forget()
            raise SearchError(f"knowledge base {self.name!r} was removed or made anew meanwhile: ask again")
        return ask()

    def _read_recipe(self) -> Steps[str | None]:
        return asking(self._recipe_text)

    def _recipe_text(self) -> str | None:
        if vacant(locate(self.name, self._root)):
            return None
        made = self.kb.manifest
        return Recipe(made.analyzer, made.analyzer_fingerprint, made.embedder, self._options).text()

    def _create(self, recipe: Recipe) -> Steps[None]:
        analyzer, embedder = self._given
        yield lambda: KnowledgeBase.open_or_create(self.name, root=self._root, analyzer=analyzer, embedder=embedder)

    def _drop(self) -> Steps[None]:
        self._close()
        yield lambda: remove(self.name, root=self._root)

    def _digests(self, ids: Sequence[str]) -> Steps[Mapping[str, str]]:
        return asking(lambda: {one: self.digest(chunk) for one, chunk in self.kb.get(ids).items()})

    def _write(self, records: Sequence[Record], parents: Sequence[Chunk]) -> Steps[None]:
        chunks = [record.chunk for record in records]
        rows = [record.vector for record in records if record.vector is not None]
        yield lambda: self.kb.add(chunks, np.array(rows) if rows else None, parents=parents)

    def _remove(self, ids: Sequence[str]) -> Steps[int]:
        return asking(lambda: self.kb.delete(ids))

    def _count(self) -> Steps[int]:
        return asking(lambda: len(self.kb))

    def _get(self, ids: Sequence[str], parents: bool) -> Steps[Mapping[str, Chunk]]:
        return asking(lambda: self.kb.parents(ids) if parents else self.kb.get(ids))

    def _page(self, cursor: Any, limit: int, where: Filter | None = None) -> Steps[tuple[Sequence[Stored], Any]]:
        return asking(lambda: self._listed(cursor, limit, compile_filter(where)))

    def _listed(self, cursor: Any, limit: int, passes: Predicate) -> tuple[Sequence[Stored], Any]:
        after = [one for one in self.kb.ids() if cursor is None or one > cursor]
        held = self.kb.get(after[:limit]).items()
        page = [Stored(one, self.digest(chunk)) for one, chunk in held if passes(chunk.metadata)]
        return page, after[limit - 1] if len(after) > limit else None

    def _nearest(self, vector: Vector, k: int, where: Filter | None, require: Filter | None) -> Steps[Sequence[Found]]:
        return asking(lambda: self.kb.view().index.nearest(vector, k, where=where, require=require))

    def _vectors(self, ids: Sequence[str]) -> Steps[Mapping[str, Vector]]:
        return asking(lambda: self.kb.view().index.vectors(ids))

    def _keywords(self, asked: Keywords, k: int) -> Steps[Sequence[KeywordHit]]:
        return asking(lambda: asked.best_in(self.kb.bm25().index, k))

    def _parts(self, asked: Keywords, chunk: Chunk) -> Steps[list[TermScore]]:
        return asking(lambda: self.kb.bm25().index.explain(asked.terms, chunk.id, asked.formula, **asked.filters))

    def _keyword_scores(self, asked: Keywords, ids: Sequence[str]) -> Steps[Mapping[str, float]]:
        return asking(lambda: self.kb.bm25().index.scores(asked.terms, ids, asked.formula, **asked.filters))

    def _coverage(self, asked: Keywords) -> Steps[float | None]:
        return asking(lambda: self.kb.bm25().index.coverage(asked.terms, **asked.filters))

    def _tags(self, require: Filter | None) -> Steps[str]:
        return asking(lambda: self.kb.bm25().index.tags(require))

    def sibling(self, suffix: str, **options: Any) -> EmbeddedEngine:
        given: dict[str, Any] = {"embedder": self._given[1], "analyzer": self._given[0], "limits": self._limits}
        return EmbeddedEngine(self.name + suffix, root=self._root, **{**given, **options})

    def _close(self) -> None:
        with self._opening:
            base, self._base = self._base, None
        if base is not None:
            base.close()

    async def _aclose(self) -> None:
        """Does nothing: a knowledge base has no connections of an event loop."""

    def __repr__(self) -> str:
        return f"EmbeddedEngine({self.name!r})"
