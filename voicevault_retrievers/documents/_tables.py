"""Loads CSV, TSV and XLSX files by rows."""

from __future__ import annotations

import csv
import io
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import date, datetime, time
from itertools import islice
from pathlib import Path
from typing import Any

from voicevault_retrievers._support.extras import require
from voicevault_retrievers.documents._encoding import decode
from voicevault_retrievers.documents._model import EXTRA, Part
from voicevault_retrievers.documents._records import Row, check_count, table_parts
from voicevault_retrievers.documents._zip import check_archive
from voicevault_retrievers.errors import DocumentError

MAX_CELLS = 20_000_000
"""The most cells of a sheet, with the empty ones before others in a row."""

_DELIMITERS = ",;\t|"
_SAMPLED = 50


def load_csv(path: Path, text_field: str | None = None) -> list[Part]:
    """A part per row of a CSV or TSV file, with its `row`, counted from 1 with the header; see `table_parts`.

    The delimiter is the one of comma, semicolon, tab and bar that gives most of the first rows the same number of
    cells.
    """
    text, notes = decode(path.read_bytes(), path.name)
    delimiter = "\t" if path.suffix.lower() == ".tsv" else _delimiter(text)
    try:
        rows = [
            Row(at, cells) for at, cells in enumerate(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter), 1)
        ]
    except csv.Error as error:
        raise DocumentError(f"{path.name} is not CSV ({error}): a quote may never be closed; save it anew") from error
    parts = table_parts(rows, path.name, text_field=text_field)
    return [replace(part, notes=notes + part.notes) for part in parts] if notes else parts


def load_xlsx(path: Path, text_field: str | None = None) -> list[Part]:
    """A part per row of each sheet, with `sheet` and `row`; see `table_parts`. Formulas have the values last stored.

    Raises DocumentError for a file that is no XLSX, is a zip bomb, or has too many rows.
    """
    openpyxl = require("openpyxl", extra=EXTRA)
    check_archive(path, "XLSX")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is not read, such as validation and styles
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    try:
        parts: list[Part] = []
        for sheet in book.worksheets:
            sheet.reset_dimensions()  # the declared ones may be wrong, and fill each row up
            rows = _rows(sheet, path.name)
            parts += table_parts(rows, path.name, sheet=sheet.title, text_field=text_field)
            check_count(len(parts), path.name)
        return parts
    finally:
        book.close()


def _delimiter(text: str) -> str:
    """The delimiter that gives most of the first rows the same number of cells, and several."""
    lines = list(islice(io.StringIO(text, newline=""), 4 * _SAMPLED))

    def even(delimiter: str) -> tuple[int, int]:
        try:
            widths = [len(row) for row in islice(csv.reader(lines, delimiter=delimiter), _SAMPLED) if row]
        except csv.Error:
            return 0, 0
        width, rows = Counter(widths).most_common(1)[0] if widths else (0, 0)
        return (rows, width) if width > 1 else (0, 0)

    return max(_DELIMITERS, key=even)


def _rows(sheet: Any, name: str) -> Iterator[Row]:
    """Yield the rows with values. Raises DocumentError for too many rows or cells."""
    filled = seen = 0
    for number, cells in enumerate(sheet.iter_rows(values_only=True), 1):
        seen += len(cells)
        if seen > MAX_CELLS:
            raise DocumentError(
                f"{name} has more than {MAX_CELLS} cells on a sheet, most of them empty: save it as CSV"
            )
        if any(cell is not None for cell in cells):
            filled += 1
            check_count(filled, name)
            yield Row(number, tuple(map(_shown, cells)))


def _shown(value: Any) -> str:
    """A cell as people read it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, datetime):
        return value.date().isoformat() if value.time() == time() else value.isoformat(" ")
    return value.isoformat() if isinstance(value, date) else str(value)
