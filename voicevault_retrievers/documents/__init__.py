"""Converts files to chunks: `load` reads a file, `split` cuts it, `discover` finds files, `read` does all three.

`split_families` cuts a document into parents and children. `files` lists the files that `read` would read, and `recipe`
describes how it reads them.
"""

from voicevault_retrievers.documents._families import CHILD_CHARS, PARENT_CHARS, Split, split_families
from voicevault_retrievers.documents._ingest import File, Ingest, Skipped, discover, files, read, recipe
from voicevault_retrievers.documents._model import Document, Part
from voicevault_retrievers.documents._reader import LIMITS, ReadingLimits, load
from voicevault_retrievers.documents._split import split

__all__ = [
    "CHILD_CHARS",
    "LIMITS",
    "PARENT_CHARS",
    "Document",
    "File",
    "Ingest",
    "Part",
    "ReadingLimits",
    "Skipped",
    "Split",
    "discover",
    "files",
    "load",
    "read",
    "recipe",
    "split",
    "split_families",
]
