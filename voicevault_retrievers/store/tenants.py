"""A keyword index for each tenant: a knowledge base of its own, made of what is the tenant's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from voicevault_retrievers.channel import Channel, Through
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.leaf import Leaf, Match
from voicevault_retrievers.lexical.bm25 import BM25
from voicevault_retrievers.mutex import Mutex
from voicevault_retrievers.protocols import Embedder
from voicevault_retrievers.store import codec
from voicevault_retrievers.store.analyzers import SavedAnalyzer, named
from voicevault_retrievers.store.embedding import Progress
from voicevault_retrievers.store.indexing import Update, outdated, update
from voicevault_retrievers.store.knowledge_base import KnowledgeBase
from voicevault_retrievers.store.limits import Limits
from voicevault_retrievers.store.names import locate, vacant
from voicevault_retrievers.store.removing import remove
from voicevault_retrievers.store.scanning import Paths
from voicevault_retrievers.store.view import keyword_channel
from voicevault_retrievers.types import Chunk, Query, Ranking, Variant

TenantSource: TypeAlias = Paths | Callable[[], Iterable[Chunk]]
"""What an index is made of: files and folders, or a function that gives the chunks."""


class TenantIndex:
    """The keyword index of one tenant: the knowledge base of that name, and of no other.

    It is opened by the first search; where there is none, nothing is found. `rebuild` makes it of the `source`. With an
    `embedder` there are vectors too, and `base` is searched as any knowledge base. Threads share it. Raises ConfigError
    for a name that is none (see `check_name`): a path is none.
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
        self._made: tuple[object, BM25] | None = None

    @property
    def tenant(self) -> str:
        return self._folder.name

    @property
    def base(self) -> KnowledgeBase | None:
        """The knowledge base, opened when it is first asked for; None where there is none."""
        with self._opening:
            if self._base is None and not vacant(self._folder):
                self._base = KnowledgeBase.open(self.tenant, **self._given)
            return self._base

    @property
    def channel(self) -> Channel:
        """A channel that searches what is here when it is asked, for pipelines."""
        return TenantChannel(self)

    def bm25(self) -> BM25:
        """The keyword channel over the present chunks."""
        with self._opening:
            base = self.base
            parts = base.parts if base else ()
            if self._made is None or self._made[0] is not parts:
                analyzer = base.analyzer if base else named(self._given["analyzer"])
                self._made = parts, keyword_channel([base.view()] if base else [], analyzer)
            return self._made[1]

    def search(self, query: str | Query, k: int = 10, **options: Any) -> Ranking:
        """At most k hits, best first; `options` are those of `Channel.search`."""
        return self.channel.search(query, k, **options)

    def needs_rebuild(self) -> bool:
        """Whether the source is other than what is here; all of it is read and compared.

        Raises what reading the source does, and ConfigError where there is none.
        """
        source = self._sourced()
        self.reload()
        base = self.base
        if base is None:
            return True
        if not callable(source):
            return outdated(base, source)
        given = sorted(codec.kept(source(), self.tenant, Limits()), key=lambda chunk: chunk.id)
        return len(given) != len(base) or not all(map(codec.same, given, base))

    def rebuild(self, progress: Progress | None = None) -> Update:
        """Make the index what the source is now; of what has not changed, nothing is embedded and no file parsed.

        Of files that cannot be read (`Update.skipped`) stays what is here. `progress` is told (done, total) of the
        files, or of the texts to embed. Raises DocumentError for a path that does not exist, LockedError while another
        process writes, ConfigError where there is no source.
        """
        source = self._sourced()
        with self._writing:
            self.reload()
            with self._opening:
                base = self._base = self.base or KnowledgeBase.create(self.tenant, **self._given)
            with base:
                if callable(source):
                    return Update(changes=base.replace(source(), progress=progress))
                return update(base, source, prune="others", progress=progress)

    def clear(self) -> None:
        """Remove the index from disk; until it is made again nothing is found. LockedError while another writes."""
        with self._writing, self._opening:
            if self._base is not None:
                self._base.close()
            if not vacant(self._folder):
                remove(self.tenant, root=self._given["root"])
            self._base = None

    def reload(self) -> bool:
        """See what others have made, committed or removed since; whether there was anything."""
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


class TenantChannel(Through, Leaf):
    """Searches a tenant's index as it is at the time."""

    def __init__(self, tenant: TenantIndex) -> None:
        super().__init__("bm25", "keyword")
        self._index = tenant

    def find(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        return self._index.bm25().find(query, wordings, k)

    @property
    def below(self) -> Channel:  # type: ignore[override]  # what there is now
        return self._index.bm25()

    def __repr__(self) -> str:
        return f"{self._index!r}.channel"
