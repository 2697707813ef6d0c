"""The graph of references: what chunks are, cite and define, and search along its edges."""

from voicevault_retrievers.structure.graph.building import build_graph
from voicevault_retrievers.structure.graph.channel import GraphChannel
from voicevault_retrievers.structure.graph.embedded import EmbeddedGraph
from voicevault_retrievers.structure.graph.expansion import GraphExpansion
from voicevault_retrievers.structure.graph.model import ModelReferences
from voicevault_retrievers.structure.graph.store import Edge, Entry, GraphStats, GraphStore, Link
from voicevault_retrievers.text.references.laws import declared_laws
from voicevault_retrievers.text.references.reference import Reference, ReferenceReader
from voicevault_retrievers.text.references.rules import RuleReferences

__all__ = [
    "Edge",
    "EmbeddedGraph",
    "Entry",
    "GraphChannel",
    "GraphExpansion",
    "GraphStats",
    "GraphStore",
    "Link",
    "ModelReferences",
    "Reference",
    "ReferenceReader",
    "RuleReferences",
    "build_graph",
    "declared_laws",
]
