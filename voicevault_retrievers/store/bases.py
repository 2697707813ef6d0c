"""Several knowledge bases searched as one collection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from voicevault_retrievers._support.checks import id_list
from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.core.filters import Filter
from voicevault_retrievers.core.protocols import Embedder
from voicevault_retrievers.core.types import ChannelKind, Chunk, Failure
from voicevault_retrievers.errors import ConfigError, RetrievalError
from voicevault_retrievers.store import analyzers, embedding, manifest
from voicevault_retrievers.store.analyzers import SavedAnalyzer
from voicevault_retrievers.store.graphs import KeptGraph, SnapshotGraph, graph_channel
from voicevault_retrievers.store.knowledge_base import KnowledgeBase
from voicevault_retrievers.store.live_curation import CuratedBase
from voicevault_retrievers.store.manifest import Manifest
from voicevault_retrievers.store.merged_bases import MergedBases
from voicevault_retrievers.store.names import locate, vacant
from voicevault_retrievers.store.questions import has_questions, question_channel
from voicevault_retrievers.store.reader import (
    View,
    damaged,
    guarded,
    keyword_channel,
    keywords_only,
    nothing_in,
    vector_channel,
)


class Bases:
    """Knowledge bases, given by name, by folder or opened, searched as one collection.

    Bases with the same analyzer share document counts and lengths, as the segments of one index do. Similarities of
    bases with the same embedder are compared directly. Bases that differ form groups; the rankings of the groups are
    standardised and merged (see `MergedBases`). The order of the bases and empty bases make no difference. A group
    whose search fails is skipped and noted; a group whose embedder cannot be loaded raises. A base without an embedder
    is searched by keywords only, where others have one.

    Where more than one base is named, the ids of chunks and parents are `base:id`, whichever bases exist; a chunk's
    `kb` names its base.

    `analyzer` and `embedder` are those of `KnowledgeBase.open`, for the bases made with them; other bases load their
    own by name. Raises ConfigError when a base is named twice, IncompatibleIndexError when no base was made with the
    given `analyzer` or `embedder`, and what `KnowledgeBase.open` raises for a damaged base.
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
        self._views: dict[Path, View] = {}
        self._graphs = KeptGraph()
        if len(set(self.names)) != len(self.names):
            raise ConfigError(f"each knowledge base is named once, not {self.names}")
        self._open()

    @property
    def names(self) -> list[str]:
        return [path.name for path in self._paths]

    @property
    def notes(self) -> tuple[Failure, ...]:
        """The bases that are not searched, are searched by keywords only, or have a damaged log, and why.

        A base that is missing or empty sets `degrades` where other bases are searched; where nothing is searched, the
        note does not degrade.
        """
        searched = self._searched()
        found = {base.path for base in searched}
        absent = [self._absent(path, bool(searched)) for path in self._paths if path not in found]
        bare = [base for base in searched if base.manifest.embedder is None] if self._embedded() else []
        harmed = (note for base in self._present() for note in damaged(base.name, base.view().snapshot))
        return (*absent, *harmed, *(_keywords_only(base) for base in bare))

    def __len__(self) -> int:
        return sum(len(base) for base in self._searched())

    def bm25(self, **options: Any) -> Channel:
        """The keyword channel over the present chunks of all bases; `options` are those of `BM25`."""

        def made(bases: Sequence[KnowledgeBase]) -> Channel:
            analyzer = bases[0].analyzer if bases else analyzers.named(self._analyzer)
            return keyword_channel(map(self._view, bases), analyzer, **options)

        groups = _alike(self._present(), _analyzed_alike)
        return _together(groups or [[]], made, options.get("name", "bm25"), "keyword")

    def dense(self, **options: Any) -> Channel:
        """The vector channel over the present chunks of all bases; `options` are those of `KnowledgeBase.dense`.

        Raises what `KnowledgeBase.dense` raises. Where there is nothing to search, the channel finds nothing and loads
        no embedder.
        """

        def made(bases: Sequence[KnowledgeBase]) -> Channel:
            names = [base.name for base in bases]
            return vector_channel([self._view(base) for base in bases], _embedder(bases), names, **options)

        searched, embedded = self._searched(), self._embedded()
        if searched and not embedded:
            return made(searched)
        groups = _alike(embedded if any(map(len, embedded)) else [], _embedded_alike)
        return _together(groups, made, options.get("name", "dense"), "semantic")

    def questions(self, **options: Any) -> Channel:
        """The channel over the questions that chunks answer; scores of several bases are standardised.

        A single base must have questions; of several, those that have questions are searched.
        """
        searched = self._searched()
        if len(self._paths) == 1 and searched:
            return question_channel(searched[0], **options)
        asked = {base.name: base for base in searched if has_questions(base)}
        made = {name: question_channel(base, prefix=f"{name}:", **options) for name, base in asked.items()}
        return MergedBases(made, options.get("name", "questions"), "question")

    def graph(self, **options: Any) -> Channel:
        """The channel over the references of the present chunks of all bases; as `KnowledgeBase.graph`."""
        channel = graph_channel(self.references(), **options)
        return guarded(channel, map(self._view, self._searched()))

    def references(self) -> SnapshotGraph:
        """The graph of the references of the present chunks of all bases."""
        searched = self._searched()
        folder = searched[0].path if len(self._paths) == len(searched) == 1 else None
        return self._graphs.of([self._view(base) for base in searched], folder)

    def curations(self) -> list[CuratedBase]:
        """The curations of the bases with their present chunks, for a pipeline; each is for its base's chunks."""
        return [one for base in self._searched() for one in self._view(base).curations()]

    def has_parents(self, require: Filter | None = None) -> bool:
        """Whether any base has a parent that the access rights permit."""
        return any(base.has_parents(require) for base in self._searched())

    def parents(self, ids: Iterable[str]) -> dict[str, Chunk]:
        """The given parents that exist, by id.

        Where several bases are named, the id is `base:id`, as in `Chunk.parent_id`. A bare id gives the parent of the
        first base that has it.
        """
        wanted = id_list(ids)
        bases = [(base, self._prefix(base)) for base in self._searched()]
        found: dict[str, Chunk] = {}
        for base, prefix in bases:
            own = base.parents(one.removeprefix(prefix) for one in wanted if one.startswith(prefix))
            found |= {prefix + one: parent.prefixed(prefix) for one, parent in own.items()}
        for base, prefix in bases:
            own = base.parents(one for one in wanted if one not in found)
            found |= {one: parent.prefixed(prefix) for one, parent in own.items()}
        return found

    def reload(self) -> bool:
        """Load what was committed, created or removed since; returns whether there was anything."""
        gone = [path for path in self._opened if vacant(path)]
        for path in gone:
            self._opened.pop(path).close()
            self._views.pop(path, None)
        changed = [base.reload() for base in self._opened.values()]
        return self._open() or any(changed) or bool(gone)

    def _open(self) -> bool:
        """Open the bases that exist by now; returns whether there were any."""
        new = {path: manifest.read(path) for path in self._paths if path not in self._opened and not vacant(path)}
        every = [*(base.manifest for base in self._opened.values()), *new.values()]
        self._opened |= {path: KnowledgeBase.open(path, **self._given(own, every)) for path, own in new.items()}
        return bool(new)

    def _given(self, own: Manifest, every: Sequence[Manifest]) -> dict[str, Any]:
        """The given `analyzer` and `embedder` that match a base, or that match no base: opening it then raises."""
        analyzer = None if self._analyzer is None else analyzers.named(self._analyzer).recipe()
        options: dict[str, Any] = {}
        if own.analyzer == analyzer or analyzer not in [one.analyzer for one in every]:
            options["analyzer"] = self._analyzer
        if self._made(own) or not any(map(self._made, every)):
            options["embedder"] = self._embedder
        return options

    def _made(self, base: Manifest) -> bool:
        """Whether the given embedder made a base's vectors; for no embedder, whether the base has no vectors."""
        if self._embedder is None:
            return base.embedder is None
        return base.embedder is not None and embedding.made_by(base.embedder, self._embedder)

    def _present(self) -> list[KnowledgeBase]:
        """The bases that exist."""
        return [self._opened[path] for path in self._paths if path in self._opened]

    def _embedded(self) -> list[KnowledgeBase]:
        """The bases that exist and have an embedder."""
        return [base for base in self._present() if base.manifest.embedder is not None]

    def _searched(self) -> list[KnowledgeBase]:
        """The bases that hold chunks."""
        return [base for base in self._present() if len(base)]

    def _view(self, base: KnowledgeBase) -> View:
        """The present commit of a base, with prefixed ids; cached while unchanged, to keep the filters' masks."""
        new = base.view(self._prefix(base))
        known = self._views.get(base.path)
        if known is None or known.snapshot is not new.snapshot:
            known = self._views[base.path] = new
        return known

    def _prefix(self, base: KnowledgeBase) -> str:
        """The prefix of the ids of a base's chunks."""
        return f"{base.name}:" if len(self._paths) > 1 else ""

    def _absent(self, path: Path, degrades: bool) -> Failure:
        # Other bases are not named: the reader of the result may have no right to know of them.
        if path in self._opened:
            return replace(nothing_in(path.name), degrades=degrades)
        said = f"knowledge base {path.name!r} does not exist in {path.parent} and is not searched"
        return Failure(path.name, "missing", said, degrades)

    def __repr__(self) -> str:
        return f"Bases({[str(path) for path in self._paths]})"


def _together(
    groups: Sequence[Sequence[KnowledgeBase]],
    make: Callable[[Sequence[KnowledgeBase]], Channel],
    name: str,
    kind: ChannelKind,
) -> Channel:
    """The channel of the only group, or the merged, standardised channels of several."""
    if len(groups) == 1:
        return make(groups[0])
    labelled = sorted(("+".join(sorted(base.name for base in group)), group) for group in groups)
    return MergedBases({label: make(group) for label, group in labelled if any(map(len, group))}, name, kind)


def _alike(
    bases: Iterable[KnowledgeBase], are_alike: Callable[[Manifest, Manifest], bool]
) -> list[list[KnowledgeBase]]:
    """The bases, grouped by `are_alike`."""
    groups: list[list[KnowledgeBase]] = []
    for base in bases:
        group = next((group for group in groups if are_alike(group[0].manifest, base.manifest)), None)
        if group is None:
            groups.append([base])
        else:
            group.append(base)
    return groups


def _analyzed_alike(one: Manifest, other: Manifest) -> bool:
    return one.analyzer_fingerprint == other.analyzer_fingerprint


def _embedded_alike(one: Manifest, other: Manifest) -> bool:
    return embedding.are_of_one_model(one.embedder, other.embedder)


def _embedder(bases: Sequence[KnowledgeBase]) -> Embedder | None:
    """The embedder shared by several bases, from the first base that has it open or can load it by name."""
    errors: list[RetrievalError] = []
    for base in sorted(bases, key=lambda base: base.name):
        try:
            return base.embedder
        except RetrievalError as error:
            errors.append(error)
    raise errors[0]


def _keywords_only(base: KnowledgeBase) -> Failure:
    return Failure(base.name, "keywords only", keywords_only(base.name), degrades=False)
