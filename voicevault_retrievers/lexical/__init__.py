"""Keyword search: BM25 formulas, postings, and the channel over them."""

from voicevault_retrievers.lexical.bm25 import BM25
from voicevault_retrievers.lexical.formulas import ATIRE, BM25L, BM25Plus, Formula, Lucene, Okapi, Robertson
from voicevault_retrievers.lexical.index import LexicalIndex, Segment, TermScore
from voicevault_retrievers.lexical.postings import Postings

__all__ = [
    "ATIRE",
    "BM25",
    "BM25L",
    "BM25Plus",
    "Formula",
    "LexicalIndex",
    "Lucene",
    "Okapi",
    "Postings",
    "Robertson",
    "Segment",
    "TermScore",
]
