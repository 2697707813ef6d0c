"""What `voicevault index` says of the files that it did not read, and of those that it read otherwise than as UTF-8."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import PurePosixPath

from voicevault_retrievers.documents import CHOSEN, Note, Skipped

NAMES = 3
"""How many files of a kind are named."""


def unread_lines(
    skipped: Iterable[Skipped], *, verbose: bool = False, quiet: bool = False
) -> Iterator[tuple[str, str]]:
    """Yield pairs of a label and a line: one for each file that failed, one for each other reason.

    What names and rules leave out is counted, and with `quiet` not told. With `verbose` each file has its line.
    """
    told = [one for one in skipped if not (quiet and one.why in CHOSEN)]
    for one in told:
        if verbose or one.why == "failed":
            reason = one.reason.removeprefix(f"{PurePosixPath(one.source_file).name} ")
            yield ("skipped" if one.why == "failed" else "not read"), f"{one.source_file}: {reason}"
    if verbose:
        return
    others = sorted((one for one in told if one.why != "failed"), key=_kind)
    for (why, reason), group in groupby(others, key=_kind):
        found = list(group)
        names = "" if why in CHOSEN else _few([_named(one) for one in found])
        yield "not read", f"{len(found)}: {reason}{names}"


def note_lines(notes: Iterable[Note], *, verbose: bool = False) -> Iterator[str]:
    """Yield a line for each way in which files were read, with the first files; with `verbose` all."""
    by_text = sorted(notes, key=lambda note: note.text)
    for text, group in groupby(by_text, key=lambda note: note.text):
        names = [note.source_file for note in group]
        yield f"{text}: {len(names)} file{'s' * (len(names) > 1)}{_few(names, len(names) if verbose else NAMES)}"


def _kind(skipped: Skipped) -> tuple[str, str]:
    """What files have in common that are told in one line."""
    return skipped.why, "second name of a file" if skipped.why == "second name" else skipped.reason


def _named(skipped: Skipped) -> str:
    if skipped.why != "second name":
        return skipped.source_file
    return f"{skipped.source_file}: {skipped.reason.removeprefix('second name of ')}"


def _few(names: Sequence[str], most: int = NAMES) -> str:
    more = f" and {len(names) - most} more; --verbose names all" if len(names) > most else ""
    return f" ({', '.join(names[:most])}{more})"
