"""Whole pipelines: options and presets, the builder, batches and files of queries."""

from voicevault_retrievers.pipeline.composing import compose
from voicevault_retrievers.pipeline.pipeline import Pipeline

__all__ = ["Pipeline", "compose"]
