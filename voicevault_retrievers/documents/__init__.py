"""Files to chunks: `load` reads one, `split` cuts it, `discover` finds files, `read` does all three.

`files` are what `read` would read, one by one; `recipe` says how.
"""

from voicevault_retrievers.documents._ingest import File, Ingest, Skipped, discover, files, read, recipe
from voicevault_retrievers.documents._load import load
from voicevault_retrievers.documents._model import Document, Part
from voicevault_retrievers.documents._split import split

__all__ = [
    "Document",
    "File",
    "Ingest",
    "Part",
    "Skipped",
    "discover",
    "files",
    "load",
    "read",
    "recipe",
    "split",
]
