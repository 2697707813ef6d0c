"""Diversity: not all results from one place, and none twice."""

from voicevault_retrievers.diversity.likeness import Cosines, Likeness, Shingles
from voicevault_retrievers.diversity.mmr import MMR
from voicevault_retrievers.diversity.near_duplicates import NearDuplicates
from voicevault_retrievers.diversity.page_cap import PageCap, file_of, page_of

__all__ = ["MMR", "Cosines", "Likeness", "NearDuplicates", "PageCap", "Shingles", "file_of", "page_of"]
