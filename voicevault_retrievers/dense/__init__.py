"""Vector search: embedders and their model files, exact search with or without int8 codes, and the vector channel."""

from voicevault_retrievers.dense.channel import VectorChannel
from voicevault_retrievers.dense.embedders import (
    CallableEmbedder,
    OnnxEmbedder,
    OpenVinoEmbedder,
    SentenceTransformerEmbedder,
    UniversalSentenceEncoder,
    load_embedder,
)
from voicevault_retrievers.dense.exact import ExactVectors, VectorPart
from voicevault_retrievers.dense.funnel import FunnelChannel, MatryoshkaFunnel
from voicevault_retrievers.dense.int8 import Codes, Gate, gate, quantise
from voicevault_retrievers.dense.prefixes import PrefixRecall, prefix_recall
from voicevault_retrievers.models.weights import Weights, locate

__all__ = [
    "CallableEmbedder",
    "Codes",
    "ExactVectors",
    "FunnelChannel",
    "Gate",
    "MatryoshkaFunnel",
    "OnnxEmbedder",
    "OpenVinoEmbedder",
    "PrefixRecall",
    "SentenceTransformerEmbedder",
    "UniversalSentenceEncoder",
    "VectorChannel",
    "VectorPart",
    "Weights",
    "gate",
    "load_embedder",
    "locate",
    "prefix_recall",
    "quantise",
]
