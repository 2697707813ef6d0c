"""What a notebook shows: badges, bars and text, and nothing else, whatever documents and queries hold."""

from __future__ import annotations

import asyncio
import copy
import pickle
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import voicevault_retrievers
from tests.helpers import FailingChannel, GivenChannel, ListChannel, examples
from voicevault_retrievers.core import explanation
from voicevault_retrievers.core.types import Chunk, Context, Failure, Hit, Query, Ranking, Result, Variant, Vote
from voicevault_retrievers.display import COLOURS, Explanation, explain, explain_result, explanation_html, result_html
from voicevault_retrievers.display.html import MOST_HITS, MOST_TEXT
from voicevault_retrievers.errors import SearchError
from voicevault_retrievers.fusion import RRF, fuse
from voicevault_retrievers.lexical import BM25
from voicevault_retrievers.pipeline.builder import compose
from voicevault_retrievers.pipeline.options import Rerank
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.rerank import WeightedRerank

TAGS = {"div", "span", "b", "bdi", "mark", "ol", "ul", "li", "details", "summary"}
ATTRIBUTES = {"class", "style", "role", "aria-label", "title", "dir"}
STYLE = re.compile(r"(?:[a-z-]+:[-#%. \w]+(?:;|$))+", re.ASCII)
ROOT = "tex2jax_ignore mathjax_ignore"

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "[a](javascript:alert(1)) ![b](x) **bold** `code`",
    "</bdi></div></li><style>*{display:none}</style><a href='javascript:alert(1)'>x</a>",
    "<!-- comment --> <![CDATA[x]]> <?php ?> &lt;b&gt; &amp; &#60;",
    "$\\href{javascript:alert(1)}{x}$ {0} {} %s",
    "</title><svg/onload=alert(1)><iframe srcdoc='x'>",
)


class Page(HTMLParser):
    """Reads HTML: which tags and attributes it has, and its text; a tag that is not closed in order is an error."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"neither a tag nor text: {data}")

    def handle_decl(self, decl: str) -> None:
        self.handle_comment(decl)

    def unknown_decl(self, data: str) -> None:
        self.handle_comment(data)

    def handle_pi(self, data: str) -> None:
        self.handle_comment(data)

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.attributes if key == name]


def read(html: str) -> Page:
    """The page of HTML that holds nothing but what this package writes."""
    page = Page(html)
    assert page.tags <= TAGS
    assert {name for name, _ in page.attributes} <= ATTRIBUTES
    assert all(map(STYLE.fullmatch, page.values("style")))
    assert set(page.values("class")) == {ROOT}
    assert set(page.values("role")) <= {"img"}
    assert set(page.values("dir")) <= {"auto"}
    assert page.values("aria-label") == page.values("title")
    return page


def hostile(text: str) -> Result:
    """A result all of whose names and texts are this one."""
    metadata = {"source_file": text, "section": text, "page_number": text, text: [text]}
    inner = Vote(text, 1, 0.5, 1.0, 0.5, text, (text,), kind="semantic", via=(text,))
    votes = (
        Vote(text, 1, 0.5, 2.0, 1.0, text, (text,), (inner,), "keyword", (text, text)),
        Vote("other", None, -0.5, contribution=-0.25, kind="semantic"),
        Vote(f"stage {text}", 1, 0.1, parts=(inner,), via=(text,), probability=0.5),
    )
    hit = Hit(Chunk(text, f"{text} and {text}", text, metadata, text), 0.75, votes, f"context {text}")
    failures = (Failure(text, text, text), Failure(text, text, text, degrades=False))
    return Result(Query(text), Ranking((hit,), failures), channels_used=(text,), as_html=result_html)


@pytest.mark.parametrize("text", HOSTILE)
def test_what_documents_queries_and_names_hold_stays_text(text: str) -> None:
    result = hostile(text)
    for html in (result_html(result), explanation_html(result.hits[0])):
        page = read(html)
        assert f"{text} and {text}" in page.text
        assert any(text in said for said in page.values("aria-label"))


@pytest.mark.parametrize("text", HOSTILE)
def test_a_search_with_such_names_stays_text_too(text: str) -> None:
    chunk = Chunk("a", f"{text} contract", metadata={"source_file": text})
    channels = {text: BM25.from_chunks([chunk]), "broken": FailingChannel(SearchError(text))}
    query = Query(f"contract {text}", variants=(Variant(f"variant {text}"),))
    result = compose(channels, rerank=Rerank(max_chunks_per_page=1)).search(query)
    page = read(result._repr_html_() or "")
    assert f"variant {text} (weight 1)" in page.text
    assert f"contract {text}" in page.text
    assert f"{text} contract" in page.text
    assert f"SearchError: {text}" in page.text


@examples(0.5)
@given(st.text(max_size=30))
def test_any_text_stays_text(text: str) -> None:
    page = read(result_html(hostile(text or "x")))
    shown = (text or "x").encode("utf-8", "replace").decode()
    assert f"{shown} and {shown}" in page.text


def test_a_hit_has_a_badge_its_source_a_bar_and_its_words_marked() -> None:
    chunks = [
        Chunk("a", "The contract ends.", metadata={"source_file": "x.pdf", "page_number": 3}, kb="laws"),
        Chunk("b", "Contracts go on and on."),
    ]
    dense = ListChannel([("a", 0.9), ("z", 0.5)], name="dense")
    result = compose({"bm25": BM25.from_chunks(chunks), "dense": dense}, fusion=RRF(60)).search("contract")
    html = result_html(result)
    page = read(html)
    assert "3 hits · Hybrid 1 · Keyword 1 · Semantic 1 · confidence ok" in page.text
    assert "Hybrid [Source: x.pdf, p.3] score 0.03279, from laws" in page.text
    assert f"bm25 adds {1 / 61:.4g} (50 %), dense adds {1 / 61:.4g} (50 %)" in page.values("aria-label")
    assert f"bm25 #1 +{1 / 61:.4g} · dense #1 +{1 / 61:.4g} · sum {2 / 61:.4g}" in page.text
    assert html.count("<mark") == 2
    assert any(said.startswith("fused: began at ") for said in page.values("aria-label"))


def test_bars_of_a_result_have_one_scale() -> None:
    def hit(name: str, *added: float) -> Hit:
        votes = tuple(Vote(f"c{at}", 1, 1.0, contribution=value) for at, value in enumerate(added))
        return Hit(Chunk(name), sum(added), votes)

    ranking = Ranking((hit("a", 3.0, 1.0), hit("b", 2.0, -1.0)))
    widths = re.findall(r"width:([0-9.]+)%", result_html(Result(Query("q"), ranking)))
    # Of the width a fifth is left of the line: empty for the first hit, taken by the second one.
    assert [float(width) for width in widths] == [20.0, 60.0, 20.0, 0.0, 20.0, 40.0]


def test_what_has_no_contributions_has_no_bar() -> None:
    result = Pipeline(BM25.from_chunks([Chunk("a", "contract")])).search("contract")
    page = read(result_html(result))
    assert ">1 hit ·" in result_html(result)
    assert [said for said in page.values("aria-label") if "adds" in said] == []
    assert "bm25 #1 score" in page.text


def test_nothing_found_and_what_was_skipped_is_said() -> None:
    channels = {"bm25": BM25.from_chunks([Chunk("a", "text")]), "broken": FailingChannel(ValueError("no server"))}
    page = read(result_html(compose(channels).search("unheard")))
    assert "Nothing found · confidence none" in page.text
    assert "Degraded broken: ValueError" in page.text
    assert "no server" not in page.text
    assert read(result_html(Result(Query("q"), Ranking()))).text.startswith("qNothing found")


def test_a_long_text_is_shown_from_near_its_first_word_that_matched() -> None:
    text = "filler " * 400 + "contract " + "filler " * 400
    html = result_html(Pipeline(BM25.from_chunks([Chunk("a", text)])).search("contract"))
    assert ">contract</bdi></mark>" in html
    assert len(html) < 2 * MOST_TEXT + 2000
    many = ListChannel([(f"c{at:02}", None) for at in range(30)])
    page = read(result_html(Pipeline(many, k=30).search("q")))
    assert f"and {30 - MOST_HITS} more" in page.text


def test_an_explanation_is_text_that_a_notebook_draws() -> None:
    inner = fuse(bm25=BM25.from_chunks([Chunk("a", "contract")]), dense=ListChannel([("a", 0.5)]), method=RRF(60))
    result = Pipeline(fuse({"inner": inner, "more": ListChannel([("a", 1.0)])}, method=RRF(60))).search("contract")
    told = explain(result.hits[0])
    assert isinstance(told, str)
    assert told == explanation.explain(result.hits[0]) == voicevault_retrievers.explain(result.hits[0])
    page = read(told._repr_html_() or "")
    assert "inner: rank 1" in page.text
    assert "bm25: rank 1" in page.text
    assert "words contract" in page.text
    whole = explain_result(result)
    assert whole == explanation.explain_result(result)
    assert whole._repr_html_() == result_html(result)
    for again in (copy.copy(told), pickle.loads(pickle.dumps(told))):
        assert (again, again._repr_html_()) == (told, told._repr_html_())
    assert Explanation("bare")._repr_html_() is None


def test_a_result_is_drawn_by_its_pipeline_sync_and_async() -> None:
    pipeline = Pipeline(BM25.from_chunks([Chunk("a", "contract")]))
    without_times: Any = re.compile(r"[0-9.]+ ms|width:[0-9.]+%")
    one, other = pipeline.search("contract"), asyncio.run(pipeline.asearch("contract"))
    assert without_times.sub("", one._repr_html_()) == without_times.sub("", other._repr_html_())
    assert Result(Query("q"), Ranking())._repr_html_() is None
    assert "as_html" not in repr(one)


def test_drawing_a_result_builds_no_context() -> None:
    def build() -> Context:
        raise AssertionError("nobody asked for the context")

    assert "Nothing found" in result_html(Result(Query("q"), Ranking(), build_context=build))


def test_colours_are_legible_on_light_and_on_dark() -> None:
    def light(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for colour in COLOURS.values():  # the contrasts that WCAG 2 asks of text, and of graphics
        assert 1.05 / (light(colour) + 0.05) >= 4.5
        assert (light(colour) + 0.05) / (light("#111111") + 0.05) >= 3


def test_the_hover_of_a_hit_has_the_parts_of_a_weighted_score() -> None:
    metadata = {"chunk_index": 0, "chunks_in_file": 4}
    chunk = Chunk("a", "The pump hums.", metadata=metadata)
    words = GivenChannel([Hit(chunk, 3.0)], name="bm25", kind="keyword")
    near = GivenChannel([Hit(chunk, 0.5)], name="dense", kind="semantic")
    found = compose({"bm25": words, "dense": near}, fusion=RRF(60), rerank=WeightedRerank()).search("pump")
    (hit,) = found.hits
    parts = {"fused": 0.4 * 2 / 61, "semantic": 0.3 * 0.5, "keyword": 0.2 * 1.0, "position": 0.1 * 1.0}
    whole = sum(parts.values())
    assert hit.score == pytest.approx(whole)
    weighted = ", ".join(f"{name} adds {part:.4g} ({100 * part / whole:.0f} %)" for name, part in parts.items())
    told = f"bm25 adds {1 / 61:.4g} (50 %), dense adds {1 / 61:.4g} (50 %); weighted: {weighted}"
    for html in (result_html(found), explanation_html(hit)):
        page = Page(html)
        assert [said for said in page.values("title") if "adds" in said] == [told]
        assert page.values("aria-label") == page.values("title")
