"""The knowledge base on disk: the only code that writes an index."""

from voicevault_retrievers.store.bases import Bases
from voicevault_retrievers.store.codec import Limits
from voicevault_retrievers.store.commit import Changes
from voicevault_retrievers.store.curated import Curated
from voicevault_retrievers.store.curation import Curation, CurationRule
from voicevault_retrievers.store.delete_base import remove
from voicevault_retrievers.store.export import export, restore
from voicevault_retrievers.store.graphs import GraphUpdate, update_graph
from voicevault_retrievers.store.indexing import Update, update
from voicevault_retrievers.store.knowledge_base import KnowledgeBase
from voicevault_retrievers.store.names import default_root
from voicevault_retrievers.store.questions import question_channel, question_index
from voicevault_retrievers.store.sources import Drift, Source
from voicevault_retrievers.store.stats import Stats
from voicevault_retrievers.store.tenants import TenantIndex
from voicevault_retrievers.store.voicevault import import_voicevault

__all__ = [
    "Bases",
    "Changes",
    "Curated",
    "Curation",
    "CurationRule",
    "Drift",
    "GraphUpdate",
    "KnowledgeBase",
    "Limits",
    "Source",
    "Stats",
    "TenantIndex",
    "Update",
    "default_root",
    "export",
    "import_voicevault",
    "question_channel",
    "question_index",
    "remove",
    "restore",
    "update",
    "update_graph",
]
