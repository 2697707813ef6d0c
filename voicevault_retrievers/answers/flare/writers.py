"""Writers: models with their confidence, from token probabilities or from marks around doubtful text."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from voicevault_retrievers.core.protocols import TextModel
from voicevault_retrievers.errors import ConfigError, RetrievalError
from voicevault_retrievers.models.generation import CallableTextModel, Token, Written


@runtime_checkable
class Writer(Protocol):
    """A model with `write(prompt)`, which returns token probabilities where it has them.

    Optional: an async `awrite`, a `stream` that iterates over the parts of a text, and an async `astream`.
    """

    def write(self, prompt: str) -> Written: ...


class TextWriter:
    """A text model as a writer, without probabilities."""

    def __init__(self, model: TextModel) -> None:
        self.model = model
        self.awrite = self._awrite if callable(getattr(model, "acomplete", None)) else None

    def write(self, prompt: str) -> Written:
        """The model's answer."""
        return Written(self.model.complete(prompt))

    async def _awrite(self, prompt: str) -> Written:
        model: Any = self.model
        return Written(await model.acomplete(prompt))

    def __repr__(self) -> str:
        return repr(self.model)


def as_writer(model: Any) -> Writer:
    """A writer unchanged, or one for a text model or a function from a prompt to a text; ConfigError for others."""
    if isinstance(model, Writer):
        return model
    if isinstance(model, TextModel):
        return TextWriter(model)
    if callable(model):
        return TextWriter(CallableTextModel(model))
    raise ConfigError(
        "a model has write(prompt) or complete(prompt), or is a function from a prompt to a text, not a "
        f"{type(model).__name__}; of a chat model of LangChain's or an LLM of LlamaIndex's take writer_of(model) of "
        "voicevault_retrievers.langchain.models or .llama_index.models"
    )


def checked(part: Any) -> Written:
    """A writer's part; RetrievalError where it has no text."""
    if not isinstance(part, Written) or not isinstance(part.text, str):
        shown = type(part.text if isinstance(part, Written) else part).__name__
        raise RetrievalError(f"a language model gives a text, not a {shown}")
    return part


def parts(writer: Any, prompt: str, *, streams: bool) -> Generator[Written, None, None]:
    """The text of a writer: in parts with `streams` where it can stream, else at once."""
    if streams and callable(getattr(writer, "stream", None)):
        yield from writer.stream(prompt)
    else:
        yield writer.write(prompt)


def aparts(writer: Any, prompt: str, *, streams: bool) -> AsyncIterator[Written] | None:
    """`parts` on an event loop; None where the writer has no async call for it."""
    if streams and callable(getattr(writer, "astream", None)):
        return writer.astream(prompt)  # type: ignore[no-any-return]
    if callable(getattr(writer, "awrite", None)) and not (streams and callable(getattr(writer, "stream", None))):
        return _whole(writer, prompt)
    return None


async def _whole(writer: Any, prompt: str) -> AsyncIterator[Written]:
    yield await writer.awrite(prompt)


FARTHEST = 32
"""The most characters between two tokens; a token found only farther on does not belong to the text."""
_MARKER = re.compile(r"\[\s*(?:source\s*:[^\[\]\n]*|\d[\d\s,;\u2010-\u2014-]*)\]", re.IGNORECASE)
_SPACES = re.compile(r"\s+")


class TextSpan(NamedTuple):
    """A part of a text, by offsets, with its probability; None where unknown."""

    start: int
    end: int
    probability: float | None


@dataclass(frozen=True)
class Segment:
    """A sentence of an answer, with the white space after it.

    `confidence` is the least probability of its words' tokens, None where the model returned none. For a doubtful
    sentence, `query` is what was searched for, `added` the ids of the new chunks, and `draft` the sentence before it
    was written again.
    """

    text: str
    confidence: float | None = None
    query: str = ""
    added: tuple[str, ...] = ()
    draft: str = ""


def spans_of(part: Written) -> list[tuple[str, float | None]]:
    """The text of a part in pieces with their probabilities; the pieces join to the text.

    Tokens outside the text, such as the one that ends an answer, are left out.
    """
    if part.tokens is None:
        return [(part.text, None)]
    if "".join(token.text for token in part.tokens) == part.text:
        return list(part.tokens)
    return list(_aligned(part.text, part.tokens))


def _aligned(text: str, tokens: Iterable[Token]) -> Iterator[tuple[str, float | None]]:
    at = 0
    for token in tokens:
        found = text.find(token.text, at, at + FARTHEST + len(token.text)) if token.text.strip() else -1
        if found < 0:
            continue
        if found > at:
            yield text[at:found], None
        at = found + len(token.text)
        yield token.text, token.probability
    if at < len(text):
        yield text[at:], None


class Marks:
    """Removes the marks from a text that comes in parts: text in `[[...]]` has the probability 0, all other text 1.

    A mark that is not closed ends with its line.
    """

    def __init__(self) -> None:
        self._inside = False
        self._depth = 0
        self._held = ""

    def feed(self, text: str) -> list[tuple[str, float | None]]:
        """The next part without its marks; a bracket at its end is held back until the next character decides."""
        return [piece for char in text for piece in self._read(char)]

    def end(self) -> list[tuple[str, float | None]]:
        """The text still held back."""
        held, self._held = self._held, ""
        return [(held, 0.0 if self._inside else 1.0)] if held else []

    def _read(self, char: str) -> list[tuple[str, float | None]]:
        if self._held and char == self._held:
            self._held, self._depth, self._inside = "", 0, not self._inside
            return []
        if char == "\n" and self._inside:
            held = self.end()
            self._inside = False
            return [*held, (char, 1.0)]
        held = self.end()
        if char == ("]" if self._inside and not self._depth else "" if self._inside else "["):
            self._held = char
            return held
        if self._inside and char in "[]":
            self._depth += 1 if char == "[" else -1
        return [*held, (char, 0.0 if self._inside else 1.0)]


def confidence_of(text: str, spans: Sequence[TextSpan]) -> float | None:
    """The least probability of pieces with a letter or a digit, except source markers; None where unknown."""
    known = [span.probability for span in _counted(text, spans) if span.probability is not None]
    return min(known, default=None)


def masked(text: str, spans: Sequence[TextSpan], threshold: float) -> str:
    """A text without its source markers and without words that have a token less probable than the threshold.

    The implicit query of Jiang et al. (2023), section 3.2.2, eq. 4, which leaves out tokens, not words.
    """
    low = [span for span in _counted(text, spans) if span.probability is not None and span.probability < threshold]
    gone = [(found.start(), found.end()) for found in _MARKER.finditer(text)]
    gone += [_word(text, span.start, span.end) for span in low]
    kept = list(text)
    for start, end in gone:
        kept[start:end] = " " * (end - start)
    return _SPACES.sub(" ", "".join(kept)).strip()


def _counted(text: str, spans: Sequence[TextSpan]) -> Iterator[TextSpan]:
    markers = [(found.start(), found.end()) for found in _MARKER.finditer(text)]
    for span in spans:
        inside = any(start <= span.start and span.end <= end for start, end in markers)
        if not inside and any(char.isalnum() for char in text[span.start : span.end]):
            yield span


def _word(text: str, start: int, end: int) -> tuple[int, int]:
    """The word around a token; in scripts without spaces the token alone."""
    while start < end and text[start].isspace():
        start += 1
    while start > 0 and _parted(text[start]) and _parted(text[start - 1]):
        start -= 1
    while end < len(text) and _parted(text[end - 1]) and _parted(text[end]):
        end += 1
    return start, end


def _parted(char: str) -> bool:
    return char.isalnum() and ord(char) < 0x0E00
