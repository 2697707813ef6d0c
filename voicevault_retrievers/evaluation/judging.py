"""What judgements are of, and what of it a collection does not hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias, get_args

from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import ConfigError, unknown
from voicevault_retrievers.evaluation.answers import by_answer
from voicevault_retrievers.evaluation.judged import Judged, Unit, id_of, place_of

By: TypeAlias = Literal["chunk", "place", "answer"]

_NAMED = 3


class Judgements(NamedTuple):
    """Questions graded by what a collection holds, what the judgements are of, and what is to be said of them."""

    questions: list[Judged]
    by: By
    notes: tuple[str, ...] = ()


def judge(questions: Sequence[Judged], chunks: Iterable[Chunk], by: By | None = None) -> Judgements:
    """Judgements of chunks by their ids, of places (pages, sections, files), or by answers' texts.

    Where `by` does not say which, they are by answer if no question has grades, else of chunks or places, of
    whichever more is held. Judgements that name what is not held stay, and count as not found; questions whose answers
    no chunk holds are left out; both are noted. Raises ConfigError where nothing at all is held.
    """
    if by is not None and by not in get_args(By):
        raise unknown("kind of judgement", by, get_args(By))
    if by == "answer" or (by is None and not any(question.grades for question in questions)):
        return _by_answer(questions, chunks)
    return _by_name(questions, chunks, by)


def unit_of(by: By) -> Unit:
    """What of a chunk such judgements name; those by answer become judgements of chunks."""
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
    return Judgements([question for question in questions if question.grades], best, (note,) if absent else ())
