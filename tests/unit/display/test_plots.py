"""A result as a picture."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.helpers import FailingChannel, ListChannel
from voicevault_retrievers.core.types import Chunk, Hit, Query, Ranking, Result, Vote
from voicevault_retrievers.display import COLOURS, plot_result
from voicevault_retrievers.display.plots import MOST_HITS
from voicevault_retrievers.fusion import RRF, fuse
from voicevault_retrievers.lexical import BM25
from voicevault_retrievers.pipeline.builder import compose
from voicevault_retrievers.pipeline.options import Rerank
from voicevault_retrievers.pipeline.pipeline import Pipeline

colors = pytest.importorskip("matplotlib.colors")

CHUNKS = [Chunk("a", "The contract ends."), Chunk("b", "Contracts without notice.")]
PNG = b"\x89PNG\r\n\x1a\n"


def drawn(result: Result) -> tuple[list[Any], list[Any]]:
    """The bars above and below, of a picture that a notebook can show."""
    figure = plot_result(result)
    assert figure._repr_png_().startswith(PNG)
    above, below = figure.axes
    return list(above.patches), list(below.patches)


def names(axes: Any) -> list[str]:
    return [label.get_text() for label in axes.get_yticklabels()]


def test_a_bar_is_what_each_channel_added_and_below_when_each_call_ran() -> None:
    channels = {"bm25": BM25.from_chunks(CHUNKS), "dense": ListChannel([("a", 0.9)])}
    result = compose(channels, fusion=RRF(60), rerank=Rerank(max_chunks_per_page=1)).search("contract")
    above, below = drawn(result)
    votes = [vote for hit in result.hits for vote in hit.votes if vote.contribution]
    assert [bar.get_width() for bar in above] == pytest.approx([vote.contribution for vote in votes])
    assert [bar.get_x() for bar in above] == pytest.approx([0.0, votes[0].contribution, 0.0])
    kinds = [colors.to_hex(bar.get_facecolor()) for bar in above]
    assert kinds == [COLOURS[vote.kind or "other"] for vote in votes]
    spans = sorted(result.trace, key=lambda span: span.started)
    assert [bar.get_x() for bar in below] == pytest.approx([span.started * 1e3 for span in spans])
    assert [bar.get_width() for bar in below] == pytest.approx([span.seconds * 1e3 for span in spans])
    axes = plot_result(result).axes
    assert names(axes[0]) == ["1. a", "2. b"]
    assert names(axes[1]) == [span.name for span in spans]
    assert [text.get_text() for text in axes[0].get_legend().get_texts()] == [" bm25", " dense"]


def test_without_a_fusion_a_bar_is_the_score() -> None:
    result = Pipeline(BM25.from_chunks(CHUNKS)).search("contract")
    assert [bar.get_width() for bar in drawn(result)[0]] == pytest.approx([hit.score for hit in result.hits])
    assert plot_result(result).axes[0].get_xlabel() == "score"


def test_what_a_channel_takes_off_stands_on_the_other_side() -> None:
    votes = (Vote("bm25", 1, 1.0, contribution=2.0), Vote("dense", 1, 1.0, contribution=-0.5), Vote("c", 1, None))
    above, _ = drawn(Result(Query("q"), Ranking((Hit(CHUNKS[0], 1.5, votes),))))
    assert [(bar.get_x(), bar.get_width()) for bar in above] == [(0.0, 2.0), (0.0, -0.5)]


def test_every_kind_of_result_is_drawn() -> None:
    inner = fuse(bm25=BM25.from_chunks(CHUNKS), dense=ListChannel([("a", None)]), method=RRF(60))
    nested = Pipeline(fuse({"inner": inner, "graph": ListChannel([("b", 1.0)], kind="graph")}))
    broken = compose({"bm25": BM25.from_chunks(CHUNKS), "broken": FailingChannel(ValueError("down"))})
    many = Pipeline(ListChannel([(f"c{at}", None) for at in range(MOST_HITS + 5)]), k=MOST_HITS + 5)
    results = [pipeline.search("contract") for pipeline in (nested, broken, many)]
    results += [asyncio.run(nested.asearch("contract")), broken.search("unheard"), Result(Query("q"), Ranking())]
    results.append(Result(Query("q"), Ranking((Hit(CHUNKS[0]),))))
    assert all(drawn(result) for result in results)
    assert "broken (failed)" in names(plot_result(results[1]).axes[1])
    assert len(names(plot_result(results[2]).axes[0])) == MOST_HITS
    assert [text.get_text() for text in plot_result(results[-2]).axes[0].texts] == ["nothing found"]
    assert [text.get_text() for text in plot_result(results[-2]).axes[1].texts] == ["nothing ran"]


@pytest.mark.parametrize("text", ["$\\frac{$ and $5", "_hidden", "line\nbreak \x00", "检索 \U0001f600", "x" * 500])
def test_names_are_drawn_as_they_are(text: str) -> None:
    channel = BM25.from_chunks([Chunk("a", f"contract {text}", metadata={"source_file": text})], name=text)
    assert drawn(compose({text: channel, "list": ListChannel([("a", 1.0)])}).search(f"contract {text}"))
