"""Keyword search: BM25 formulas, postings, and the channel over them."""

from voicevault_retrievers.lexical.bm25 import BM25
from voicevault_retrievers.lexical.fields import BM25F, FieldScore
from voicevault_retrievers.lexical.formulas import ATIRE, BM25L, BM25Plus, Formula, Lucene, Okapi, Robertson
from voicevault_retrievers.lexical.index import LexicalIndex, TermScore
from voicevault_retrievers.lexical.operators import Operators
from voicevault_retrievers.lexical.postings import Postings
from voicevault_retrievers.lexical.search_result import Scored
from voicevault_retrievers.lexical.segment import IndexSegment

__all__ = [
    "ATIRE",
    "BM25",
    "BM25F",
    "BM25L",
    "BM25Plus",
    "FieldScore",
    "Formula",
    "IndexSegment",
    "LexicalIndex",
    "Lucene",
    "Okapi",
    "Operators",
    "Postings",
    "Robertson",
    "Scored",
    "TermScore",
]
