"""The parts of a query: Query, Variant, Route, and Turn. All are immutable values."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import date, datetime
from enum import Enum
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from voicevault_retrievers._support.checks import weights_or_none, whole_or_none
from voicevault_retrievers._support.frozen import FrozenDict, positive
from voicevault_retrievers.core.blocking import Blocked
from voicevault_retrievers.core.filters import Filter, canonical, compile_filter, scope
from voicevault_retrievers.errors import ConfigError, unknown

M = TypeVar("M")


@dataclass(frozen=True)
class Turn:
    """A question and its answer."""

    question: str
    answer: str

    def __str__(self) -> str:
        return f"User: {self.question}\nAssistant: {self.answer}"


def as_turn(turn: object) -> Turn:
    """A Turn from a Turn or a pair of texts; ConfigError for anything else."""
    if isinstance(turn, Turn):
        return turn
    if isinstance(turn, tuple | list) and len(turn) == 2 and all(isinstance(part, str) for part in turn):
        return Turn(*turn)
    raise ConfigError(f"a turn of the history is a Turn, or a question with its answer as a pair, not {turn!r}")


def turns_from(
    messages: Iterable[object], kind: type[M], said: Callable[[M], tuple[bool, str] | None]
) -> tuple[Turn, ...]:
    """Each question with its last answer; a question without one is left out.

    `said` tells of a message whether it is a question, and its text; None for a message that is neither. Raises
    ConfigError for a message that is not of the class `kind`.
    """
    turns: list[Turn] = []
    for message in messages:
        if not isinstance(message, kind):
            raise ConfigError(f"a history is of messages or of turns, not of both: {message!r:.200}")
        is_question, text = said(message) or (False, "")
        if is_question:
            turns.append(Turn(text, ""))
        elif text and turns:
            turns[-1] = Turn(turns[-1].question, text)
    return tuple(turn for turn in turns if turn.answer)


Vector: TypeAlias = NDArray[np.float32]

ANY_EMBEDDER = ""
"""The key of a bare vector, which any channel of the same dimension uses."""


class Route(str, Enum):
    """Which channels a query needs."""

    SIMPLE = "simple"
    STANDARD = "standard"
    COMPLEX = "complex"
    ANALYTICAL = "analytical"


@dataclass(frozen=True)
class Variant:
    """Another wording of a query.

    `weight` is in (0, 1] and scales the scores of the variant's hits. `channels` names the channels or kinds of
    channels that search it (None: all). BM25 searches for `terms`, if given, instead of `text`: a mapping from words to
    counts.
    """

    text: str
    weight: float = 1.0
    channels: frozenset[str] | None = None
    terms: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise ConfigError(f"a variant's text is a string, not {type(self.text).__name__}")
        object.__setattr__(self, "text", _valid(self.text))
        if not isinstance(self.weight, int | float) or not 0.0 < self.weight <= 1.0:
            raise ConfigError(f"the weight of a variant is above 0 and at most 1, not {self.weight!r}")
        if isinstance(self.channels, str):
            raise ConfigError(f"a variant's channels are a set of names, not the string {self.channels!r}")
        if self.channels is not None:
            object.__setattr__(self, "channels", frozenset(self.channels))
        object.__setattr__(self, "terms", positive("the terms of a variant", self.terms))


@dataclass(frozen=True, eq=False)
class Query:
    """A query. Wherever a query is taken, a plain string is accepted as well.

    `variants` are further wordings. `vectors` maps an embedder's fingerprint to the query's embedding; a bare array is
    kept under `ANY_EMBEDDER`. `sparse` is a sparse vector: BM25 searches for its words instead of the text's, each
    counted as often as its weight (above 0) says. `where` narrows the search, `require` holds the caller's access
    rights: both are filters, applied before ranking. An empty `where` narrows nothing, an empty `require` permits
    nothing (see `filters.scope`). `weights` overrides those of fused channels by name. `history` is the conversation so
    far, oldest turn first. `blocked` are chunks that are not found, whatever a channel does: the curation of a
    knowledge base sets it.
    """

    text: str
    variants: tuple[Variant, ...] = ()
    vectors: Mapping[str, Vector] = field(default_factory=dict)
    sparse: Mapping[str, float] | None = None
    route: Route | None = None
    where: Filter | None = None
    require: Filter | None = None
    weights: Mapping[str, float] | None = None
    reference_date: date | datetime | None = None
    max_context_tokens: int | None = None
    history: tuple[Turn, ...] = ()
    blocked: Blocked | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise ConfigError(f"a query is a string or a Query, not {type(self.text).__name__}")
        compile_filter(self.where)
        weights_or_none(self.weights)
        whole_or_none("max_context_tokens", self.max_context_tokens)
        if self.route is not None and not isinstance(self.route, Route):
            routes = [route.value for route in Route]
            if self.route not in routes:
                raise unknown("route", self.route, routes)
            object.__setattr__(self, "route", Route(self.route))
        if not isinstance(self.history, Iterable):
            raise ConfigError(f"history is a sequence of turns, not {self.history!r}")
        if isinstance(self.variants, str) or not isinstance(self.variants, Iterable):
            raise ConfigError(f"variants are texts or Variants in a sequence, not {self.variants!r}")
        vectors: Any = self.vectors if isinstance(self.vectors, Mapping) else {ANY_EMBEDDER: self.vectors}
        object.__setattr__(self, "where", deepcopy(self.where))
        object.__setattr__(self, "require", deepcopy(scope(self.require)))
        object.__setattr__(self, "text", _valid(self.text))
        object.__setattr__(self, "sparse", positive("the words of a sparse vector", self.sparse))
        object.__setattr__(self, "vectors", FrozenDict({key: _vector(v) for key, v in vectors.items()}))
        object.__setattr__(self, "history", tuple(map(as_turn, self.history)))
        object.__setattr__(self, "variants", tuple(v if isinstance(v, Variant) else Variant(v) for v in self.variants))

    @cached_property
    def original(self) -> Variant:
        """The query's own text; its sparse vector is what BM25 searches for."""
        return Variant(self.text, terms=self.sparse)

    def texts_for(self, name: str, kind: str) -> tuple[Variant, ...]:
        """The query's text and the variants for this channel, each text once."""
        if not self.variants:
            return (self.original,)
        own = [v for v in self.variants if v.channels is None or name in v.channels or kind in v.channels]
        found: dict[str, Variant] = {self.text: self.original}
        for variant in own:
            found.setdefault(variant.text, variant)
        return tuple(found.values())

    def blocking(self, blocked: Blocked) -> Query:
        """The query with what is blocked for it; cheaper than `replace`, as no other part is checked again."""
        twin = copy.copy(self)
        object.__setattr__(twin, "blocked", blocked)
        return twin

    def _parts(self) -> tuple[Any, ...]:
        asked = self.text, self.variants, self.sparse, self.route, canonical(self.where), canonical(self.require)
        return (*asked, self.weights, self.reference_date, self.max_context_tokens, self.history, self.blocked)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Query):
            return NotImplemented
        same = self._parts() == other._parts() and self.vectors.keys() == other.vectors.keys()
        return same and all(np.array_equal(vector, other.vectors[key]) for key, vector in self.vectors.items())

    def __hash__(self) -> int:
        return hash((self.text, self.variants))


def as_query(query: str | Query) -> Query:
    """A query from a query or a plain string."""
    return query if isinstance(query, Query) else Query(query)


def _valid(text: str) -> str:
    """The text with lone surrogates replaced, as no encoder of a model or store accepts them."""
    return text.encode("utf-8", "replace").decode()


def _vector(values: ArrayLike) -> Vector:
    try:
        vector = np.array(values, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"a query vector is one row of finite numbers: {error}") from error
    if vector.ndim != 1 or not np.isfinite(vector).all():
        raise ConfigError(f"a query vector is one row of finite numbers, not shape {vector.shape}")
    vector.setflags(write=False)
    return vector
