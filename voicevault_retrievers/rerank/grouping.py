"""Grouping of hits by document, with the best passages of each, or by text, with the sources of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from voicevault_retrievers._support.checks import key_or_none, whole
from voicevault_retrievers._support.foreign_options import checks_options
from voicevault_retrievers.core.access_control import permitted
from voicevault_retrievers.core.channel import MAX_DEPTH, Channel, Over
from voicevault_retrievers.core.execution.plan import Call, Plan, value_of
from voicevault_retrievers.core.filters import Filter, both, plain
from voicevault_retrievers.core.pages import FILE_KEYS, as_key, file_key_of, file_of, value_at
from voicevault_retrievers.core.types import Chunk, Failure, Hit, Query, Ranking
from voicevault_retrievers.errors import ConfigError

DOCUMENT = "document"
TEXT = "text"
LEAST = 50
"""The least number of hits of which groups are made."""
_STAGE = "group_by"
_SEPARATOR = "\n\n"

Groups: TypeAlias = dict[tuple[Any, ...], list[Hit]]
"""The hits of each group, best first, by the group's key."""


@checks_options
@dataclass(frozen=True)
class GroupBy:
    """Groups hits, so that a search for k hits finds k groups, in the order of their best hits.

    `key` is the metadata key, or a dotted path, whose value is a group's; "document" is the file, under the keys of
    common loaders (see `core.pages`). The groups of each knowledge base are apart. A chunk without a value is a group
    of its own. A group is its best hit, with the best `passages` of the group in `Hit.passages`, itself first; a model
    reads them all, best first. "text" folds chunks of the same text, white space aside and of any base, into one hit,
    whose `passages` are its sources; a hit with one source has none. Raises ConfigError for what is none of these.
    """

    key: str = DOCUMENT
    passages: int = 3

    def __post_init__(self) -> None:
        if key_or_none("the key of group_by", self.key) is None:
            raise ConfigError('the key of group_by is a metadata key, "document" for the file, or "text"')
        whole("passages", self.passages)

    @classmethod
    def of(cls, given: object) -> GroupBy | None:
        """What an option was given: a GroupBy, its key, or its fields by name; None and False are none."""
        if given is None or given is False or isinstance(given, cls):
            return given or None
        return cls(**given) if isinstance(given, Mapping) else cls(given)  # type: ignore[arg-type]  # it checks its key

    def depth(self, k: int) -> int:
        """How many hits to make k groups of at first."""
        return k if self.key == TEXT else max(LEAST, 2 * k * self.passages)

    def add(self, groups: Groups, hits: Iterable[Hit]) -> None:
        """Put hits, best first, into their groups; each hit once."""
        for hit in hits:
            group = groups.setdefault(self._group(hit), [])
            if all(hit.id != other.id for other in group):
                group.append(hit)

    def others(self, groups: Groups) -> Filter | None:
        """The filter that all hits of other groups pass, and none of these; None where no filter can say it.

        A list is a group of its own, though `$in` finds its members.
        """
        best = [hits[0].chunk for hits in groups.values()]
        if (
            self.key == TEXT
            or len({chunk.kb for chunk in best}) > 1
            or any(chunk.kb and chunk.id.startswith(f"{chunk.kb}:") for chunk in best)
        ):
            return None  # no filter tells texts apart, nor several bases, whose documents may have the same name
        keys = FILE_KEYS if self.key == DOCUMENT else (self.key,)
        values: list[Any] = []
        for chunk in best:
            value, key = self._value(chunk), file_key_of(chunk.metadata) if self.key == DOCUMENT else self.key
            if value is None:
                continue
            if key is None or chunk.metadata.get(key) is None or not isinstance(value, str | int | float):
                return None
            if any(before in chunk.metadata for before in keys[: keys.index(key)]):
                return None
            values.append(value)
        same = [
            {"$and": [{key: {"$in": values}}, {"$not": {key: {"$any": values}}}, *map(_absent, keys[:at])]}
            for at, key in enumerate(keys)
        ]
        return {"$not": {"$or": same}} if values else None

    def grouped(self, hits: Sequence[Hit]) -> Hit:
        """A group as its best hit; `hits` are the group's, best first."""
        passages = tuple(hits[: self.passages])
        if self.key == TEXT:
            return hits[0] if len(hits) == 1 else replace(hits[0], passages=passages)
        if len(passages) == 1:
            return replace(passages[0], passages=passages)
        texts = dict.fromkeys(text for passage in passages if (text := passage.text))
        return replace(passages[0], context=_SEPARATOR.join(texts), passages=passages)

    def _value(self, chunk: Chunk) -> Any:
        """What makes the chunk's group; None for a group of its own."""
        return plain(file_of(chunk.metadata) if self.key == DOCUMENT else value_at(chunk.metadata, self.key))

    def _group(self, hit: Hit) -> tuple[Any, ...]:
        if self.key == TEXT:
            return ("", TEXT, text) if (text := _text(hit)) else (hit.chunk.kb, None, hit.id)
        value = self._value(hit.chunk)
        if value is None:
            return (hit.chunk.kb, None, hit.id)
        number = isinstance(value, int | float) and not isinstance(value, bool)  # 1 and 1.0 are equal to filters
        return (hit.chunk.kb, "number" if number else type(value).__name__, as_key(value))


def _absent(key: str) -> Filter:
    return {key: {"$exists": False}}


FOLDED = GroupBy(TEXT, passages=50)
"""Folds equal texts, as the command line and the inspector do."""


def copies_of(hit: Hit) -> list[Hit]:
    """The other passages of a hit that have its text: where the text stands too."""
    return [passage for passage in hit.passages[1:] if _text(passage) == _text(hit)]


def _text(hit: Hit) -> str:
    return " ".join(hit.chunk.text.split())


def passages_of(hits: Iterable[Hit]) -> list[Hit]:
    """The passages of groups one by one, and hits that are no groups."""
    return [passage for hit in hits for passage in hit.passages or (hit,)]


class Grouped(Over):
    """A channel whose hits are groups.

    Where the first hits are of fewer than k groups, the channel is searched again, for other groups. Where that fails,
    even in part, the groups found before stand, with the failure added.
    """

    def __init__(self, below: Channel, by: GroupBy) -> None:
        super().__init__(below)
        self.by = by

    def plan(self, query: Query, k: int) -> Plan[Ranking]:
        if k == 0:
            return Ranking()
        ask, asked, again, groups = self.by.depth(k), query, False, Groups()
        first = ranking = yield from self._permitted(asked, ask)
        self.by.add(groups, ranking)
        while len(groups) < k and len(ranking) >= ask and ask < MAX_DEPTH:
            others, before, again = self.by.others(groups), len(groups), True
            if others is None:
                ask = min(2 * ask, MAX_DEPTH)
            else:
                asked = replace(query, where=both(query.where, others))
            try:
                ranking = yield from self._permitted(asked, ask)
            except Exception as error:  # noqa: BLE001 - the groups found before are returned whatever was raised
                first = first.failing(Failure.of(_STAGE, error, "the groups that were found before are kept"))
                break
            self.by.add(groups, ranking)
            first = first.failing(*ranking.errors)
            if others is not None and len(groups) == before:
                break
        call = Call(_STAGE, partial(self._ranking, first, groups, k, again), inline=True, kind="stage")
        (outcome,) = yield (call,)
        made: Ranking = value_of(outcome)
        return made

    def _permitted(self, query: Query, ask: int) -> Plan[Ranking]:
        ranking = yield from self.below.plan(query, ask)
        return permitted(ranking, query.require)

    def _ranking(self, first: Ranking, groups: Groups, k: int, again: bool) -> Ranking:
        """The k best groups; scores of several searches (`again`) may rise."""
        hits = tuple(self.by.grouped(hits) for hits in list(groups.values())[:k])
        found = Ranking(hits, first.errors, first.arranged or again)
        if not groups or any(key[1] is not None for key in groups):
            return found
        key = "file under a key of a known loader" if self.by.key == DOCUMENT else f"{self.by.key!r}"
        said = f"the hits have no {key}, so each is a group of its own; group_by= names another metadata key"
        return found.failing(Failure(_STAGE, "NoGroups", said, degrades=False))

    def describe(self, indent: str = "") -> str:
        return f"{self.below.describe(indent)}\n{indent}>> {self.by!r}"

    def __repr__(self) -> str:
        return f"{self.below!r} >> {self.by!r}"
