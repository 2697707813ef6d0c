"""Routing: which rule sends a question where, which channels are then searched, and what a model may say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.helpers import Counting, FailingChannel, ListChannel, Says
from voicevault_retrievers import RRF, Channel, Chunk, VectorChannel, fuse
from voicevault_retrievers.core.types import Query, Route
from voicevault_retrievers.errors import ConfigError, RetrievalError
from voicevault_retrievers.fusion.fuse import OnError
from voicevault_retrievers.models.generation import CallableTextModel
from voicevault_retrievers.pipeline.builder import compose
from voicevault_retrievers.pipeline.options import Expand, Fusion, Rerank
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.pipeline.presets import Preset
from voicevault_retrievers.query import ModelRouter, RuleExpansion, RuleRouter
from voicevault_retrievers.query.routing import Routes, Rule
from voicevault_retrievers.structure.graph import EmbeddedGraph, Entry, GraphChannel, Link

ROUTER = RuleRouter()
CASES = {
    "a reference alone": [
        "Section 420 IPC", "section 420 of the Indian Penal Code", "What does Section 302 IPC say?", "§ 823 Abs. 1 BGB",
        "Was steht in § 242 StGB?", "Art. 5 GG", "Article 21 and Article 14 of the Constitution of India", "IPC 420",
        "420 IPC.", "AIR 1973 SC 1461", "What does section 49 HNA require?", "What is the rule in section 59 PRA?",
        "What does s. 69 WSA say?",
    ],
    "a definition": [
        "definition of consideration", "define estoppel", "What does mens rea mean?",
        "What is the meaning of estoppel?",        "Was bedeutet Treu und Glauben?", "Definition von Besitz",
    ],
    "a comparison": [
        "Compare Section 420 and Section 406 IPC", "difference between theft and robbery", "BM25 vs. TF-IDF",
        "Unterschied zwischen Besitz und Eigentum", "Wie unterscheiden sich Miete und Pacht?",
    ],
    "several questions": ["What is BM25? Who made it?", "Was ist das? Wer war es?"],
    "cause and effect": [
        "Why did the pump fail?", "What are the effects of aspirin on blood?", "How does heat affect viscosity?",
        "Warum fiel die Pumpe aus?", "Welche Auswirkungen hat Hitze?",
    ],
    "a long question of several clauses": [
        "If a tenant leaves before the end of the lease, and the landlord finds a new tenant within a month, who pays "
        "the rent for the gap, and when is it due?",
    ],
    "analyse, evaluate or discuss": [
        "Analyse the court's reasoning", "Discuss the implications of the ruling", "Compare and evaluate both drugs",
        "Erörtern Sie die Folgen", "Bewerte die Risiken",
    ],
    "no rule": [
        "", "What is the punishment for cheating?", "How do I reset the pump?", "Welche Frist gilt für die Kündigung?",
        "pump 3", "rule of law", "what is a section 8 company", "How many pages are there in 2019?",
        "covid19", "2023", "ERR_4012", "ISO 27001", "CVE-2021-44228", "420 IPC and theft", "Rules of the Court",
        "Articles of the Constitution", "Clauses in the Contract", "Orders of 2023", "Arts of Japan",
    ],
}  # fmt: skip
ROUTE_OF = {
    "a reference alone": Route.SIMPLE,
    "a definition": Route.SIMPLE,
    "analyse, evaluate or discuss": Route.ANALYTICAL,
    "no rule": Route.STANDARD,
}


@pytest.mark.parametrize(("rule", "question"), [(rule, one) for rule, questions in CASES.items() for one in questions])
def test_a_rule_says_where_a_question_goes(rule: str, question: str) -> None:
    assert ROUTER.explain(question) == (ROUTE_OF.get(rule, Route.COMPLEX), rule)
    assert ROUTER.rewrite(Query(question)).route == ROUTE_OF.get(rule, Route.COMPLEX)


@pytest.mark.parametrize(
    "text",
    [
        "section 1 " + "Art A " * 5000 + "!", "define " + "x" * 50_000, "Section 1" + " S.i" * 22 + " ~",
        "§ 1" + " §i" * 30 + " ~", "führt " * 8000, "section " * 12 + "~",
    ],
)  # fmt: skip
def test_a_long_or_hostile_question_is_routed_at_once(text: str) -> None:
    assert ROUTER.explain(text).route in Route


def test_a_rule_of_ones_own_goes_first() -> None:
    rule = Rule(Route.SIMPLE, "a part number", lambda question: question.startswith("part "))
    assert RuleRouter(rules=[rule]).explain("part 7, and why?") == (Route.SIMPLE, "a part number")


def composed(
    parts: Mapping[str, Channel], route: Any = None, on_error: OnError = "skip", expansion: Any = None, **options: Any
) -> Pipeline:
    fusion = Fusion(RRF(), on_error=on_error)
    return compose(parts, fusion=fusion, expansion=Expand(expansion, route=route), **options)


def channels() -> dict[str, ListChannel]:
    return {name: ListChannel([(f"of {name}", 1.0)], name=name) for name in ("bm25", "dense", "graph")}


ROUTES = {"simple": ["graph"], "standard": ["bm25", "dense"], "analytical": ["graph", "questions"]}


@pytest.mark.parametrize(
    ("question", "route", "searched"),
    [
        ("Section 420 IPC", "simple", ("graph",)),
        ("how to reset a pump", "standard", ("bm25", "dense")),
        ("compare both", "complex", ("bm25", "dense", "graph")),
        ("discuss both", "analytical", ("graph",)),
    ],
)
async def test_a_route_searches_its_channels_alone(question: str, route: str, searched: tuple[str, ...]) -> None:
    parts = channels()
    pipeline = composed(parts, route=ROUTES, expansion=True)
    for result in (pipeline.search(question), await pipeline.asearch(question)):
        assert (result.route, result.channels_used) == (Route(route), searched)
        assert {hit.id for hit in result.hits} == {f"of {name}" for name in searched}
    assert all(bool(part.asked) == (name in searched) for name, part in parts.items())


async def test_a_result_has_route_channels_timings_errors_and_the_contexts_tokens() -> None:
    parts = {**channels(), "dense": FailingChannel(OSError("down"))}
    pipeline = composed(parts, route=ROUTES, rerank=Rerank(max_chunks_per_page=2))
    for result in (pipeline.search("how to reset a pump"), await pipeline.asearch("how to reset a pump")):
        assert (result.route, result.channels_used, result.degraded) == (Route.STANDARD, ("bm25",), True)
        assert list(result.skipped) == ["dense: OSError"]
        assert [failure.kind for failure in result.errors] == ["OSError", "NoPages"]
        assert set(result.timings) == {"route", "bm25", "dense", "fused", "page_cap"}
        assert result.context_tokens == result.context.tokens > 0


def test_a_given_route_stays_and_weights_count_on_it() -> None:
    pipeline = composed(channels(), route=ROUTES)
    result = pipeline.search(Query("Section 420 IPC", route=Route.STANDARD, weights={"dense": 3.0, "graph": 9.0}))
    assert (result.route, result.channels_used) == (Route.STANDARD, ("bm25", "dense"))
    assert [(hit.id, hit.score) for hit in result.hits] == [("of dense", 3.0 * 1 / 61), ("of bm25", 1 / 61)]
    assert pipeline.search(Query("x", route=Route.SIMPLE)).channels_used == ("graph",)


def test_without_routes_all_channels_are_searched() -> None:
    result = composed(channels(), route=True).search("Section 420 IPC")
    assert (result.route, result.channels_used) == (Route.SIMPLE, ("bm25", "dense", "graph"))
    assert composed(channels()).search("Section 420 IPC").route is None


def test_a_router_stands_before_any_channel() -> None:
    channel = RuleRouter(ROUTES) >> (RuleExpansion() >> fuse(channels(), method=RRF()))
    assert Pipeline(channel).search("Section 420 IPC").channels_used == ("graph",)
    alone = Pipeline(RuleRouter() >> ListChannel([("x", 1.0)])).search("Section 420 IPC")
    assert (alone.route, [hit.id for hit in alone.hits]) == (Route.SIMPLE, ["x"])


def test_a_query_is_not_changed() -> None:
    query = Query("Section 420 IPC", weights={"bm25": 1.0})
    routed = RuleRouter(Routes(ROUTES)).rewrite(query)
    assert query == Query("Section 420 IPC", weights={"bm25": 1.0})
    assert routed.weights == {"bm25": 0.0, "dense": 0.0, "questions": 0.0}


@pytest.mark.parametrize(
    ("answer", "route"),
    [
        ("simple", Route.SIMPLE),
        ("**COMPLEX**", Route.COMPLEX),
        ('```json\n{"route": "analytical"}\n```', Route.ANALYTICAL),
        ("<think>simple or complex?</think>The question is complex. Complex it is.", Route.COMPLEX),
    ],
)
def test_a_model_routes(answer: str, route: Route) -> None:
    model = Says(answer)
    result = composed(channels(), route=ModelRouter(model, ROUTES)).search("reset {query}")
    assert (result.route, result.errors) == (route, ())
    assert model.asked[0].endswith("Question: reset {query}")


@pytest.mark.parametrize("answer", ["", "simple or complex", "simplex", "I cannot say."])
async def test_an_unsure_model_gives_standard(answer: str) -> None:
    pipeline = composed(channels(), route=ModelRouter(CallableTextModel(lambda _: answer), ROUTES))
    for result in (pipeline.search("q"), await pipeline.asearch("q")):
        assert (result.route, result.channels_used) == (Route.STANDARD, ("bm25", "dense"))
        assert "route: RetrievalError: route: the model named" in str(result.errors[0])
        assert result.degraded


def test_a_failing_model_gives_standard_and_a_given_route_asks_none() -> None:
    def model(prompt: str) -> str:
        raise OSError("down")

    router = ModelRouter(CallableTextModel(model), ROUTES)
    result = composed(channels(), route=router).search("Section 420 IPC")
    assert (result.route, [str(failure) for failure in result.errors]) == (Route.STANDARD, ["route: OSError"])
    assert str(result.errors[0].error) == "down"
    given = composed(channels(), route=router).search(Query("q", route=Route.SIMPLE))
    assert (given.route, given.channels_used, given.errors) == (Route.SIMPLE, ("graph",), ())
    with pytest.raises(RetrievalError, match="named 0 routes"):
        ModelRouter(CallableTextModel(lambda _: "?")).rewrite(Query("q"))


async def test_a_simple_route_whose_channel_is_down_finds_nothing_and_says_so() -> None:
    failing = {**channels(), "graph": FailingChannel(OSError("down"))}
    pipeline = composed(failing, route=ROUTES)
    for result in (pipeline.search("Section 420 IPC"), await pipeline.asearch("Section 420 IPC")):
        assert (result.route, result.hits, result.degraded) == (Route.SIMPLE, (), True)
        assert (result.confidence, result.kg_direct_answer) == ("none", None)
        assert [(str(failure), str(failure.error)) for failure in result.errors] == [("route: OSError", "down")]
    with pytest.raises(OSError, match="down"):
        composed(failing, route=ROUTES, on_error="raise").search("Section 420 IPC")


async def test_a_simple_question_is_asked_of_the_graph_alone_and_says_where_that_finds_nothing() -> None:
    embedder = Counting(16)
    graph = GraphChannel(EmbeddedGraph([Entry(Chunk("c7"), (Link("is", "section:7:", 1.0),))]))
    own = {"graph": graph, "dense": VectorChannel.from_chunks([Chunk("c7", "a pump")], embedder)}
    pipeline = composed(own, route={"simple": ["graph"], "standard": ["dense"]})
    found = pipeline.search("Section 7")
    assert (found.channels_used, found.ranking.ids, found.errors) == (("graph",), ("c7",), ())
    assert (found.kg_direct_answer or {})["chunk_id"] == "c7"
    assert found.kg_direct_answer == pipeline.kg_direct_query("Section 7")
    for nothing in (pipeline.search("Section 8"), await pipeline.asearch("Section 8")):
        assert (nothing.route, nothing.hits, nothing.kg_direct_answer) == (Route.SIMPLE, (), None)
        assert [str(failure) for failure in nothing.errors] == ["route: nothing: nothing on route simple"]
        assert (nothing.degraded, nothing.confidence) == (False, "none")
    assert pipeline.kg_direct_query("Section 8") is None
    assert embedder.asked == []


@pytest.mark.parametrize("graph", [ListChannel([], kind="graph"), FailingChannel(OSError("down"))])
async def test_a_simple_question_that_finds_nothing_is_asked_as_a_standard_one_where_that_is_wanted(
    graph: Channel,
) -> None:
    parts = {**channels(), "graph": graph}
    falls = RuleRouter({"simple": ["graph"], "standard": ["bm25"]}, simple_fallback=True)
    result = composed(parts, route=falls).search("Section 420 IPC")
    assert result.ranking.ids == parts["bm25"].search("q").ids
    assert result.ranking == (await composed(parts, route=falls).asearch("Section 420 IPC")).ranking
    assert "nothing on route simple: asked as standard" in str(result.errors[-1])
    assert result.degraded == isinstance(graph, FailingChannel)
    stays = RuleRouter({"simple": ["graph"], "standard": ["bm25"]})
    assert composed(parts, route=stays).search("Section 420 IPC").hits == ()
    assert "simple_fallback=True" in repr(falls)


def test_a_preset_routes() -> None:
    parts = {"bm25": ListChannel([("x", 1.0)], kind="keyword"), "dense": ListChannel([("y", 1.0)])}
    told = {"version": 1, "route": {"method": "rules", "simple": ["bm25", "graph"]}}
    result = Preset.of(told).build(parts).search("Section 420 IPC")
    assert (result.route, result.channels_used) == (Route.SIMPLE, ("bm25",))
    plain = Preset.of({"version": 1, "route": "rules"}).build(parts).search("Section 420 IPC")
    assert (plain.route, plain.channels_used) == (Route.SIMPLE, ("bm25", "dense"))
    assert Preset.of({"version": 1}).build(parts).search("Section 420 IPC").route is None


@pytest.mark.parametrize(
    ("route", "message"),
    [
        ({"simpel": ["bm25"]}, "Did you mean 'simple'"),
        ({"simple": "bm25"}, "route 'simple' is a list of channel names"),
        ({"simple": []}, "route 'simple' is a list of channel names"),
        ("magic", "unknown routing method 'magic'"),
        ("model", "route needs a language model: name one in the preset"),
        (7, "route is a mapping of options"),
        ({"simple": ["graph"]}, "route 'simple' has none of the channels bm25, dense"),
    ],
)
def test_routes_that_are_wrong(route: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Preset.of({"version": 1, "route": route}).build({"bm25": ListChannel([]), "dense": ListChannel([])})
    with pytest.raises(ConfigError, match="route is true, a mapping"):
        composed(channels(), route="rules")


def test_a_recipe_says_all() -> None:
    assert repr(RuleRouter({"simple": ["graph"]})) == "RuleRouter(Routes({'simple': ['graph']}, channels=('graph',)))"
    assert repr(RuleRouter(rules=[])) == "RuleRouter(Routes({}, channels=()))"
