"""What every model of this package shares: options that are checked, and a part that is made of them."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError

from voicevault_retrievers.errors import ConfigError, unknown
from voicevault_retrievers.mutex import Mutex

T = TypeVar("T")
STRICT = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

# Read at each call, so that what is made stays as it is when they change.
_READ_LATE = frozenset({"k", "metadata", "name", "require", "tags", "top_n", "where"})


class Checked(BaseModel, Generic[T]):
    """A model whose options raise ConfigError where they are wrong or misspelt."""

    _kept: tuple[list[Any], Any] | None = PrivateAttr(None)
    _mutex: Mutex = PrivateAttr(default_factory=Mutex)

    def __init__(self, **options: Any) -> None:
        try:
            super().__init__(**options)
        except ValidationError as error:
            raise _config_error(type(self), error) from error
        self._check()

    def __getstate__(self) -> dict[Any, Any]:
        """Without what was made, which is made again."""
        state = super().__getstate__()
        private = {**(state["__pydantic_private__"] or {}), "_kept": None}
        return {**state, "__pydantic_private__": private}

    def _check(self) -> None:
        """Raises ConfigError where options do not go together."""

    @abstractmethod
    def _build(self) -> T:
        """Make, of the options, what does the work."""

    def _built(self) -> T:
        """What `_build` makes; again after a change of options."""
        with self._mutex:
            if not self._is_built():
                options = self._options()
                self._kept = options, self._build()
            made: T = self._kept[1]  # type: ignore[index]  # just set
            return made

    def _keep(self, made: T) -> None:
        self._kept = (self._options(), made)

    def _is_built(self) -> bool:
        return self._kept is not None and all(a is b for a, b in zip(self._kept[0], self._options(), strict=True))

    def _options(self) -> list[Any]:
        return [getattr(self, name) for name in type(self).model_fields if name not in _READ_LATE]


def _config_error(model: type[BaseModel], error: ValidationError) -> ConfigError:
    errors = error.errors()
    first = next((found for found in errors if found["type"] == "extra_forbidden"), errors[0])
    option = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        return unknown(f"option of {model.__name__}", option, model.model_fields)
    return ConfigError(f"{model.__name__}: {option} is {first['input']!r}: {first['msg']}")
