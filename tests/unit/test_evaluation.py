"""Judged questions and the means over them; the metrics themselves are checked beside ir-measures in oracles/."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.helpers import ListChannel
from voicevault_retrievers.evaluation import Judged, evaluate, load_judged, place_of
from voicevault_retrievers.types import Chunk


@pytest.mark.parametrize(
    ("metadata", "place"),
    [
        ({"source_file": "a.pdf", "page_number": 3, "section": "S"}, "a.pdf#p3"),
        ({"source_file": "a.md", "section": "S"}, "a.md#S"),
        ({"source_file": "a.txt"}, "a.txt"),
        ({}, "id"),
    ],
)
def test_places(metadata: dict[str, object], place: str) -> None:
    assert place_of(Chunk("id", metadata=metadata)) == place


def test_a_place_counts_at_its_best_hit() -> None:
    metadata = {name: {"source_file": "f", "page_number": page} for name, page in (("a", 1), ("b", 1), ("c", 2))}
    channel = ListChannel([("a", 3.0), ("b", 2.0), ("c", 1.0)], metadata=metadata)
    found = evaluate(channel, [Judged("q", "q", {"f#p2": 1})])
    assert found == {"recall@5": 1.0, "nDCG@10": 1 / math.log2(3)}


def test_questions_without_judgements_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text('{"_id": "1", "text": "one"}\n\n{"_id": "2", "text": "two"}\n')
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n2\tx\t1\n2\ty\t2\n")
    assert load_judged(tmp_path / "q.jsonl", tmp_path / "qrels.tsv") == [Judged("2", "two", {"x": 1, "y": 2})]
