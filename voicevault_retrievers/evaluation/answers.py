"""Judgements by the text of an answer: a chunk that holds it is relevant."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from unicodedata import category, normalize

from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.evaluation.judged import Judged

# Scripts without spaces between words: there a text may begin and end anywhere.
_UNSPACED = re.compile("([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
                       "\U00020000-\U0003134f])")  # fmt: skip


def by_answer(questions: Sequence[Judged], chunks: Iterable[Chunk]) -> list[Judged]:
    """The questions, graded by chunk id: 1 for each chunk that holds one of the answers.

    Of one that no chunk answers the grades are empty. An answer is held where its words stand in the text one after
    the other, as whole words, whatever the case, white space, punctuation and Unicode form (`normalised`). So an answer
    is missed that is put in other words ("90 bar" in "90bar", "two" in "2"), hyphenated at a line's end, or cut by the
    border of two chunks; and a short one ("yes", "1998") is found where it answers nothing. Each answer is looked for
    in each chunk.
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
    """Words with one space between: compatible forms as one (NFKC), case folded, without punctuation and symbols.

    Each character of a script that parts no words is a word of its own.
    """
    folded = normalize("NFKC", normalize("NFKC", text).casefold())
    return " ".join(_UNSPACED.sub(r" \1 ", "".join(map(_kept, folded))).split())


@cache
def _kept(character: str) -> str:
    """A letter, mark or digit; nothing for what is not seen, such as a soft hyphen; a space for anything else."""
    kind = category(character)
    return character if kind[0] in "LMN" else "" if kind == "Cf" else " "
