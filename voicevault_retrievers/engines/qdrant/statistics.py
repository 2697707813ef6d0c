"""What BM25 counts over a collection: read from its payloads, kept up to date by this engine's own writes."""

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
"""How many filters' statistics are kept."""

WRITERS = 64
"""How many writers the state names before they are folded into one."""

WRITER = "writer_"
EARLIER = WRITER + "earlier"
"""What stands for the writers that the state names no more."""

RECIPE = "recipe"
"""The key of the state that tells how the chunks were made."""


@dataclass(frozen=True)
class State:
    """What each writer has told: how many writes, chunks and terms in all, and the tags of its terms.

    Two states are equal where nothing was written in between. `recipe` is `recipe_digest` of what made the chunks.
    """

    writers: Mapping[str, Sequence[Any]]
    recipe: str = field(default="", compare=False)

    @classmethod
    def of(cls, payload: Payload) -> State:
        """That of the payload of the collection's point of state."""
        writers = {key: list(told) for key, told in payload.items() if key.startswith(WRITER)}
        return cls(writers, str(payload.get(RECIPE, "")))

    def folded(self) -> list[Any]:
        """One entry that tells what all do."""
        return [*(sum(told[at] for told in self.writers.values()) for at in range(3)), self.tags]

    def crowded(self, writer: str) -> bool:
        """Whether there are so many writers that for one more the others are folded."""
        return len(self.writers) >= WRITERS and writer not in self.writers

    @property
    def sums(self) -> tuple[int, int]:
        """How many terms and how many chunks were written, replaced and deleted ones counted, too."""
        return sum(told[2] for told in self.writers.values()), sum(told[1] for told in self.writers.values())

    @property
    def tags(self) -> str:
        """The control characters that terms begin with."""
        return "".join(sorted({tag for told in self.writers.values() for tag in told[3]}))


@dataclass
class Counts:
    """Sums over chunks, all whole numbers: what is added and removed again leaves no trace.

    `least` is the smallest mean length that values were stored at, and `longest` the longest chunk; deleting leaves
    both as they are.
    """

    total: int = 0
    length: int = 0
    least: float = 0.0
    longest: int = 0
    frequencies: Counter[str] = field(default_factory=Counter)
    tags: Counter[str] = field(default_factory=Counter)
    _mutex: Mutex = field(default_factory=Mutex, compare=False, repr=False)

    def change(self, gone: Iterable[Payload], new: Iterable[Payload]) -> None:
        """These chunks less, and those more, in one step for whoever reads."""
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
        """The same as of now."""
        with self._mutex:
            sums = self.total, self.length, self.least, self.longest
            return Counts(*sums, Counter(self.frequencies), Counter(self.tags))

    def languages(self) -> str:
        """The control characters that terms begin with."""
        with self._mutex:
            return "".join(sorted(tag for tag, chunks in self.tags.items() if chunks))

    def population(self, forms: Iterable[str]) -> CollectionCounts:
        """What weighs these forms."""
        with self._mutex:
            own = {form: self.frequencies[form] for form in forms if form in self.frequencies}
            return CollectionCounts(self.total, self.length, own, self._histogram)

    def _histogram(self) -> Iterable[tuple[int, int]]:
        with self._mutex:
            return Counter(self.frequencies.values()).items()


@dataclass(frozen=True)
class _Scope:
    """The statistics of what passes a filter, as of a state of the collection."""

    passes: Predicate
    state: State
    counts: Counts

    def moved(self, state: State, gone: Iterable[Payload], new: Iterable[Payload]) -> _Scope:
        """As of the state after a write that took chunks away and put others in."""
        left, come = ([one for one in each if self.passes(metadata_of(one))] for each in (gone, new))
        self.counts.change(left, come)
        return _Scope(self.passes, state, self.counts)


class Statistics:
    """The statistics of a collection and of what passes the filters asked last, each as of a state.

    What this engine itself writes is counted as it is written. What others write changes the state, and so does a
    write of this engine's that another overlaps: then the next search reads them again.
    """

    def __init__(self) -> None:
        self.writer = WRITER + uuid4().hex[:16]
        self._mutex = Mutex()
        self._scopes: dict[str, _Scope] = {}
        self._told: list[Any] = [0, 0, 0, ""]
        self._writing = 0
        self._overlapped = False

    def held(self, scope: Filter | None, state: State) -> Counts | None:
        """Those of a filter (None for all), where they are known as of this state."""
        with self._mutex:
            held = self._scopes.pop(canonical(scope), None)
            if held is not None:
                self._scopes[canonical(scope)] = held
            return held.counts if held is not None and held.state == state else None

    @property
    def writes(self) -> int:
        """How many writes of this engine have begun."""
        return int(self._told[0])

    def hold(self, scope: Filter | None, state: State, counts: Counts, writes: int) -> None:
        """Keep what was read from a state on, unless this engine wrote meanwhile: `writes` had begun before."""
        with self._mutex:
            if self._writing or self.writes != writes:
                return
            self._scopes.pop(canonical(scope), None)
            self._scopes[canonical(scope)] = _Scope(compile_filter(scope), state, counts)
            if len(self._scopes) > SCOPES:
                self._scopes.pop(next(iter(self._scopes)))

    def known(self, state: State) -> bool:
        """Whether any are known as of this state."""
        with self._mutex:
            return any(scope.state == state for scope in self._scopes.values())

    def forget(self) -> None:
        """Keep nothing."""
        with self._mutex:
            self._scopes.clear()

    def begin(self, chunks: int, terms: int, tags: str) -> list[Any]:
        """A write begins: what this engine tells of all it has written."""
        with self._mutex:
            self._writing += 1
            self._overlapped = self._overlapped or self._writing > 1
            writes, before, length, known = self._told
            self._told = [writes + 1, before + chunks, length + terms, "".join(sorted({*known, *tags}))]
            return list(self._told)

    def end(self, before: State | None, after: State | None, gone: Iterable[Payload], new: Iterable[Payload]) -> None:
        """A write has ended; without states it failed, or folded the state, and nothing is known any more."""
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
    """The control characters that terms begin with."""
    return "".join(sorted({term[0] for term in terms if "\x01" <= term[:1] < " "}))


def recipe_digest(recipe: Recipe) -> str:
    """What tells a recipe from others."""
    return hashlib.blake2b(recipe.text().encode(), digest_size=16).hexdigest()


def save(path: Path | str, collection: str, state: State, counts: Counts) -> None:
    """Write the vocabulary as JSON: the terms with how many chunks have them and their idf, and the sums.

    The file is the old one or the new, whenever writing is broken off.
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
    """What `save` wrote. Raises IncompatibleIndexError for anything else."""
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
