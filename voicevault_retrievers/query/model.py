"""Query expansion by a language model, and what every rewriter that asks one shares."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, cast

from voicevault_retrievers._support.checks import seconds_or_none, whole
from voicevault_retrievers._support.lru import LRUCache
from voicevault_retrievers.core.channel import Rewriter
from voicevault_retrievers.core.protocols import TextModel
from voicevault_retrievers.core.types import Query, Variant
from voicevault_retrievers.errors import ConfigError, RetrievalError
from voicevault_retrievers.models.prompts import aloud, filled
from voicevault_retrievers.query.wordings import one_line, wordings_of

TIMEOUT = 10.0
KEPT = 256


class ModelRewriter(Rewriter):
    """Asks a language model for what it adds to a query; an async search awaits a model's `acomplete`.

    A subclass says what is `asked` and what is made of the answer. In `prompt` the text `{query}` is replaced by the
    question, whatever that holds; `timeout` is in seconds, None waits. The `kept` answers used last are given again to
    an equal prompt, those that were of no use are not.
    """

    blocking = True
    PROMPT: ClassVar[str]

    def __init__(
        self, model: TextModel, *, prompt: str | None, timeout: float | None, name: str, kept: int = KEPT
    ) -> None:
        super().__init__()
        if not isinstance(model, TextModel):
            raise ConfigError(f"a language model has a method complete(prompt), not {model!r}")
        self.model = model
        self.prompt = self.PROMPT if prompt is None else prompt
        if not isinstance(self.prompt, str) or "{query}" not in self.prompt:
            raise ConfigError(f"a prompt is a text with {{query}} in it, which the question replaces, not {prompt!r}")
        self.timeout = seconds_or_none("timeout", timeout)
        self.name = name
        self.awaits = callable(getattr(model, "acomplete", None))
        self.kept = whole("kept", kept, least=0)
        self._answers: LRUCache[str, str] = LRUCache(self.kept)

    @abstractmethod
    def asked(self, query: Query) -> str | None:
        """The prompt; None where the model is not to be asked."""

    @abstractmethod
    def answered(self, query: Query, answer: str) -> Query:
        """The query with what the model added; raises RetrievalError for an answer that is of no use."""

    def rewrite(self, query: Query) -> Query:
        prompt = self.asked(query)
        if prompt is None:
            return query
        known = self._answers.get(prompt)
        return self._taken(query, prompt, self.model.complete(prompt) if known is None else known)

    async def arewrite(self, query: Query) -> Query:
        prompt = self.asked(query)
        if prompt is None:
            return query
        known, model = self._answers.get(prompt), cast(Any, self.model)
        return self._taken(query, prompt, await model.acomplete(prompt) if known is None else known)

    def _taken(self, query: Query, prompt: str, answer: object) -> Query:
        """The query with what an answer adds; an answer that is of use is kept."""
        text = self._text(answer)
        rewritten = self.answered(query, text)
        self._answers.put(prompt, text)
        return rewritten

    def _text(self, answer: object) -> str:
        """What the model said aloud: a reasoning model's thoughts are dropped."""
        if not isinstance(answer, str):
            raise RetrievalError(f"{self.name}: a language model gives a text, not a {type(answer).__name__}")
        return aloud(answer)

    def _recipe(self) -> str:
        own = "" if self.prompt == self.PROMPT else f"prompt={self.prompt!r}, "
        kept = "" if self.kept == KEPT else f", kept={self.kept}"
        return f"{own}timeout={self.timeout}, name={self.name!r}{kept}"


class ModelExpansion(ModelRewriter):
    """Adds a language model's wordings until a query has `size`, the original among them and always first.

    The query's own variants stay and count. Each text is kept once, whatever its case and spacing. In `prompt`,
    `{count}` is replaced by how many wordings are wanted. The model is asked for nothing where none is wanted or the
    question is blank. Raises RetrievalError where its answer holds no wording.
    """

    PROMPT = (
        "Write {count} other wordings of the question below, to find documents that answer it with a search engine. "
        "Keep the meaning, the language, names, codes and numbers; vary the words. "
        "Give one wording a line, without numbers, quotes or comments.\n\nQuestion: {query}"
    )

    def __init__(
        self,
        model: TextModel,
        size: int = 3,
        prompt: str | None = None,
        timeout: float | None = TIMEOUT,
        name: str = "expansion",
        kept: int = KEPT,
    ) -> None:
        super().__init__(model, prompt=prompt, timeout=timeout, name=name, kept=kept)
        self.size = whole("size", size)

    def asked(self, query: Query) -> str | None:
        count = self.size - len(_known(query))
        return filled(self.prompt, query=query.text, count=count) if count > 0 and query.text.strip() else None

    def answered(self, query: Query, answer: str) -> Query:
        wordings = wordings_of(answer, longest=4 * len(query.text) + 200)
        if not wordings:
            raise RetrievalError(f"{self.name}: the model gave no wording of the question but {answer[:200]!r}")
        known = _known(query)
        added: dict[str, Variant] = {}
        for text in wordings:
            if _key(text) not in known:
                added.setdefault(_key(text), Variant(text))
        wanted = max(0, self.size - len(known))
        return replace(query, variants=(*query.variants, *list(added.values())[:wanted]))

    def __repr__(self) -> str:
        return f"ModelExpansion({self.model!r}, {self.size}, {self._recipe()})"


def _known(query: Query) -> set[str]:
    return {_key(query.text), *(_key(variant.text) for variant in query.variants)}


def _key(text: str) -> str:
    return one_line(text).casefold()
