"""The source files of a knowledge base: their content when they were read."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.store import files
from voicevault_retrievers.store.manifest import NamedFile

KEY = "source_file"
"""The metadata key of a chunk that names its source."""


SETTLED = 3_000_000_000
"""How long ago in ns a file has changed whose next change has another time, on file systems that keep seconds."""


@dataclass(frozen=True)
class Source:
    """A file that chunks were read from.

    `name` is its name in the chunks' metadata (`source_file`); `sha256` is the digest of its bytes; `recipe` is how it
    was read and split, so that a file is read again for another recipe; `path` is where it was. `state` is its size and
    times of change, by which an unchanged file is known without reading it; "" where it changed too shortly before.
    """

    name: str
    sha256: str
    recipe: str = ""
    path: str = ""
    state: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        for each in fields(self):
            if not isinstance(getattr(self, each.name), str):
                raise ConfigError(f"Source({each.name}=...) is a string, not {getattr(self, each.name)!r}")

    @classmethod
    def of(cls, path: Path | str, name: str | None = None, recipe: str = "") -> Source:
        """The present state of a file; `name` defaults to the file's. Raises OSError where it cannot be read."""
        digest = hashlib.sha256()
        with Path(path).open("rb") as file:
            told = os.fstat(file.fileno())
            settled = time.time_ns() - max(told.st_mtime_ns, told.st_ctime_ns) > SETTLED
            while block := file.read(1024 * 1024):
                digest.update(block)
        state = state_of(told) if settled else ""
        return cls(name or Path(path).name, digest.hexdigest(), recipe, str(Path(path).absolute()), state)


def state_of(told: os.stat_result) -> str:
    """The `state` of a source, from what the system says of its file."""
    return f"{told.st_size} {told.st_mtime_ns} {told.st_ctime_ns}"


@dataclass(frozen=True)
class Drift:
    """How files differ from what was read, by name; true where any file differs."""

    new: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.new or self.changed or self.gone)


def drift(known: Mapping[str, Source], present: Iterable[Source], below: Iterable[Path]) -> Drift:
    """Compare the known sources with the present files.

    Missing sources count as gone where they were read `below` these paths. Recipes are compared where `present` has
    them.
    """
    found = {source.name: source for source in present}
    return Drift(
        tuple(sorted(found.keys() - known.keys())),
        tuple(sorted(name for name in found.keys() & known.keys() if not _alike(found[name], known[name]))),
        missing(known, found.keys(), below),
    )


def missing(known: Mapping[str, Source], found: Iterable[str], below: Iterable[Path]) -> tuple[str, ...]:
    """The names of known sources that were read below these paths and were not found."""
    folders = [folder.absolute() for folder in below]
    names = known.keys() - set(found)
    return tuple(
        sorted(name for name in names if any(Path(known[name].path).is_relative_to(folder) for folder in folders))
    )


def write(folder: Path, number: int, sources: Mapping[str, Source]) -> NamedFile | None:
    """Write all sources; None where there are none."""
    if not sources:
        return None
    name = f"sources-{number:06d}"
    lines = (json.dumps(asdict(sources[key])).encode() + b"\n" for key in sorted(sources))
    return NamedFile(name, files.write(folder / name, b"".join(lines)))


def read(folder: Path, entry: NamedFile | None) -> dict[str, Source]:
    """The sources in a file, by name; IndexDamagedError where the file has changed."""
    lines = [] if entry is None else files.read(folder / entry.name, entry.file).splitlines()
    return {source.name: source for source in (Source(**json.loads(line)) for line in lines)}


def by_name(sources: Iterable[Source]) -> dict[str, Source]:
    """Sources by name; ConfigError for a value that is not a Source, and for a repeated name."""
    found: dict[str, Source] = {}
    for source in sources:
        if not isinstance(source, Source):
            raise ConfigError(f"sources are values of Source (Source.of(path)), not {source!r}")
        if source.name in found:
            raise ConfigError(f"two sources have the name {source.name!r}")
        found[source.name] = source
    return found


def _alike(present: Source, known: Source) -> bool:
    return present.sha256 == known.sha256 and present.recipe in ("", known.recipe)
