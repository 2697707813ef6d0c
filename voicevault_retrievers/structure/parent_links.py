"""Parent links between chunks, over several levels, and the text that a model reads for each hit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from voicevault_retrievers.core.pages import file_of, page_of
from voicevault_retrievers.core.types import Chunk, Failure, Hit, Ranking
from voicevault_retrievers.errors import ContextExpansionError
from voicevault_retrievers.structure.packing import CharacterSpan, Shown, Text

Key: TypeAlias = tuple[str, str]
"""A knowledge base and an id in it."""


class Kinship:
    """How chunks are identified, linked to parents and located in documents; this class reads their metadata."""

    def id_of(self, chunk: Chunk) -> str:
        """The id by which other chunks name this one as their parent."""
        return chunk.id

    def parent_of(self, chunk: Chunk) -> str | None:
        """The id of a chunk's parent; None where it has none."""
        return chunk.parent_id

    def children_of(self, parent: Chunk) -> int:
        """The number of a parent's children; 0 where unknown."""
        return _whole(parent.metadata.get("children")) or 0

    def joined(self, chunk: Chunk, parent: Chunk, links: Container[str | None] = ()) -> Chunk:
        """A chunk that is read as its parent: with the parent's metadata, and its own under other keys.

        The chunk keeps its own links to other chunks, under `links` and `parent_id`, and its own values under keys with
        a leading underscore, which belong to stores.
        """
        above = {
            key: value
            for key, value in parent.metadata.items()
            if value is not None and key != "parent_id" and key not in links and not key.startswith("_")
        }
        return replace(chunk, metadata={**chunk.metadata, **above})

    def span_of(self, chunk: Chunk) -> CharacterSpan | None:
        """The position of a chunk's text in its document, or in its page and section; None where unknown.

        `start` (or LangChain's `start_index`) is the position of its first character. Chunks with consecutive
        `chunk_index` adjoin; without an index, those with at most two characters between them.
        """
        metadata = chunk.metadata
        file, start = file_of(metadata), _whole(metadata.get("start", metadata.get("start_index")))
        if file is None or start is None or metadata.get("end", start + len(chunk.text)) != start + len(chunk.text):
            return None
        document = repr((page_of(metadata) or file, metadata.get("section")))
        index = _whole(metadata.get("chunk_index"))
        at, following = (chunk.id, None) if index is None else (str(index), str(index + 1))
        return CharacterSpan(document, start, start + len(chunk.text), at, following)


@dataclass(frozen=True)
class Naming:
    """The metadata keys under which chunks name their parent and header, and the number of levels to follow."""

    id_key: str | None = None
    header_key: str | None = None
    levels: int | None = 1


class Ancestors:
    """The ancestors of a ranking's chunks, looked up level by level, with the headers at the first level.

    Parents and headers that are not `permitted` are treated as missing: they also hide what is above them.
    """

    def __init__(
        self, ranking: Ranking, kinship: Kinship, naming: Naming, *, ratio: float, permitted: Callable[[Chunk], bool]
    ) -> None:
        self.parents: dict[Key, Chunk | None] = {}
        self.headers: dict[Key, Chunk | None] = {}
        self._kinship = kinship
        self._naming = naming
        self._ratio = ratio
        self._permitted = permitted
        self._level = 0
        self._latest = [(hit.chunk.kb, hit.chunk) for hit in ranking]
        self._found = {self.own(hit.chunk) for hit in ranking}
        self._several = {kb for kb, chunk in self._latest if kb and chunk.id.startswith(f"{kb}:")}
        self._children: defaultdict[Key, set[Key]] = defaultdict(set)

    def wanted(self) -> list[str]:
        """The ids of the next level's parents, at the first level those of headers too; empty after the last level."""
        if self._level == self._naming.levels:
            return []
        if not self._level:
            self.headers = {key: None for _, chunk in self._latest if (key := self.header(chunk))}
        self._level += 1
        wanted: dict[Key, None] = {}
        for kb, chunk in self._latest:
            if key := self._key(kb, chunk):
                self._children[key].add((kb, self._kinship.id_of(chunk)))
                wanted |= {} if key in self.parents else {key: None}
        self._latest = []
        self.parents |= wanted
        headers = self.headers if self._level == 1 else {}
        return list(dict.fromkeys(one for key in (*wanted, *headers) for one in self._names(key)))

    def learn(self, found: Mapping[str, Chunk]) -> None:
        """Record the requested parents and headers that the store has and the access rights permit."""
        if self._level == 1:
            self._take(self.headers, found)
        self._latest = self._take(self.parents, found)

    def _take(self, wanted: dict[Key, Chunk | None], found: Mapping[str, Chunk]) -> list[tuple[str, Chunk]]:
        """Fill in the chunks found, or remove those not permitted; returns the new chunks with their bases."""
        new = []
        for key in [key for key, known in wanted.items() if known is None]:
            chunk = self._of(key, found)
            if chunk is not None and self._permitted(chunk):
                wanted[key] = chunk
                new.append((key[0], chunk))
            elif chunk is not None:
                del wanted[key]
        return new

    def header(self, chunk: Chunk) -> Key | None:
        """The knowledge base and the id of a chunk's header; None where it names none."""
        return _key(chunk.kb, chunk.metadata.get(self._naming.header_key or ""))

    def joined(self, chunk: Chunk, parent: Chunk) -> Chunk:
        """A chunk that is read as its parent, with merged metadata: see `Kinship.joined`."""
        return self._kinship.joined(chunk, parent, (self._naming.id_key, self._naming.header_key))

    def own(self, chunk: Chunk) -> Key:
        """The knowledge base and the id of a chunk."""
        return chunk.kb, self._kinship.id_of(chunk)

    def above(self, chunk: Chunk) -> list[Key]:
        """The keys of a chunk's parent, its parent's parent and so on, as far as they were looked up."""
        keys: list[Key] = []
        kb, at = chunk.kb, chunk if self.parents else None
        while at is not None and (key := self._key(kb, at)) in self.parents and key not in keys:
            keys.append(key)
            at = self.parents[key]
        return keys[: self._naming.levels]

    def standing(self, above: Sequence[Key]) -> Iterator[Chunk]:
        """Of these parents, those that replace their children, up to the first that does not."""
        for key in above:
            parent = self.parents[key]
            if parent is None or not self._stands(key, parent, frozenset()):
                return
            yield parent

    def _stands(self, key: Key, parent: Chunk, below: frozenset[Key]) -> bool:
        """Whether enough of a parent's children were found, or replace found descendants."""
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
        return _key(kb, self._kinship.parent_of(chunk) or chunk.metadata.get(self._naming.id_key or ""))

    def _names(self, key: Key) -> list[str]:
        """The names of an id in the store: also `base:id` where several bases are searched."""
        kb, named = key
        return [named, f"{kb}:{named}"] if kb in self._several and not named.startswith(f"{kb}:") else [named]

    def _of(self, key: Key, found: Mapping[str, Chunk]) -> Chunk | None:
        """The store's chunk of this id, if it has text and is of the same knowledge base; None otherwise."""
        kb = key[0]
        chunks = (found.get(name) for name in self._names(key))
        return next((one for one in chunks if one and one.text and not (kb and one.kb and one.kb != kb)), None)


def _key(kb: str, named: Any) -> Key | None:
    return (kb, str(named)) if isinstance(named, str | int) and str(named) else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


OWN_TEXT = "the hits keep their own text"
"""What the model reads where a parent is not available."""


@dataclass(frozen=True)
class OverBudget(Failure):
    """A note of hits that do not fit the budget, not even with their own text; `ids` are their ids, where recorded."""

    ids: tuple[str, ...] = ()


def over_budget(stage: str, over: int, ranking: Ranking, ids: Sequence[str] = ()) -> Iterator[Failure]:
    """A note that `over` hits of a ranking do not fit the budget; none where all fit."""
    if over:
        message = f"{over} of {len(ranking)} hits do not fit into the budget, not even with their own text"
        yield OverBudget(stage, "over budget", message, degrades=False, ids=tuple(ids))


class ParentTexts:
    """The texts of a ranking's hits, chosen in rank order.

    A hit gets the text of its highest parent that replaces it and fits, else its own, below its header, if that was not
    included before; or else its own without header. Where nothing fits, the first hit's text is cut, and other hits
    have none; these hits are marked `over_budget`, and a note has their ids. With a parent's text the hit gets the
    parent's metadata, over its own.
    """

    def __init__(self, ranking: Ranking, known: Ancestors, kinship: Kinship, shown: Shown) -> None:
        self._ranking = ranking
        self._known = known
        self._kinship = kinship
        self._shown = shown
        self._given: set[Key] = set()
        self._covered: set[Key] = set()
        self._headed: set[tuple[Key, str | None]] = set()
        self._over: dict[str, None] = {}
        self._read_as: dict[int, Chunk] = {}

    def ranking(self, stage: str) -> Ranking:
        """The hits with their texts, without those whose text another hit has; `stage` names failures and notes."""
        for place, hit in enumerate(self._ranking):
            self._read(place, hit)
        read = (self._with_text(place, hit) for place, hit in enumerate(self._ranking))
        hits = tuple(hit for hit in read if hit is not None)
        notes = over_budget(stage, len(self._over), self._ranking, tuple(self._over))
        missing = (*_missing(stage, "parents", self._known.parents), *_missing(stage, "headers", self._known.headers))
        return replace(self._ranking, hits=hits).failing(*missing, *notes)

    def _read(self, place: int, hit: Hit) -> None:
        own, above = self._known.own(hit.chunk), self._known.above(hit.chunk)
        if own in self._covered or not (self._given.isdisjoint(above) and self._covered.isdisjoint(above)):
            return
        self._given.add(own)
        parents = list(self._known.standing(above))
        texts = [self._text(parent, hit.chunk.kb, whole=True) for parent in parents]
        alone = Text.of(hit.text) if hit.context is not None else self._text(hit.chunk, hit.chunk.kb)
        headed, head = self._header(hit.chunk)
        for level in range(len(texts), -1, -1):
            text = texts[level - 1] if level else alone
            if self._shown.add(place, replace(text, head=head) if head else text):
                self._covered.update(above[:level])
                self._read_as |= {place: self._known.joined(hit.chunk, parents[level - 1])} if level else {}
                self._headed |= {headed} if headed and head else set()
                return
        if head and self._shown.add(place, alone):
            return
        self._over[hit.id] = None
        if not self._shown.texts and self._shown.cut(place, replace(alone, head=head)) and headed:
            self._headed.add(headed)

    def _header(self, chunk: Chunk) -> tuple[tuple[Key, str | None] | None, str]:
        """The key of a chunk's header in its document, and the header's text, if it exists and was not included yet."""
        key = self._known.header(chunk)
        if key is None:
            return None, ""
        headed = key, chunk.metadata.get("source_file")
        header = None if headed in self._headed else self._known.headers.get(key)
        return headed, "" if header is None else header.text

    def _text(self, chunk: Chunk, kb: str, *, whole: bool = False) -> Text:
        span = self._kinship.span_of(chunk) if chunk.text else None
        return Text.of(chunk.text, span and replace(span, document=(kb, span.document)), whole=whole)

    def _with_text(self, place: int, hit: Hit) -> Hit | None:
        text = self._shown.texts.get(place)
        if text is None:
            return replace(hit, context=None, over_budget=True) if hit.id in self._over else None
        if place in self._read_as:
            hit = replace(hit, chunk=self._read_as[place], granted_by=hit.access_metadata)
        if hit.id in self._over:
            return replace(hit, context=text.read, over_budget=True)
        unchanged = not text.whole and text.read == hit.text
        return hit if unchanged else replace(hit, context=text.read, over_budget=False)


def _missing(stage: str, what: str, found: Mapping[Key, Any]) -> Iterator[Failure]:
    missing = sum(chunk is None for chunk in found.values())
    if missing:
        yield Failure.of(
            stage, ContextExpansionError(f"{missing} of {len(found)} {what} are not in the store"), OWN_TEXT
        )
