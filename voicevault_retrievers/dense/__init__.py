"""Vector search: embedders and where their models are found, exact search, and the channel over any index."""

from voicevault_retrievers.dense.embedders import (
    CallableEmbedder,
    OnnxEmbedder,
    SentenceTransformerEmbedder,
    load_embedder,
)
from voicevault_retrievers.dense.exact import ExactVectors, VectorChannel, VectorPart
from voicevault_retrievers.dense.weights import Weights, locate

__all__ = [
    "CallableEmbedder",
    "ExactVectors",
    "OnnxEmbedder",
    "SentenceTransformerEmbedder",
    "VectorChannel",
    "VectorPart",
    "Weights",
    "load_embedder",
    "locate",
]
