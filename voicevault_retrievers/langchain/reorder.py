"""The order in which a model reads documents best, and the numbers by which it cites them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import count
from typing import ClassVar

from langchain_core.callbacks import Callbacks
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.runnables import Runnable, RunnableLambda

from voicevault_retrievers.answers import ends_first
from voicevault_retrievers.answers.citations import LAST
from voicevault_retrievers.langchain.convert import PROVENANCE, told_of
from voicevault_retrievers.langchain.staged_retriever import StagedRetriever, staged
from voicevault_retrievers.langchain.validation import STRICT, Checked

CITATION = "citation"


class ContextReorder(Checked[RunnableLambda[list[Document], list[Document]]], BaseDocumentCompressor):
    """Puts the best documents at both ends and the worst in the middle, where models overlook them.

    The best comes first, the second best last, and so on (see `context.ends_first`). Each is a copy that carries its
    rank, from 1, as its number in citations, `metadata["voicevault"]["citation"]`; where all have one they keep them.
    It comes last: what ranks or cuts documents reads their order, which this changes.
    """

    model_config = STRICT
    arranges: ClassVar[bool] = True

    def __rrshift__(self, retriever: Runnable[str, list[Document]]) -> StagedRetriever:
        """`retriever >> ContextReorder()`, for a retriever of another package's."""
        return staged(retriever, self)

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> list[Document]:
        return self._built().invoke(list(documents), {"callbacks": callbacks})

    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> list[Document]:
        return await self._built().ainvoke(list(documents), {"callbacks": callbacks})

    def _build(self) -> RunnableLambda[list[Document], list[Document]]:
        """The work as a runnable: a compressor is none itself, and would not show in traces."""
        return RunnableLambda(_reordered, _areordered, name=type(self).__name__)


def numbers_of(documents: Sequence[Document]) -> list[int]:
    """The numbers that documents have in citations: their own where all have one, else their places, from 1.

    One document alone, of somebody else's, must not number itself the best. Of two with one number the second gets the
    lowest free one.
    """
    own = [number for number in map(_number, documents) if number is not None]
    if len(own) < len(documents):
        return list(range(1, len(documents) + 1))
    taken = set(own)
    free = (number for number in count(1) if number not in taken)
    first: set[int] = set()
    numbers = []
    for number in own:
        chosen = next(free) if number in first else number
        first.add(chosen)
        numbers.append(chosen)
    return numbers


def _reordered(documents: list[Document]) -> list[Document]:
    return ends_first([numbered(*each) for each in zip(documents, numbers_of(documents), strict=True)])


async def _areordered(documents: list[Document]) -> list[Document]:
    return _reordered(documents)


def numbered(document: Document, number: int) -> Document:
    """A copy of a document that has this number in citations."""
    metadata = copy.deepcopy(document.metadata)
    metadata[PROVENANCE] = {**told_of(document), CITATION: number}
    return document.model_copy(update={"metadata": metadata})


def _number(document: Document) -> int | None:
    number = told_of(document).get(CITATION)
    return number if isinstance(number, int) and not isinstance(number, bool) and 0 < number <= LAST else None
