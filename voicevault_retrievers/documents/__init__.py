"""Files to chunks: `load` reads one, `split` cuts it, `discover` finds files, `read` does all three."""

from voicevault_retrievers.documents._ingest import Ingest, Skipped, discover, read
from voicevault_retrievers.documents._load import load, name_below
from voicevault_retrievers.documents._model import Document, Part
from voicevault_retrievers.documents._split import split

__all__ = ["Document", "Ingest", "Part", "Skipped", "discover", "load", "name_below", "read", "split"]
