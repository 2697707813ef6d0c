"""What a search went on without, and notes of what it found."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

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
