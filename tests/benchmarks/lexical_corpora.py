"""What the lexical benchmark searches: synthetic documents under Zipf's law, and real text repeated to a size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.benchmarks.quality import load
from voicevault_retrievers import Chunk
from voicevault_retrievers.text.analyzed_texts import Analyzed

TEXTS = ("scifact", "covidqa-passages", "cosqa")
WORDS = 200_000
MEAN_LENGTH = 90
BLOCK = 4_000_000
BUCKETS = 1_000
LETTERS = str.maketrans("0123456789", "bcdfghjkmn")
"""Words without digits and vowels, which no analyzer cuts up and no stemmer shortens."""


@dataclass(frozen=True)
class Collection:
    """Documents and queries. `analyzed` where the documents are terms already, with a space between any two in `texts`.

    Where it is None, each system reads `texts` and `queries` with its own English analyzer.
    """

    name: str
    texts: Sequence[str]
    queries: Sequence[str]
    analyzed: Analyzed | None = None


class _Joined(Sequence[str]):
    """The documents as texts, each made when it is asked for."""

    def __init__(self, analyzed: Analyzed) -> None:
        self._analyzed = analyzed

    def __len__(self) -> int:
        return len(self._analyzed)

    def __getitem__(self, at: int) -> str:  # type: ignore[override]  # nobody slices it
        return " ".join(self._analyzed.document(at))

    def __iter__(self) -> Iterator[str]:
        return (self[at] for at in range(len(self)))


def synthetic(documents: int) -> Collection:
    """Documents of about 97 words drawn from 200,000 under Zipf's law; queries of 3 to 7 words of one document."""
    rng = np.random.default_rng(7)
    weights = 1 / (np.arange(1, WORDS + 1) + 2.7) ** 1.05
    lengths = np.clip(rng.lognormal(np.log(MEAN_LENGTH), 0.4, documents).astype(int), 8, 400)
    analyzed = _compact(_draw(np.cumsum(weights / weights.sum()), int(lengths.sum()), rng), np.cumsum(lengths))
    asked = 200 if documents > 100_000 else 500
    queries = [_query(analyzed, rng) for _ in range(min(asked, documents))]
    return Collection(size(documents), _Joined(analyzed), queries, analyzed)


def real(documents: int, data: Path) -> Collection:
    """The documents of three collections, again and again up to a size, and 500 of their questions."""
    found = [load(data / name) for name in TEXTS]
    texts = [chunk.text for chunks, _ in found for chunk in chunks]
    questions = [question.text for _, asked in found for question in asked]
    chosen = np.random.default_rng(7).permutation(len(questions))[:500]
    repeated = (texts * (documents // len(texts) + 1))[:documents]
    return Collection(f"{size(documents)} text", repeated, [questions[at] for at in chosen.tolist()])


def missing(data: Path) -> str | None:
    """Why `real` cannot be had; None where it can."""
    lacking = [name for name in TEXTS if not (data / name).is_dir()]
    return f"no {', '.join(lacking)} in BEIR layout in {data}" if lacking else None


def chunks_of(collection: Collection, numbers: Iterable[int] | None = None, *, texts: bool = False) -> list[Chunk]:
    """Chunks of documents, of all unless numbers are given: ids ascend with the numbers.

    The metadata `bucket` and `twin` are one number from 0 to 999 for filters.
    """
    wanted = range(len(collection.texts)) if numbers is None else numbers
    buckets = [{"bucket": bucket, "twin": bucket} for bucket in range(BUCKETS)]
    return [Chunk(f"{at:08d}", collection.texts[at] if texts else "", metadata=buckets[at % BUCKETS]) for at in wanted]


def picked(analyzed: Analyzed, numbers: NDArray[np.int64]) -> Analyzed:
    """Some of the documents, in the order of `numbers`."""
    starts = analyzed.ends - analyzed.lengths
    spans = zip(starts[numbers].tolist(), analyzed.ends[numbers].tolist(), strict=True)
    terms = [analyzed.terms[start:end] for start, end in spans]
    return _compact(terms, np.cumsum(analyzed.lengths[numbers]), analyzed.vocabulary)


def size(documents: int) -> str:
    """1000000 as 1M."""
    return f"{documents // 1_000_000}M" if documents % 1_000_000 == 0 else f"{documents / 1_000:g}k"


def _draw(cumulated: NDArray[np.float64], count: int, rng: np.random.Generator) -> list[NDArray[np.uint32]]:
    """Words by rank, in blocks, so that the wide numbers in between are never there for all of them."""
    blocks = [min(BLOCK, count - at) for at in range(0, count, BLOCK)]
    return [np.searchsorted(cumulated, rng.random(block)).astype(np.uint32) for block in blocks]


def _compact(
    blocks: Sequence[NDArray[np.uint32]], ends: NDArray[np.int64], vocabulary: Sequence[str] | None = None
) -> Analyzed:
    """Documents numbered over the words that they have; a word's name is w and its number in letters, unless given."""
    used = np.zeros(WORDS if vocabulary is None else len(vocabulary), dtype=np.bool_)
    for block in blocks:
        used[block] = True
    numbers = (np.cumsum(used) - 1).astype(np.uint32)
    words = [
        f"w{at}".translate(LETTERS) if vocabulary is None else vocabulary[at] for at in np.flatnonzero(used).tolist()
    ]
    return Analyzed(words, np.concatenate([numbers[block] for block in blocks]), ends.astype(np.int64))


def _query(analyzed: Analyzed, rng: np.random.Generator) -> str:
    document = analyzed.document(int(rng.integers(len(analyzed))))
    count = int(rng.integers(3, 8))
    return " ".join(document[at] for at in rng.integers(0, len(document), count).tolist())
