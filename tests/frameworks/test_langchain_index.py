"""The knowledge base as LangChain's document index."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.indexing import DocumentIndex, InMemoryRecordManager, aindex, index
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import ConfigurableField, RunnableLambda
from langchain_core.tools import create_retriever_tool
from langchain_tests.integration_tests import RetrieversIntegrationTests
from langchain_tests.integration_tests.indexer import AsyncDocumentIndexTestSuite, DocumentIndexerTestSuite

from tests.frameworks.langchain_parts import TEXTS, documents, hybrid, ids
from tests.helpers import Counting, HashEmbedder
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import ConfigError, IncompatibleIndexError, LockedError
from voicevault_retrievers.langchain import HybridIndex, HybridRetriever
from voicevault_retrievers.pipeline.options import Fusion, Rerank
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.text import Analyzer, CustomAnalyzer

NEW = Document("A spare pump seal is in the drawer", id="spare", metadata={"source": "notes.txt"})


def opened(folder: Path, *given: Document, embeddings: Any = None, **options: Any) -> HybridIndex:
    made = HybridIndex.open(
        folder / "manual", embeddings=HashEmbedder() if embeddings is None else embeddings, **options
    )
    made.upsert(given)
    return made


# LangChain's own suites


class TestStandard(DocumentIndexerTestSuite):
    @pytest.fixture(params=["both", "keywords"])
    def index(self, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[DocumentIndex]:
        with HybridIndex.open(tmp_path / "kb", embeddings=request.param == "both" and HashEmbedder()) as made:
            yield made


class TestStandardAsync(AsyncDocumentIndexTestSuite):
    @pytest.fixture
    async def index(self, tmp_path: Path) -> AsyncIterator[DocumentIndex]:
        with HybridIndex.open(tmp_path / "kb", embeddings=HashEmbedder()) as made:
            yield made


class TestStandardRetriever(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True)
    def _over(self, tmp_path: Path) -> None:
        words = ("valve", "motor", "seal", "filter", "hose")
        self.kb = opened(tmp_path, *(Document(f"pump {word}", id=word) for word in words)).kb

    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return HybridIndex

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"kb": self.kb}

    @property
    def retriever_query_example(self) -> str:
        return "pump"


# Opening


def test_what_is_upserted_is_there_after_opening_again(tmp_path: Path) -> None:
    with opened(tmp_path, *documents(), k=3) as first:
        found = first.invoke("pump seal")
    again = HybridIndex.open("manual", root=tmp_path, embeddings=HashEmbedder(), k=3)
    assert again.invoke("pump seal") == found
    assert len(found) == 3
    assert again.upsert([NEW])["succeeded"] == ["spare"]


def test_a_base_that_is_there_keeps_its_language_and_a_name_that_is_a_path_is_none(tmp_path: Path) -> None:
    opened(tmp_path, Document("Die Pumpen", id="a"), language="de").close()
    again = opened(tmp_path)
    assert again.kb.analyzer == Analyzer("de")
    assert ids(again.invoke("Pumpe")) == ["a"]
    with pytest.raises(IncompatibleIndexError, match="en"):
        opened(tmp_path, language="en")
    with pytest.raises(ConfigError, match="one of them"):
        opened(tmp_path, language="en", analyzer=Analyzer("en"))
    with pytest.raises(ConfigError, match="not the name"):
        HybridIndex.open(str(tmp_path / "manual"))


async def test_without_embeddings_it_is_searched_by_keywords(tmp_path: Path) -> None:
    made = opened(tmp_path, *documents(), embeddings=False)
    found = made.invoke("pump seal")
    assert found == await made.ainvoke("pump seal")
    assert {told["found_by"] for told in (document.metadata["voicevault"] for document in found)} == {"keyword"}
    assert ids(found) == ["seal", "flush", "hose"]
    again = HybridIndex.open(tmp_path / "manual")
    assert ids(again.invoke("pump seal")) == ids(found)
    with pytest.raises(IncompatibleIndexError, match="without an embedder"):
        HybridIndex.open(tmp_path / "manual", embeddings=HashEmbedder())


def test_vectors_are_not_left_behind(tmp_path: Path) -> None:
    opened(tmp_path, *documents()).close()
    with pytest.raises(ConfigError, match="embeddings=False"):
        opened(tmp_path, embeddings=False)
    with pytest.raises(ConfigError, match="cannot be loaded by name"):
        HybridIndex.open(tmp_path / "manual").upsert([NEW])


def test_langchains_embeddings_embed(tmp_path: Path) -> None:
    made = opened(tmp_path, *documents(), embeddings=DeterministicFakeEmbedding(size=8))
    assert ids(made.invoke(TEXTS["lamp"]))[0] == "lamp"


def test_options_are_checked(tmp_path: Path) -> None:
    made = opened(tmp_path)
    wrong: dict[str, dict[str, Any]] = {"'rerank'": {"kb": made.kb, "rerankk": None}, "kb is": {"kb": "manual"}}
    for said, options in {**wrong, "required": {}}.items():
        with pytest.raises(ConfigError, match=said):
            HybridIndex(**options)
    with pytest.raises(ConfigError, match="vectors='exact'"):
        opened(tmp_path, vectors="int8")
    assert repr(made.kb) in repr(made)


# Searching


@pytest.mark.parametrize("query", ["pump seal", "rated for hot water", "zeppelin", ""])
async def test_it_is_searched_as_a_retriever_over_its_documents_is(tmp_path: Path, query: str) -> None:
    options: dict[str, Any] = {
        "fusion": Fusion(weights={"dense": 0.5}),
        "expansion": True,
        "rerank": Rerank(max_chunks_per_page=1),
        "k": 3,
    }
    found = opened(tmp_path, *documents(), **options).invoke(query)
    assert found == await opened(tmp_path / "b", *documents(), **options).ainvoke(query)
    for document in found:
        assert document.metadata["voicevault"].pop("kb") == "manual"
    assert found == HybridRetriever.from_documents(documents(), HashEmbedder(), **options).invoke(query)


async def test_a_call_says_how_many_and_where(tmp_path: Path) -> None:
    made = opened(tmp_path, *documents(), require={"page": {"$lte": 1}})
    assert len(made.invoke("pump", k=1)) == len(await made.ainvoke("pump", k=1)) == 1
    where = {"page": {"$gte": 1}}
    assert set(ids(made.invoke("pump", where=where))) == {"hose", "lamp"} & set(ids(hybrid().invoke("pump")))
    assert made.invoke("door", where=where) == await made.ainvoke("door", where=where)
    assert "door" not in ids(made.invoke("door"))


def test_a_preset_says_how_to_search(tmp_path: Path) -> None:
    preset = tmp_path / "own.yaml"
    preset.write_text("version: 1\nk: 1\nchannels: {bm25: {}, dense: {}}\nfusion: {method: rrf, k: 10}\n")
    (found,) = opened(tmp_path, *documents(), preset=preset).invoke("rated for hot water")
    assert found.metadata["voicevault"]["fused"] == 1 / 11 + 1 / 11


async def test_an_empty_index_finds_nothing(tmp_path: Path) -> None:
    made = opened(tmp_path)
    assert made.invoke("pump") == await made.ainvoke("pump") == []
    assert made.upsert([]) == {"succeeded": [], "failed": []}


async def test_it_stands_in_a_chain_and_is_a_tool(tmp_path: Path) -> None:
    made = opened(tmp_path, *documents())
    chain = RunnableLambda(str.lower) | made.configurable_fields(k=ConfigurableField("k")) | ids
    assert chain.invoke("HOT WATER", {"configurable": {"k": 1}}) == ["seal"]
    assert await chain.ainvoke("HOT WATER", {"configurable": {"k": 1}}) == ["seal"]
    tool = create_retriever_tool(made, "manual", "The manual.")
    assert TEXTS["seal"] in tool.invoke({"query": "hot water"})


@pytest.mark.filterwarnings("ignore:This API is in beta")
def test_as_tool_gives_documents(tmp_path: Path) -> None:
    tool = opened(tmp_path, *documents(), k=1).as_tool(name="manual", description="The manual.")
    assert ids(tool.invoke("hot water")) == ["seal"]


# Changes


async def test_a_change_is_searched_at_once(tmp_path: Path) -> None:
    made = opened(tmp_path, *documents())
    before = made.pipeline
    assert made.pipeline is before
    made.upsert([NEW])
    assert "spare" in ids(made.invoke("drawer"))
    await made.aupsert([NEW.model_copy(update={"page_content": "A spare fuse is in the box"})])
    assert "spare" in ids(await made.ainvoke("fuse"))
    assert (
        made.search("drawer").ranking
        == opened(tmp_path / "b", *documents(), *made.get(["spare"])).search("drawer").ranking
    )
    await made.adelete(["spare"])
    assert "spare" not in ids(made.invoke("fuse box", k=9))


def test_what_is_kept_comes_back(tmp_path: Path) -> None:
    metadata = {"nested": {"list": [1, None, True, 0.5]}, "parent_id": "p", "title": "Zürich 東京"}
    given = Document("line\nbreaks\u2028", id="a", metadata=metadata)
    made = opened(tmp_path, given, *documents())
    again = HybridIndex.open(tmp_path / "manual", embeddings=HashEmbedder())
    for one in (made, again):
        assert one.get(["a", "gone", *TEXTS, "a"]) == [given, *documents()]
        one.get(["a"])[0].metadata["nested"]["list"].clear()
        assert one.get(["a"]) == [given]


def test_a_found_document_is_upserted_as_it_was(tmp_path: Path) -> None:
    embedder = Counting()
    made = opened(tmp_path, *documents(), embeddings=embedder)
    made.kb.add([Chunk("child", "A child of the pump", "parent")])
    embedder.texts.clear()
    made.upsert(made.invoke("pump child", k=9))
    made.upsert(made.get([*TEXTS, "child"]))
    assert embedder.texts == []
    assert made.kb.get(["child"])["child"].parent_id == "parent"


def test_documents_without_an_id_get_that_of_their_content(tmp_path: Path) -> None:
    made = opened(tmp_path)
    given = [Document("pump"), NEW, Document("pump"), Document("pump", metadata={"page": 1})]
    response = made.upsert(given)
    first, second, third, fourth = response["succeeded"]
    assert (second, third, response["failed"], len({first, fourth})) == ("spare", first, [], 2)
    assert ids(made.get([first, second, fourth])) == [first, second, fourth]
    assert [document.id for document in given] == [None, "spare", None, None]
    assert made.upsert(given) == response
    assert len(made.kb) == 3


def test_what_cannot_be_kept_fails_the_whole_call(tmp_path: Path) -> None:
    made = opened(tmp_path, *documents())
    changed = Document("Changed", id="lamp")
    for wrong in (Document("a", id="a", metadata={"when": object()}), Document("Else", id="lamp")):
        with pytest.raises(ConfigError, match=str(wrong.id)):
            made.upsert([changed, NEW, wrong])
    assert len(made.kb) == len(TEXTS)
    assert made.get(["lamp", "spare"]) == [documents()[3]]
    texts: Any = ["a text"]
    with pytest.raises(ConfigError, match="expected a LangChain Document, not str"):
        made.upsert(texts)
    assert made.upsert([NEW, NEW])["succeeded"] == ["spare", "spare"]


def test_a_misspelt_argument_is_refused(tmp_path: Path) -> None:
    made = opened(tmp_path, *documents())
    for call in (made.upsert, made.get, made.delete):
        with pytest.raises(TypeError, match="whree"):
            call([], whree={})
    with pytest.raises(ConfigError, match="single id"):
        made.delete("lamp")  # type: ignore[arg-type]
    assert len(made.kb) == len(TEXTS)


def test_progress_is_told(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    opened(tmp_path).upsert(documents(), progress=lambda done, total: told.append((done, total)))
    assert told == [(len(TEXTS), len(TEXTS))]


async def test_delete_by_a_filter_or_a_source(tmp_path: Path) -> None:
    made = opened(tmp_path, *documents())
    assert made.delete(where={"page": 0})["num_deleted"] == 2
    assert (await made.adelete(where={"page": 0}))["num_deleted"] == 0
    made.upsert([Document("Of a file", id="f", metadata={"source_file": "a.pdf"})])
    assert (await made.adelete(source="a.pdf"))["num_deleted"] == 1
    assert sorted(made.kb.ids()) == ["door", "hose", "lamp"]
    wrongs: list[dict[str, Any]] = [{"where": {}}, {"where": {"page": 1}, "source": "a.pdf"}]
    for wrong in wrongs:
        with pytest.raises(ConfigError):
            made.delete(**wrong)
    assert len(made.kb) == 3


# More than one at a time


def test_indexes_over_one_base_see_each_others_changes_at_once(tmp_path: Path) -> None:
    first = opened(tmp_path, *documents())
    second = HybridIndex(kb=first.kb, fusion=Fusion(weights={"dense": 0.0}))
    assert ids(second.invoke("hot water")) == ["seal"]
    first.delete(["seal"])
    assert second.invoke("hot water") == []


def test_an_index_that_was_opened_apart_sees_changes_after_a_reload(tmp_path: Path) -> None:
    writer = opened(tmp_path, *documents())
    reader = HybridIndex.open(tmp_path / "manual", embeddings=HashEmbedder(), fusion=Fusion(weights={"dense": 0.0}))
    writer.upsert([NEW])
    assert reader.invoke("drawer") == []
    assert reader.reload()
    assert not reader.reload()
    assert ids(reader.invoke("drawer")) == ["spare"]
    with pytest.raises(LockedError):
        reader.delete(["spare"])
    with pytest.raises(LockedError, match=r"0\.01 s"):
        opened(tmp_path, NEW, wait=0.01)
    writer.close()
    assert reader.delete(["spare"])["num_deleted"] == 1


def test_a_retriever_over_an_index_follows_it(tmp_path: Path) -> None:
    made = opened(tmp_path, *documents(), require={"source": {"$ne": "secret.txt"}})
    outer = HybridRetriever(channels={"manual": made})
    assert "spare" not in ids(outer.invoke("drawer"))
    made.upsert([NEW, Document("The drawer", id="secret", metadata={"source": "secret.txt"})])
    found = outer.invoke("drawer", weights={"dense": 0.0})
    assert ids(found) == ["spare"]
    assert set(found[0].metadata["voicevault"]["channels"]) == {"manual"}
    with pytest.raises(ConfigError, match="timeout"):
        HybridRetriever(channels={"manual": HybridIndex(kb=made.kb, timeout=3)})


def test_a_commit_while_a_search_is_opened_is_seen_by_the_next(tmp_path: Path) -> None:
    class Busy(HybridIndex):
        def _build(self) -> Pipeline:
            made = super()._build()
            self.upsert([NEW])
            return made

    made = Busy(kb=opened(tmp_path).kb)
    assert made.invoke("drawer") == []
    assert ids(made.invoke("drawer")) == ["spare"]


async def test_a_commit_is_read_in_a_worker_thread(tmp_path: Path) -> None:
    threads: set[threading.Thread] = set()

    def words(text: str) -> list[str]:
        threads.add(threading.current_thread())
        return text.lower().split()

    analyzer = CustomAnalyzer(words, name="words")
    made = await asyncio.to_thread(opened, tmp_path, analyzer=analyzer, fusion=Fusion(weights={"dense": 0.0}))
    outer = await asyncio.to_thread(lambda: HybridRetriever(channels={"manual": made}))
    threads.clear()
    for at, searched in enumerate((made, outer, made)):
        await made.aupsert([Document(f"number {at}", id=str(at))])
        assert ids(await searched.ainvoke(str(at))) == [str(at)]
    assert threads
    assert threading.current_thread() not in threads


# LangChain's `index` with a record manager

Cleanup = Literal["incremental", "full", "scoped_full"]


async def run_sync(given: Sequence[Document], *args: Any, **options: Any) -> Any:
    return index(given, *args, key_encoder="sha256", **options)


async def run_async(given: Sequence[Document], *args: Any, **options: Any) -> Any:
    return await aindex(given, *args, key_encoder="sha256", **options)


@pytest.mark.parametrize("run", [run_sync, run_async])
@pytest.mark.parametrize("cleanup", [None, "incremental", "full", "scoped_full"])
async def test_a_record_manager_keeps_an_index_like_its_sources(
    tmp_path: Path, run: Any, cleanup: Cleanup | None
) -> None:
    embedder, records = Counting(), InMemoryRecordManager(namespace="manual")
    made = opened(tmp_path, embeddings=embedder, k=9)

    async def indexed(given: Sequence[Document], **options: Any) -> tuple[int, ...]:
        embedder.texts.clear()
        told = await run(given, records, made, cleanup=cleanup, source_id_key="source", **options)
        return tuple(told[f"num_{name}"] for name in ("added", "updated", "skipped", "deleted"))

    def texts() -> set[str]:
        return {chunk.text for chunk in made.kb}

    first = [Document(text, metadata={"source": f"{key}.txt"}) for key, text in TEXTS.items()]
    assert await indexed(first, batch_size=2) == (5, 0, 0, 0)
    assert len(embedder.texts) == 5
    assert await indexed(first) == (0, 0, 5, 0)
    assert embedder.texts == []

    changed = [*first[:-1], Document("Open the door", metadata={"source": "door.txt"})]
    gone = 0 if cleanup is None else 1
    assert await indexed(changed) == (1, 0, 4, gone)
    assert embedder.texts == ["Open the door"]
    assert texts() == {*TEXTS.values(), "Open the door"} - ({TEXTS["door"]} if gone else set())
    assert "Open the door" in {document.page_content for document in made.invoke("open door")}

    gone = 1 if cleanup == "full" else 0  # the other modes clean up behind sources that are there
    assert await indexed(changed[1:]) == (0, 0, 4, gone)
    assert (TEXTS["flush"] in texts()) == (not gone)

    assert await indexed(changed[1:], force_update=True) == (0, 4, 0, 0)
    assert embedder.texts == []
