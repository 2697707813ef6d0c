"""Relations between chunks: parents and their children, windows around sentences, contexts from the document."""

from voicevault_retrievers.structure.context_writer import ContextCost, ContextUpdate, ContextWriter
from voicevault_retrievers.structure.packing import CharacterSpan
from voicevault_retrievers.structure.parent_links import Kinship, OverBudget
from voicevault_retrievers.structure.parents import ParentExpansion, ParentStore, parent_store
from voicevault_retrievers.structure.windows import Place, WindowExpansion

__all__ = [
    "CharacterSpan",
    "ContextCost",
    "ContextUpdate",
    "ContextWriter",
    "Kinship",
    "OverBudget",
    "ParentExpansion",
    "ParentStore",
    "Place",
    "WindowExpansion",
    "parent_store",
]
