"""A keyword index for each tenant: a knowledge base of its own, built from the tenant's source."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from voicevault_retrievers._support.mutex import Mutex
from voicevault_retrievers.core.blocking import Blocked
from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.core.leaf import LeafChannel, Match
from voicevault_retrievers.core.protocols import Embedder
from voicevault_retrievers.core.types import ChannelKind, Chunk, Failure, Query, Ranking, Scan, Variant
from voicevault_retrievers.errors import ConfigError, unknown
from voicevault_retrievers.lexical.bm25 import BM25
from voicevault_retrievers.lexical.index import LexicalIndex
from voicevault_retrievers.store import codec
from voicevault_retrievers.store.analyzers import SavedAnalyzer
from voicevault_retrievers.store.codec import Limits
from voicevault_retrievers.store.delete_base import remove
from voicevault_retrievers.store.discovery import Paths
from voicevault_retrievers.store.embedding import Progress
from voicevault_retrievers.store.indexing import Update, outdated, update
from voicevault_retrievers.store.knowledge_base import KnowledgeBase
from voicevault_retrievers.store.live_curation import CuratedBase
from voicevault_retrievers.store.names import locate, vacant
from voicevault_retrievers.store.snapshot import Snapshot

TenantSource: TypeAlias = Paths | Callable[[], Iterable[Chunk]]
"""The source of an index: files and folders, or a function that returns the chunks."""


class TenantIndex:
    """The keyword index of one tenant: the knowledge base of that name.

    The first search opens it; where it is missing or empty, nothing is found, and a note says so. `rebuild` builds it
    from the `source`. With an `embedder` there are vectors too. Presets accept it like a knowledge base, and their
    pipelines search its present commit. Threads share it. Raises ConfigError for an invalid name, such as a path (see
    `check_name`).
    """

    def __init__(
        self,
        tenant: str,
        *,
        root: Path | str | None = None,
        analyzer: SavedAnalyzer | None = None,
        embedder: Embedder | None = None,
        source: TenantSource | None = None,
    ) -> None:
        if not isinstance(tenant, str):
            raise ConfigError(f"a tenant is named by a string, not {tenant!r}")
        self._folder = locate(tenant, root)
        self._given: dict[str, Any] = {"root": root, "analyzer": analyzer, "embedder": embedder}
        self._source = source
        self._writing = Mutex()
        self._opening = Mutex()
        self._base: KnowledgeBase | None = None
        self._channel = self.bm25()

    @property
    def tenant(self) -> str:
        return self._folder.name

    @property
    def base(self) -> KnowledgeBase | None:
        """The knowledge base, opened at first use; None where there is none."""
        with self._opening:
            if self._base is None and not vacant(self._folder):
                self._base = KnowledgeBase.open(self.tenant, **self._given)
            return self._base

    @property
    def channel(self) -> Channel:
        """The keyword channel with default options."""
        return self._channel

    def bm25(self, **options: Any) -> Channel:
        """The keyword channel over the present commit at each search, for pipelines; `options` are those of `BM25`."""
        BM25(LexicalIndex(()), **options)  # raises at once for wrong options
        return TenantChannel(self, "bm25", "keyword", options)

    def dense(self, **options: Any) -> Channel:
        """The vector channel over the present commit at each search; `options` are `name` and `timeout`.

        Where the index has no embedder, searches raise NotIndexedError, as `KnowledgeBase.dense` does.
        """
        for option in options.keys() - {"name", "timeout"}:
            raise unknown("option of dense", option, ("name", "timeout"))
        return TenantChannel(self, "dense", "semantic", options)

    def curations(self) -> list[CuratedBase]:
        """The curation of the tenant's base with its present chunks, for a pipeline; empty where there is no base."""
        base = self.base
        return [] if base is None else base.curations()

    def search(self, query: str | Query, k: int = 10, **options: Any) -> Ranking:
        """At most k hits, best first; `options` are those of `Channel.search`."""
        return self.channel.search(query, k, **options)

    def needs_rebuild(self) -> bool:
        """Whether the source differs from the index; reads and compares all of it.

        Raises what reading the source raises, and ConfigError where there is no source.
        """
        source = self._sourced()
        self.reload()
        base = self.base
        if base is None:
            return True
        if not callable(source):
            return outdated(base, source)
        given = sorted(codec.kept(source(), self.tenant, Limits()), key=lambda chunk: chunk.id)
        searched, parents = [one for one in given if not one.is_parent], [one for one in given if one.is_parent]
        held = base.parents(parent.id for parent in parents)
        return (
            len(searched) != len(base)
            or not all(map(codec.same, searched, base))
            or not all(codec.same(parent, held.get(parent.id)) for parent in parents)
        )

    def rebuild(self, progress: Progress | None = None) -> Update:
        """Bring the index up to date with the source; unchanged content is not embedded or parsed again.

        Chunks of files that cannot be read (`Update.skipped`) stay. `progress` is told (done, total) of the files, or
        of the texts to embed. Raises DocumentError for a path that does not exist, LockedError while another process
        writes, ConfigError where there is no source.
        """
        source = self._sourced()
        with self._writing:
            self.reload()
            with self._opening:
                base = self.base
                if base is None:  # a base without chunks is falsy
                    base = KnowledgeBase.create(self.tenant, **self._given)
                self._base = base
            with base:
                if callable(source):
                    return Update(changes=base.replace(source(), progress=progress))
                return update(base, source, prune="others", progress=progress)

    def clear(self) -> None:
        """Remove the index from disk; nothing is found until `rebuild`. LockedError while another process writes."""
        with self._writing, self._opening:
            if self._base is not None:
                self._base.close()
            if not vacant(self._folder):
                remove(self.tenant, root=self._given["root"])
            self._base = None

    def reload(self) -> bool:
        """Load what others have created, committed or removed since; returns whether there was anything."""
        with self._opening:
            before = self._base
            if vacant(self._folder):
                self._base = None
            elif before is not None:
                return before.reload()
            return self.base is not before

    def _sourced(self) -> TenantSource:
        if self._source is None:
            raise ConfigError(
                f"tenant {self.tenant!r} has no source to be made of: give TenantIndex(source=...) files and folders, "
                "or a function that gives chunks"
            )
        return self._source

    def __repr__(self) -> str:
        return f"TenantIndex({self.tenant!r}, root={str(self._folder.parent)!r})"


class TenantChannel(LeafChannel):
    """A channel over the present commit of a tenant's index; the view's `method` makes it with `options`."""

    def __init__(self, tenant: TenantIndex, method: str, kind: ChannelKind, options: Mapping[str, Any]) -> None:
        super().__init__(options.get("name", method), kind, timeout=options.get("timeout"))
        self._present = _Present(tenant, method, options)

    def find(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        below = self._present.get()
        if below is None:
            return [_Absent() for _ in wordings]
        below = below.named(self.name)
        said = below._wordings(query)  # only some vector channels search for a blank text
        query, failures = below.guarded(query)
        found = iter(below._find_permitted(query, [wording for wording in wordings if wording in said], k))
        each = [next(found) if wording in said else [] for wording in wordings]
        return [_Unguarded(matches, failures) for matches in each] if failures else each

    def _left(self, blocked: Blocked, matches: Sequence[Match]) -> Sequence[Match]:
        return matches  # `find` has left out what is blocked

    def notes(self, found: Sequence[Sequence[Match]]) -> Sequence[Failure]:
        if unguarded := [matches.failures for matches in found if isinstance(matches, _Unguarded)]:
            return unguarded[0]
        if not any(isinstance(matches, _Absent) for matches in found):
            return ()
        said = f"tenant {self._present.tenant.tenant!r} has no index, or an empty one: rebuild() makes it of its source"
        return (Failure(self.name, "missing", said, degrades=False),)

    def warm_up(self) -> None:
        if (below := self._present.get()) is not None:
            below.warm_up()

    def scan(self, query: Query, found: Sequence[tuple[Variant, Sequence[Match]]] = ()) -> Scan | None:
        below = self._present.get()
        return None if below is None else below.named(self.name).scan(query, found)

    def __repr__(self) -> str:
        return repr(self._present)


class _Unguarded(list[Match]):
    """Matches, and the failures of reading what is blocked."""

    def __init__(self, matches: Sequence[Match], failures: Sequence[Failure]) -> None:
        super().__init__(matches)
        self.failures = failures


class _Absent(list[Match]):
    """The matches where the index is missing or empty."""


class _Present:
    """The channel over the content of an index; made again when the content changes."""

    def __init__(self, tenant: TenantIndex, method: str, options: Mapping[str, Any]) -> None:
        self.tenant = tenant
        self._method = method
        self._options = dict(options)
        self._mutex = Mutex()
        self._made: tuple[Snapshot, LeafChannel] | None = None

    def get(self) -> LeafChannel | None:
        """The channel; None where the index is missing or empty."""
        with self._mutex:
            base = self.tenant.base
            if not base:
                self._made = None
                return None
            view = base.view()
            if self._made is None or self._made[0] is not view.snapshot:
                self._made = view.snapshot, getattr(view, self._method)(**self._options)
            return self._made[1]

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self._options.items())
        return f"{self.tenant!r}.{self._method}({given})"
