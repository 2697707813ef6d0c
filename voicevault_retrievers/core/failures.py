"""What a search went on without, notes of what it found, and how both are logged: once for each cause."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from logging import INFO, WARNING, Logger

from voicevault_retrievers.errors import is_setup_error, safe_message


@dataclass(frozen=True)
class Failure:
    """A channel or stage that was skipped, or (`degrades` false) something worth a note.

    `message` has no text of a foreign exception, see `errors.safe_message`; `error` is the exception itself. `instead`
    is what the search did without it.
    """

    stage: str
    kind: str
    message: str
    degrades: bool = True
    error: Exception | None = field(default=None, compare=False, repr=False)
    instead: str = field(default="", compare=False, repr=False)

    @classmethod
    def of(cls, stage: str, error: Exception, instead: str = "") -> Failure:
        """That a stage is skipped because of an error. Raises the error where it is one of set-up, which is no outage.

        See `errors.is_setup_error`.
        """
        if is_setup_error(error):
            raise error
        return cls.recorded(stage, error, instead)

    @classmethod
    def recorded(cls, stage: str, error: Exception, instead: str = "") -> Failure:
        """`of`, also for an error of set-up: where one of many questions fails, the others are answered."""
        return cls(stage, type(error).__name__, safe_message(error), error=error, instead=instead)

    def within(self, stage: str) -> Failure:
        """The same failure, named by the channel of a fusion below which it happened."""
        own = self.stage == stage or self.stage.startswith(f"{stage}/")
        return self if own else replace(self, stage=f"{stage}/{self.stage}")

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.stage, self.kind, self.message)))


EXPECTED = frozenset(
    {"NoDates", "NoPositions", "Overtime", "Skipped", "AdaptiveSum", "fallback", "keywords only", "over budget"}
)
"""Kinds of notes that are nobody's mistake: what an option asks for, or what the part itself logs."""


def log_failures(log: Logger, who: str, failures: Iterable[Failure], *, notes: int = WARNING) -> None:
    """A warning for each cause among failures; notes at the level `notes`, or at INFO where they are to be expected.

    Where a result carries the notes, INFO will do: a search that is not degraded then logs no warning.
    What failed in a search of active retrieval too has one cause with what failed in the search before.
    """
    causes: dict[tuple[str, str, str], Failure] = {}
    for failure in failures:
        causes.setdefault((failure.stage.removeprefix("flare/"), failure.kind, failure.message), failure)
    for failure in causes.values():
        if failure.degrades:
            log.warning("%s goes on without %s%s", who, failure, failure.instead and f"; {failure.instead}")
        else:
            log.log(INFO if failure.kind in EXPECTED else notes, "%s notes: %s", who, failure)
