"""The BM25 statistics of a collection: read from its payloads, and updated by this engine's own writes."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

from voicevault_retrievers._support.mutex import Mutex
from voicevault_retrievers.core.filters import Filter, Predicate, canonical, compile_filter
from voicevault_retrievers.engines.keywords import CollectionCounts
from voicevault_retrievers.engines.qdrant.points import metadata_of
from voicevault_retrievers.engines.recipe import Recipe
from voicevault_retrievers.errors import IncompatibleIndexError
from voicevault_retrievers.lexical.formulas import Lucene
from voicevault_retrievers.store import disk

Payload: TypeAlias = Mapping[str, Any]
SCOPES = 16
"""The most filters whose statistics are cached."""

WRITERS = 64
"""The most writers that the state names before they are folded into one entry."""

WRITER = "writer_"
EARLIER = WRITER + "earlier"
"""The entry that sums up folded writers."""

RECIPE = "recipe"
"""The key of the state for the recipe of the chunks."""


@dataclass(frozen=True)
class State:
    """For each writer: the writes, chunks and terms in all, and the tags of its terms.

    Two states are equal where nothing was written in between. `recipe` is the `recipe_digest` of the collection's
    recipe.
    """

    writers: Mapping[str, Sequence[Any]]
    recipe: str = field(default="", compare=False)

    @classmethod
    def of(cls, payload: Payload) -> State:
        """The state in the payload of the collection's state point."""
        writers = {key: list(told) for key, told in payload.items() if key.startswith(WRITER)}
        return cls(writers, str(payload.get(RECIPE, "")))

    def folded(self) -> list[Any]:
        """One entry that sums up all writers."""
        return [*(sum(told[at] for told in self.writers.values()) for at in range(3)), self.tags]

    def crowded(self, writer: str) -> bool:
        """Whether the writers have to be folded before another is added."""
        return len(self.writers) >= WRITERS and writer not in self.writers

    @property
    def sums(self) -> tuple[int, int]:
        """The numbers of terms and of chunks ever written, with those replaced or deleted since."""
        return sum(told[2] for told in self.writers.values()), sum(told[1] for told in self.writers.values())

    @property
    def tags(self) -> str:
        """The control characters that terms begin with, which mark languages."""
        return "".join(sorted({tag for told in self.writers.values() for tag in told[3]}))


@dataclass
class Counts:
    """Sums over chunks, as integers, so that removing a chunk exactly undoes adding it.

    `least` is the smallest mean length that values were stored with, and `longest` the length of the longest chunk;
    deleting changes neither.
    """

    total: int = 0
    length: int = 0
    least: float = 0.0
    longest: int = 0
    frequencies: Counter[str] = field(default_factory=Counter)
    tags: Counter[str] = field(default_factory=Counter)
    _mutex: Mutex = field(default_factory=Mutex, compare=False, repr=False)

    def change(self, gone: Iterable[Payload], new: Iterable[Payload]) -> None:
        """Remove and add chunks, as one step for readers."""
        with self._mutex:
            left = set[str]()
            for payload in gone:
                self.total -= 1
                self.length -= payload["length"]
                self.frequencies.subtract(payload["terms"])
                self.tags.subtract(tags_of(payload["terms"]))
                left.update(payload["terms"])
            for payload in new:
                self.total += 1
                self.length += payload["length"]
                self.frequencies.update(payload["terms"])
                self.tags.update(tags_of(payload["terms"]))
                self.longest = max(self.longest, payload["length"])
                self.least = min(self.least or payload["mean"], payload["mean"])
            for term in left:
                if not self.frequencies[term]:
                    del self.frequencies[term]

    def copy(self) -> Counts:
        """A copy of the present counts."""
        with self._mutex:
            sums = self.total, self.length, self.least, self.longest
            return Counts(*sums, Counter(self.frequencies), Counter(self.tags))

    def languages(self) -> str:
        """The control characters that terms begin with, which mark languages."""
        with self._mutex:
            return "".join(sorted(tag for tag, chunks in self.tags.items() if chunks))

    def population(self, forms: Iterable[str]) -> CollectionCounts:
        """The statistics for these forms."""
        with self._mutex:
            own = {form: self.frequencies[form] for form in forms if form in self.frequencies}
            return CollectionCounts(self.total, self.length, own, self._histogram)

    def _histogram(self) -> Iterable[tuple[int, int]]:
        with self._mutex:
            return Counter(self.frequencies.values()).items()


@dataclass(frozen=True)
class _Scope:
    """The statistics of the chunks that pass a filter, at a state of the collection."""

    passes: Predicate
    state: State
    counts: Counts

    def moved(self, state: State, gone: Iterable[Payload], new: Iterable[Payload]) -> _Scope:
        """The scope at the state after a write, with the chunks removed and added."""
        left, come = ([one for one in each if self.passes(metadata_of(one))] for each in (gone, new))
        self.counts.change(left, come)
        return _Scope(self.passes, state, self.counts)


class Statistics:
    """The cached statistics of a collection and of recent filters, each at a state.

    This engine's own writes update them. A write of others, or two overlapping writes of this engine, invalidate them:
    the next search reads them again.
    """

    def __init__(self) -> None:
        self.writer = WRITER + uuid4().hex[:16]
        self._mutex = Mutex()
        self._scopes: dict[str, _Scope] = {}
        self._told: list[Any] = [0, 0, 0, ""]
        self._writing = 0
        self._overlapped = False

    def held(self, scope: Filter | None, state: State) -> Counts | None:
        """The statistics of a filter (None for all chunks), where they are cached at this state."""
        with self._mutex:
            held = self._scopes.pop(canonical(scope), None)
            if held is not None:
                self._scopes[canonical(scope)] = held
            return held.counts if held is not None and held.state == state else None

    @property
    def writes(self) -> int:
        """How many writes this engine has begun."""
        return int(self._told[0])

    def hold(self, scope: Filter | None, state: State, counts: Counts, writes: int) -> None:
        """Cache what was read at a state, unless this engine wrote since: `writes` is the count before the read."""
        with self._mutex:
            if self._writing or self.writes != writes:
                return
            self._scopes.pop(canonical(scope), None)
            self._scopes[canonical(scope)] = _Scope(compile_filter(scope), state, counts)
            if len(self._scopes) > SCOPES:
                self._scopes.pop(next(iter(self._scopes)))

    def known(self, state: State) -> bool:
        """Whether any statistics are cached at this state."""
        with self._mutex:
            return any(scope.state == state for scope in self._scopes.values())

    def forget(self) -> None:
        """Clear the cache."""
        with self._mutex:
            self._scopes.clear()

    def begin(self, chunks: int, terms: int, tags: str) -> list[Any]:
        """Begin a write; returns this engine's entry for the state."""
        with self._mutex:
            self._writing += 1
            self._overlapped = self._overlapped or self._writing > 1
            writes, before, length, known = self._told
            self._told = [writes + 1, before + chunks, length + terms, "".join(sorted({*known, *tags}))]
            return list(self._told)

    def end(self, before: State | None, after: State | None, gone: Iterable[Payload], new: Iterable[Payload]) -> None:
        """End a write; without states it failed, or folded the state, and the cache is cleared."""
        with self._mutex:
            self._writing -= 1
            known = before is not None and after is not None and not self._overlapped
            self._overlapped = self._overlapped and self._writing > 0
            if not known or before is None or after is None:
                self._scopes.clear()
                return
            gone, new = list(gone), list(new)
            self._scopes = {
                key: scope.moved(after, gone, new) for key, scope in self._scopes.items() if scope.state == before
            }


def tags_of(terms: Iterable[str]) -> str:
    """The control characters that terms begin with, which mark languages."""
    return "".join(sorted({term[0] for term in terms if "\x01" <= term[:1] < " "}))


def recipe_digest(recipe: Recipe) -> str:
    """A digest of a recipe."""
    return hashlib.blake2b(recipe.text().encode(), digest_size=16).hexdigest()


def save(path: Path | str, collection: str, state: State, counts: Counts) -> None:
    """Write the vocabulary as JSON: the terms with document frequencies and idf, and the sums.

    An interrupted write leaves the old file.
    """
    counts, idf = counts.copy(), Lucene().idf
    told = {
        "version": 1,
        "collection": collection,
        "count": counts.total,
        "length": counts.length,
        "average_length": counts.length / counts.total if counts.total else 0.0,
        "least": counts.least,
        "longest": counts.longest,
        "tags": dict(counts.tags),
        "state": dict(state.writers),
        "terms": {term: [n, idf(n, counts.total)] for term, n in sorted(counts.frequencies.items())},
    }
    whole = Path(path)
    part = whole.with_name(f".{uuid4().hex}.part")
    try:
        disk.write(part, [json.dumps(told).encode("ascii")])
        disk.rename(part, whole)
    except OSError:
        with suppress(FileNotFoundError):
            disk.remove(part)
        raise
    disk.flush_folder(whole.parent)


def load(path: Path | str) -> tuple[State, Counts]:
    """The vocabulary that `save` wrote. Raises IncompatibleIndexError for any other file."""
    try:
        told = json.loads(Path(path).read_text(encoding="utf-8"))
        if told["version"] != 1:
            raise IncompatibleIndexError(f"{path} was written by a newer version of this package: upgrade it")
        frequencies = Counter({str(term): int(n) for term, (n, _) in told["terms"].items()})
        tags = Counter({str(tag): int(n) for tag, n in told["tags"].items()})
        sums = int(told["count"]), int(told["length"]), float(told["least"]), int(told["longest"])
        counts = Counts(*sums, frequencies, tags)
        return State({str(key): list(value) for key, value in told["state"].items()}), counts
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise IncompatibleIndexError(f"{path} is no vocabulary of a collection: {error!r}") from error
