"""The similarity of hits' texts, by vectors or by shared shingles, and the base class of stages that use it."""

from __future__ import annotations

import copy
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers._support.caches import LRUCache
from voicevault_retrievers._support.checks import seconds_or_none, whole
from voicevault_retrievers.core.channel import Channel, Stage
from voicevault_retrievers.core.protocols import Embedder, VectorSource, is_embedder
from voicevault_retrievers.core.stages import id_at
from voicevault_retrievers.core.types import Hit
from voicevault_retrievers.core.vectors import embedded
from voicevault_retrievers.errors import ConfigError

Alike: TypeAlias = NDArray[np.float32]
Shingled: TypeAlias = NDArray[np.uint64]

_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003134f"
)
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")
_FACTOR = 0x9E3779B97F4A7C15
_KEPT = 2048
_CELLS = 1 << 22
"""The most entries of a table of shingles in memory at once."""


class Likeness(ABC):
    """The similarity of two texts (`Chunk.text`, which is what was searched): 0 for unrelated, 1 for equal texts."""

    blocking = False
    near: ClassVar[float]
    """The default similarity from which two texts are near duplicates."""

    @abstractmethod
    def rows(self, hits: Sequence[Hit]) -> Any:
        """The representation of each hit that is compared; it can be sliced."""

    @abstractmethod
    def table(self, rows: Any, start: int = 0) -> Alike:
        """The similarities of all rows with the rows from `start` on, of shape (n, n - start).

        A row's similarity with itself may be anything.
        """


class Cosines(Likeness):
    """The cosine of vectors, at least 0: a channel's stored vectors, or else those of embedded texts.

    `own` maps a hit's id to the id under which a channel stores its vector.
    """

    blocking = True
    near = 0.95

    def __init__(self, source: VectorSource | Embedder, own: Callable[[str], str] = str) -> None:
        self.source = source
        self.own = own

    def rows(self, hits: Sequence[Hit]) -> NDArray[np.float32]:
        embedder: Embedder = self.source.embedder if isinstance(self.source, VectorSource) else self.source
        ids = [self.own(hit.chunk.id) for hit in hits]
        known = self.source.vectors(ids) if isinstance(self.source, VectorSource) else {}
        new = [at for at, chunk_id in enumerate(ids) if chunk_id not in known]
        if not new:
            return np.array([known[chunk_id] for chunk_id in ids], dtype=np.float32)
        found = np.empty((len(hits), embedder.dimension), dtype=np.float32)
        found[new] = embedded(embedder, [hits[at].chunk for at in new])
        for at, chunk_id in enumerate(ids):
            if chunk_id in known:
                found[at] = known[chunk_id]
        return found

    def table(self, rows: NDArray[np.float32], start: int = 0) -> Alike:
        cosines: Alike = rows @ rows[start:].T
        return np.clip(cosines, 0.0, 1.0, out=cosines)

    def __repr__(self) -> str:
        return repr(self.source)


class Shingles(Likeness):
    """The resemblance of texts: the share of the runs of `size` words in either text that are in both.

    Broder (1997), "On the resemblance and containment of documents", which estimates it by sketches; here it is exact
    but for collisions of 64-bit hashes. Case and punctuation are ignored; in scripts without spaces each character is a
    word. A text of fewer words is one run; a text without words resembles no other. The runs of recent texts are
    cached.
    """

    near = 0.8

    def __init__(self, size: int = 3) -> None:
        self.size = whole("size", size)
        self._kept: LRUCache[str, Shingled] = LRUCache(_KEPT)

    def rows(self, hits: Sequence[Hit]) -> list[Shingled]:
        return [self._shingles(hit.chunk.text) for hit in hits]

    def table(self, rows: list[Shingled], start: int = 0) -> Alike:
        sizes = np.array([len(row) for row in rows], dtype=np.float32)
        shared = _shared(rows, start)
        either = sizes[:, None] + sizes[start:] - shared
        alike: Alike = np.divide(shared, either, out=np.zeros_like(shared), where=either > 0)
        return alike

    def _shingles(self, text: str) -> Shingled:
        found = self._kept.get(text)
        if found is None:
            found = _shingles(text, self.size)
            self._kept.put(text, found)
        return found

    def __repr__(self) -> str:
        return f"Shingles({self.size})"


By: TypeAlias = Literal["shingles", "vectors"] | Likeness | VectorSource | Embedder


def likeness(by: By) -> Likeness | None:
    """The similarity measure for `by`; None for "vectors", set later by a pipeline. ConfigError for anything else."""
    if isinstance(by, Likeness):
        return by
    if not isinstance(by, str) and (isinstance(by, VectorSource) or is_embedder(by)):
        return Cosines(by)
    if by in ("shingles", "vectors"):
        return Shingles() if by == "shingles" else None
    raise ConfigError(f"texts are compared by 'shingles', 'vectors', a vector channel or an embedder, not {by!r}")


def _shingles(text: str, size: int) -> Shingled:
    """The distinct runs of words in a text as hashes, ascending."""
    words = [crc32(word.encode("utf-8", "surrogatepass")) for word in _WORD.findall(text.casefold())]
    hashes = np.array(words, dtype=np.uint64)
    count = max(min(len(hashes), 1), len(hashes) - size + 1)
    runs = np.zeros(count, dtype=np.uint64)
    for at in range(min(size, len(hashes))):
        runs = runs * np.uint64(_FACTOR) + hashes[at : at + count] + np.uint64(1)
    return np.unique(runs)


def _shared(rows: Sequence[Shingled], start: int) -> Alike:
    """The number of shingles that each row shares with the rows from `start` on; counts with itself are incomplete."""
    counts = np.zeros((len(rows), len(rows) - start), dtype=np.float32)
    every = np.concatenate([*rows, np.empty(0, dtype=np.uint64)])
    owners = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    order = np.argsort(every)
    first = np.ones(len(every), dtype=np.bool_)
    first[1:] = every[order[1:]] != every[order[:-1]]
    numbers = np.cumsum(first) - 1
    common = np.bincount(numbers) > 1  # most shingles are in one text only
    chosen = common[numbers]
    owners, columns = owners[order[chosen]], (np.cumsum(common) - 1)[numbers[chosen]]
    total = int(common.sum())
    step = max(1, _CELLS // max(1, len(rows)))
    for begin in range(0, total, step):
        end = min(begin + step, total)
        some = slice(*np.searchsorted(columns, (begin, end)))
        holds = np.zeros((len(rows), end - begin), dtype=np.float32)
        holds[owners[some], columns[some] - begin] = 1
        counts += holds @ holds[start:].T
    return counts


C = TypeVar("C", bound="Comparing")


class Comparing(Stage):
    """A stage that compares hits `by` their shingles or their vectors.

    `by` is "shingles"; a vector channel, whose stored vectors are used, while hits without one are embedded; an
    embedder; or "vectors", for those of the pipeline's dense channel, which a preset sets (`over`). By vectors the
    stage is blocking, under `timeout` seconds.
    """

    def __init__(self, by: By, timeout: float | None) -> None:
        super().__init__()
        self._by = likeness(by)
        self.blocking = self._by is None or self._by.blocking
        self.timeout = seconds_or_none("timeout", timeout)

    @property
    def likeness(self) -> Likeness | None:
        """The similarity measure; None for the vectors of a pipeline's dense channel that is not set yet."""
        return self._by

    @property
    def by(self) -> Likeness:
        """The similarity measure; ConfigError where the vectors are not set."""
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
        """This stage with another similarity measure."""
        twin = copy.copy(self)
        twin._by = by
        return twin

    def _recipe(self) -> str:
        by = "'vectors'" if self._by is None else repr(self._by)
        return f"by={by}, timeout={self.timeout}, name={self.name!r}"


def by_place(stage: Stage) -> Stage:
    """The stage for hits under place ids (see `stages.place_id`): it looks up stored vectors by the hits' own ids."""
    if not isinstance(stage, Comparing) or not isinstance(stage.by, Cosines):
        return stage
    return stage.comparing(Cosines(stage.by.source, id_at))
