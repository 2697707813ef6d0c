"""Relations between chunks: parents and their children, and the windows around sentences."""

from voicevault_retrievers.structure.packing import CharacterSpan
from voicevault_retrievers.structure.parent_links import Kinship, OverBudget
from voicevault_retrievers.structure.parents import ParentExpansion, ParentStore, parent_store
from voicevault_retrievers.structure.windows import Place, WindowExpansion

__all__ = [
    "CharacterSpan",
    "Kinship",
    "OverBudget",
    "ParentExpansion",
    "ParentStore",
    "Place",
    "WindowExpansion",
    "parent_store",
]
