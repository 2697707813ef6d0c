"""Checks of zip-based documents before a library unpacks them."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from voicevault_retrievers.errors import DocumentError

MAX_UNPACKED = 512 << 20
MAX_RATIO, RATIO_FROM = 200, 16 << 20
"""The largest ratio of a member's unpacked to its packed size, where it unpacks to more than `RATIO_FROM` bytes."""

DEFLATE_RATIO = 1032
"""The largest ratio that deflate can reach; see zlib's technical details."""

_CHUNK = 1 << 20


def check_archive(path: Path, kind: str) -> None:
    """Refuse an archive that unpacks to too much or to more than it declares. `kind` is its type, such as DOCX.

    A library that unpacks a member allocates all that is packed before it looks at the declared size. So each member
    that could be large is first unpacked in pieces, which are counted and dropped. Raises DocumentError for a zip bomb,
    a file that is no zip, and a method of packing other than deflate; BadZipFile for a member that is larger than
    declared.
    """
    try:
        archive = ZipFile(path)
    except BadZipFile as error:
        raise DocumentError(
            f"{path.name} is not a {kind} ({error}): it may have a password or be of an older format; save it anew"
        ) from error
    with archive:
        members = archive.infolist()
        _check_declared(members, path.name, kind)
        for member in members:
            if member.compress_type != ZIP_STORED and member.compress_size > RATIO_FROM // DEFLATE_RATIO:
                _unpack(archive, member)


def _check_declared(members: Sequence[ZipInfo], name: str, kind: str) -> None:
    size = sum(member.file_size for member in members)
    # Each member is checked, as incompressible data beside a bomb would lower the ratio of the whole.
    bombs = [m.filename for m in members if m.file_size > max(RATIO_FROM, MAX_RATIO * m.compress_size)]
    if size > MAX_UNPACKED or bombs:
        parts = ", ".join(bombs[:3]) or "all of it"
        raise DocumentError(
            f"{name} declares {size >> 20} MiB unpacked, too much for its size ({parts}): it looks like a zip bomb; "
            "divide it, or save it as PDF"
        )
    odd = next((m.filename for m in members if m.compress_type not in (ZIP_STORED, ZIP_DEFLATED)), None)
    if odd is not None:
        raise DocumentError(f"{name} packs {odd} in a way that no {kind} does: save it anew")


def _unpack(archive: ZipFile, member: ZipInfo) -> None:
    """Unpack a member without its declared size and checksum, at which `zipfile` would stop."""
    unchecked, size = copy(member), 0
    unchecked.file_size = 1 << 62
    del unchecked.CRC
    with archive.open(unchecked) as stream:
        while piece := stream.read(_CHUNK):
            size += len(piece)
            if size > member.file_size:
                raise BadZipFile(f"{member.filename} is larger than the {member.file_size} bytes that it declares")
