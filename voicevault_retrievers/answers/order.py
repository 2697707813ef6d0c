"""The order in which a model reads best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def ends_first(ranked: Sequence[T]) -> list[T]:
    """The best at both ends and the worst in the middle: the first, third, fifth, ..., and then the second as the last.

    Language models overlook what stands in the middle of a long text (Liu et al., "Lost in the middle", 2023,
    arXiv:2307.03172). The best is always the first; LangChain's `LongContextReorder` puts it last where the number of
    documents is even.
    """
    return [*ranked[::2], *ranked[1::2][::-1]]
