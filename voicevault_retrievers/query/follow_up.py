"""Follow-up questions: "and in Germany?" is also searched with the topic of the conversation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from voicevault_retrievers._support.checks import whole
from voicevault_retrievers.core.channel import Rewriter
from voicevault_retrievers.core.protocols import TextModel
from voicevault_retrievers.core.queries import Turn
from voicevault_retrievers.core.types import Query, Variant
from voicevault_retrievers.errors import ConfigError, RetrievalError
from voicevault_retrievers.models.generation import filled
from voicevault_retrievers.query.model import TIMEOUT, ModelRewriter, one_line, wordings_of
from voicevault_retrievers.text.stopwords import STOPWORDS

TURNS = 3
"""The number of the last turns that are read."""


class FollowUp(Rewriter):
    """Adds to a follow-up question a wording with the topic of the conversation (`Query.history`).

    "and in Germany?" after "What is the VAT rate in France?" is searched as it is, and as "and in Germany? VAT rate
    France". The topic is the content words of the last question. Where that was a follow-up too, those of earlier
    questions are added, from at most `turns` turns. Rules for English and German decide: a follow-up begins as an
    addition ("and", "what about", "und"), has no content words ("why?"), or has a pronoun without an earlier referent
    in the question ("how much does it cost?"). Any other question is left unchanged.
    """

    name = "follow_up"

    def __init__(self, turns: int = TURNS) -> None:
        super().__init__()
        self.turns = whole("turns", turns)

    def reads_history(self) -> bool:
        return True

    def rewrite(self, query: Query) -> Query:
        if not query.history or not leans(query.text):
            return query
        known = {word.casefold() for word in content_words(query.text)}
        topic = [word for word in _topic(query.history[-self.turns :]) if word.casefold() not in known]
        return _with(query, f"{query.text.strip()} {' '.join(topic)}") if topic else query

    def __repr__(self) -> str:
        return f"FollowUp({self.turns})"


class ModelFollowUp(ModelRewriter):
    """Adds a language model's wording of a question that can be understood without the conversation.

    The model reads the last `turns` turns of `Query.history`. It is not asked where there are none or the question is
    blank; where it repeats the question, nothing is added. In `prompt`, `{history}` is replaced by the conversation,
    and `{query}` by the question. Raises RetrievalError where the answer contains no wording.
    """

    PROMPT = (
        "Below are a conversation and a follow-up question. Write the question so that it is understood without the "
        "conversation: put in what it refers to, keep its language, and add nothing else. If it is understood as it "
        "stands, repeat it. Give that one question alone.\n\n{history}\n\nFollow-up question: {query}\nQuestion:"
    )

    def __init__(
        self,
        model: TextModel,
        *,
        turns: int = TURNS,
        prompt: str | None = None,
        timeout: float | None = TIMEOUT,
        name: str = "follow_up",
    ) -> None:
        super().__init__(model, prompt=prompt, timeout=timeout, name=name)
        if "{history}" not in self.prompt:
            raise ConfigError(f"a prompt for follow-up questions has {{history}} in it as well, not {prompt!r}")
        self.turns = whole("turns", turns)

    def reads_history(self) -> bool:
        return True

    def asked(self, query: Query) -> str | None:
        if not query.history or not query.text.strip():
            return None
        return filled(self.prompt, query=query.text, history="\n".join(map(str, query.history[-self.turns :])))

    def answered(self, query: Query, answer: str) -> Query:
        wordings = wordings_of(answer, longest=4 * len(query.text) + 400)
        if not wordings:
            raise RetrievalError(f"{self.name}: the model gave no question but {answer[:200]!r}")
        return query if _same(wordings[0], query.text) else _with(query, wordings[0])

    def __repr__(self) -> str:
        return f"ModelFollowUp({self.model!r}, turns={self.turns}, {self._recipe()})"


def leans(question: str) -> bool:
    """Whether a question depends on the conversation, by the rules of `FollowUp`."""
    text = question.strip()
    return bool(text) and (bool(_ADDITION.match(text)) or not content_words(text) or _refers(text))


def content_words(question: str) -> list[str]:
    """The content words of a question, in order."""
    return [word for word in _WORD.findall(question) if word.casefold() not in _COMMON]


def _topic(history: Sequence[Turn]) -> list[str]:
    """The distinct content words of the last question, and of the earlier questions that it depends on."""
    words: dict[str, str] = {}
    for turn in reversed(history):
        for word in content_words(turn.question):
            words.setdefault(word.casefold(), word)
        if not leans(turn.question):
            break
    return list(words.values())


def _refers(question: str) -> bool:
    """Whether a question has a pronoun without a possible referent before it."""
    text = _EXPLETIVE.sub(" ", question)
    return any(_refers_back(pronoun[0], _WORD.findall(text[: pronoun.start()])) for pronoun in _PRONOUN.finditer(text))


def _refers_back(pronoun: str, before: Sequence[str]) -> bool:
    if pronoun.casefold() == "that" and before and before[-1].casefold() not in _COMMON:
        return False  # a relative pronoun: "models that fit"
    named = any(word[0].isupper() and word.casefold() not in _COMMON for word in before[1:])
    return not named and not any(word.casefold() in _DETERMINERS for word in before)


def _with(query: Query, text: str) -> Query:
    variants = [variant for variant in query.variants if variant.text != text]
    return replace(query, variants=(Variant(text), *variants))


def _same(a: str, b: str) -> bool:
    return one_line(a).casefold().rstrip("?. ") == one_line(b).casefold().rstrip("?. ")


_WORD = re.compile(r"\w[\w'.+#/-]*\w|\w")
_ADDITION = re.compile(
    r"(?:and|but|or|also|so|then|what\s+about|how\s+about|what\s+if|(?:does|do|is)\s+the\s+same|same\s+for"
    r"|und|aber|oder|auch|dann|gilt\s+das|wie\s+(?:ist|sieht|steht)\s+es\s+(?:\w+\s+)?(?:mit|bei|um|in|für)"
    r"|was\s+ist\s+mit)\b",
    re.IGNORECASE,
)
_PRONOUN = re.compile(
    r"\b(?:it|its|they|them|their|theirs|he|him|his|she|her|hers|this|that|these|those"
    r"|er|ihn|ihm|(?-i:sie|ihr|ihre[mnrs]?)|es|seine[mnrs]?|dessen|deren|diese[mnrs]?"
    r"|davon|damit|dafür|dazu|darüber|daran|dabei|dagegen|dort)\b"
    r"|\b(?:there|das)(?=\s*(?:[?.!]|$))",
    re.IGNORECASE,
)
_EXPLETIVE = re.compile(
    r"\b(?:is|was|be|would|does|will|did)\s+it\s+(?:possible|true|legal|illegal|allowed|necessary|safe|better|common"
    r"|take|make\s+sense|matter)\b|\bit\s+(?:is|takes?|was)\b"
    r"|\b(?:gibt|gab|geht|handelt)\s+es\b|\bes\s+(?:gibt|geht|ist|sich)\b"
    r"|\bist\s+es\s+(?:möglich|erlaubt|verboten|nötig|sinnvoll|wahr)\b",
    re.IGNORECASE,
)
"""Phrases with an expletive "it" or "es", which refers to nothing."""
_DETERMINERS = frozenset(
    "a an the my your our every each der die das dem den des ein eine einem einen eines mein".split()
)
_COMMON = (
    STOPWORDS["en"]
    | STOPWORDS["de"]
    | frozenset(
        "about also any anything can cannot could did do does else give happen happens has have he her him his how i "
        "its kind many may me mean means much must my please same she should show so tell them this those us was we "
        "were what when where which who whom whose why would you your then than theirs "
        "darf davon damit dafür dazu dann deren dessen diese es gibt gilt hast hätte ihn ihm ihre ihrer ihren können "
        "könnte mich mir muss müssen sagt soll sollte viel viele warum wann weshalb wieso wessen wem wen womit woher "
        "wohin".split()
    )
)
