"""Which chunks are whose parents, and theirs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from voicevault_retrievers.types import Chunk, Ranking

Key: TypeAlias = tuple[str, str]
"""A knowledge base and an id in it."""


class Kinship:
    """How chunks are told, and which are whose."""

    def id_of(self, chunk: Chunk) -> str:
        """The id by which others name a chunk as their parent."""
        return chunk.id

    def parent_of(self, chunk: Chunk) -> str | None:
        """The id of a chunk's parent; None where it has none."""
        return chunk.parent_id

    def children_of(self, parent: Chunk) -> int:
        """How many children a parent has; 0 where nobody knows."""
        return 0


class Ancestors:
    """The parents of a ranking's chunks, and theirs, learnt a level at a time."""

    def __init__(
        self, ranking: Ranking, kinship: Kinship, id_key: str | None, *, levels: int | None, ratio: float
    ) -> None:
        self.parents: dict[Key, Chunk | None] = {}
        self._kinship = kinship
        self._id_key = id_key
        self._levels = levels
        self._ratio = ratio
        self._level = 0
        self._latest = [(hit.chunk.kb, hit.chunk) for hit in ranking]
        self._found = {self.own(hit.chunk) for hit in ranking}
        self._children: defaultdict[Key, set[Key]] = defaultdict(set)

    def wanted(self) -> list[str]:
        """The ids of the next level's parents; none where that was the last."""
        if self._level == self._levels:
            return []
        self._level += 1
        wanted: dict[Key, None] = {}
        for kb, chunk in self._latest:
            if key := self._key(kb, chunk):
                self._children[key].add((kb, self._kinship.id_of(chunk)))
                wanted |= {} if key in self.parents else {key: None}
        self._latest = []
        self.parents |= wanted
        return list(dict.fromkeys(parent_id for _, parent_id in wanted))

    def learn(self, found: Mapping[str, Chunk]) -> None:
        """Take in those of the wanted that the store has."""
        for kb, parent_id in [key for key, parent in self.parents.items() if parent is None]:
            parent = found.get(parent_id)
            if parent is not None and parent.text and not (kb and parent.kb and parent.kb != kb):
                self.parents[kb, parent_id] = parent
                self._latest.append((kb, parent))

    def own(self, chunk: Chunk) -> Key:
        """The knowledge base and the id of a chunk."""
        return chunk.kb, self._kinship.id_of(chunk)

    def above(self, chunk: Chunk) -> list[Key]:
        """A chunk's parent, that one's parent and so on, as far as they were looked for."""
        keys: list[Key] = []
        kb, at = chunk.kb, chunk if self.parents else None
        while at is not None and (key := self._key(kb, at)) in self.parents and key not in keys:
            keys.append(key)
            at = self.parents[key]
        return keys[: self._levels]

    def standing(self, above: Sequence[Key]) -> Iterator[Chunk]:
        """Of such parents those that stand for their children, up to the first that does not."""
        for key in above:
            parent = self.parents[key]
            if parent is None or not self._stands(key, parent, frozenset()):
                return
            yield parent

    def _stands(self, key: Key, parent: Chunk, below: frozenset[Key]) -> bool:
        """Whether enough of a parent's children were found, or stand for others."""
        count = self._kinship.children_of(parent) if self._ratio else 0
        if not count:
            return True
        found = 0
        for child in self._children[key] - below:
            chunk = self.parents.get(child)
            found += child in self._found or (chunk is not None and self._stands(child, chunk, below | {key}))
        return found >= self._ratio * count

    def _key(self, kb: str, chunk: Chunk) -> Key | None:
        """The knowledge base and the id of a chunk's parent; None where it has none."""
        named = self._kinship.parent_of(chunk) or chunk.metadata.get(self._id_key or "")
        return (kb, str(named)) if isinstance(named, str | int) and str(named) else None
