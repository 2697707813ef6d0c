"""Rows and records as parts: `column: value` lines, each part with its place."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from voicevault_retrievers.documents._model import Part
from voicevault_retrievers.errors import DocumentError

MAX_RECORDS = 200_000
"""The most records of a file; each becomes a chunk."""

_NAME = re.compile(r"[^\W\d_]")


class Row(NamedTuple):
    """A row with its number, from 1 as spreadsheets count."""

    number: int
    cells: Sequence[str]


def check_count(count: int, name: str) -> None:
    """Raises DocumentError for too many records."""
    if count > MAX_RECORDS:
        raise DocumentError(f"{name} has more than {MAX_RECORDS} records: divide it, or read it into a database")


def table_parts(
    rows: Iterable[Row], name: str, *, sheet: str | None = None, text_field: str | None = None
) -> list[Part]:
    """A part per row that is not blank: `column: value` lines below a header row, else its cells with ` | ` between.

    The first row with more than one cell is the header if its cells are distinct names. Rows above it are one part.
    With `text_field`, the text is that column's. Raises DocumentError where no row has that column.
    """
    filled = [
        Row(row.number, tuple(cell.strip() for cell in row.cells)) for row in rows if any(map(str.strip, row.cells))
    ]
    check_count(len(filled), name)
    place: dict[str, str | int] = {} if sheet is None else {"sheet": sheet}
    at = next((at for at, row in enumerate(filled) if sum(map(bool, row.cells)) > 1), len(filled))
    if at == len(filled):  # a list, whose first line is as good as the others
        return [Part(_bare(row), section=sheet, metadata=place | {"row": row.number}) for row in filled]
    columns = _header(filled[at].cells) if at + 1 < len(filled) else None
    if text_field is not None:
        return _of_column(filled[at + 1 :], columns or [], text_field, name, sheet)
    parts = []
    if at:
        above = {"row": filled[0].number, "row_end": filled[at - 1].number}
        parts = [Part("\n".join(map(_bare, filled[:at])), section=sheet, metadata=place | above)]
    for row in filled[at + 1 :] if columns else filled[at:]:
        text = _bare(row) if columns is None else record_text(_named(columns, row.cells))
        parts.append(Part(text, section=sheet, metadata=place | {"row": row.number}))
    return parts


def record_text(values: Mapping[str, str]) -> str:
    """A line per value that is not empty."""
    return "\n".join(f"{key}: {value}" for key, value in values.items() if value)


def missing_field(text_field: str, known: Iterable[str], name: str) -> DocumentError:
    """The error where no record has the field that is the text."""
    told = ", ".join(list(dict.fromkeys(known))[:20])
    return DocumentError(f"{name} has no text field {text_field!r}: give one of {told or 'those that it has'}")


def without_field(missing: int, count: int, text_field: str) -> tuple[str, ...]:
    """A note where some records lack the field that is the text."""
    return (f"{missing} of {count} records have no text field {text_field!r}",) if missing else ()


def _of_column(
    rows: Sequence[Row], columns: Sequence[str], text_field: str, name: str, sheet: str | None
) -> list[Part]:
    if text_field not in columns:
        raise missing_field(text_field, columns, name)
    at = columns.index(text_field)
    told = [row for row in rows if len(row.cells) > at and row.cells[at]]
    notes = without_field(len(rows) - len(told), len(rows), text_field)
    place: dict[str, str | int] = {} if sheet is None else {"sheet": sheet}
    return [Part(row.cells[at], section=sheet, metadata=place | {"row": row.number}, notes=notes) for row in told]


def _header(cells: Sequence[str]) -> list[str] | None:
    """The names of the columns, if a row is one of names: distinct cells with letters, none of them empty."""
    names = list(cells)
    while names and not names[-1]:
        names.pop()
    distinct = len({name.casefold() for name in names}) == len(names)
    return names if distinct and all(map(_NAME.search, names)) else None


def _named(columns: Sequence[str], cells: Sequence[str]) -> dict[str, str]:
    more = [f"column {at}" for at in range(len(columns) + 1, len(cells) + 1)]
    return dict(zip([*columns, *more], cells, strict=False))


def _bare(row: Row) -> str:
    return " | ".join(filter(None, row.cells))
