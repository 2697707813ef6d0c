"""Diversity: not all results from one place."""

from voicevault_retrievers.diversity.page_cap import PageCap, file_of, page_of

__all__ = ["PageCap", "file_of", "page_of"]
