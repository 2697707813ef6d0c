"""Whole pipelines: options and presets, the builder, batches and files of queries."""
