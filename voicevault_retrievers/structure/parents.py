"""Small chunks are found, and the model reads the larger parent that they were cut from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Protocol, TypeAlias, Union, runtime_checkable

from voicevault_retrievers._support.checks import flag, number, seconds_or_none, whole_or_none
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
    """Holds parents by id. One that has an async `afetch` too is awaited by async searches."""

    def fetch(self, ids: Sequence[str]) -> Mapping[str, Chunk]:
        """Those of the given parents that are here, by id; asked once for all of a query's."""
        ...


@runtime_checkable
class KeepsParents(Protocol):
    """What a knowledge base is to a parent store."""

    def parents(self, ids: Iterable[str]) -> Mapping[str, Chunk]:
        """Those of the given parents that are here, by id."""
        ...


def parent_store(store: Parents) -> ParentStore:
    """A parent store from a mapping of ids to chunks, or a knowledge base; one that can `fetch` as it is.

    Raises ConfigError for anything else.
    """
    if isinstance(store, ParentStore):
        return store
    if isinstance(store, Mapping):
        return _Asked(lambda ids: {parent_id: store[parent_id] for parent_id in ids if parent_id in store}, "{...}")
    if isinstance(store, KeepsParents) and callable(store.parents):  # a path has parents too
        return _Asked(store.parents, repr(store))
    raise ConfigError(
        "parents are in a knowledge base, in a mapping of ids to chunks, or in a store with fetch(ids), not in a "
        f"{type(store).__name__}"
    )


@dataclass(frozen=True)
class _Asked:
    """A function from ids to parents, as a store."""

    fetch: Callable[[Sequence[str]], Mapping[str, Chunk]]
    origin: str

    def __repr__(self) -> str:
        return self.origin


class ParentExpansion(Stage):
    """Gives each hit whose chunk has a parent that parent's text to read, each parent once.

    The best child of a parent stays, with its id, text, links and score, and further ones are dropped. Its metadata are
    the parent's, and its own under keys that the parent has not, so that a citation names what is read. Access rights
    are checked on both. Order and scores stay.

    A hit keeps its own text, and its siblings stay too, where its parent is not in the store, which the ranking's
    errors say; where the metadata of the parent does not pass the query's `require`, which nothing says; and where the
    parent does not fit. `max_chars` and `max_tokens` bound the texts together, counted in rank order: the parent where
    it fits, else the hit's own text. Where that does not fit either, the first hit's is cut, at a sentence's end if one
    fits; others stay, without a text to read. Both are marked `over_budget`, and an `OverBudget` among the errors has
    their ids. A query's `max_context_tokens` lowers `max_tokens`.

    With `merge` no text comes twice: parents that overlap become one, and so do own texts that overlap or adjoin on
    one page and in one section (see `Kinship.span_of`). That is given to the best of their hits, and the others go.

    `header_key` is where a chunk's metadata name a header, such as a judgment's title and court. It is fetched with the
    parents, stands above the first text of each document (`source_file`) whose chunks name it, and counts in the
    budget; what fits only without it is given without, and then the next has it.

    With `levels` above 1, or None for all, parents have parents: a hit gets the text of the highest that fits. With
    `min_children_ratio` a parent stands for its children only where at least that part of them was found, or stands in
    turn for children that were; where the `kinship` does not tell how many a parent has, any are enough.

    A chunk without a `parent_id` has the one that its metadata names under `id_key`, if one is given. `require` are
    rights that hold beside the query's, for headers too. `timeout` is in seconds; None waits. Raises
    ContextExpansionError where the store fails.
    """

    blocking = True

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
        permitted = compile_filter(scope(self.require, query.require))
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
