"""Failures and notes of a search, and how they are logged: once per cause."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from logging import INFO, WARNING, Logger

from voicevault_retrievers.errors import is_setup_error, safe_message


@dataclass(frozen=True)
class Failure:
    """A channel or stage that was skipped, or, where `degrades` is false, a note.

    `message` contains no text of a foreign exception, see `errors.safe_message`; `error` is the exception itself.
    `instead` is what the search did without the channel or stage.
    """

    stage: str
    kind: str
    message: str
    degrades: bool = True
    error: Exception | None = field(default=None, compare=False, repr=False)
    instead: str = field(default="", compare=False, repr=False)

    @classmethod
    def of(cls, stage: str, error: Exception, instead: str = "") -> Failure:
        """The failure of a stage that was skipped because of an error. Raises the error where it is a set-up error.

        See `errors.is_setup_error`.
        """
        if is_setup_error(error):
            raise error
        return cls.recorded(stage, error, instead)

    @classmethod
    def recorded(cls, stage: str, error: Exception, instead: str = "") -> Failure:
        """Like `of`, but also for a set-up error: where one query of a batch fails, the others are still answered."""
        return cls(stage, type(error).__name__, safe_message(error), error=error, instead=instead)

    def within(self, stage: str) -> Failure:
        """The same failure, with its name prefixed by the fusion's channel below which it happened."""
        own = self.stage == stage or self.stage.startswith(f"{stage}/")
        return self if own else replace(self, stage=f"{stage}/{self.stage}")

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.stage, self.kind, self.message)))


EXPECTED = frozenset(
    {"NoDates", "NoPositions", "Overtime", "Skipped", "AdaptiveSum", "fallback", "keywords only", "over budget"}
)
"""Kinds of notes that indicate no mistake: an option asks for them, or the stage itself logs them."""

MISTAKEN = frozenset({"NoCollection", "DifferentTexts"})
"""Kinds of notes that probably mean a mistake which loses documents, and which the documents found do not show."""


def log_failures(log: Logger, who: str, failures: Iterable[Failure], *, notes: int = WARNING) -> None:
    """Log a warning for each cause among the failures, and the notes at the level `notes`, or INFO if EXPECTED, or as
    warnings if MISTAKEN.

    Where a result carries the notes, `notes` may be INFO: a search that is not degraded then logs no warning. A failure
    that active retrieval repeats has the same cause as the failure of the first search.
    """
    causes: dict[tuple[str, str, str], Failure] = {}
    for failure in failures:
        causes.setdefault((failure.stage.removeprefix("flare/"), failure.kind, failure.message), failure)
    for failure in causes.values():
        if failure.degrades:
            log.warning("%s goes on without %s%s", who, failure, failure.instead and f"; {failure.instead}")
        else:
            level = INFO if failure.kind in EXPECTED else WARNING if failure.kind in MISTAKEN else notes
            log.log(level, "%s notes: %s", who, failure)
