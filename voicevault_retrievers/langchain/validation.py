"""The base class of this package's pydantic models: checked options, and the component built from them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from copy import deepcopy
from typing import Annotated, Any, ClassVar, Generic, TypeAlias, TypeVar

from langchain_core.load import Serializable
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ValidationError,
    WithJsonSchema,
)
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import core_schema

from voicevault_retrievers._support.caches import Parts
from voicevault_retrievers._support.foreign_options import refused
from voicevault_retrievers._support.hosts import mask_credentials
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.langchain.convert import TextOf, checked_text_of

T = TypeVar("T")
OwnFilter = Annotated[dict[str, Any] | None, AfterValidator(deepcopy)]
"""A filter that is copied, so that later changes of the caller's dict do not reach it."""


class _AsGiven:
    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.any_schema()


AS_GIVEN = _AsGiven()
"""Annotation of an option that pydantic does not validate: `_check` says what is wrong with it."""

GivenTextOf: TypeAlias = Annotated[TextOf, AS_GIVEN, BeforeValidator(checked_text_of)]
"""The option `text_of`."""

LIVE = WithJsonSchema({})
"""Annotation of an option that is an object: in a JSON schema it may be anything."""

STRICT = ConfigDict(arbitrary_types_allowed=True, extra="forbid", hide_input_in_errors=True)

# Read at each call: changing one of these does not need a new pipeline.
_READ_LATE = frozenset({"k", "made", "metadata", "name", "require", "tags", "top_n", "where"})

_ELSEWHERE = {
    **dict.fromkeys(("docs", "documents", "nodes"), "`from_documents`"),
    "base_compressor": "`retriever >> compressor`",
    "base_retriever": "`retriever >> compressor`",
    "bm25_params": "`formula`, such as Lucene(k1=1.2)",
    "depth": "`fusion=Fusion(depth=...)`",
    "flare": "`expansion=Expand(flare=...)`",
    "graph": "`channels={'graph': ...}`",
    "id_key": "`channels={name: as_channel(part, id_key=...)}`",
    "llm": "`preset=load_preset(name, llm=...)`, or `expansion=QueryExpander(llm=...)`",
    "max_chunks_per_page": "`rerank=Rerank(max_chunks_per_page=...)`",
    "model": "`rerank`, or `scorer` of a CrossEncoderReranker",
    "on_error": "`fusion=Fusion(on_error=...)`",
    "parents": "`preset=load_preset(name, parents=...)`",
    "questions": "`channels={'questions': ...}`",
    "root": "`kb_names`, a base by its path",
    "route": "`expansion=Expand(route=...)`",
    "search_type": "a channel, `store.as_retriever(search_type=...)`",
}
"""Where an option of another group or component, or of langchain-classic's classes, is set in this package."""


class MadeParts(Parts):
    """The components built from options, by name.

    For each call with a configured field, LangChain makes a retriever anew of the original's `model_fields`: `made` is
    one of them, so that it shares what the original has opened. Schemas, dumps and representations do not show it.
    `made` does not count when retrievers are compared: any two MadeParts are equal.
    """

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MadeParts)

    __hash__ = None  # type: ignore[assignment]  # it is mutable


class Checked(Serializable, Generic[T]):
    """A model that raises ConfigError for wrong or misspelt options."""

    model_config = STRICT
    elsewhere: ClassVar[Mapping[str, str]] = _ELSEWHERE
    """What to write instead of options that the class does not have."""
    made: SkipJsonSchema[Annotated[MadeParts, AS_GIVEN]] = Field(default_factory=MadeParts, exclude=True, repr=False)

    def __init__(self, **options: Any) -> None:
        try:
            super().__init__(**options)
        except ValidationError as error:
            raise _config_error(type(self), error, self.elsewhere) from error
        self._check()

    @classmethod
    def is_lc_serializable(cls) -> bool:
        """True: a model with plain options can be dumped and loaded; see LangChain's `dumpd` and `load`."""
        return True

    @classmethod
    def get_lc_namespace(cls) -> list[str]:
        """The public import path of the class, which dumps carry: the module that defines it may change."""
        return ["voicevault_retrievers", "langchain"]

    def __repr_str__(self, join_str: str) -> str:
        text: str = super().__repr_str__(join_str)  # type: ignore[misc]  # pydantic inherits it from another class
        return mask_credentials(text)

    def _check(self) -> None:
        """Raise ConfigError where options do not go together."""

    @abstractmethod
    def _build(self) -> T:
        """Build the component from the options."""

    def _built(self) -> T:
        """The built component; it is built again after a change of options."""
        return self.made.get(type(self).__name__, self._options(), self._build)

    def _is_built(self) -> bool:
        return self.made.has(type(self).__name__, self._options())

    def _options(self) -> list[Any]:
        return [getattr(self, name) for name in type(self).model_fields if name not in _READ_LATE]


def _config_error(model: type[BaseModel], error: ValidationError, elsewhere: Mapping[str, str]) -> ConfigError:
    errors = error.errors()
    first = next((found for found in errors if found["type"] == "extra_forbidden"), errors[0])
    option = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        return refused(model.__name__, option, model.model_fields.keys() - {"made"}, elsewhere)
    if first["type"] == "value_error":  # of a check of this package, which says of the value what may be shown
        return ConfigError(f"{model.__name__}: {first['ctx']['error']}")
    return ConfigError(f"{model.__name__}: {option} is {mask_credentials(repr(first['input']))}: {first['msg']}")
