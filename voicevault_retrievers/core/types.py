"""The value types: Chunk, Query, Vote, Hit, Ranking, Result. All are immutable."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, TypeAlias

from voicevault_retrievers._support.frozen import FrozenDict
from voicevault_retrievers.core.failures import Failure as Failure
from voicevault_retrievers.core.filters import Filter
from voicevault_retrievers.core.listing import Listing
from voicevault_retrievers.core.queries import ANY_EMBEDDER, Query, Route, Variant, Vector, as_query
from voicevault_retrievers.core.scan import KnownScores, Scan
from voicevault_retrievers.errors import ConfigError, InvalidScoreError

__all__ = [
    "ANY_EMBEDDER",
    "ChannelKind",
    "Chunk",
    "Citation",
    "Context",
    "Failure",
    "Hit",
    "KnownScores",
    "Query",
    "Ranking",
    "Result",
    "Route",
    "Scan",
    "Variant",
    "Vector",
    "Vote",
    "as_query",
    "check_scores",
    "in_order",
    "is_named",
    "ranked",
]

ChannelKind: TypeAlias = Literal["keyword", "semantic", "graph", "question", "hybrid"]

INDEXED_TEXT = "header, empty line, text"  # what an index is made of; indexes of another recipe are refused
PARENT_TYPE = ("chunk_type", "parent")  # the metadata of a parent, which is read and never searched
_IDENTITY = ("is", "defined by")


@dataclass(frozen=True)
class Chunk:
    """A piece of a document: the unit that is indexed and found. Parents are chunks too.

    `id` is unique within a knowledge base (`kb`, empty outside one). Chunks with equal texts are not equal. `header` is
    what is known of the text's place, such as the document's title and the headings above: it is indexed, embedded and
    reranked before the text, and never shown or cited.
    """

    id: str
    text: str = field(default="", hash=False)
    parent_id: str | None = field(default=None, hash=False)
    metadata: Mapping[str, Any] = field(default_factory=FrozenDict, hash=False)
    kb: str = ""
    header: str = field(default="", hash=False)

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id:
            raise ConfigError(f"a chunk's id is a string that is not empty, not {self.id!r}")
        if not isinstance(self.text, str):
            raise ConfigError(f"chunk {self.id!r}: text is a string, not {type(self.text).__name__}")
        if not isinstance(self.header, str):
            raise ConfigError(f"chunk {self.id!r}: header is a string, not {type(self.header).__name__}")
        if not isinstance(self.metadata, Mapping):
            raise ConfigError(f"chunk {self.id!r}: metadata is a mapping, not {self.metadata!r:.200}")
        if not isinstance(self.metadata, FrozenDict):
            object.__setattr__(self, "metadata", FrozenDict(self.metadata))

    @property
    def indexed_text(self) -> str:
        """The text that is indexed, embedded and reranked: the header, an empty line, and the text."""
        return f"{self.header}\n\n{self.text}" if self.header else self.text

    @property
    def is_parent(self) -> bool:
        """Whether the chunk is a parent, by its `chunk_type`: read in place of its children, never searched."""
        return PARENT_TYPE in self.metadata.items()

    def prefixed(self, prefix: str) -> Chunk:
        """The same chunk with `prefix` before its id and its parent's."""
        if not prefix:
            return self
        return replace(self, id=prefix + self.id, parent_id=self.parent_id and prefix + self.parent_id)


@dataclass(frozen=True)
class Vote:
    """The vote of one channel or stage on one hit.

    `rank` counts from 1; None where the channel only scored a hit that others found. `score` is the channel's own,
    higher is better. `contribution` is its share of the fused score, None outside a sum. `query` is the wording that
    found the hit, `terms` its words that matched, `header_terms` those of them in the chunk's header, `via` the path
    from the wording to the hit: the question that the chunk answers, or the steps in a graph. `parts` are the votes of
    a nested fusion. `probability` is the probability of relevance from a calibrated score, None where the score is not
    calibrated.
    """

    stage: str
    rank: int | None
    score: float | None = None
    weight: float = 1.0
    contribution: float | None = None
    query: str = ""
    terms: tuple[str, ...] = ()
    parts: tuple[Vote, ...] = ()
    kind: ChannelKind | None = None
    via: tuple[str, ...] = ()
    probability: float | None = None
    header_terms: tuple[str, ...] = ()

    @property
    def by_name(self) -> bool:
        """Whether a graph found the hit as the reference that the query names: see `is_named`."""
        return self.kind == "graph" and is_named(self.via)

    def leaves(self) -> Iterator[Vote]:
        """Yield the leaf votes of a nested fusion; the vote itself when it has no parts."""
        if not self.parts:
            yield self
        for part in self.parts:
            yield from part.leaves()


@dataclass(frozen=True)
class Hit:
    """A chunk that was found.

    `score` is the score of the last scoring stage, higher is better; None where the hit was not scored. `context` is
    the text that a model reads in place of the chunk's text. `granted_by` is the metadata for checks of access rights,
    where a stage has changed the chunk's metadata; else None. `over_budget` says that the chunk's own text does not fit
    into a budget: a model reads the beginning of it, kept in `context`, or nothing. `passages` are the best hits of the
    hit's group, itself first, where a search groups. `require` are the access rights that bind what stages add to it.
    """

    chunk: Chunk
    score: float | None = None
    votes: tuple[Vote, ...] = ()
    context: str | None = None
    granted_by: Mapping[str, Any] | None = None
    over_budget: bool = False
    passages: tuple[Hit, ...] = ()
    require: Filter | None = field(default=None, compare=False, repr=False)

    @property
    def id(self) -> str:
        return self.chunk.id

    @property
    def text(self) -> str:
        """The text that a model reads: the context, else the chunk's text, or nothing where `over_budget`."""
        own = "" if self.over_budget else self.chunk.text
        return own if self.context is None else self.context

    @property
    def access_metadata(self) -> Mapping[str, Any]:
        """The metadata for checks of access rights."""
        return self.chunk.metadata if self.granted_by is None else self.granted_by

    @property
    def fused(self) -> float | None:
        """The sum of the channels' contributions; None when no fusion took part."""
        parts = [vote.contribution for vote in self.votes if vote.contribution is not None]
        return math.fsum(parts) if parts else None

    @property
    def relevance(self) -> float | None:
        """The probability that the hit is relevant, in [0, 1], from the last stage that calibrates its scores.

        None where no stage does. Hits are ordered by `score`, which need not rise with it.
        """
        votes = (vote for vote in reversed(self.votes) if vote.contribution is None)
        return next((vote.probability for vote in votes if vote.probability is not None), None)

    @property
    def found_by(self) -> ChannelKind | None:
        """`hybrid` where at least two channels found the hit, else the kind of the channel that did."""
        kinds = [leaf.kind for vote in self.votes for leaf in vote.leaves() if leaf.kind and leaf.rank]
        return "hybrid" if len(kinds) > 1 else (kinds[0] if kinds else None)

    @property
    def by_name(self) -> bool:
        """Whether some channel found the hit as the reference that the query names: see `Vote.by_name`."""
        return any(leaf.by_name for vote in self.votes for leaf in vote.leaves())

    def vote(self, stage: str) -> Vote | None:
        """The vote of the channel or stage with this name, or None."""
        return next((vote for vote in self.votes if vote.stage == stage), None)

    def voted(self, vote: Vote) -> Hit:
        """The hit with a vote added; a vote of the same stage is replaced."""
        return replace(self, votes=(*(v for v in self.votes if v.stage != vote.stage), vote))


@dataclass(frozen=True)
class Ranking:
    """Hits in their final order, with the failures of all channels and stages below.

    Ids are unique. Scores are finite and never rise, ties go by ascending id, and hits without a score come last. In an
    `arranged` ranking, of a stage that orders by something else, scores may rise. Hits given as a `Listing` are made
    when they are read. `scan` is what the channel that found the hits can tell about other chunks.
    """

    hits: Sequence[Hit] = ()
    errors: tuple[Failure, ...] = ()
    arranged: bool = False
    scan: Scan | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "errors", tuple(dict.fromkeys(self.errors)))
        if isinstance(self.hits, Listing):
            return
        object.__setattr__(self, "hits", tuple(self.hits))
        if len({hit.chunk.id for hit in self.hits}) != len(self.hits):
            raise ConfigError("a ranking holds each chunk once")
        check_scores((hit.chunk.id, hit.score) for hit in self.hits)
        if not self.arranged:
            _check_order(self.hits)

    def __len__(self) -> int:
        return len(self.hits)

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)

    @cached_property
    def ids(self) -> tuple[str, ...]:
        return tuple(self.hits.ids if isinstance(self.hits, Listing) else (hit.chunk.id for hit in self.hits))

    @cached_property
    def scores(self) -> tuple[float | None, ...]:
        """The hits' scores, in their order."""
        if isinstance(self.hits, Listing):
            return (None,) * len(self.hits) if self.hits.scores is None else tuple(self.hits.scores.tolist())
        return tuple(hit.score for hit in self.hits)

    @property
    def skipped(self) -> tuple[str, ...]:
        """The failures that may have cost hits or changed their order, as text."""
        return tuple(str(failure) for failure in self.errors if failure.degrades)

    def read(self) -> Ranking:
        """The ranking with all hits made now, so that the index is no longer needed."""
        return Ranking(tuple(self.hits), self.errors, self.arranged) if isinstance(self.hits, Listing) else self

    def top(self, k: int) -> Ranking:
        """The first k hits, with the same errors."""
        return replace(self, hits=self.hits[:k]) if len(self.hits) > k else self

    def by_score(self) -> Ranking:
        """The hits as a ranking that is not arranged; where their scores rise, all scores are removed."""
        return replace(self, hits=in_order(self.hits), arranged=False) if self.arranged else self

    def failing(self, *failures: Failure) -> Ranking:
        """The ranking with failures added."""
        return replace(self, errors=(*self.errors, *failures)) if failures else self


def is_named(path: Sequence[str]) -> bool:
    """Whether a graph path is one step which says that its end is, or defines, the reference at its start."""
    return len(path) == len(("reference", "relation", "chunk")) and path[1] in _IDENTITY


def ranked(hits: Iterable[Hit]) -> tuple[Hit, ...]:
    """Hits by falling score, then rising id; hits without a score last, in the given order."""
    given = tuple(hits)
    scored = [hit for hit in given if hit.score is not None]
    rest = [hit for hit in given if hit.score is None]
    check_scores((hit.chunk.id, hit.score) for hit in scored)
    return (*sorted(scored, key=lambda hit: (-(hit.score or 0.0), hit.chunk.id)), *rest)


def in_order(hits: Iterable[Hit]) -> tuple[Hit, ...]:
    """Hits in the given order, with their scores where scored hits come first and never rise, else without.

    Raises InvalidScoreError for a score that is NaN or infinite.
    """
    given = tuple(hits)
    check_scores((hit.id, hit.score) for hit in given)
    keys = [(-hit.score, hit.id) for hit in given if hit.score is not None]
    first = all(hit.score is not None for hit in given[: len(keys)])
    if first and not any(after < before for before, after in pairwise(keys)):
        return given
    return tuple(replace(hit, score=None) for hit in given)


def check_scores(scores: Iterable[tuple[str, float | None]]) -> None:
    """Raise InvalidScoreError, naming the chunk, where a score is NaN or infinite."""
    for chunk_id, score in scores:
        if score is not None and not math.isfinite(score):
            raise InvalidScoreError(f"the score of chunk {chunk_id!r} is {score}; scores are finite numbers")


def _check_order(hits: Sequence[Hit]) -> None:
    scores = [hit.score for hit in hits]
    bare = next((at for at, score in enumerate(scores) if score is None), len(scores))
    if any(score is not None for score in scores[bare:]):
        raise ConfigError("hits without a score come after all scored ones")
    keys = [(-score, hit.chunk.id) for score, hit in zip(scores[:bare], hits, strict=False) if score is not None]
    if any(after < before for before, after in pairwise(keys)):
        raise ConfigError("scores fall, and equal scores go by ascending id")


@dataclass(frozen=True)
class Citation:
    """The source of one block of a context. `index` counts from 1.

    `start` and `end` are character offsets within the page or section. `score` is the hit's: higher is better, None
    where the hit was not scored.
    """

    index: int
    chunk_id: str
    kb: str
    source_file: str | None
    page_number: int | str | None
    section: str | None
    start: int | None
    end: int | None
    score: float | None
    text: str


@dataclass(frozen=True)
class Context:
    """What a model reads: the text of all blocks, a citation per block in the same order, and the token count."""

    text: str = ""
    citations: tuple[Citation, ...] = ()
    tokens: int = 0
    over_budget: tuple[str, ...] = ()
    """Ids of the hits that were left out or shortened because the budget was spent."""

    def __str__(self) -> str:
        """The text, so that a context can be formatted into a prompt."""
        return self.text


@dataclass(frozen=True)
class Result:
    """The result of a pipeline: the hits, best first, and how they were found.

    `timings` are seconds by channel and stage, `channels_used` the channels that answered. `confidence` is "none" where
    nothing relevant was found. `errors` are failures and notes; `degraded` says that a channel or stage was skipped.
    `context` is what a model reads, made when it is first asked for.
    """

    query: Query
    ranking: Ranking
    route: Route | None = None
    channels_used: tuple[str, ...] = ()
    build_context: Callable[[], Context] = field(default=Context, compare=False, repr=False)
    timings: Mapping[str, float] = field(default_factory=dict)
    confidence: Literal["ok", "none"] = "none"
    kg_direct_answer: Mapping[str, Any] | None = None
    flare_retrievals: int = 0
    answer: str | None = None
    """The answer that a model wrote during the search, if any: see `Pipeline`, `flare`."""
    trace: tuple[Any, ...] = ()
    as_html: Callable[[Result], str] | None = field(default=None, compare=False, repr=False)
    """Renders the result for a notebook; set by the pipeline, see `display.result_html`."""

    def _repr_html_(self) -> str | None:
        return None if self.as_html is None else self.as_html(self)

    @property
    def hits(self) -> tuple[Hit, ...]:
        return tuple(self.ranking.hits)

    @property
    def errors(self) -> tuple[Failure, ...]:
        return self.ranking.errors

    @cached_property
    def context(self) -> Context:
        """What a model reads, made when it is first asked for."""
        return self.build_context()

    @property
    def context_tokens(self) -> int:
        return self.context.tokens

    @property
    def skipped(self) -> tuple[str, ...]:
        """The failures that may have cost hits or changed their order, as text."""
        return self.ranking.skipped

    @property
    def degraded(self) -> bool:
        """Whether a channel or stage was skipped."""
        return bool(self.skipped)
