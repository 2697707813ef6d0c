"""How chunks belong together: parents and their children."""

from voicevault_retrievers.structure.parents import ParentExpansion, ParentStore, parent_store

__all__ = ["ParentExpansion", "ParentStore", "parent_store"]
