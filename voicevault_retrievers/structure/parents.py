"""Parent expansion: search finds small chunks, and the model reads the larger parents that they were cut from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias, Union, runtime_checkable

from voicevault_retrievers._support.checks import flag, number, seconds_or_none, whole_or_none
from voicevault_retrievers.core.access_control import with_rights_of
from voicevault_retrievers.core.channel import Stage
from voicevault_retrievers.core.filters import Filter, compile_filter, scope
from voicevault_retrievers.core.types import Chunk, Query, Ranking
from voicevault_retrievers.errors import ConfigError, ContextExpansionError
from voicevault_retrievers.structure.packing import Room as Room
from voicevault_retrievers.structure.packing import Shown
from voicevault_retrievers.structure.parent_links import OWN_TEXT, Ancestors, Kinship, Naming, ParentTexts
from voicevault_retrievers.structure.parent_links import over_budget as over_budget
from voicevault_retrievers.text.tokens import TokenCounter, estimate_tokens

Parents: TypeAlias = Union["ParentStore", "KeepsParents", Mapping[str, Chunk]]


@runtime_checkable
class ParentStore(Protocol):
    """A store of parents by id. Async searches await a store that also has an async `afetch`."""

    def fetch(self, ids: Sequence[str]) -> Mapping[str, Chunk]:
        """The given parents that exist, by id; called once per level for all hits of a query."""
        ...


@runtime_checkable
class KeepsParents(Protocol):
    """The part of a knowledge base that a parent store needs."""

    def parents(self, ids: Iterable[str]) -> Mapping[str, Chunk]:
        """The given parents that exist, by id."""
        ...


def parent_store(store: Parents) -> ParentStore:
    """A parent store over a mapping of ids to chunks, or a knowledge base.

    Returns an object with `fetch` as it is. Raises ConfigError for anything else.
    """
    if isinstance(store, ParentStore):
        return store
    if isinstance(store, Mapping):
        return _Asked(partial(_held, store), "{...}")
    if isinstance(store, KeepsParents) and callable(store.parents):  # a Path has `parents` too
        return _Asked(store.parents, repr(store))
    raise ConfigError(
        "parents are in a knowledge base, in a mapping of ids to chunks, or in a store with fetch(ids), not in a "
        f"{type(store).__name__}"
    )


def _held(store: Mapping[str, Chunk], ids: Sequence[str]) -> Mapping[str, Chunk]:
    return {parent_id: store[parent_id] for parent_id in ids if parent_id in store}


@dataclass(frozen=True)
class _Asked:
    """A parent store over a function from ids to parents."""

    fetch: Callable[[Sequence[str]], Mapping[str, Chunk]]
    origin: str

    def __repr__(self) -> str:
        return self.origin


class ParentExpansion(Stage):
    """Gives each hit whose chunk has a parent that parent's text to read, each parent once.

    The best child of a parent stays, with its id, text, links and score; the others are dropped. Its metadata are those
    of the parent, and its own under other keys, so that a citation names what is read. Access rights are checked on
    both. Order and scores do not change.

    A hit and its siblings keep their own texts where the parent is not in the store (an error in the ranking says so),
    where the parent's metadata do not pass the query's `require` or the parent contains a chunk that is blocked (both
    without a note), and where the parent does not fit.
    `max_chars` and `max_tokens` bound the sum of the texts, counted in rank order: the parent where it fits, else the
    hit's own text. Where neither fits, the first hit's text is cut, at a sentence's end if one fits; other hits stay,
    without a text to read. Both are marked `over_budget`, and an `OverBudget` among the errors has their ids. A query's
    `max_context_tokens` lowers `max_tokens`.

    With `merge` no text is repeated: overlapping parents are merged, and so are own texts that overlap or adjoin on one
    page and in one section (see `Kinship.span_of`). The best of their hits gets the merged text; the others are
    dropped.

    `header_key` is the metadata key that names a chunk's header, such as a judgment's title and court. Headers are
    fetched with the parents. A header stands above the first text of each document (`source_file`) whose chunks name
    it, and counts in the budget; a text that fits only without the header goes without, and the next text gets it.

    With `levels` above 1, or None for all, parents have parents: a hit gets the text of the highest that fits. With
    `min_children_ratio` a parent replaces its children only where at least that share of them was found, or replaces
    found descendants; where the `kinship` does not know the number of children, any share is enough.

    A chunk without a `parent_id` uses the id under the metadata key `id_key`, if one is given. `require` are access
    rights in addition to the query's, for headers too. `timeout` is in seconds; None waits. Raises
    ContextExpansionError where the store fails.
    """

    blocking = True
    gives_text = True

    def __init__(
        self,
        store: Parents,
        *,
        max_chars: int | None = None,
        max_tokens: int | None = None,
        count_tokens: TokenCounter = estimate_tokens,
        id_key: str | None = None,
        require: Filter | None = None,
        timeout: float | None = None,
        levels: int | None = 1,
        min_children_ratio: float = 0.0,
        kinship: Kinship | None = None,
        header_key: str | None = None,
        merge: bool = True,
        name: str = "parents",
    ) -> None:
        super().__init__()
        self.store = parent_store(store)
        self.max_chars = whole_or_none("max_chars", max_chars)
        self.max_tokens = whole_or_none("max_tokens", max_tokens)
        self.count_tokens = count_tokens
        self.id_key = id_key
        self.require = deepcopy(scope(require))
        self.timeout = seconds_or_none("timeout", timeout)
        self.levels = whole_or_none("levels", levels)
        self.min_children_ratio = _ratio(min_children_ratio)
        self.kinship = kinship or Kinship()
        self.header_key = header_key
        self.merge = flag("merge", merge)
        self.name = name
        self.awaits = hasattr(self.store, "afetch")

    def needs(self, k: int) -> int:
        return 3 * k

    def instead(self, ranking: Ranking) -> str:
        return OWN_TEXT

    def refine(self, query: Query, ranking: Ranking) -> Ranking:
        known = self._ancestors(query, ranking)
        while ids := known.wanted():
            with _fetching():
                found = self.store.fetch(ids)
            known.learn(found)
        return self._expanded(query, ranking, known)

    async def arefine(self, query: Query, ranking: Ranking) -> Ranking:
        known = self._ancestors(query, ranking)
        while ids := known.wanted():
            with _fetching():
                found = await self.store.afetch(ids)  # type: ignore[attr-defined]  # as `awaits` says
            known.learn(found)
        return self._expanded(query, ranking, known)

    def _ancestors(self, query: Query, ranking: Ranking) -> Ancestors:
        naming = Naming(self.id_key, self.header_key, self.levels)
        passes, blocked = compile_filter(scope(self.require, with_rights_of(query, ranking).require)), query.blocked

        def permitted(parent: Chunk) -> bool:
            return passes(parent.metadata) and not (blocked and blocked.shows(parent))

        return Ancestors(ranking, self.kinship, naming, ratio=self.min_children_ratio, permitted=permitted)

    def _expanded(self, query: Query, ranking: Ranking, known: Ancestors) -> Ranking:
        shown = Shown(Room.of(query, self.max_chars, self.max_tokens, self.count_tokens), merge=self.merge)
        return ParentTexts(ranking, known, self.kinship, shown).ranking(self.name)

    def __repr__(self) -> str:
        return (
            f"ParentExpansion({self.store!r}, max_chars={self.max_chars}, max_tokens={self.max_tokens}, "
            f"id_key={self.id_key!r}, require={self.require!r}, timeout={self.timeout}, levels={self.levels}, "
            f"min_children_ratio={self.min_children_ratio}, header_key={self.header_key!r}, merge={self.merge}, "
            f"name={self.name!r})"
        )


@contextmanager
def _fetching() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise ContextExpansionError(f"parents could not be fetched: {str(error) or type(error).__name__}") from error


def _ratio(ratio: float) -> float:
    if number("min_children_ratio", ratio) > 1:
        raise ConfigError(f"min_children_ratio is the part of a parent's children that is enough, not {ratio!r}")
    return ratio
