"""What stages and rewriters share."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterator
from contextlib import contextmanager

from voicevault_retrievers.core.execution.plan import CircuitBreaker
from voicevault_retrievers.core.types import Failure
from voicevault_retrievers.errors import StageError, is_own, pauses


class Component(ABC):
    """What a composition is made of beside channels: stages and rewriters.

    `blocking` ones (a model, a server) run in a worker thread under `timeout` seconds; the others where they are. One
    with an async call of its own is awaited by an async search, unless `awaits` is false.

    Where one of this package's own fails, a search goes on without it, marked as degraded; where any other fails, the
    search does, for what it left undone may be masking: see `stages.skippable`.
    """

    name: str
    blocking = False
    awaits = True
    timeout: float | None = None

    def __init__(self) -> None:
        self._breaker = CircuitBreaker()

    @property
    def own(self) -> bool:
        """Whether it is one of this package's; a subclass counts as what it adds."""
        return is_own(type(self))

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """What a part that is not this package's own raises becomes a StageError."""
        try:
            yield
        except Exception as error:
            if self.own or pauses(error):
                raise
            raise StageError.of(self.name, error) from error

    def _left_out(self, error: Exception, instead: str) -> Failure:
        """The failure of a part that a search goes on without; of any other the error is raised."""
        if not self.own or pauses(error):
            raise error
        return Failure.of(self.name, error, instead)
