"""Query expansion by a language model, the base class of rewriters that use one, and the parsing of answers."""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, cast

from voicevault_retrievers._support.caches import LRUCache
from voicevault_retrievers._support.characters import encodable
from voicevault_retrievers._support.checks import seconds_or_none, whole
from voicevault_retrievers.core.channel import Rewriter
from voicevault_retrievers.core.protocols import TextModel
from voicevault_retrievers.core.types import Query, Variant
from voicevault_retrievers.errors import ConfigError, RetrievalError
from voicevault_retrievers.models.generation import aloud, filled

_FENCE = re.compile(r"```(?:[\w-]*\n)?(.*?)(?:```|\Z)", re.DOTALL)
_INTRO = re.compile(
    r"(?:sure|certainly|of course|absolutely|okay|ok|great)\s*(?:[!,.:;]|$)"
    r"|here(?:'s|’s| is| are| you)\b|(?:below|these|the following) (?:is|are)\b",
    re.IGNORECASE,
)
_CHATTER = re.compile(
    r"(?:let me know|i hope|hope (?:this|these|that)|feel free|as an ai)\b|(?:note|sorry)\s*[:,!.]|#+\s"
    r"|i(?:['’]m| am) (?:sorry|unable)\b|i can(?:['’]t|not| not) (?:help|assist|provide|generate|rephrase|comply)\b",
    re.IGNORECASE,
)
_MARK = re.compile(
    r"(?:[-*+•‣·–—]\s+"
    r"|\*{0,2}(?:\(?\d{1,2}[.):、]|\[\d{1,2}\])\*{0,2}(?!\d)\s*"
    r"|\*{0,2}(?:(?:original|alternative|rephrased) )?(?:q|query|question|alternative|varia(?:nt|tion)|version|wording)"
    r"(?:\s*#?\d{1,2}\s*[.):]|\s*:)\*{0,2}(?!\d)\s*)+",
    re.IGNORECASE,
)
_JSON = re.compile(r"^[\[{]\s*[\[{\"']", re.MULTILINE)
_STRING = re.compile(r"(\"(?:[^\"\\]|\\.?)*(?:\"|\Z)|'(?:[^'\\]|\\.?)*(?:'|\Z))(\s*:)?", re.DOTALL)
_QUOTES = frozenset(('""', "''", "``", "“”", "‘’", "«»", "„“", "「」"))
_HEADING_ENDS = (":", "：", "[", "{")


def wordings_of(answer: str, longest: int) -> list[str]:
    """The wordings in a model's answer, each as one line of at most `longest` characters.

    They are the strings of a JSON list or object, even if it is cut off; else the lines, or only the numbered or
    bulleted lines where there are at least two. Marks, quotes, code fences, headings and chatter are removed.
    """
    fenced = "\n".join(_FENCE.findall(answer))
    lines = [_unchattered(line.strip()) for line in (fenced.strip() or answer).splitlines()]
    text = "\n".join(lines)
    data = _JSON.search(text)
    found = _bare_lines(lines) if data is None else _strings(text[data.start() :])
    return [wording for wording in map(one_line, found) if len(wording) <= longest and any(map(str.isalnum, wording))]


def one_line(text: str) -> str:
    """The text with white space collapsed to single spaces, and `?` for characters that UTF-8 cannot encode."""
    return encodable(" ".join(text.split()))


def _unchattered(line: str) -> str:
    """The line; empty for chatter, and for an introduction the part after its colon."""
    if _CHATTER.match(line):
        return ""
    return line.partition(":")[2].strip() if _INTRO.match(line) else line


def _bare_lines(lines: Sequence[str]) -> Iterator[str]:
    marked = [line for line in lines if _MARK.match(line)]
    for line in marked if len(marked) > 1 else lines:
        mark = _MARK.match(line)
        if not line.endswith(_HEADING_ENDS):
            yield _unquoted(line[mark.end() :] if mark else line)


def _unquoted(line: str) -> str:
    text = line.strip().rstrip(",").removeprefix("**").removesuffix("**").strip()
    ends, inner = text[:1] + text[-1:], text[1:-1]
    return inner if ends in _QUOTES and not set(ends) & set(inner) else text


def _strings(data: str) -> Iterator[str]:
    """Yield the strings in JSON that are not keys. A string that is cut off is left out."""
    closed = data[: max(data.rfind("]"), data.rfind("}")) + 1]
    for text, key in _STRING.findall(closed or data):
        if not key and len(text) > 1 and text[0] == text[-1]:
            yield _unescaped(text)


def _unescaped(text: str) -> str:
    try:
        return str(json.loads(text, strict=False))
    except ValueError:  # quoted like Python, or with an invalid escape
        return text[1:-1]


TIMEOUT = 10.0
KEPT = 256


class ModelRewriter(Rewriter):
    """A rewriter that asks a language model; an async search awaits a model's `acomplete`.

    Subclasses define the prompt (`asked`) and the use of the answer (`answered`). In `prompt`, `{query}` is replaced by
    the question; braces in the question stay. `timeout` is in seconds, None waits. The `kept` most recently used
    answers are cached by prompt; useless answers are not cached.
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
        """The query with the model's additions. Raises RetrievalError for a useless answer."""

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
        """The query with an answer's additions. Caches a useful answer."""
        text = self._text(answer)
        rewritten = self.answered(query, text)
        self._answers.put(prompt, text)
        return rewritten

    def _text(self, answer: object) -> str:
        """The answer without a reasoning model's thoughts."""
        if not isinstance(answer, str):
            raise RetrievalError(f"{self.name}: a language model gives a text, not a {type(answer).__name__}")
        return aloud(answer)

    def _recipe(self) -> str:
        own = "" if self.prompt == self.PROMPT else f"prompt={self.prompt!r}, "
        kept = "" if self.kept == KEPT else f", kept={self.kept}"
        return f"{own}timeout={self.timeout}, name={self.name!r}{kept}"


class ModelExpansion(ModelRewriter):
    """Adds a language model's wordings until a query has `size`, including the original, which is always first.

    The query's own variants are kept, and count. Texts that differ only in case and spacing are added once. In
    `prompt`, `{count}` is replaced by the number of wordings wanted. The model is not asked where none is wanted or the
    question is blank. Raises RetrievalError where its answer contains no wording.
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
