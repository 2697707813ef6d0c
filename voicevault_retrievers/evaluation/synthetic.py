"""Synthetic questions for a collection without judgements, made from its chunks by rules or by a language model.

They compare systems at finding a known chunk again. They do not measure how well people's questions are answered, and
are therefore marked as synthetic.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from math import log
from typing import TypeAlias

import numpy as np

from voicevault_retrievers._support.checks import whole
from voicevault_retrievers.core.protocols import TextModel
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.evaluation.judgements import Judged
from voicevault_retrievers.models.generation import aloud, filled
from voicevault_retrievers.query.model import one_line, wordings_of
from voicevault_retrievers.text.stopwords import STOPWORDS

PROMPT = (
    "Below is a passage of a collection. Write one question that it answers, as somebody would ask who has not read "
    "it: in other words than its own where that is natural, in its language, and without speaking of a passage or "
    "text. Answer with the question alone, or with NONE where there is nothing in it to ask for.\n\n{passage}"
)
LONGEST = 400
"""The most characters of a question that a model writes."""

Draft: TypeAlias = tuple[str, Sequence[str]]
"""A question and the ids of the chunks that answer it."""

_HEADINGS = ("section", "title", "heading")
_NUMBERING = re.compile(r"^(?:[§#\d.\s]+|[A-Z]\.\s)+")
_SENTENCE = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n\s*\n|\n(?=\s*[-*•#|§])")
_MARKS = "-*•#| "
_WORD = re.compile(r"[^\W_](?:[\w'’-]*\w)?")
_CAPITAL = r"(?=[^\W_a-z])"
_SUBJECT = r"(?P<subject>(?:(?P<article>The|An?|Der|Die|Das|Eine?) )?(?P<name>[^\W_][^,.;:?!]{1,60}?))"
_DEFINITIONS = (
    (re.compile(rf"{_CAPITAL}{_SUBJECT} (?:is an?|means) "), "What is {}?"),
    (re.compile(rf"{_CAPITAL}{_SUBJECT} ist eine? "), "Was ist {}?"),
    (re.compile(r"(?P<subject>(?P<article>)(?P<name>[^\W\d_]{2,12}?))是(?:一|指)"), "{}是什么?"),
)
_POINTING = frozenset("this that these those it its there here he she they we you what which who 这 那 它".split())
_MOST_WORDS = 5
_LEAST_WORDS = 3


def rule_questions(chunks: Iterable[Chunk], count: int, *, seed: int = 0) -> list[Judged]:
    """Return at most `count` questions by rules, graded by chunk id: headings, definitions and keywords in turn.

    A heading (`section`, `title` or `heading` of the metadata) asks for the chunks below it, where only one file has
    that heading. "X is a ..." becomes "What is X?" (English, German, Chinese). A keyword question has the words of a
    chunk's first long sentence with the highest tf-idf. Words of no other chunk are left out where enough others
    remain, because they would give the chunk away. Equal chunks, in any order, and an equal seed give equal questions.
    Raises ConfigError where no question can be made.
    """
    ordered = _ordered(chunks, seed)
    kinds = [_from_headings(ordered), _from_definitions(ordered), _from_keywords(ordered)]
    return _marked(islice(_in_turns(kinds), whole("count", count)))


def model_questions(
    chunks: Iterable[Chunk],
    count: int,
    model: TextModel,
    *,
    seed: int = 0,
    prompt: str = PROMPT,
    progress: Callable[[int, int], None] | None = None,
) -> list[Judged]:
    """Return at most `count` questions written by a language model, each about one chunk and graded by its id.

    The text `{passage}` in `prompt` is replaced by the chunk's text. Where an answer contains no question, another
    chunk is tried, up to three times `count` in all. Raises the model's errors, and ConfigError where no question is
    made.
    """
    if "{passage}" not in prompt:
        raise ConfigError(f"a prompt has {{passage}} in it, which the text replaces, not {prompt!r}")
    drafts: dict[str, Draft] = {}
    for chunk in _ordered(chunks, seed)[: 3 * whole("count", count)]:
        if len(drafts) == count:
            break
        text = _asked(model.complete(filled(prompt, passage=chunk.text)))
        if text is not None:
            drafts.setdefault(text.casefold(), (text, [chunk.id]))
        if progress is not None:
            progress(len(drafts), count)
    return _marked(drafts.values())


def _ordered(chunks: Iterable[Chunk], seed: int) -> list[Chunk]:
    """The chunks that have a text, in an order that depends on the seed alone."""
    found = sorted((chunk for chunk in chunks if chunk.text.strip()), key=lambda chunk: chunk.id)
    return [found[at] for at in np.random.default_rng(seed).permutation(len(found))]


def _marked(drafts: Iterable[Draft]) -> list[Judged]:
    made = [Judged(f"synthetic-{at}", text, dict.fromkeys(ids, 1), synthetic=True)
            for at, (text, ids) in enumerate(drafts, 1)]  # fmt: skip
    if not made:
        raise ConfigError("no question can be made of these chunks")
    return made


def _in_turns(kinds: Sequence[Iterable[Draft]]) -> Iterator[Draft]:
    """One draft of each kind in turn, each text once."""
    waiting = [iter(kind) for kind in kinds]
    seen: set[str] = set()
    while waiting:
        for kind in list(waiting):
            draft = next((one for one in kind if one[0].casefold() not in seen), None)
            if draft is None:
                waiting.remove(kind)
            else:
                seen.add(draft[0].casefold())
                yield draft


def _from_headings(chunks: Sequence[Chunk]) -> Iterator[Draft]:
    below: defaultdict[str, list[Chunk]] = defaultdict(list)
    for chunk in chunks:
        heading = next((str(chunk.metadata[key]) for key in _HEADINGS if chunk.metadata.get(key)), "")
        below[_NUMBERING.sub("", one_line(heading))].append(chunk)
    for heading, found in below.items():
        files = {chunk.metadata.get("source_file") for chunk in found}
        if len(files) == 1 and (len(heading.split()) > 1 or not heading.isascii()):
            yield heading, [chunk.id for chunk in found]


def _from_definitions(chunks: Sequence[Chunk]) -> Iterator[Draft]:
    asked: defaultdict[str, list[str]] = defaultdict(list)
    for chunk in chunks:
        for question in dict.fromkeys(filter(None, map(_defined, _sentences(chunk.text)))):
            asked[question].append(chunk.id)
    yield from asked.items()


def _defined(sentence: str) -> str | None:
    for pattern, question in _DEFINITIONS:
        found = pattern.match(sentence)
        words = found["name"].split() if found else []
        if found and len(words) <= _MOST_WORDS and words[0].casefold() not in _function_words():
            article = found["article"] or ""
            return question.format(article.lower() + found["subject"][len(article) :])
    return None


def _from_keywords(chunks: Sequence[Chunk]) -> Iterator[Draft]:
    counts = Counter(word for chunk in chunks for word in set(_words(chunk.text)))
    for chunk in chunks:
        sentence = next((s for s in _sentences(chunk.text) if len(_words(s)) > _MOST_WORDS), "")
        chosen = _telling(_words(sentence), Counter(_words(chunk.text)), counts, len(chunks))
        if len(chosen) >= _LEAST_WORDS and _holders(chosen, chunks) == [chunk.id]:
            yield " ".join(chosen), [chunk.id]


def _telling(words: Sequence[str], tf: Mapping[str, int], df: Mapping[str, int], total: int) -> list[str]:
    """The words with the highest tf-idf, in text order; words of this chunk alone only where others are too few."""
    telling = {word for word in words if len(word) > 2 and df[word] <= max(2, total / 10)} - _function_words()
    weight = {word: tf[word] * log(total / df[word]) for word in telling}
    heaviest = sorted(weight, key=lambda word: (df[word] == 1, -weight[word], word))
    shared = sum(df[word] > 1 for word in heaviest)
    kept = set(heaviest[: min(_MOST_WORDS, max(shared, _LEAST_WORDS))])
    return [word for word in dict.fromkeys(words) if word in kept]


def _holders(words: Iterable[str], chunks: Iterable[Chunk]) -> list[str]:
    """The chunks that contain all the words: more than one would answer the question equally well."""
    wanted = set(words)
    near = (chunk for chunk in chunks if all(word in chunk.text.casefold() for word in wanted))
    return [chunk.id for chunk in near if wanted <= set(_words(chunk.text))]


@cache
def _function_words() -> frozenset[str]:
    return _POINTING.union(*STOPWORDS.values())


def _sentences(text: str) -> list[str]:
    lines = [one_line(part) for part in _SENTENCE.split(text) if part and not part.lstrip().startswith(("#", "|"))]
    return [line.lstrip(_MARKS) for line in lines if line]


def _words(text: str) -> list[str]:
    return [word.casefold() for word in _WORD.findall(text)]


def _asked(answer: str) -> str | None:
    """The question in a model's answer: the first with a question mark, or the whole answer if it is one line."""
    found = wordings_of(aloud(answer), LONGEST)
    marked = [text for text in found if text.endswith(("?", "？", "؟"))]
    given = (marked or (found if len(found) == 1 else [""]))[0]
    return None if given.strip(" .").casefold() in ("", "none") else given
