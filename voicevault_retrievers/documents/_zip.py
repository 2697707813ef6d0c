"""Checks of formats that are zip archives."""

from __future__ import annotations

from pathlib import Path
from zipfile import BadZipFile, ZipFile

from voicevault_retrievers.errors import DocumentError

MAX_UNPACKED = 512 << 20
MAX_RATIO, RATIO_FROM = 200, 16 << 20


def check_size(path: Path, kind: str, old: str) -> None:
    """Raises DocumentError for a file that is no zip archive, or declares too much for its size.

    `kind` is the format, such as DOCX, `old` the suffix of its binary predecessor.
    """
    try:
        with ZipFile(path) as archive:
            members = archive.infolist()
    except BadZipFile as error:
        raise DocumentError(
            f"{path.name} is no {kind} file ({error}): it may have a password or be an old {old}; save it as {kind}"
        ) from error
    size = sum(member.file_size for member in members)
    # Each member is checked, as incompressible data beside a bomb would lower the ratio of the whole.
    bombs = [m.filename for m in members if m.file_size > max(RATIO_FROM, MAX_RATIO * m.compress_size)]
    if size > MAX_UNPACKED or bombs:
        parts = ", ".join(bombs[:3]) or "all of it"
        raise DocumentError(
            f"{path.name} declares {size >> 20} MiB unpacked, too much for its size ({parts}): it looks like a zip "
            "bomb; divide it, or save it as PDF"
        )
