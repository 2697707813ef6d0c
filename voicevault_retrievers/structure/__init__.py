"""How chunks belong together: parents and their children, and the windows around sentences."""

from voicevault_retrievers.structure.kinship import Kinship
from voicevault_retrievers.structure.parents import ParentExpansion, ParentStore, parent_store
from voicevault_retrievers.structure.reading import OverBudget
from voicevault_retrievers.structure.shown import Span
from voicevault_retrievers.structure.windows import Place, WindowExpansion

__all__ = [
    "Kinship",
    "OverBudget",
    "ParentExpansion",
    "ParentStore",
    "Place",
    "Span",
    "WindowExpansion",
    "parent_store",
]
