"""A sample of vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers.filters import Filter
from voicevault_retrievers.shuffled import Hashes, smallest

SIZE = 1024
"""Chunks in a sample: the deviation of their scores is within some 2 % of that of all."""


class Sample(NamedTuple):
    """The vectors of some chunks, of shape (chunks, dimension), their ids, and the hashes of these, which ascend."""

    ids: tuple[str, ...]
    hashes: Hashes
    vectors: NDArray[np.float32]

    @classmethod
    def union(cls, samples: Sequence[Sample], size: int) -> Sample:
        """The sample of all chunks that these are samples of; at least one."""
        order = smallest([sample.hashes for sample in samples], size)
        ids = [chunk_id for sample in samples for chunk_id in sample.ids]
        hashes, vectors = (np.concatenate(arrays)[order] for arrays in list(zip(*samples, strict=True))[1:])
        return cls(tuple(ids[at] for at in order.tolist()), hashes, vectors)


@runtime_checkable
class Sampled(Protocol):
    """A vector index that has a sample of its vectors."""

    def sample(self, size: int = SIZE, *, require: Filter | None = None) -> Sample | None:
        """The vectors of those chunks that pass whose ids have the smallest hashes; None where it cannot tell."""
        ...
