"""The knowledge base on disk: the only code that writes an index."""

from voicevault_retrievers.store.bases import Bases
from voicevault_retrievers.store.commit import Changes
from voicevault_retrievers.store.knowledge_base import KnowledgeBase
from voicevault_retrievers.store.names import default_root

__all__ = ["Bases", "Changes", "KnowledgeBase", "default_root"]
