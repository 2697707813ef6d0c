"""Window expansion: search finds sentences, and the model reads the window around them from their metadata."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from voicevault_retrievers._support.checks import whole_or_none
from voicevault_retrievers.core.blocking import Blocked
from voicevault_retrievers.core.channel import Stage
from voicevault_retrievers.core.types import Chunk, Hit, Query, Ranking
from voicevault_retrievers.structure.parents import Room, over_budget
from voicevault_retrievers.text.tokens import TokenCounter, estimate_tokens

SPACES = 4
"""Characters by which the place of a window may be off."""


@dataclass(frozen=True)
class Place:
    """The position of a chunk in its document: its first character, and the id of the following chunk."""

    id: str
    document: str
    start: int | None = None
    next: str | None = None


@dataclass(frozen=True)
class _Window:
    """A text of a document. `begin` and `end` are where it stands there, by its chunk's place; None where unknown."""

    text: str
    place: Place
    hits: tuple[str, ...]
    begin: int | None = None
    end: int | None = None

    @classmethod
    def of(cls, text: str, chunk: Chunk, place: Place) -> _Window:
        """The window of a chunk, which stands in it once."""
        own = chunk.text.strip()
        if place.start is None or not own or text.count(own) != 1:
            return cls(text, place, (chunk.id,))
        begin = place.start + chunk.text.index(own) - text.index(own)
        return cls(text, place, (chunk.id,), begin, begin + len(text))


class WindowExpansion(Stage):
    """Gives each hit the window in its metadata under `window_key`; overlapping windows are merged into one text.

    The best of their hits gets the merged text, with its own chunk and score; the others are dropped. Only windows of
    one document overlap. `place_of` gives a chunk's position there, which orders the windows; None where unknown. Hits
    without a window, or whose window contains a chunk that is blocked, stay as they are, and so do order and scores.
    `max_chars` and `max_tokens` bound the sum of the texts, counted in rank order: the merged windows where they fit,
    else the hit's own window, else its text; a note counts the hits whose text does not fit either. A query's
    `max_context_tokens` lowers `max_tokens`.
    """

    gives_text = True

    def __init__(
        self,
        place_of: Callable[[Chunk], Place | None],
        *,
        window_key: str = "window",
        max_chars: int | None = None,
        max_tokens: int | None = None,
        count_tokens: TokenCounter = estimate_tokens,
        name: str = "windows",
    ) -> None:
        super().__init__()
        self.place_of = place_of
        self.window_key = window_key
        self.max_chars = whole_or_none("max_chars", max_chars)
        self.max_tokens = whole_or_none("max_tokens", max_tokens)
        self.count_tokens = count_tokens
        self.name = name

    def needs(self, k: int) -> int:
        return 2 * k

    def refine(self, query: Query, ranking: Ranking) -> Ranking:
        texts = {hit.id: self._text(hit, query.blocked) for hit in ranking}
        own_windows = {chunk_id: text for chunk_id, text in texts.items() if text is not None}
        windows = {one: window for window in self._joined(ranking, own_windows) for one in window.hits}
        room = Room.of(query, self.max_chars, self.max_tokens, self.count_tokens)
        kept: list[Hit] = []
        shown: set[str] = set()
        over = 0
        for hit in ranking:
            if hit.id in shown:
                continue
            window, own = windows.get(hit.id), own_windows.get(hit.id)
            if window is not None and room.takes(window.text):
                kept.append(replace(hit, context=window.text, over_budget=False))
                shown.update(window.hits)
            elif own is not None and room.takes(own):
                kept.append(replace(hit, context=own, over_budget=False))
            else:
                fits = room.takes(hit.text)
                kept.append(hit if fits else replace(hit, context=None, over_budget=True))
                over += not fits
        return replace(ranking, hits=tuple(kept)).failing(*over_budget(self.name, over, ranking))

    def _joined(self, ranking: Ranking, texts: Mapping[str, str]) -> list[_Window]:
        documents: defaultdict[tuple[str, str], list[_Window]] = defaultdict(list)
        for hit in ranking:
            text = texts.get(hit.id)
            if text is not None:
                place = self.place_of(hit.chunk) or Place(hit.id, hit.id)
                documents[hit.chunk.kb, place.document].append(_Window.of(text, hit.chunk, place))
        return [window for windows in documents.values() for window in _swept(_in_order(windows))]

    def _text(self, hit: Hit, blocked: Blocked | None) -> str | None:
        window = hit.chunk.metadata.get(self.window_key)
        shown = isinstance(window, str) and window and not (blocked and blocked.is_in(window))
        return window if shown else None

    def __repr__(self) -> str:
        return (
            f"WindowExpansion(window_key={self.window_key!r}, max_chars={self.max_chars}, "
            f"max_tokens={self.max_tokens}, name={self.name!r})"
        )


def joined(first: str, second: str) -> str | None:
    """Two texts merged where the end of the first begins the second, at spaces; None if they do not overlap."""
    if second in first:
        return first
    for size in range(min(len(first), len(second)), 0, -1):
        begins = size == len(first) or first[-size - 1].isspace()
        ends = size == len(second) or second[size].isspace()
        if begins and ends and first.endswith(second[:size]):
            return first + second[size:]
    return None


def _swept(windows: Sequence[_Window]) -> list[_Window]:
    """Windows in document order, with overlapping ones merged."""
    swept: list[_Window] = []
    for window in windows:
        last = swept[-1] if swept else None
        text = None if last is None else joined(last.text, window.text)
        if last is None or text is None or not _overlap(last, window, len(last.text) + len(window.text) - len(text)):
            swept.append(window)
        else:
            end = window.end if len(text) > len(last.text) else last.end
            swept[-1] = _Window(text, window.place, (*last.hits, *window.hits), last.begin, end)
    return swept


def _overlap(first: _Window, second: _Window, size: int) -> bool:
    """Whether the `size` characters that the windows share are the same place of the document, not a repeated sentence.

    True where neither position is known. Windows may have more white space than the document between their sentences.
    """
    if first.place.start is None or second.place.start is None:
        return True
    if first.end is None or second.begin is None:
        return second.place.start - first.place.start <= len(first.text) + len(second.text)
    wider = SPACES + 2 * (first.text.count("  ") + second.text.count("  "))
    inside = size == len(second.text)
    return first.end - second.begin >= size - wider and (inside or first.end - second.begin <= size + wider)


def _in_order(windows: Sequence[_Window]) -> list[_Window]:
    """The windows by their first character; where that is unknown, each before the `next` one."""
    starts = [window.place.start for window in windows]
    known = [start for start in starts if start is not None]
    if len(known) == len(windows):
        return [window for _, window in sorted(zip(known, windows, strict=True), key=lambda pair: pair[0])]
    by_id = {window.place.id: window for window in windows}
    firsts = by_id.keys() - {window.place.next for window in windows}
    ordered: dict[str, _Window] = {}
    for at in (*(window.place.id for window in windows if window.place.id in firsts), *by_id):
        following: str | None = at
        while following in by_id and following not in ordered:
            ordered[following] = by_id[following]
            following = by_id[following].place.next
    return list(ordered.values())
