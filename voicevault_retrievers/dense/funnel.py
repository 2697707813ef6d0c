"""A Matryoshka funnel: the first dimensions find candidates, and all dimensions order them.

Kusupati et al. (2022), NeurIPS, "Matryoshka representation learning", section 4.3.1 (adaptive retrieval): the first
dimensions of a model trained for it carry nearly as much information as all. For other models hits are lost, so the
funnel measures the recall of a prefix on the index's own vectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers._support.checks import whole
from voicevault_retrievers.core.filters import Filter, both
from voicevault_retrievers.core.leaf import Match
from voicevault_retrievers.core.listing import Listing, merged
from voicevault_retrievers.core.protocols import Embedder, Found
from voicevault_retrievers.core.selection import Selection
from voicevault_retrievers.core.types import ANY_EMBEDDER, Failure, Query, Variant, Vector
from voicevault_retrievers.dense import rescoring
from voicevault_retrievers.dense.channel import VectorChannel
from voicevault_retrievers.dense.exact import ExactVectors, VectorPart
from voicevault_retrievers.dense.prefixes import (
    CANDIDATES,
    LEAST,
    PREFIX,
    PrefixRecall,
    checked_prefix,
    cut_vector,
    made,
    prefix_recall,
    short_rows,
    unit,
)
from voicevault_retrievers.errors import ConfigError, unknown

OnLoss: TypeAlias = Literal["raise", "full", "accept"]


class MatryoshkaFunnel:
    """Exact vectors, searched by their first `prefix` dimensions (scaled to length 1) for `candidates` rows.

    The candidates are compared again in all dimensions: their scores equal those of `ExactVectors`, to the bit, and so
    do the hits, where no candidate is missed. Filters apply first; where at most `candidates` rows pass, the search is
    exact. At most `candidates` are found.

    The recall of the prefix over the best `KEPT` is measured at the first search, or by `check`. Where it is below
    `least`, `on_loss` "raise" raises ConfigError, "full" compares all rows in all dimensions, and "accept" searches
    despite the loss; `warning` then reports it. The prefixes are kept in memory, 4 bytes a number.
    """

    def __init__(
        self,
        index: ExactVectors,
        *,
        prefix: int = PREFIX,
        candidates: int = CANDIDATES,
        least: float = LEAST,
        on_loss: OnLoss = "raise",
    ) -> None:
        if not isinstance(index, ExactVectors):
            raise ConfigError(
                f"a funnel is over ExactVectors, whose rows it can cut, not over a {type(index).__name__}: an engine "
                "with an index of its own keeps prefixes as vectors of their own"
            )
        self.index = index
        self.dimension = index.dimension
        self.prefix = checked_prefix(prefix, index)
        self.candidates = whole("candidates", candidates)
        if not 0.0 <= least <= 1.0:
            raise ConfigError(f"least is a share from 0 to 1, not {least!r}")
        self.least = least
        if on_loss not in get_args(OnLoss):
            raise unknown("on_loss", on_loss, get_args(OnLoss))
        self.on_loss = on_loss
        self._measured: PrefixRecall | None = None

    def __len__(self) -> int:
        return len(self.index)

    def check(self) -> PrefixRecall:
        """The recall of the prefix over the best `KEPT`, measured once. ConfigError if too low with
        `on_loss` "raise".
        """
        found = self._known()
        if self.on_loss == "raise" and not found.passed:
            raise ConfigError(
                f"{found.said}: use a model trained for prefixes (Matryoshka), more dimensions or more candidates, or "
                'say on_loss="full" to compare all dimensions, or on_loss="accept" to search with what is lost'
            )
        return found

    @property
    def warning(self) -> Failure | None:
        """A note that the recall of the prefix is too low; None where it is high enough."""
        found = self.check()
        then = ": all dimensions were compared" if self.on_loss == "full" else ""
        return None if found.passed else Failure("dense", "PrefixRecall", found.said + then, degrades=False)

    def nearest(
        self,
        vector: Vector,
        k: int,
        *,
        where: Filter | None = None,
        require: Filter | None = None,
        short: Vector | None = None,
    ) -> Listing[Found]:
        """At most k chunks that pass both filters, by falling cosine, ties by ascending id.

        `short` is the query's own prefix vector; the default is cut from the vector.
        """
        full = not self.check().passed and self.on_loss == "full"
        passing = both(require, where)
        cut = cut_vector(vector, self.prefix) if short is None else unit(short, self.prefix)
        parts = [(part, part.rows.selection(passing)) for part in self.index.parts]
        chosen = [len(part.rows) if selection is None else selection.count for part, selection in parts]
        if full or sum(chosen) <= self.candidates or not cut.any():
            return self.index.nearest(vector, k, where=where, require=require)
        near = [_Near.of(part, cut, self.candidates, selection) for part, selection in parts]
        first = zip(self.index.parts, _first(near, self.candidates), strict=True)
        return merged([part.best(vector, k, np.sort(ordinals)) for part, ordinals in first], k)

    def similarities(
        self, vector: Vector, ids: Sequence[str], *, where: Filter | None = None, require: Filter | None = None
    ) -> dict[str, float]:
        """Like `ExactVectors.similarities`, in all dimensions."""
        return self.index.similarities(vector, ids, where=where, require=require)

    def vectors(self, ids: Iterable[str]) -> dict[str, Vector]:
        """Like `ExactVectors.vectors`."""
        return self.index.vectors(ids)

    def _known(self) -> PrefixRecall:
        """The recall, measured again where the largest part changed or the number of rows doubled."""
        if self._measured is None:
            largest = max(self.index.parts, key=lambda part: len(part.rows), default=None)
            key = (len(self).bit_length(), self.prefix, self.candidates, self.least)
            measure = partial(
                prefix_recall, self.index, prefix=self.prefix, candidates=self.candidates, least=self.least
            )
            self._measured = measure() if largest is None else made.get(largest.matrix, key, measure)
        return self._measured

    def __repr__(self) -> str:
        loss = "" if self.on_loss == "raise" else f", on_loss={self.on_loss!r}"
        return f"MatryoshkaFunnel({len(self)} rows, prefix={self.prefix}, candidates={self.candidates}{loss})"


class FunnelChannel(VectorChannel):
    """A vector channel over a funnel.

    A query may bring its prefix beside its vector, under `prefix_key(embedder, prefix)`, or as a bare vector of that
    length; all dimensions then come from its own vector, or are embedded. A note says where the recall of a prefix is
    too low.
    """

    index: MatryoshkaFunnel

    def __init__(
        self, index: MatryoshkaFunnel, embedder: Embedder, *, timeout: float | None = None, name: str = "dense"
    ) -> None:
        super().__init__(index, embedder, timeout=timeout, name=name)

    def find(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        rights: dict[str, Any] = {"where": query.where, "require": query.require}
        short = self._brought(query)
        found: list[Sequence[Match]] = []
        for wording, vector in zip(wordings, self._vectors(query, wordings), strict=True):
            own = short if wording.text == query.text else None
            found.append(self._matches(self.index.nearest(vector, k, short=own, **rights), vector))
        return found

    def notes(self, found: Sequence[Sequence[Match]]) -> Sequence[Failure]:
        warning = self.index.warning
        return () if warning is None else (warning.within(self.name),)

    def _brought(self, query: Query) -> Vector | None:
        """The prefix that a query brings, or None."""
        named = query.vectors.get(prefix_key(self.embedder, self.index.prefix))
        bare = query.vectors.get(ANY_EMBEDDER)
        if named is None and bare is not None and len(bare) == self.index.prefix != self.embedder.dimension:
            return bare
        return named

    def __repr__(self) -> str:
        return f"FunnelChannel({self.embedder!r}, {self.index!r})"


def prefix_key(embedder: Embedder, prefix: int) -> str:
    """The key in `Query.vectors` of a query's first dimensions."""
    return f"{embedder.fingerprint}[:{prefix}]"


class _Near(NamedTuple):
    """The rows of a part with the best prefixes, and their cosines; ties by ascending ordinal."""

    part: VectorPart
    ordinals: NDArray[np.intp]
    cosines: NDArray[np.float64]

    @classmethod
    def of(cls, part: VectorPart, cut: Vector, count: int, selection: Selection | None) -> _Near:
        short, ordinals = short_rows(part, len(cut)), None if selection is None else selection.ordinals
        products, error = rescoring.products(short, cut, ordinals), rescoring.LONGEST * rescoring.rounding(cut)
        return cls(part, *rescoring.nearest(short, cut, products, count, ordinals, error=error))


def _first(near: Sequence[_Near], count: int) -> list[NDArray[np.intp]]:
    """For each part, its rows among the best over all parts, ties by ascending id."""
    cosines = np.concatenate([np.empty(0), *(one.cosines for one in near)])
    if len(cosines) <= count:
        return [one.ordinals for one in near]
    border = np.partition(cosines, len(cosines) - count)[len(cosines) - count]
    room = count - int((cosines > border).sum())
    tied = sorted(
        (one.part.rows.ids[at], number, at)
        for number, one in enumerate(near)
        for at in one.ordinals[one.cosines == border].tolist()
    )[:room]
    let_in = [[at for _, own, at in tied if own == number] for number in range(len(near))]
    return [
        np.concatenate([one.ordinals[one.cosines > border], np.array(more, dtype=np.intp)])
        for one, more in zip(near, let_in, strict=True)
    ]
