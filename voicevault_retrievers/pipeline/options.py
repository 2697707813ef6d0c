"""The options of a hybrid search, declared once: both frameworks' classes, presets and the reference go by these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, TypeVar, get_args

from voicevault_retrievers._support.checks import seconds_or_none, weights_or_none, whole, whole_or_none
from voicevault_retrievers._support.foreign_options import checks_options, refused
from voicevault_retrievers.answers.flare import Flare
from voicevault_retrievers.core.channel import Rewriter, Stage
from voicevault_retrievers.core.protocols import Scorer
from voicevault_retrievers.errors import ConfigError, unknown
from voicevault_retrievers.fusion import Method, method_of
from voicevault_retrievers.fusion.fuse import OnError
from voicevault_retrievers.query import RuleExpansion, RuleRouter, Together
from voicevault_retrievers.rerank import CrossEncoderRerank
from voicevault_retrievers.rerank.scorers import DEFAULT_MODEL

G = TypeVar("G", bound="OptionGroup")


class Option(NamedTuple):
    """An option of `HybridRetriever`: its name, its default and what it says, and where others have it."""

    name: str
    default: str
    says: str
    preset: str = ""
    """The key of a preset's file."""
    cli: str = ""
    """The option of `voicevault search`."""
    llama_index: str = ""
    """Its name in LlamaIndex, where that is the framework's own."""


OPTIONS = (
    Option("kb_names", "none", "Knowledge bases by name, path or open; or one engine's address", cli="--kb"),
    Option("channels", "none", "What else is searched, by channel name", "channels"),
    Option("embeddings", "the base's own", "Embeds the questions", "channels.dense.model", "", "embed_model"),
    Option("preset", "none", "A shipped preset, a YAML file, or `load_preset(...)`", "", "--preset"),
    Option("k", "5", "How many results", "k", "--top-k"),
    Option("where", "none", "A filter of every search", "", "--where"),
    Option("require", "none", "Access rights of every search", "", "--require"),
    Option("expansion", "none", "Other wordings of a question; see `Expand`", "expansion"),
    Option("expansion.rewriters", "none", "What makes other wordings", "expansion"),
    Option("expansion.route", "none", "Which channels a question is asked of", "route"),
    Option(
        "expansion.flare", "none", "What answers analytical questions, and searches for what it is not sure of", "flare"
    ),
    Option("fusion", "AdaptiveSum()", "How rankings become one; see `Fusion`", "fusion"),
    Option("fusion.method", "AdaptiveSum()", "A fusion method, or its name", "fusion.method"),
    Option("fusion.weights", "1.0", "By channel name", "fusion.weights"),
    Option("fusion.depth", "100", "How many hits a channel is asked for", "fusion.depth"),
    Option("fusion.on_error", "skip", "What becomes of a channel or stage that fails: skip or raise", "on_error"),
    Option("rerank", "none", "How what was found is ordered anew; see `Rerank`", "stages.rerank"),
    Option("rerank.model", "none", "A cross-encoder, by name or as an object, or a stage", "stages.rerank.model"),
    Option("rerank.depth", "all", "How many hits it reads", "stages.rerank.depth"),
    Option("rerank.timeout", "none", "Seconds for reading them", "stages.rerank.timeout"),
    Option(
        "rerank.max_chunks_per_page",
        "none",
        "How many hits of a page stay",
        "stages.page_cap.max_chunks_per_page",
    ),
    Option("stages", "none", "What refines the result, in this order", "stages", "", "node_postprocessors"),
    Option(
        "score_threshold",
        "none",
        "The least relevance of a hit, in [0, 1]",
        "stages.relevance_threshold.least",
        llama_index="similarity_cutoff",
    ),
    Option("group_by", "none", "k results are k groups, such as documents; see `GroupBy`", "group_by", "--group-by"),
    Option("timeout", "none", "Seconds for a whole search", "timeout"),
)
"""All options, those of groups by group and field; tests hold both frameworks, presets and documents to them."""


@dataclass(frozen=True)
class OptionGroup:
    """Options that belong together; those that are None are as the preset has them, else as the default is."""

    @classmethod
    def of(cls: type[G], given: object) -> G:
        """The group of what an option was given: a group, its fields by name, or the value of its first field."""
        if given is None or isinstance(given, cls):
            return given or cls()
        if not isinstance(given, Mapping):
            return cls(given)  # type: ignore[call-arg]  # each group has a first field
        known = [option.name for option in fields(cls)]
        for name in given:
            if name not in known:
                raise refused(cls.__name__, name, known)
        return cls(**given)

    def over(self: G, other: G) -> G:
        """These options, and the other's where this has None."""
        return replace(other, **self._said)

    @property
    def _said(self) -> dict[str, Any]:
        said = {option.name: getattr(self, option.name) for option in fields(self)}
        return {name: value for name, value in said.items() if value is not None}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._said.items())})"


@checks_options
@dataclass(frozen=True, repr=False)
class Fusion(OptionGroup):
    """How the rankings of several channels become one.

    `method` is a method such as RRF(k=60), or its name, such as "rrf"; AdaptiveSum by default. `weights` go by channel
    name: 1.0 where none is given. `depth` is how many hits a channel is asked for, one number or by channel name: 100
    by default. `on_error` "skip", the default, leaves out a channel or stage that fails, and the result says so;
    "raise" raises its error. Raises ConfigError for what is none of these.
    """

    method: Method | str | None = None
    weights: Mapping[str, float] | None = None
    depth: int | Mapping[str, int] | None = None
    on_error: OnError | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "method", method_of(self.method))
        if self.on_error is not None and self.on_error not in get_args(OnError):
            raise unknown("on_error", self.on_error, get_args(OnError))
        weights_or_none(self.weights)

    def depths(self, others: Mapping[str, int]) -> dict[str, int]:
        """How many hits each channel is asked for, by name; `others` has all names, and what this does not say."""
        if not isinstance(self.depth, Mapping):
            return dict(others) if self.depth is None else dict.fromkeys(others, whole("depth", self.depth))
        for name in self.depth:
            if name not in others:
                raise unknown("channel in depth", name, others)
        return {**others, **{name: whole(f"the depth of {name!r}", depth) for name, depth in self.depth.items()}}


@checks_options
@dataclass(frozen=True, repr=False)
class Expand(OptionGroup):
    """What is searched beside a question as it is asked, and where.

    `rewriters` make other wordings: True for rules, a rewriter such as RuleExpansion(3), in a framework a language
    model, or a list of such. `route` chooses the channels of a question by its kind: True for rules, the channels of
    each route by name, or a router. `flare` is a Flare, or a language model, which answers ANALYTICAL questions and has
    what it is not sure of searched for, see `Pipeline`. False is none, also where the preset has one. Raises
    ConfigError for what is none of these.
    """

    rewriters: object = None
    route: object = None
    flare: object = None

    def converted(self, rewriter: Callable[[Any], Rewriter], flare: Callable[..., Flare], **options: Any) -> Expand:
        """With the parts that `rewriter` and `flare`, with its `options`, make of a framework's own."""
        writes = self.flare is not None and self.flare is not False
        return replace(
            self,
            rewriters=self.rewriters and [rewriter(part) for part in self.parts],
            flare=flare(self.flare, **options) if writes else self.flare,
        )

    @property
    def rewriter(self) -> Rewriter | None:
        """What makes other wordings, several together as one."""
        parts = [_rewriter(part) for part in self.parts]
        return Together(parts) if len(parts) > 1 else next(iter(parts), None)

    @property
    def parts(self) -> Sequence[object]:
        """The rewriters as they are given, one by one."""
        if self.rewriters is None or self.rewriters is False:
            return ()
        return self.rewriters if isinstance(self.rewriters, list | tuple) else (self.rewriters,)

    @property
    def router(self) -> Rewriter | None:
        """What chooses the channels."""
        if self.route is None or self.route is False:
            return None
        if isinstance(self.route, Rewriter):
            return self.route
        if self.route is True or isinstance(self.route, Mapping):
            return RuleRouter(None if self.route is True else self.route)
        raise ConfigError(f"route is true, a mapping of routes to channel names, or a router, not {self.route!r}")


@checks_options
@dataclass(frozen=True, repr=False)
class Rerank(OptionGroup):
    """How what was found is ordered anew, and cut.

    `model` is True for the default cross-encoder, the name of one, a scorer, or a stage; False is none, also where the
    preset has one. A cross-encoder reads the first `depth` hits, by default all that it gets, for at most `timeout`
    seconds: see `CrossEncoderRerank`. Of one page at most `max_chunks_per_page` hits stay. Raises ConfigError for what
    is none of these.
    """

    model: object = None
    depth: int | None = None
    timeout: float | None = None
    max_chunks_per_page: int | None = None

    def __post_init__(self) -> None:
        whole_or_none("max_chunks_per_page", self.max_chunks_per_page)
        whole_or_none("the depth of rerank", self.depth)
        seconds_or_none("the timeout of rerank", self.timeout)

    def over(self, other: Rerank) -> Rerank:
        """These options, and the other's where this has None; `depth` and `timeout` are of one model with it."""
        if self.model is not None:
            other = Rerank(max_chunks_per_page=other.max_chunks_per_page)
        return super().over(other)

    def converted(self, convert: Callable[[object], Stage | Scorer]) -> Rerank:
        """With the stage itself as its `model`, of what `convert` makes of a framework's own parts."""
        own = self.model is None or isinstance(self.model, bool | str | Stage | Scorer)
        stage = (self if own else replace(self, model=convert(self.model))).stage
        return Rerank(stage or self.model, max_chunks_per_page=self.max_chunks_per_page)

    @property
    def stage(self) -> Stage | None:
        """What reranks, None without a model."""
        given = {name: value for name in ("depth", "timeout") if (value := getattr(self, name)) is not None}
        if self.model is None or self.model is False:
            if given:
                raise ConfigError(f"{' and '.join(given)} of rerank are for its model, and none is given")
            return None
        if isinstance(self.model, Stage):
            if given:
                raise ConfigError(f"{self.model!r} has its own {' and '.join(given)}: give them where it is made")
            return self.model
        if self.model is not True and not isinstance(self.model, str | Scorer):
            raise ConfigError(
                f"rerank is a stage, a scorer or the name of a cross-encoder, not a {type(self.model).__name__}"
            )
        return CrossEncoderRerank(DEFAULT_MODEL if self.model is True else self.model, **given)


def _rewriter(part: object) -> Rewriter:
    if part is True:
        return RuleExpansion()
    if isinstance(part, Rewriter):
        return part
    raise ConfigError(f"expansion is true, or rewriters such as RuleExpansion(3), not {part!r}")
