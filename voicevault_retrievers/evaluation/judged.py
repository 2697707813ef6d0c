"""Judged questions, what their judgements name, and how well a channel does on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.core.types import Chunk, Ranking
from voicevault_retrievers.evaluation.metrics import ndcg, recall

DEPTH = 50

Unit: TypeAlias = Callable[[Chunk], str]
"""What of a chunk a judgement names: its id, or its place."""


@dataclass(frozen=True)
class Judged:
    """A question and what is relevant to it, graded: higher is more relevant, 0 and less is not.

    `grades` are by chunk id or by place (see `place_of`); `answers` are texts that answer the question. `synthetic`
    ones were made from the collection itself, not asked by people.
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
    """What a judgement names: `file#p3`, `file#Section` where there are no pages, or the file; else the chunk's id."""
    metadata = chunk.metadata
    file = metadata.get("source_file")
    if file is None:
        return chunk.id
    if metadata.get("page_number") is not None:
        return f"{file}#p{metadata['page_number']}"
    return f"{file}#{metadata['section']}" if metadata.get("section") else str(file)


def names_of(ranking: Ranking, unit: Unit) -> list[str]:
    """What the hits of a ranking are to a judge, each counted at its best hit."""
    return list(dict.fromkeys(unit(hit.chunk) for hit in ranking))


def evaluate(
    channel: Channel,
    questions: Sequence[Judged],
    *,
    place: Unit = place_of,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, float]:
    """The means of recall@5 and nDCG@10 over the places found, each counted at its best hit.

    It needs no further package; `ablation` has more measures, intervals and tests.
    """
    sums = {"recall@5": 0.0, "nDCG@10": 0.0}
    for done, question in enumerate(questions, 1):
        places = names_of(channel.search(question.text, DEPTH), place)
        sums["recall@5"] += recall(places, question.grades, 5)
        sums["nDCG@10"] += ndcg(places, question.grades, 10)
        if progress is not None:
            progress(done, len(questions))
    return {name: total / max(1, len(questions)) for name, total in sums.items()}
