"""Whole pipelines: options and presets, the builder, batches and query files."""
