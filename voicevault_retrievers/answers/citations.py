"""Source markers: headers of blocks, and the resolution of an answer's markers to blocks.

A header is `[Source: report.pdf, p.3 | Section: Results]`. A marker in an answer is `[Source: report.pdf, p.3]`, or a
variant of people and models such as `(Report.pdf, pages 3-4)`; or `[1]` for the first block of a numbered context.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral

from voicevault_retrievers._support.characters import without_controls
from voicevault_retrievers.answers.cited_places import DASH, WIDEST, CitedPlace, is_file, place_of, plain, without_lead
from voicevault_retrievers.core.pages import shown_file, shown_page, shown_section
from voicevault_retrievers.core.types import Citation, Context, Hit

LAST = 999_999
"""The highest number of a marker."""


_OPEN, _CLOSE, _BRACKETS = r"[\[［【〔]", r"[\]］】〕]", r"\[\]［］【】〔〕"
_OPENS = re.compile(r"[\[［【〔﹇︻︹]")
_CYRILLIC = {0x405: "S", 0x455: "s", 0x41E: "O", 0x43E: "o", 0x421: "C", 0x441: "c", 0x415: "E", 0x435: "e"}
"""Letters that look like those of the word `source`."""
_COMMA = r"[,;،؛、，；]"
_BLANK = (
    r"[\s\x00-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    r"\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\U000e0000-\U000e0fff]"
)
"""White space and invisible characters."""

_SOURCE = re.compile(rf"{_OPEN}\s*sources?\s*[:：](?P<body>[^{_BRACKETS}\n]*){_CLOSE}", re.IGNORECASE)
_RANGE = re.compile(rf"\d{{1,6}}(?:\s*{DASH}\s*\d{{1,6}})?")
_NUMBERS = re.compile(
    rf"{_OPEN}\s*(?P<numbers>{_RANGE.pattern}(?:\s*{_COMMA}\s*{_RANGE.pattern})*)\s*(?:†[^{_BRACKETS}\n]{{0,100}})?"
    r"(?:\](?!\()|[］】〕])"
)
_HEADING = re.compile(r"^[^\S\n]*【[^【】\n]*】(?=[^\S\n]*\w)", re.MULTILINE)
_BRACKETED = re.compile(
    r"(?<![a-zA-Z0-9_\]])(?:\((?:[^()\[\]\n]|\([^()\[\]\n]{0,100}\)){1,300}\)|\[[^\[\]\n]{1,300}\](?!\())"
    r"|（[^（）\n]{1,300}）|【[^【】\n]{1,300}】|［[^［］\n]{1,300}］"
)
_DAGGER = re.compile(r"^\s*\d+(?::\d+)?†")
_THOUGHTS = re.compile(r"\A\s*<(think(?:ing)?)>.*?(?:</\1>|\Z)", re.IGNORECASE | re.DOTALL)
_CODE = re.compile(r"(`{3,}).*?(?:\1|\Z)|(?<!`)(`{1,2})(?!`)[^\n]*?(?<!`)\2(?!`)", re.DOTALL)
_NUMBER = re.compile(r"\d+")
_PREFIX = re.compile(r"^\s*sources?\s*[:：]\s*", re.IGNORECASE)
_PLACE = re.compile(r"[^;\s](?:[^;]*[^;\s])?")
_FORGED = re.compile(
    f"{_OPEN}(?={''.join(f'{_BLANK}*{letter}' for letter in [*'source', 's?', '[:：]'])})", re.IGNORECASE
)
_FORGED_NUMBERS = re.compile(rf"{_OPEN}({_BLANK}*\d(?:{_BLANK}|{DASH}|{_COMMA}|\d)*){_CLOSE}")
_FORGED_LENSES = re.compile(rf"【({_BLANK}*\d(?:{_BLANK}|{DASH}|{_COMMA}|\d)*)】")
_TIDY = str.maketrans(
    {
        **dict.fromkeys("[［【〔﹇︻︹", "("),
        **dict.fromkeys("]］】〕﹈︼︺", ")"),
        **dict.fromkeys("\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029", " "),
        "|": "/",
    }
)
_SHOWN = 200
"""The most characters of a name in a header: a longer name shows its beginning and its end."""


@dataclass(frozen=True)
class Marker:
    """A marker in an answer, with its character offsets and the citations that it names, if any.

    `quote` is the cited part of the source, where a model cites by annotations; `text` is then the annotated part of
    the answer.
    """

    text: str
    start: int
    end: int
    citations: tuple[Citation, ...]
    quote: str = ""

    @property
    def resolved(self) -> bool:
        """Whether the marker names a given source."""
        return bool(self.citations)


@dataclass(frozen=True)
class ResolvedAnswer:
    """An answer with its markers, in order."""

    answer: str
    markers: tuple[Marker, ...]

    @property
    def unresolved(self) -> tuple[Marker, ...]:
        """Markers that name no block, such as an invented source."""
        return tuple(marker for marker in self.markers if not marker.resolved)

    @property
    def citations(self) -> tuple[Citation, ...]:
        """The citations that the answer names, each once, by first mention."""
        return tuple({citation.index: citation for marker in self.markers for citation in marker.citations}.values())


def citation_of(
    index: int,
    hit: Hit,
    text: str,
    *,
    page_key: str | None = None,
    source_key: str | None = None,
    paths: bool = False,
) -> Citation:
    """The citation of a hit whose block has the number `index`.

    It shows a file's name in place of a path of a machine, or with `paths` the path; see `core.pages`.
    """
    metadata = hit.chunk.metadata
    start, end = _span(hit)
    return Citation(
        index=index,
        chunk_id=hit.chunk.id,
        kb=hit.chunk.kb,
        source_file=shown_file(metadata, source_key, paths=paths),
        page_number=shown_page(metadata, page_key, source_key),
        section=shown_section(metadata),
        start=start,
        end=end,
        score=hit.score,
        text=text,
    )


def header(citation: Citation) -> str:
    """`[Source: file, p.N | Section: S]`; page and section are left out where unknown."""
    return f"[Source: {_forms(citation)[0]}]"


def title(citation: Citation) -> str:
    """`file, p.N`; the page is left out where unknown."""
    return _forms(citation)[1]


def without_headers(text: str, *, numbered: bool = False) -> str:
    """A chunk's text without anything that reads as a header: a document must not forge its neighbour's.

    Block numbers in `【】`, or for a `numbered` context in any brackets, change too: `[7]` becomes `(7)`. Otherwise an
    answer that repeats the words would cite the seventh block. Compatibility forms (NFKC) of letters and brackets, such
    as full-width ones, count as the letters. The length does not change.
    """
    if not _OPENS.search(text):
        return text
    read, changed = _folded(text), list(text)
    for found in _FORGED.finditer(read):
        changed[found.start()] = "("
    for found in (_FORGED_NUMBERS if numbered else _FORGED_LENSES).finditer(read):
        changed[found.start()], changed[found.end() - 1] = "(", ")"
    return "".join(changed)


def _folded(text: str) -> str:
    """The text with each character as a reader takes it, of the same length."""
    return text if text.isascii() else "".join(map(_compatible, text.translate(_CYRILLIC)))


@lru_cache(maxsize=4096)
def _compatible(sign: str) -> str:
    folded = unicodedata.normalize("NFKC", sign)
    return folded if len(folded) == 1 else sign


def shortened(name: str) -> str:
    """A name of bounded length: of a longer one, its beginning and its end."""
    half = _SHOWN // 2
    return name if len(name) <= _SHOWN else f"{name[:half]}…{name[-half + 1 :]}"


def is_numbered(context: Context) -> bool:
    """Whether the blocks of a `ContextBuilder`'s context have numbers."""
    return any(f"{numbered_header(citation)}\n" in context.text for citation in context.citations[:1])


def numbered_header(citation: Citation) -> str:
    """`[n] [Source: file, p.N | Section: S]`."""
    return f"[{citation.index}] {header(citation)}"


@dataclass(frozen=True)
class Name:
    """The names of a citation in markers: its forms, or its file with page and section."""

    citation: Citation
    forms: frozenset[str]
    file: str
    page: str
    section: str

    def is_called(self, file: str) -> bool:
        """Whether this is the full name of the citation's file, of which its forms may show a part."""
        return self.citation.source_file == file

    def is_at(self, place: CitedPlace) -> bool:
        """Whether the citation is at a place."""
        return (
            self.file == place.file
            and (place.pages is None or self.page in place.pages)
            and place.section in (None, self.section)
        )


Names = Sequence[Name]


def names_of(citations: Iterable[Citation]) -> Names:
    """The names of each citation, computed once for all markers of an answer."""
    return list(map(_name, citations))


def _name(citation: Citation) -> Name:
    forms = _forms(citation)
    section = plain(_tidy(citation.section or ""))
    return Name(citation, frozenset(map(plain, forms)), plain(forms[-1]), plain(citation.page_number), section)


def cited(place: str, quote: str, names: Names) -> tuple[Citation, ...]:
    """The citations that a place (`file, p.N`, part of a header, or the full file name) names and that have the quote.

    White space counts as single spaces, so that line breaks make no difference.
    """
    quoted = _bare(quote)
    return tuple(citation for citation in _named(place, names) if quoted in _bare(citation.text))


def resolve_citations(answer: str, citations: Sequence[Citation], *, numbered: bool = False) -> ResolvedAnswer:
    """The blocks that an answer's markers name.

    A marker names all blocks of its file and pages, in order, of every file with that name, ignoring case. A marker
    without a page names all blocks of its file; a marker with several places, separated by `;`, counts as several. A
    marker without a block stays unresolved. Brackets without `Source:`, such as `(Manual.pdf, p. 4-6)`, are a marker
    where they name a file: one of the citations', or a name with the extension of a document. Other words in
    parentheses, such as `(see p. 4)`, are no markers, nor are Markdown's code and links.

    In a `numbered` context, `[n]` names the block with that number. So does `【n】` in any context, but without numbers
    not where it numbers a heading. `[1, 2]` and `[1-3]` count as one marker for each number; a descending range, or one
    over more than 50, names no block. Any number in brackets is a marker, even a year, except in Markdown's code, and
    as the text of a link.

    The reasoning of a model, `<think>...</think>` at the beginning, has no markers.
    """
    names = names_of(citations)
    said = _THOUGHTS.sub(lambda thoughts: " " * len(thoughts[0]), answer)
    markers = [marker for match in _SOURCE.finditer(said) for marker in _places(match, names)]
    said = _CODE.sub(lambda code: "`" * len(code[0]), _SOURCE.sub(lambda source: "\n" * len(source[0]), said))
    files = [marker for match in _BRACKETED.finditer(said) for marker in _files(match, names)]
    taken = {at for marker in files for at in range(marker.start, marker.end)}
    numbers = _numbered(said, citations, lenses=not numbered)
    markers += [*files, *(marker for marker in numbers if marker.start not in taken)]
    return ResolvedAnswer(answer, tuple(sorted(markers, key=lambda marker: marker.start)))


def _places(match: re.Match[str], names: Names) -> Iterator[Marker]:
    """One marker for the whole bracket, or, where that names nothing, one for each of its places."""
    body, start = match["body"], match.start("body")
    named = _named(body, names)
    if named or ";" not in body:
        yield Marker(match[0], match.start(), match.end(), named)
        return
    for part in _PLACE.finditer(body):
        yield Marker(part[0], start + part.start(), start + part.end(), _named(part[0], names))


def _files(match: re.Match[str], names: Names) -> Iterator[Marker]:
    """One marker for each place in brackets that names a file."""
    body = _DAGGER.sub("", match[0][1:-1])
    named = _of_files(body, names)
    if named or ";" not in body:
        if named or is_file(without_lead(body)):
            yield Marker(match[0], match.start(), match.end(), named)
        return
    for part in _PLACE.finditer(match[0], 1, len(match[0]) - 1):
        named, start = _of_files(part[0], names), match.start() + part.start()
        if named or is_file(without_lead(part[0])):
            yield Marker(part[0], start, start + len(part[0]), named)


def _of_files(text: str, names: Names) -> tuple[Citation, ...]:
    if not any(map(str.isalpha, text)):  # a number is a block's, even where a file has that name
        return ()
    found = _named(text, names) or _named(without_lead(text), names)
    return tuple(citation for citation in found if citation.source_file is not None)


def _numbered(answer: str, citations: Iterable[Citation], *, lenses: bool) -> Iterator[Marker]:
    """One marker for each number in brackets; with `lenses` only in `【】`, and not where it numbers a heading."""
    blocks: dict[int, list[Citation]] = {}
    for citation in citations:
        blocks.setdefault(citation.index, []).append(citation)
    answer = _HEADING.sub(lambda heading: " " * len(heading[0]), answer) if lenses else answer
    for match in _NUMBERS.finditer(answer):
        if lenses and match[0][0] != "【":
            continue
        parts = list(_RANGE.finditer(match["numbers"]))
        for part in parts:
            start, end = match.span() if len(parts) == 1 else (match.start("numbers") + at for at in part.span())
            for number in _range(part[0]):
                yield Marker(answer[start:end], start, end, tuple(blocks.get(number, ())))


def _range(numbers: str) -> Sequence[int]:
    """The numbers of a range; 0, which no block has, for an invalid range."""
    first, *last = map(int, _NUMBER.findall(numbers))
    wide = range(first, max(last, default=first) + 1)
    return wide if 0 < len(wide) <= WIDEST + 1 else [0]


def _named(place: str, names: Names) -> tuple[Citation, ...]:
    """The citations that have a place among their forms, or else are at the place."""
    wanted = {plain(place), plain(bare := _PREFIX.sub("", place))}
    found = tuple(name.citation for name in names if name.is_called(bare) or not wanted.isdisjoint(name.forms))
    at = place_of(bare)
    return found or tuple(name.citation for name in names if name.is_at(at))


def _forms(citation: Citation) -> tuple[str, ...]:
    """The forms of a citation in markers: its header, and shorter ones without section or page."""
    file = _tidy(citation.source_file or citation.chunk_id)
    page, section = _page(citation), _section(citation)
    return (f"{file}{page}{section}", f"{file}{page}", f"{file}{section}", file)


def _page(citation: Citation) -> str:
    return "" if citation.page_number is None else f", p.{_tidy(citation.page_number)}"


def _section(citation: Citation) -> str:
    return f" | Section: {_tidy(citation.section)}" if citation.section else ""


def _bare(text: str) -> str:
    """A text normalised to compare quotes: as a model may have read it, with single spaces."""
    return " ".join(without_headers(without_controls(text), numbered=True).split())


def _span(hit: Hit) -> tuple[int | None, int | None]:
    """The chunk's offsets in its document; LangChain's splitters record only the start, -1 for unknown.

    Where the end of a wider context is not recorded, it is unknown.
    """
    metadata = hit.chunk.metadata
    start, end = _offset(metadata.get("start")), _offset(metadata.get("end"))
    if start is None and end is None:
        start = _offset(metadata.get("start_index"))
        end = None if start is None or hit.context is not None else start + len(hit.chunk.text)
    return start, end


def _offset(value: object) -> int | None:
    return int(value) if isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 0 else None


def _tidy(value: object) -> str:
    """A name as shown in a header: on one line, without brackets, of bounded length."""
    return shortened(without_controls(str(value).translate(_TIDY)).strip())
