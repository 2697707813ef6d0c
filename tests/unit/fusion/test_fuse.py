"""Fusion of channels: weights, depth, failure, and what the votes say."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Iterator, Sequence
from functools import partial

import pytest

from tests.helpers import FailingChannel, HeldChannel, ListChannel
from voicevault_retrievers.core.channel import Channel, Rewriter, Stage
from voicevault_retrievers.core.explanation import explain, provenance
from voicevault_retrievers.core.leaf import LeafChannel, Match
from voicevault_retrievers.core.stages import skippable
from voicevault_retrievers.core.types import Chunk, Query, Ranking, Variant
from voicevault_retrievers.errors import ConfigError, SearchError, SearchTimeoutError, StageError
from voicevault_retrievers.fusion import RRF, fuse
from voicevault_retrievers.lexical import BM25
from voicevault_retrievers.pipeline.builder import compose
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.query import RuleExpansion, Together
from voicevault_retrievers.rerank import CrossEncoderRerank, PageCap

A = ListChannel([("x", 3.0), ("y", 2.0), ("z", 1.0)])
B = ListChannel([("y", 0.9), ("w", 0.8), ("v", 0.7), ("u", 0.6), ("x", 0.5)], kind="keyword")


by_rank = partial(fuse, method=RRF())


@pytest.fixture
def hung() -> Iterator[HeldChannel]:
    channel = HeldChannel(timeout=0.05)
    yield channel
    channel.go.set()


async def test_one_channel_raises_one_hangs_and_the_third_answers(hung: HeldChannel) -> None:
    pipeline = compose({"bad": FailingChannel(SearchError("disk on fire")), "slow": hung, "good": A}, k=3, fusion=RRF())
    for result in (pipeline.search("q"), await pipeline.asearch("q")):
        assert result.ranking.ids == ("x", "y", "z")
        assert result.degraded
        assert result.channels_used == ("good",)
        assert {(failure.stage, failure.kind) for failure in result.errors} == {
            ("bad", "SearchError"),
            ("slow", "SearchTimeoutError"),
        }
        assert "disk on fire" in str(result.errors)


def test_on_error_raise_raises_what_the_channel_raised(hung: HeldChannel) -> None:
    for channels in ({"bad": FailingChannel(SearchError("no")), "good": A}, {"bad": hung, "good": A}):
        with pytest.raises((SearchError, SearchTimeoutError)):
            fuse(channels, on_error="raise").search("q")


def test_all_channels_failing_always_raises() -> None:
    with pytest.raises(SearchError, match="first"):
        fuse(a=FailingChannel(SearchError("first")), b=FailingChannel(SearchError("second"))).search("q")


def test_a_failure_below_a_nested_fusion_survives_with_its_path() -> None:
    inner = by_rank(bad=FailingChannel(SearchError("no")), good=A)
    ranking = by_rank(inner=inner, other=B).search("q")
    assert [failure.stage for failure in ranking.errors] == ["inner/bad"]


def test_an_own_stage_that_fails_leaves_the_order_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: PageCap, query: Query, ranking: Ranking) -> Ranking:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(PageCap, "refine", broken)
    result = Pipeline(A >> PageCap(1), k=2).search("q")
    assert result.ranking.ids == ("x", "y")
    assert list(map(str, result.errors)) == ["page_cap: RuntimeError"]
    assert str(result.errors[0].error) == "out of memory"
    with pytest.raises(RuntimeError, match="out of memory"):
        Pipeline(A >> PageCap(1), on_error="raise").search("q")


async def test_a_stage_of_ones_own_that_fails_is_not_skipped_unless_that_is_said() -> None:
    class Broken(Stage):
        name = "broken"

        def refine(self, query: Query, ranking: Ranking) -> Ranking:
            raise KeyError("the text of a document")

    pipeline = Pipeline(A >> Broken(), k=2)
    with pytest.raises(StageError, match=r"^broken raised KeyError, and a search does not go on") as caught:
        pipeline.search("q")
    assert isinstance(caught.value, KeyError)
    assert repr(caught.value.__cause__) == "KeyError('the text of a document')"
    with pytest.raises(KeyError):
        await pipeline.asearch("q")
    result = Pipeline(A >> skippable(Broken()), k=2).search("q")
    assert (result.ranking.ids, result.skipped) == (("x", "y"), ("broken: KeyError",))
    with pytest.raises(ConfigError, match="a stage or a rewriter can be skipped, not a str"):
        skippable("broken")  # type: ignore[type-var]


async def test_a_rewriter_of_ones_own_that_fails_is_not_skipped_unless_that_is_said() -> None:
    class Broken(Rewriter):
        name = "broken"

        def rewrite(self, query: Query) -> Query:
            raise OSError("the question")

    with pytest.raises(StageError, match="broken raised OSError"):
        (Broken() >> A).search("q")
    with pytest.raises(OSError, match="broken raised OSError"):
        await (Together([RuleExpansion(), Broken()]) >> A).asearch("q")
    found = (Together([RuleExpansion(), skippable(Broken())]) >> A).search("q")
    assert (found.ids, list(map(str, found.errors))) == (("x", "y", "z"), ["broken: OSError"])


def test_weights_scale_contributions_and_zero_leaves_a_channel_unasked() -> None:
    silent = ListChannel([("s", 1.0)])
    ranking = by_rank(a=A, s=silent, weights={"a": 0.5, "s": 0}).search("q")
    assert [hit.score for hit in ranking] == [0.5 / 61, 0.5 / 62, 0.5 / 63]
    assert silent.asked == []
    assert by_rank(a=A, b=B).search(Query("q", weights={"b": 0})).ids == ("x", "y", "z")


@pytest.mark.parametrize("weights", [{"a": -1.0}, {"a": math.nan}, {"a": True}, {"c": 1.0}, {"a": 0, "b": 0}])
def test_wrong_weights_are_refused(weights: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        fuse(a=A, b=B, weights=weights).search("q")
    with pytest.raises(ConfigError):
        Pipeline(fuse(a=A, b=B)).search(Query("q", weights=weights))


def test_wrong_channels_and_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least one channel"):
        fuse()
    with pytest.raises(ConfigError, match="not a channel"):
        fuse(a="bm25")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="twice"):
        fuse({"a": A}, a=B)
    with pytest.raises(ConfigError, match="unknown channel in depth 'c'"):
        fuse(a=A, depth={"c": 5})
    for options in ({"method": A}, {"depth": A}, {"method": "rff"}, {"on_error": "ignore"}):
        with pytest.raises(ConfigError):
            fuse({"a": A}, **options)  # type: ignore[arg-type]
    for options in ({"expansion": "rules"}, {"rerank": 3}, {"timeout": "5"}, {"timeout": -1}):
        with pytest.raises(ConfigError):
            compose({"a": A}, **options)  # type: ignore[arg-type]


def test_channels_are_asked_to_a_fixed_depth_and_deeper_only_for_more() -> None:
    channel = ListChannel([])
    fuse(a=channel, depth=7).search("q", 3)
    fuse(a=channel, depth=7).search("q", 9)
    assert channel.asked == [("q", 7), ("q", 9)]


def test_a_stage_that_drops_hits_asks_deeper_without_searching_the_same_twice() -> None:
    metadata = {f"d{n}": {"source_file": "a", "page_number": 1 if n < 90 else n} for n in range(100)}
    channel = ListChannel([(name, -float(n)) for n, name in enumerate(metadata)], metadata=metadata)
    ranking = (fuse(a=channel, depth=10) >> PageCap(1)).search("q", 3)
    assert ranking.ids == ("d0", "d90", "d91")
    assert channel.asked == [("q", k) for k in (10, 18, 36, 72, 144)]


@pytest.mark.parametrize("whole", [True, False], ids=["all fail", "one fails"])
def test_a_deeper_ask_that_fails_leaves_the_answer_that_there_is(whole: bool) -> None:
    class Shallow(ListChannel):
        def find(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
            if k > 10:
                raise SearchError("too deep")
            return super().find(query, wordings, k)

    metadata = {f"d{n}": {"source_file": "a", "page_number": 1} for n in range(50)}
    found = [(name, -float(n)) for n, name in enumerate(metadata)]
    channels = {"a": Shallow(found, metadata=metadata)}
    if not whole:
        channels["b"] = ListChannel(found, metadata=metadata)
    ranking = (fuse(channels, depth=10) >> PageCap(2)).search("q", 3)
    assert ranking.ids == ("d0", "d1")
    assert any("too deep" in failure.message for failure in ranking.errors)


def test_a_name_reaches_below_stages_and_rewriters() -> None:
    channel = ListChannel([("x", 1.0)])
    query = Query("q", (Variant("for kw", channels=frozenset({"kw"})),))
    fuse(kw=RuleExpansion(1) >> channel >> PageCap(9)).search(query)
    assert [text for text, _ in channel.asked] == ["q", "for kw"]


def test_equal_filters_of_different_meaning_are_searched_apart() -> None:
    chunks = [Chunk("yes", "pump", metadata={"flag": True}), Chunk("one", "pump", metadata={"flag": 1})]
    pipeline = Pipeline(BM25.from_chunks(chunks))
    both = fuse(a=pipeline.narrowed({"flag": True}), b=pipeline.narrowed({"flag": 1}))
    assert {hit.id: [vote.stage for vote in hit.votes] for hit in both.search("pump")} == {"yes": ["a"], "one": ["b"]}


def test_a_stage_cannot_lose_failures_or_give_nonsense() -> None:
    class Forgetful(Stage):
        name = "forgetful"

        def refine(self, query: Query, ranking: Ranking) -> Ranking:
            return Ranking(ranking.hits)

    class Nonsense(Forgetful):
        name = "nonsense"

        def refine(self, query: Query, ranking: Ranking) -> Ranking:
            return None  # type: ignore[return-value]

    partial = by_rank(bad=FailingChannel(SearchError("no")), good=A)
    assert [failure.stage for failure in (partial >> Forgetful()).search("q").errors] == ["bad"]
    with pytest.raises(StageError, match="nonsense raised TypeError"):
        (A >> Nonsense()).search("q")


def test_values_pickle_and_copy() -> None:
    query = Query("q", (Variant("w"),), vectors=[1.0, 0.0], where={"a": 1}, weights={"b": 2.0})
    result = compose({"a": A, "b": B}).search(query)
    for value in (query, result, compose({"a": A}).search("q")):
        assert pickle.loads(pickle.dumps(value)).__class__ is value.__class__
        assert copy.deepcopy(value) == value
    assert pickle.loads(pickle.dumps(query)) == query
    channel = fuse(a=A, bm=BM25.from_chunks([Chunk("a", "pump")])) >> CrossEncoderRerank("no/such-model")
    for twin in (pickle.loads(pickle.dumps(channel)), copy.deepcopy(channel)):
        assert twin.below.search("pump").ids == channel.below.search("pump").ids


def test_variants_count_once_by_their_best_and_for_their_channels_only() -> None:
    class Echo(LeafChannel):
        def find(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
            scores = {"long": 4.0, "short": 3.0, "original": 2.0}
            return [[Match(A.find(query, wordings, 1)[0][0].chunk, scores[w.text])] for w in wordings]

    query = Query("original", (Variant("short", 0.5), Variant("long", channels=frozenset({"semantic"}))))
    ranking = fuse(k=Echo("k", "keyword"), s=Echo("s", "semantic")).search(query)
    (hit,) = ranking
    assert [(vote.stage, vote.score, vote.query) for vote in hit.votes] == [
        ("k", 2.0, "original"),
        ("s", 4.0, "long"),
    ]


def test_provenance_says_who_found_a_hit_and_what_each_added() -> None:
    told = {hit.id: provenance(hit) for hit in by_rank(a=A, b=B).search("q")}
    assert told["x"] == {
        "found_by": "hybrid",
        "channels": {
            "a": {"rank": 1, "kind": "semantic", "score": 3.0, "weight": 1.0, "contribution": 1 / 61, "query": "q"},
            "b": {"rank": 5, "kind": "keyword", "score": 0.5, "weight": 1.0, "contribution": 1 / 65, "query": "q"},
        },
        "fused": math.fsum([1 / 61, 1 / 65]),
    }
    assert told["w"]["found_by"] == "keyword"
    assert told["z"]["found_by"] == "semantic"
    assert "b" not in told["z"]["channels"]


def test_explanations_and_descriptions_name_every_part() -> None:
    (hit, *_) = fuse(inner=fuse(a=A, b=B), c=A).search("q")
    text = explain(hit)
    for said in ("found by hybrid", "inner: rank", "a: rank", "fused = "):
        assert said in text
    channel: Channel = fuse(a=A, b=B, method=RRF(k=10)) >> PageCap(2)
    for said in ("RRF(k=10)", "a: ", "b: ", ">> PageCap(2)"):
        assert said in Pipeline(channel).describe()


def test_nothing_found_is_said() -> None:
    result = Pipeline(ListChannel([])).search("q")
    assert (result.hits, result.confidence, result.degraded, result.context.text) == ((), "none", False, "")


@pytest.mark.parametrize("k", [-1, 1.5, True, "3"])
def test_a_wrong_k_is_refused(k: object) -> None:
    with pytest.raises(ConfigError, match="whole number"):
        A.search("q", k)  # type: ignore[arg-type]
