"""Several knowledge bases searched as one collection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.core.filters import Filter
from voicevault_retrievers.core.protocols import Embedder
from voicevault_retrievers.core.types import ChannelKind, Chunk, Failure
from voicevault_retrievers.errors import ConfigError, RetrievalError
from voicevault_retrievers.store import analyzers, codec, embedding, manifest
from voicevault_retrievers.store.analyzers import SavedAnalyzer
from voicevault_retrievers.store.graphs import KeptGraph, SnapshotGraph, graph_channel
from voicevault_retrievers.store.knowledge_base import KnowledgeBase
from voicevault_retrievers.store.manifest import Manifest
from voicevault_retrievers.store.merged_bases import MergedBases
from voicevault_retrievers.store.names import locate, vacant
from voicevault_retrievers.store.questions import has_questions, question_channel
from voicevault_retrievers.store.reader import View, keyword_channel, keywords_only, nothing_in, vector_channel


class Bases:
    """Knowledge bases, by name, folder or open, searched as one.

    Those made with one analyzer share document counts and lengths as the segments of one index would, and the
    similarities of those made with one embedder compare as they are. Where they differ, each such group's list is
    standardised and they are merged (see `MergedBases`), in whatever order bases are named and even where one is
    empty. A group whose search fails is skipped and noted, one whose embedder cannot be had raises. A base without an
    embedder is searched by keywords only, where others have one.

    Where more than one is named, a chunk's id is `base:id`, and so is its parent's, whichever of them exist; its
    `kb` says which.
    `analyzer` and `embedder` are those of `KnowledgeBase.open`, for the bases made with them; others load their own by
    name. Raises ConfigError when a base is named twice, IncompatibleIndexError when none was made with what is given,
    and what `KnowledgeBase.open` does for one that is damaged.
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
        """The bases that are not searched, or by keywords only, and why.

        One that does not exist or is empty `degrades` where others are searched, and is a mere note where there is
        nothing to search.
        """
        searched = self._searched()
        found = {base.path for base in searched}
        absent = [self._absent(path, bool(searched)) for path in self._paths if path not in found]
        bare = [base for base in searched if base.manifest.embedder is None] if self._embedded() else []
        return (*absent, *(_keywords_only(base) for base in bare))

    def __len__(self) -> int:
        return sum(len(base) for base in self._searched())

    def bm25(self, **options: Any) -> Channel:
        """The keyword channel over the present chunks of all; `options` are those of `BM25`."""

        def made(bases: Sequence[KnowledgeBase]) -> Channel:
            analyzer = bases[0].analyzer if bases else analyzers.named(self._analyzer)
            return keyword_channel(map(self._view, bases), analyzer, **options)

        groups = _alike(self._present(), _analyzed_alike)
        return _together(groups or [[]], made, options.get("name", "bm25"), "keyword")

    def dense(self, **options: Any) -> Channel:
        """The vector channel over the present chunks of all; options and errors are those of `KnowledgeBase.dense`.

        Where there is nothing to search, a channel that finds nothing and loads no embedder.
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
        """The channel over the questions that chunks answer; those of several bases are standardised.

        Where one base is named alone it must have some; of several, those that have.
        """
        searched = self._searched()
        if len(self._paths) == 1 and searched:
            return question_channel(searched[0], **options)
        asked = {base.name: base for base in searched if has_questions(base)}
        made = {name: question_channel(base, prefix=f"{name}:", **options) for name, base in asked.items()}
        return MergedBases(made, options.get("name", "questions"), "question")

    def graph(self, **options: Any) -> Channel:
        """The channel over what the present chunks of all refer to; as `KnowledgeBase.graph`."""
        return graph_channel(self.references(), **options)

    def references(self) -> SnapshotGraph:
        """The graph of what the present chunks of all refer to."""
        searched = self._searched()
        folder = searched[0].path if len(self._paths) == len(searched) == 1 else None
        return self._graphs.of([self._view(base) for base in searched], folder)

    def has_parents(self, require: Filter | None = None) -> bool:
        """Whether any parent is in one of them that access rights permit."""
        return any(base.has_parents(require) for base in self._searched())

    def parents(self, ids: Iterable[str]) -> dict[str, Chunk]:
        """Those of the given parents that are here, by id: `base:id`, as chunks name them, where several are named.

        One that is asked for by its bare id all the same is that of the first base that has it.
        """
        wanted = list(codec.several(ids))
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
        """See what was committed, created or removed since; whether there was anything."""
        gone = [path for path in self._opened if vacant(path)]
        for path in gone:
            self._opened.pop(path).close()
            self._views.pop(path, None)
        changed = [base.reload() for base in self._opened.values()]
        return self._open() or any(changed) or bool(gone)

    def _open(self) -> bool:
        """Open those that exist by now; whether there were any."""
        new = {path: manifest.read(path) for path in self._paths if path not in self._opened and not vacant(path)}
        every = [*(base.manifest for base in self._opened.values()), *new.values()]
        self._opened |= {path: KnowledgeBase.open(path, **self._given(own, every)) for path, own in new.items()}
        return bool(new)

    def _given(self, own: Manifest, every: Sequence[Manifest]) -> dict[str, Any]:
        """What was given and a base was made with; or all of it, where no base was: opening then says what is wrong."""
        analyzer = None if self._analyzer is None else analyzers.named(self._analyzer).recipe()
        options: dict[str, Any] = {}
        if own.analyzer == analyzer or analyzer not in [one.analyzer for one in every]:
            options["analyzer"] = self._analyzer
        if self._made(own) or not any(map(self._made, every)):
            options["embedder"] = self._embedder
        return options

    def _made(self, base: Manifest) -> bool:
        """Whether the embedder that was given made a base's vectors; of none, whether the base has none."""
        if self._embedder is None:
            return base.embedder is None
        return base.embedder is not None and embedding.made_by(base.embedder, self._embedder)

    def _present(self) -> list[KnowledgeBase]:
        """Those that exist."""
        return [self._opened[path] for path in self._paths if path in self._opened]

    def _embedded(self) -> list[KnowledgeBase]:
        """Those that exist and have an embedder."""
        return [base for base in self._present() if base.manifest.embedder is not None]

    def _searched(self) -> list[KnowledgeBase]:
        """Those that hold chunks."""
        return [base for base in self._present() if len(base)]

    def _view(self, base: KnowledgeBase) -> View:
        """The present commit of a base, its name in every id; kept while it is the same, for the filters' masks."""
        new = base.view(self._prefix(base))
        known = self._views.get(base.path)
        if known is None or known.snapshot is not new.snapshot:
            known = self._views[base.path] = new
        return known

    def _prefix(self, base: KnowledgeBase) -> str:
        """What stands before the ids of a base's chunks."""
        return f"{base.name}:" if len(self._paths) > 1 else ""

    def _absent(self, path: Path, degrades: bool) -> Failure:
        # The names of others are not told: a result may go to somebody who is not to know of them.
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
    """The channel of the only group, or those of several standardised."""
    if len(groups) == 1:
        return make(groups[0])
    labelled = sorted(("+".join(sorted(base.name for base in group)), group) for group in groups)
    return MergedBases({label: make(group) for label, group in labelled if any(map(len, group))}, name, kind)


def _alike(
    bases: Iterable[KnowledgeBase], are_alike: Callable[[Manifest, Manifest], bool]
) -> list[list[KnowledgeBase]]:
    """The bases in groups of those that are alike."""
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
    """The one embedder of several bases: some may have been opened with it where others cannot load it by name."""
    errors: list[RetrievalError] = []
    for base in sorted(bases, key=lambda base: base.name):
        try:
            return base.embedder
        except RetrievalError as error:
            errors.append(error)
    raise errors[0]


def _keywords_only(base: KnowledgeBase) -> Failure:
    return Failure(base.name, "keywords only", keywords_only(base.name), degrades=False)
