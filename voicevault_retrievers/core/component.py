"""The base class of stages and rewriters."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterator
from contextlib import contextmanager

from voicevault_retrievers.core.execution.plan import CircuitBreaker
from voicevault_retrievers.core.types import Failure
from voicevault_retrievers.errors import StageError, is_own, pauses


class Component(ABC):
    """The base class of the parts that join channels: stages and rewriters.

    `blocking` components (a model, a server) run in a worker thread under `timeout` seconds, the others in the calling
    thread. An async search awaits a component's own async call, unless `awaits` is false.

    Where a component of this package fails, the search skips it and is marked as degraded. Where any other component
    fails, the search fails, for the component may mask or permit: see `stages.skippable`.
    """

    name: str
    blocking = False
    awaits = True
    timeout: float | None = None

    def __init__(self) -> None:
        self._breaker = CircuitBreaker()

    @property
    def own(self) -> bool:
        """Whether the component is one of this package's own; see `errors.is_own` for subclasses."""
        return is_own(type(self))

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Turn an exception of a component that is not this package's own into a StageError."""
        try:
            yield
        except Exception as error:
            if self.own or pauses(error):
                raise
            raise StageError.of(self.name, error) from error

    def _left_out(self, error: Exception, instead: str) -> Failure:
        """The failure of a component that a search skips. For any other component, the error is raised."""
        if not self.own or pauses(error):
            raise error
        return Failure.of(self.name, error, instead)
