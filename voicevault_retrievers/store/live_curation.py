"""The curation file of a knowledge base, read again when it changes, and what it means for a query."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from voicevault_retrievers._support.mutex import Mutex
from voicevault_retrievers.core.blocking import Blocked, BlockedInBase
from voicevault_retrievers.core.filters import Filter
from voicevault_retrievers.core.pages import FILE_KEYS, NESTED_FILE_KEYS, file_of
from voicevault_retrievers.core.types import Failure, Query
from voicevault_retrievers.errors import RetrievalError, nearest
from voicevault_retrievers.lexical.index import LexicalIndex
from voicevault_retrievers.query.phrases import key
from voicevault_retrievers.store import disk, manifest
from voicevault_retrievers.store.curation import Curation, CurationRule
from voicevault_retrievers.store.snapshot import Snapshot

FILE = "curation.yaml"
STAGE = "curation"

_Stamp: TypeAlias = tuple[tuple[int, ...] | str | None, str]


class ActiveCuration(NamedTuple):
    """The curation that is in force, None for none, and the failure where the file that is there cannot be read."""

    curation: Curation | None = None
    failure: Failure | None = None


class LiveCuration:
    """The curation in a knowledge base's folder, read again when the file has changed; shared by threads.

    A changed file that cannot be read leaves the last curation in force, with a failure. While the folder is gone or
    holds another base than the one of this `base_id`, the last curation stays in force too: what was opened is still
    searched. Raises ConfigError where the first file cannot be read.
    """

    def __init__(self, folder: Path, base_id: Callable[[], str]) -> None:
        self._folder = folder
        self._path = str(folder / FILE)
        self._base_id = base_id
        self.nothing = BlockedInBase(str(folder), folder.name)
        self._mutex = Mutex()
        stamp = self._stamp()
        self._known = stamp, ActiveCuration() if stamp[0] is None else ActiveCuration(Curation.from_file(self._path))
        self._rules: CurationRules | None = None

    def now(self) -> ActiveCuration:
        """What is in force now. Costs a `stat` where the file has not changed."""
        stamp, known = self._stamp(), self._known
        if stamp == known[0]:
            return known[1]
        with self._mutex:
            if stamp != self._known[0]:
                self._known = stamp, self._read(stamp, self._known[1])
            return self._known[1]

    def rules(self, snapshot: Snapshot) -> CurationRules | None:
        """The rules in force, over the chunks of a snapshot; None where there are none."""
        curation = self.now().curation
        if curation is None:
            return None
        known = self._rules
        if known is None or known.curation is not curation or known.snapshot is not snapshot:
            known = self._rules = CurationRules(curation, snapshot)
        return known

    @property
    def failures(self) -> Sequence[Failure]:
        """The failure of the last reading, if there was one."""
        failure = self._known[1].failure
        return () if failure is None else (failure,)

    def _read(self, stamp: _Stamp, before: ActiveCuration) -> ActiveCuration:
        if stamp[0] is None and before.curation is None:
            return ActiveCuration()
        if not self._is_ours():
            return ActiveCuration(before.curation)
        if stamp[0] is None:
            return ActiveCuration()
        try:
            # Whoever searches reads the failure, and need not know the folder.
            return ActiveCuration(Curation.from_file(self._path, f"{self._folder.name}/{FILE}"))
        except RetrievalError as error:
            instead = "the curation before it is in force" if before.curation else "no curation is in force"
            return ActiveCuration(before.curation, Failure.recorded(STAGE, error, instead))

    def _is_ours(self) -> bool:
        """Whether the folder still holds the base that was opened; false where that cannot be told."""
        with suppress(RetrievalError, OSError):
            return manifest.read(self._folder).id == self._base_id()
        return False

    def _stamp(self) -> _Stamp:
        """What changes with the file and with the base. The first is None where there is no file."""
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return None, self._base_id()
        except OSError as error:
            return str(error), self._base_id()
        return (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino), self._base_id()


class Pin(NamedTuple):
    """A document, by file, or a chunk, by id, that is pinned; `query` is the question in the file that matched."""

    name: str
    is_document: bool
    query: str


class CurationRules:
    """The rules of a curation for the chunks of a snapshot; what was looked up is kept."""

    def __init__(self, curation: Curation, snapshot: Snapshot) -> None:
        self.curation = curation
        self.snapshot = snapshot

    def pins(self, question: str) -> list[Pin]:
        """What is pinned for a question, in the order of the file, each once."""
        found: dict[tuple[str, bool], Pin] = {}
        for rule, query in self._matching(question, self.curation.pinned):
            for names, is_document in ((rule.documents, True), (rule.chunks, False)):
                for name in names:
                    found.setdefault((name, is_document), Pin(name, is_document, query))
        return list(found.values())

    def blocked(self, question: str) -> BlockedInBase:
        """What is blocked for a question."""
        rules = tuple(rule for rule, _ in self._matching(question, self.curation.blocked))
        known = self._blocked.get(rules)
        if known is None:
            known = self._blocked[rules] = self._looked_up(rules)
        return known

    def unresolved(self) -> list[str]:
        """What the rules name that is not in the snapshot, one line each, with the nearest name."""
        said: dict[str, None] = {}
        for kind, rules in (("pinned", self.curation.pinned), ("blocked", self.curation.blocked)):
            for number, rule in enumerate(rules, 1):
                where = f"{kind}, entry {number}"
                missing = [one for one in rule.documents if not self.is_document(one)]
                said |= {f"{where}: document {one!r} is not there.{nearest(one, self._files)}": None for one in missing}
                lost = [one for one in rule.chunks if self.snapshot.get(one) is None]
                said |= {f"{where}: chunk {one!r} is not there.{nearest(one, self._ids)}": None for one in lost}
        return list(said)

    def is_document(self, name: str) -> bool:
        """Whether a chunk is of the file of this name."""
        return next(self.snapshot.matching(of_document(name)), None) is not None

    @cached_property
    def _blocked(self) -> dict[tuple[CurationRule, ...], BlockedInBase]:
        return {}

    def _looked_up(self, rules: Sequence[CurationRule]) -> BlockedInBase:
        ids = {one for rule in rules for one in rule.chunks}
        chunks = [chunk for one in sorted(ids) if (chunk := self.snapshot.get(one)) is not None]
        above, wanted = set[str](), {chunk.parent_id for chunk in chunks if chunk.parent_id}
        while wanted:
            above |= wanted
            parents = filter(None, map(self.snapshot.parent, wanted))
            wanted = {parent.parent_id for parent in parents if parent.parent_id} - above
        return BlockedInBase(
            str(self.snapshot.folder),
            self.snapshot.folder.name,
            frozenset(ids),
            frozenset(one for rule in rules for one in rule.documents),
            frozenset(above),
            tuple(chunk.text for chunk in chunks if chunk.text.strip()),
        )

    def _matching(self, question: str, rules: Sequence[CurationRule]) -> Iterator[tuple[CurationRule, str]]:
        """The rules for a question, each with its query that matches; "" for a rule without queries."""
        asked: frozenset[Any] | None = None
        for rule in rules:
            if not rule.queries:
                yield rule, ""
                continue
            asked = self._compared(question) if asked is None else asked
            same = (query for query in rule.queries if not asked.isdisjoint(self._keys_of(query)))
            if (query := next(same, None)) is not None:
                yield rule, query

    def _keys_of(self, query: str) -> frozenset[Any]:
        """As `_compared`, kept."""
        known = self._queries.get(query)
        if known is None:
            known = self._queries[query] = self._compared(query)
        return known

    @cached_property
    def _queries(self) -> dict[str, frozenset[Any]]:
        return {}

    def _compared(self, text: str) -> frozenset[Any]:
        """What is compared of a question: its terms in each language of the base, and its words as they are."""
        words = key(text) or tuple(text.casefold().split())
        each = ((tag, tuple(one.forms for one in self.snapshot.analyzer.query(text, tag))) for tag in self._tags)
        return frozenset(one for one in each if one[1]) | {(None, words)}

    @cached_property
    def _tags(self) -> Sequence[str]:
        return LexicalIndex(part.lexical for part in self.snapshot.parts).tags() or ("",)

    @cached_property
    def _files(self) -> list[str]:
        chunks = filter(None, map(self.snapshot.get, self.snapshot.ids()))
        found = {str(file) for chunk in chunks if (file := file_of(chunk.metadata)) is not None}
        return sorted(found | self.snapshot.sources.keys())

    @cached_property
    def _ids(self) -> list[str]:
        return list(self.snapshot.ids())


class CuratedBase(NamedTuple):
    """A knowledge base as a search sees it: its curation, its present snapshot, and the prefix of its chunks' ids."""

    curation: LiveCuration
    snapshot: Snapshot
    prefix: str = ""

    @property
    def folder(self) -> str:
        """The folder of the knowledge base."""
        return self.curation.nothing.folder

    @property
    def rules(self) -> CurationRules | None:
        """The rules in force; None where there are none."""
        return self.curation.rules(self.snapshot)


@runtime_checkable
class CurationSource(Protocol):
    """What is searched: a knowledge base, or several."""

    def curations(self) -> Sequence[CuratedBase]:
        """The curation of each knowledge base, with its present chunks; may open a knowledge base."""
        ...


def curations_of(base: object) -> Sequence[CuratedBase]:
    """The curations of what is searched; none for None and for what has no place for them."""
    return base.curations() if isinstance(base, CurationSource) else ()


@dataclass(frozen=True)
class BaseGuard:
    """Adds to queries what is blocked in knowledge bases."""

    bases: tuple[CuratedBase, ...]

    def is_done(self, query: Query) -> bool:
        """Whether a query says of all these bases what is blocked there."""
        said = query.blocked
        return said is not None and all(said.covers(base.folder) for base in self.bases)

    def __call__(self, query: Query) -> tuple[Query, Sequence[Failure]]:
        """The query with what is blocked for it, and the failures of the curations."""
        said = query.blocked or Blocked()
        return blocking(query, [base for base in self.bases if not said.covers(base.folder)])

    def ids(self, blocked: Blocked) -> Set[str]:
        """The ids of the chunks of these bases that are blocked, with the bases' prefixes."""
        known = self._known.get(blocked)
        if known is None:
            if len(self._known) >= _KEPT:
                self._known.clear()
            parts = [(part, base) for part in blocked.parts for base in self.bases if part.folder == base.folder]
            known = frozenset(base.prefix + one for part, base in parts for one in _ids_of(part, base.snapshot))
            self._known[blocked] = known
        return known

    @cached_property
    def _known(self) -> dict[Blocked, frozenset[str]]:
        return {}


_KEPT = 64
"""How many questions' blocked ids are kept."""


def _ids_of(part: BlockedInBase, snapshot: Snapshot) -> Iterator[str]:
    """The ids of the blocked chunks of a snapshot."""
    yield from part.ids
    for name in part.files:
        yield from snapshot.matching(of_document(name))
    nested: Filter = {"$or": [{key: {"$exists": True}} for key in NESTED_FILE_KEYS]}
    for one in snapshot.matching(nested) if part.files else ():
        chunk = snapshot.get(one)
        if chunk is not None and part.has(chunk):
            yield one


def blocking(query: Query, bases: Iterable[CuratedBase]) -> tuple[Query, Sequence[Failure]]:
    """The query with what is blocked for it in knowledge bases, and the failures of their curations."""
    return blocked_by(query, in_force(bases))


def in_force(bases: Iterable[CuratedBase]) -> list[tuple[CuratedBase, CurationRules | None]]:
    """Knowledge bases with the rules that are in force in each now."""
    return [(base, base.rules) for base in bases]


def blocked_by(
    query: Query, read: Iterable[tuple[CuratedBase, CurationRules | None]]
) -> tuple[Query, Sequence[Failure]]:
    """As `blocking`, by rules that were read."""
    parts: list[BlockedInBase] = []
    failures: list[Failure] = []
    for base, rules in read:
        failures += base.curation.failures
        parts.append(rules.blocked(query.text) if rules else base.curation.nothing)
    return query.blocking((query.blocked or Blocked()).with_parts(parts)), failures


def always_blocked(base: object) -> Blocked:
    """What is blocked in a knowledge base for every question; nothing for None and for what has no curation."""
    return blocking(Query(""), curations_of(base))[0].blocked or Blocked()


def of_document(name: str) -> Filter:
    """The filter that the chunks of a file pass."""
    return {"$or": [{key: name} for key in FILE_KEYS]}


def install(folder: Path, text: str) -> None:
    """Write the curation file of a knowledge base, atomically; raises OSError."""
    new = folder / f".{FILE}.{uuid.uuid4().hex}"
    try:
        disk.write(new, [text.encode()])
        disk.rename(new, folder / FILE)
        disk.flush_folder(folder)
    finally:
        if new.exists():
            disk.remove(new)


def uninstall(folder: Path) -> bool:
    """Remove the curation file of a knowledge base; returns whether there was one."""
    try:
        disk.remove(folder / FILE)
    except FileNotFoundError:
        return False
    disk.flush_folder(folder)
    return True


def damage(folder: Path) -> str | None:
    """What is wrong with the curation file in a folder; None where it can be read, or is missing."""
    try:
        if os.path.lexists(folder / FILE):
            Curation.from_file(folder / FILE)
    except RetrievalError as error:
        return str(error)
    return None


class LiveGuard:
    """The `BaseGuard` of a copy of knowledge bases, which is made anew where these have changed."""

    def __init__(self, source: CurationSource) -> None:
        self.source = source
        self._guard = BaseGuard(())

    def _now(self) -> BaseGuard:
        bases, guard = tuple(self.source.curations()), self._guard
        if guard.bases != bases:
            guard = self._guard = BaseGuard(bases)
        return guard

    def is_done(self, query: Query) -> bool:
        """See `BaseGuard.is_done`."""
        return self._now().is_done(query)

    def __call__(self, query: Query) -> tuple[Query, Sequence[Failure]]:
        """See `BaseGuard`."""
        return self._now()(query)

    def ids(self, blocked: Blocked) -> Set[str]:
        """See `BaseGuard.ids`."""
        return self._now().ids(blocked)
