"""Hypothetical document embeddings: a question is also searched by an answer that a language model invents."""

from __future__ import annotations

from dataclasses import replace

from voicevault_retrievers.core.protocols import TextModel
from voicevault_retrievers.core.types import Query, Variant
from voicevault_retrievers.errors import RetrievalError
from voicevault_retrievers.models.generation import filled
from voicevault_retrievers.query.model import KEPT, TIMEOUT, ModelRewriter, one_line


class HyDE(ModelRewriter):
    """Adds an answer that a language model invents, for semantic channels only.

    The answer may be wrong, but its vector is near those of relevant passages. `weight` is in (0, 1] and scales the
    scores of the answer's hits. The model is not asked where the question is blank. Raises RetrievalError for a blank
    answer.

    Gao, Ma, Lin, Callan (2022), "Precise Zero-Shot Dense Retrieval without Relevance Labels". They search with the mean
    of the vectors of the question and several answers; here the question and one answer are searched separately, and a
    chunk keeps the better score.
    """

    PROMPT = "Please write a passage to answer the question.\nQuestion: {query}\nPassage:"

    def __init__(
        self,
        model: TextModel,
        *,
        weight: float = 1.0,
        prompt: str | None = None,
        timeout: float | None = TIMEOUT,
        name: str = "hyde",
        kept: int = KEPT,
    ) -> None:
        super().__init__(model, prompt=prompt, timeout=timeout, name=name, kept=kept)
        self.weight = Variant("", weight).weight

    def asked(self, query: Query) -> str | None:
        return filled(self.prompt, query=query.text) if query.text.strip() else None

    def answered(self, query: Query, answer: str) -> Query:
        text = one_line(answer)
        if not text:
            raise RetrievalError(f"{self.name}: the model gave a blank answer")
        return replace(query, variants=(*query.variants, Variant(text, self.weight, frozenset({"semantic"}))))

    def __repr__(self) -> str:
        return f"HyDE({self.model!r}, weight={self.weight}, {self._recipe()})"
