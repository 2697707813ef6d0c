"""Errors for misspelt options, and for those of LlamaIndex's own retrievers, that name the right option."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeAlias, TypedDict, TypeVar

from llama_index.core.bridge.pydantic import BaseModel, ConfigDict, ValidationError
from llama_index.core.callbacks import CallbackManager
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import IndexNode, MetadataMode
from pydantic import WithJsonSchema

from voicevault_retrievers._support.foreign_options import checks_options, parameters_of, refused
from voicevault_retrievers.core.channel import Stage, check_k
from voicevault_retrievers.errors import ConfigError, unknown
from voicevault_retrievers.fusion.fuse import OnError
from voicevault_retrievers.llama_index.filters import Where
from voicevault_retrievers.rerank import GroupBy
from voicevault_retrievers.text.tokens import TokenCounter

GroupOption: TypeAlias = GroupBy | str | Mapping[str, Any] | None
CountTokens: TypeAlias = Annotated[TokenCounter, WithJsonSchema({})]
"""A function that counts a text's tokens; in a JSON schema it may be anything."""

_ELSEWHERE = {
    **dict.fromkeys(("docs", "documents", "nodes"), "`from_nodes`"),
    "alpha": "`fusion`, such as Fusion(weights={'bm25': 0.5, 'dense': 0.5})",
    "depth": "`fusion`, such as Fusion(depth={'bm25': 100})",
    "doc_ids": "`where`, such as {'file_name': {'$in': [...]}}",
    "existing_bm25": "`BM25Retriever.from_persist_dir`",
    "flare": "`expansion`, such as Expand(flare=...)",
    "graph": "`channels`, such as {'graph': True}",
    "hybrid_top_k": "`k`",
    "docstore": "`from_vector_store(index)` of BM25Retriever, or `from_nodes`",
    "index": "`HybridRetriever.from_index`, and `from_vector_store` of the others",
    "llm": "`expansion`, such as QueryExpander(llm), or `preset=load_preset(name, llm=...)`",
    "max_chunks_per_page": "`rerank`, such as Rerank(max_chunks_per_page=2)",
    "mode": "`fusion`, such as RRF(k=60)",
    "node_ids": "`where`",
    "num_queries": "`expansion`, such as QueryExpander(llm, size=4)",
    "on_error": "`fusion`, such as Fusion(on_error='raise')",
    "parents": "`preset=load_preset(name, parents=...)`",
    "query_engine_dict": "`object_map`",
    "query_gen_prompt": "`expansion`, such as QueryExpander(llm, prompt=...)",
    "questions": "`channels`, such as {'questions': True}",
    "retriever_dict": "`object_map`",
    "retriever_weights": "`fusion`, such as Fusion(weights={'bm25': 0.5, 'dense': 0.5})",
    "root": "`kb_names`, a base by its path",
    "route": "`expansion`, such as Expand(route=True)",
    "skip_stemming": "`from_nodes(nodes, language=None)`",
    "sparse_top_k": "`fusion`, such as Fusion(depth={'bm25': 100})",
    "stemmer": "`from_nodes(nodes, language=...)`",
    "token_pattern": "`from_nodes(nodes, analyzer=...)`",
    "use_async": "always so: channels are searched at the same time, and `aretrieve` awaits them",
    "vector_store_query_mode": "a channel, `index.as_retriever(vector_store_query_mode=...)`",
}
"""What LlamaIndex's options correspond to in this package."""

P = TypeVar("P", bound="CheckedPostprocessor")


class CheckedPostprocessor(BaseNodePostprocessor):
    """A node postprocessor that raises ConfigError for wrong options."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
    elsewhere: ClassVar[Mapping[str, str]] = {}
    """What options of LlamaIndex's postprocessors correspond to in this package."""

    if not TYPE_CHECKING:  # else type checkers would take this signature instead of the fields

        def __init__(self, **options: Any) -> None:
            try:
                super().__init__(**options)
            except ValidationError as error:
                raise config_error(type(self), error, self.elsewhere) from error

    postprocess_nodes = checks_options(BaseNodePostprocessor.postprocess_nodes)
    apostprocess_nodes = checks_options(BaseNodePostprocessor.apostprocess_nodes)

    def to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """The options as plain data; of options that are objects, such as a model, the classes, under `objects`."""
        fields = {name: field for name, field in type(self).model_fields.items() if field.exclude}
        given = {name: getattr(self, name) for name in fields.keys() - {"callback_manager"}}
        given = {name: option for name, option in given.items() if option is not fields[name].default}
        objects = {name: type(option).__name__ for name, option in given.items() if not isinstance(option, str)}
        plain = {name: option for name, option in given.items() if name not in objects}
        return {**super().to_dict(**kwargs), **plain, **({"objects": objects} if objects else {})}

    @classmethod
    def from_dict(cls: type[P], data: dict[str, Any], **kwargs: Any) -> P:
        """The postprocessor of `to_dict`. ConfigError where one of its `objects` is not given again in `kwargs`."""
        given = dict(data)
        for name, kind in given.pop("objects", {}).items():
            if name not in kwargs:
                raise ConfigError(
                    f"the {cls.__name__} had a {kind} as its {name}, which is not in its dict: give it again, "
                    f"from_dict(data, {name}=...)"
                )
        return super().from_dict(given, **kwargs)


class CommonOptions(TypedDict, total=False):
    """The keyword arguments of every retriever, except the number of nodes."""

    where: Where
    require: Where
    node_postprocessors: Sequence[BaseNodePostprocessor | Stage] | None
    similarity_cutoff: float | None
    group_by: GroupOption
    callback_manager: CallbackManager | None
    object_map: dict[str, Any] | None
    objects: list[IndexNode] | None
    verbose: bool


class RetrieverOptions(CommonOptions, total=False):
    """The keyword arguments of every retriever."""

    k: int | None
    similarity_top_k: int | None


class LoneOptions(RetrieverOptions, total=False):
    """The keyword arguments of a retriever over one channel."""

    timeout: float | None
    on_error: OnError
    metadata_mode: MetadataMode


def mode_in(options: Mapping[str, Any]) -> MetadataMode:
    """The metadata of nodes that are indexed before their text: the option `metadata_mode`, else those to embed."""
    return mode_of(options.get("metadata_mode", MetadataMode.EMBED))


def mode_of(given: Any) -> MetadataMode:
    """A MetadataMode from itself or from its value; ConfigError for anything else."""
    try:
        return MetadataMode(given)
    except ValueError as error:
        raise unknown("metadata_mode", given, [mode.value for mode in MetadataMode]) from error


def refuse(retriever: type, options: Mapping[str, Any], maker: Callable[..., Any] | None = None) -> None:
    """Raise ConfigError for the first option that neither a class nor its class method `maker` has."""
    known = {name for base in retriever.__mro__ if "__init__" in vars(base) for name in parameters_of(base.__init__)}  # type: ignore[misc]  # each class's own
    known |= set() if maker is None else parameters_of(maker)
    for name in options:
        if name in known:
            continue
        raise refused(retriever.__name__, name, known, _ELSEWHERE)


def config_error(kind: type[BaseModel], error: ValidationError, elsewhere: Mapping[str, str]) -> ConfigError:
    """A pydantic error as a ConfigError; `elsewhere` maps foreign options to this package's."""
    errors = error.errors()
    first = next((found for found in errors if found["type"] == "extra_forbidden"), errors[0])
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, ConfigError):
        return cause
    option = ".".join(map(str, first["loc"]))
    if first["type"] != "extra_forbidden":
        return ConfigError(f"{kind.__name__}: {option} is {first['input']!r}: {first['msg']}")
    if option in elsewhere:
        return ConfigError(f"{kind.__name__} has no option {option!r}: {elsewhere[option]}")
    return refused(kind.__name__, option, kind.model_fields)


def top_k(k: int | None, similarity_top_k: int | None, default: int) -> int:
    """The number of nodes that a query returns; ConfigError where the two names give different numbers."""
    if k is not None and similarity_top_k is not None and k != similarity_top_k:
        raise ConfigError(f"k={k!r} and similarity_top_k={similarity_top_k!r} are the same option; give one of them")
    return check_k(next((given for given in (k, similarity_top_k) if given is not None), default))
