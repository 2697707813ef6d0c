"""Judged questions: a file of questions, a file of judgements (qrels), and how well a channel does on them."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from voicevault_retrievers.channel import Channel
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.evaluation.metrics import ndcg, recall
from voicevault_retrievers.types import Chunk

DEPTH = 50


@dataclass(frozen=True)
class Judged:
    """A question and its relevant places, graded: higher is more relevant."""

    id: str
    text: str
    grades: Mapping[str, int]


def place_of(chunk: Chunk) -> str:
    """What a judgement names: `file#p3`, `file#Section` where there are no pages, or the file; else the chunk's id."""
    metadata = chunk.metadata
    file = metadata.get("source_file")
    if file is None:
        return chunk.id
    if metadata.get("page_number") is not None:
        return f"{file}#p{metadata['page_number']}"
    return f"{file}#{metadata['section']}" if metadata.get("section") else str(file)


def load_judged(questions: Path, qrels: Path) -> list[Judged]:
    """Questions (JSON Lines with `_id` and `text`) that have judgements (TSV: query-id, corpus-id, score)."""
    grades: dict[str, dict[str, int]] = {}
    with qrels.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines, delimiter="\t"):
            try:
                grades.setdefault(row["query-id"], {})[row["corpus-id"]] = int(float(row["score"]))
            except (KeyError, TypeError, ValueError) as error:
                raise ConfigError(f"{qrels}: a row has query-id, corpus-id and a score, not {row}") from error
    asked = [json.loads(line) for line in questions.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [Judged(one["_id"], one["text"], grades[one["_id"]]) for one in asked if one["_id"] in grades]


def evaluate(
    channel: Channel,
    questions: Sequence[Judged],
    *,
    place: Callable[[Chunk], str] = place_of,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, float]:
    """The means of recall@5 and nDCG@10 over the places found, each counted at its best hit."""
    sums = {"recall@5": 0.0, "nDCG@10": 0.0}
    for done, question in enumerate(questions, 1):
        places = list(dict.fromkeys(place(hit.chunk) for hit in channel.search(question.text, DEPTH)))
        sums["recall@5"] += recall(places, question.grades, 5)
        sums["nDCG@10"] += ndcg(places, question.grades, 10)
        if progress is not None:
            progress(done, len(questions))
    return {name: total / max(1, len(questions)) for name, total in sums.items()}
