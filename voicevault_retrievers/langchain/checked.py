"""What every model of this package shares: options that are checked, and a part that is made of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from copy import deepcopy
from dataclasses import is_dataclass
from typing import Annotated, Any, Generic, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from voicevault_retrievers.errors import ConfigError, unknown
from voicevault_retrievers.mutex import Mutex

T = TypeVar("T")
OwnFilter = Annotated[dict[str, Any] | None, AfterValidator(deepcopy)]
"""A filter that stays as it was given, whatever becomes of what it was made of."""

STRICT = ConfigDict(arbitrary_types_allowed=True, extra="forbid")
MADE_KEPT = 8

# Read at each call, so that what is made stays as it is when they change.
_READ_LATE = frozenset({"k", "made", "metadata", "name", "require", "tags", "top_n", "where"})


_ELSEWHERE = {
    "base_compressor": "`retriever >> compressor`",
    "base_retriever": "`retriever >> compressor`",
    "bm25_params": "`formula`, such as Lucene(k1=1.2)",
    "c": "`fusion=RRF(k=60)`",
    "docs": "`from_documents`",
    "model": "`scorer`",
    "retrievers": "`channels`, a retriever by name",
    "search_kwargs": "`k` and `where`",
    "search_type": "a channel, `store.as_retriever(search_type=...)`",
}
"""What options of langchain-classic's classes are called here."""


class Made:
    """What was made of options, by name: the `MADE_KEPT` latest of each; and which options were given at first.

    LangChain makes a retriever anew for each call with a configured field; the new one shares what the old one has
    opened. It is no part of a recipe: any two are equal, and a copy that is pickled has none.
    """

    def __init__(self) -> None:
        self.given: frozenset[str] = frozenset()
        self.first: dict[str, Any] = {}
        self._parts: dict[str, list[tuple[list[Any], Any]]] = {}
        self._mutex = Mutex()

    def get(self, name: str, options: list[Any], make: Callable[[], T], *, keep: int = MADE_KEPT) -> T:
        """The part of this name that was made of these options; made now where there is none.

        What is there is had without waiting for what is being made.
        """
        found = self._find(name, options)
        if found is None:
            with self._mutex:
                found = self._find(name, options)
                if found is None:
                    snapshot = [option.copy() if isinstance(option, list | dict) else option for option in options]
                    found = snapshot, make()
                    self._parts[name] = [found, *self._parts.get(name, [])][:keep]
        made: T = found[1]
        return made

    def all(self, name: str) -> list[Any]:
        """The parts of this name."""
        return [part for _, part in self._parts.get(name, [])]

    def has(self, name: str, options: list[Any]) -> bool:
        """Whether there is such a part."""
        return self._find(name, options) is not None

    def forget(self, name: str, stale: Callable[[list[Any]], bool] = lambda options: True) -> None:
        """Drop the parts of this name, or those of stale options: they are made anew when they are asked for."""
        with self._mutex:
            self._parts[name] = [entry for entry in self._parts.get(name, []) if not stale(entry[0])]

    def _find(self, name: str, options: list[Any]) -> tuple[list[Any], Any] | None:
        return next((entry for entry in self._parts.get(name, []) if all(map(_same, entry[0], options))), None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Made)

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __reduce__(self) -> tuple[type[Made], tuple[()]]:
        return (Made, ())


class Checked(BaseModel, Generic[T]):
    """A model whose options raise ConfigError where they are wrong or misspelt."""

    model_config = STRICT
    made: Made = Field(default_factory=Made, exclude=True, repr=False)

    def __init__(self, **options: Any) -> None:
        try:
            super().__init__(**options)
        except ValidationError as error:
            raise _config_error(type(self), error) from error
        if "made" not in options:
            self.made.given = frozenset(options)
        self._check()
        if "made" not in options:
            self.made.first = dict(self)

    @classmethod
    def is_lc_serializable(cls) -> bool:
        """True: what is made of plain options can be dumped and loaded; see LangChain's `dumpd` and `load`."""
        return True

    def _said(self, option: str) -> bool:
        """Whether an option was given, or changed since; LangChain gives all of them where it makes a model anew."""
        first = self.made.first
        return option in self.made.given or (option in first and not _same(getattr(self, option), first[option]))

    def _check(self) -> None:
        """Raises ConfigError where options do not go together."""

    @abstractmethod
    def _build(self) -> T:
        """Make, of the options, what does the work."""

    def _built(self) -> T:
        """What `_build` makes; again after a change of options."""
        return self.made.get(type(self).__name__, self._options(), self._build)

    def _is_built(self) -> bool:
        return self.made.has(type(self).__name__, self._options())

    def _options(self) -> list[Any]:
        return [getattr(self, name) for name in type(self).model_fields if name not in _READ_LATE]


def _same(one: Any, other: Any) -> bool:
    plain = isinstance(one, str | int | float | list | tuple | dict) or (is_dataclass(one) and type(one) is type(other))
    return one is other or (plain and bool(one == other))


def _config_error(model: type[BaseModel], error: ValidationError) -> ConfigError:
    errors = error.errors()
    first = next((found for found in errors if found["type"] == "extra_forbidden"), errors[0])
    option = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        if option in _ELSEWHERE:
            return ConfigError(f"{model.__name__} has no option {option!r}; here it is {_ELSEWHERE[option]}")
        return unknown(f"option of {model.__name__}", option, set(model.model_fields) - {"made"})
    return ConfigError(f"{model.__name__}: {option} is {first['input']!r}: {first['msg']}")
