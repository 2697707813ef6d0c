"""Judged questions: judgements by ids or by answers' texts, and the quality of a channel on them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, NamedTuple, TypeAlias, get_args
from unicodedata import category, normalize

from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.core.types import Chunk, Ranking
from voicevault_retrievers.errors import ConfigError, unknown
from voicevault_retrievers.evaluation.metrics import ndcg, recall

# Scripts without spaces between words: an answer may begin and end anywhere in the text.
_UNSPACED = re.compile("([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
                       "\U00020000-\U0003134f])")  # fmt: skip


DEPTH = 50

Unit: TypeAlias = Callable[[Chunk], str]
"""The name under which a chunk is judged: its id, or its place."""


@dataclass(frozen=True)
class Judged:
    """A question with graded judgements: a higher grade is more relevant, 0 and below is not relevant.

    `grades` are by chunk id or by place (see `place_of`); `answers` are texts that answer the question. `synthetic`
    questions were made from the collection itself, not asked by people.
    """

    id: str
    text: str
    grades: Mapping[str, int]
    answers: tuple[str, ...] = ()
    synthetic: bool = False


def id_of(chunk: Chunk) -> str:
    """The chunk's own id, for judgements of chunks."""
    return chunk.id


def place_of(chunk: Chunk) -> str:
    """The place that a judgement names: `file#p3`, `file#Section` without pages, or the file; else the chunk's id."""
    metadata = chunk.metadata
    file = metadata.get("source_file")
    if file is None:
        return chunk.id
    if metadata.get("page_number") is not None:
        return f"{file}#p{metadata['page_number']}"
    return f"{file}#{metadata['section']}" if metadata.get("section") else str(file)


def names_of(ranking: Ranking, unit: Unit) -> list[str]:
    """The judged names of a ranking's hits, best first, each once."""
    return list(dict.fromkeys(unit(hit.chunk) for hit in ranking))


def evaluate(
    channel: Channel,
    questions: Sequence[Judged],
    *,
    place: Unit = place_of,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, float]:
    """Return the means of recall@5 and nDCG@10 over the places found, each counted at its best hit.

    It needs no extra; `ablation` has more measures, intervals and tests.
    """
    sums = {"recall@5": 0.0, "nDCG@10": 0.0}
    for done, question in enumerate(questions, 1):
        places = names_of(channel.search(question.text, DEPTH), place)
        sums["recall@5"] += recall(places, question.grades, 5)
        sums["nDCG@10"] += ndcg(places, question.grades, 10)
        if progress is not None:
            progress(done, len(questions))
    return {name: total / max(1, len(questions)) for name, total in sums.items()}


By: TypeAlias = Literal["chunk", "place", "answer"]

_NAMED = 3


class Judgements(NamedTuple):
    """Graded questions, the kind of their judgements, and notes on them."""

    questions: list[Judged]
    by: By
    notes: tuple[str, ...] = ()


def judge(questions: Sequence[Judged], chunks: Iterable[Chunk], by: By | None = None) -> Judgements:
    """Match judgements of chunks by ids, of places (pages, sections, files), or by answers' texts, with a collection.

    Without `by`, they are by answer if no question has grades, else of chunks or places, whichever matches more.
    Judgements of names that the collection lacks stay, and count as not found. Questions whose answers no chunk
    contains, and those without grades beside others with some, are left out. All this is noted. Raises ConfigError
    where nothing matches at all.
    """
    if by is not None and by not in get_args(By):
        raise unknown("kind of judgement", by, get_args(By))
    if by == "answer" or (by is None and not any(question.grades for question in questions)):
        return _by_answer(questions, chunks)
    return _by_name(questions, chunks, by)


def unit_of(by: By) -> Unit:
    """The unit of a kind of judgement; judgements by answer become judgements of chunks."""
    return place_of if by == "place" else id_of


def _by_answer(questions: Sequence[Judged], chunks: Iterable[Chunk]) -> Judgements:
    asked = [question for question in questions if question.answers]
    if not asked:
        raise ConfigError("the questions have no judgements: give qrels, or questions with `answers`")
    graded = [question for question in by_answer(asked, chunks) if question.grades]
    if not graded:
        raise ConfigError(f"no chunk of the base holds an answer to one of the {len(asked)} questions")
    notes = []
    if len(graded) < len(asked):
        notes.append(f"{len(asked) - len(graded)} of {len(asked)} questions are left out: no chunk holds their answer")
    return Judgements(graded, "answer", tuple(notes))


def _by_name(questions: Sequence[Judged], chunks: Iterable[Chunk], by: By | None) -> Judgements:
    wanted = {name: None for question in questions for name, grade in question.grades.items() if grade > 0}
    kinds: Sequence[By] = ("chunk", "place") if by is None else (by,)
    held: Mapping[By, set[str]] = {kind: set() for kind in kinds}
    example = ""
    for chunk in chunks:
        for kind in kinds:
            example = unit_of(kind)(chunk)
            if example in wanted:
                held[kind].add(example)
    best = max(kinds, key=lambda kind: len(held[kind]))
    absent = [name for name in wanted if name not in held[best]]
    named = ", ".join(absent[:_NAMED]) + (", ..." if len(absent) > _NAMED else "")
    note = f"{len(absent)} of {len(wanted)} judged {best}s are not in the base: {named}"
    if not held[best]:
        raise ConfigError(f"{note or 'nothing is judged relevant'}; what it holds is such as {example!r}")
    graded = [question for question in questions if question.grades]
    notes = [note] if absent else []
    if len(graded) < len(questions):
        notes.append(f"{len(questions) - len(graded)} of {len(questions)} questions are left out: they have no grades")
    return Judgements(graded, best, tuple(notes))


def by_answer(questions: Sequence[Judged], chunks: Iterable[Chunk]) -> list[Judged]:
    """The questions graded by chunk id: 1 for each chunk that contains one of the answers.

    A question that no chunk answers has empty grades. A chunk contains an answer where the answer's words are
    consecutive whole words of its text, regardless of case, white space, punctuation and Unicode form (`normalised`).
    Answers are therefore missed where they are worded otherwise ("90 bar" in "90bar", "two" in "2"), hyphenated at a
    line's end, or cut by the border of two chunks; and short ones ("yes", "1998") match where they answer nothing.
    Takes time proportional to answers times chunks.
    """
    wanted = [(question, [f" {normalised(answer)} " for answer in question.answers]) for question in questions]
    found: list[dict[str, int]] = [{} for _ in questions]
    for chunk in chunks:
        text = f" {normalised(chunk.text)} "
        for grades, (_, answers) in zip(found, wanted, strict=True):
            if any(answer in text for answer in answers):
                grades[chunk.id] = 1
    return [replace(question, grades=grades) for question, grades in zip(questions, found, strict=True)]


def normalised(text: str) -> str:
    """The words of a text with one space between: NFKC, case-folded, without punctuation and symbols.

    Each character of a script without spaces between words is a word of its own.
    """
    folded = normalize("NFKC", normalize("NFKC", text).casefold())
    return " ".join(_UNSPACED.sub(r" \1 ", "".join(map(_kept, folded))).split())


@cache
def _kept(character: str) -> str:
    """A letter, mark or digit; nothing for an invisible character, such as a soft hyphen; a space for any other."""
    kind = category(character)
    return character if kind[0] in "LMN" else "" if kind == "Cf" else " "
