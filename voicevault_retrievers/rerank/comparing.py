"""What stages that compare hits with each other share."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TypeVar

from voicevault_retrievers._support.checks import seconds_or_none
from voicevault_retrievers.core.channel import Channel, Stage
from voicevault_retrievers.core.protocols import VectorSource
from voicevault_retrievers.core.stages import id_at
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.rerank.likeness import By, Cosines, Likeness, likeness

C = TypeVar("C", bound="Comparing")


class Comparing(Stage):
    """A stage that compares hits `by` their shingles or their vectors.

    `by` is "shingles"; a vector channel, of which the stored vectors are taken, and where it has none of a hit the text
    is embedded; an embedder; or "vectors", those of the pipeline's dense channel, which a preset gives it (`over`). By
    vectors the stage is blocking, under `timeout` seconds.
    """

    def __init__(self, by: By, timeout: float | None) -> None:
        super().__init__()
        self._by = likeness(by)
        self.blocking = self._by is None or self._by.blocking
        self.timeout = seconds_or_none("timeout", timeout)

    @property
    def by(self) -> Likeness:
        """What hits are compared by; ConfigError where nobody has said which vectors."""
        if self._by is None:
            raise ConfigError(f"{self.name} goes by vectors and was given none: say by=kb.dense(), or by='shingles'")
        return self._by

    def over(self: C, channels: Mapping[str, Channel]) -> C:
        if self._by is not None:
            return self
        dense = channels.get("dense")
        if not isinstance(dense, VectorSource):
            raise ConfigError(f"{self.name} goes by vectors, and {dense!r} has none that compare: say by='shingles'")
        return self.comparing(Cosines(dense))

    def comparing(self: C, by: Likeness) -> C:
        """This stage by something else."""
        twin = copy.copy(self)
        twin._by = by
        return twin

    def _recipe(self) -> str:
        by = "'vectors'" if self._by is None else repr(self._by)
        return f"by={by}, timeout={self.timeout}, name={self.name!r}"


def by_place(stage: Stage) -> Stage:
    """The stage for hits that are told by their places (see `stages.place_id`): vectors are stored by their own ids."""
    if not isinstance(stage, Comparing) or not isinstance(stage.by, Cosines):
        return stage
    return stage.comparing(Cosines(stage.by.source, id_at))
