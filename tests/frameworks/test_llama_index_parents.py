"""What is around a node: its parent in a docstore, and the windows of sentences."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
from llama_index.core import Document, StorageContext, VectorStoreIndex
from llama_index.core.node_parser import HierarchicalNodeParser, SentenceWindowNodeParser, get_leaf_nodes
from llama_index.core.schema import BaseNode, MetadataMode, NodeRelationship, NodeWithScore, RelatedNodeInfo, TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores import MetadataFilter, MetadataFilters

from tests.frameworks.llama_index_parts import HashEmbedding, nodes
from tests.helpers import HashEmbedder
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import ConfigError, ContextExpansionError
from voicevault_retrievers.llama_index import BM25Retriever, HybridRetriever, provenance
from voicevault_retrievers.llama_index.foreign_stages import stage_of
from voicevault_retrievers.llama_index.parents import ParentExpansionPostprocessor, SentenceWindowPostprocessor
from voicevault_retrievers.store import KnowledgeBase

WHOLE = "The pump is primed. The valve is closed. The filter is rinsed."


def tree() -> dict[str, BaseNode]:
    """A manual in a section of two parts, of which one has two children and the other one."""
    found: dict[str, BaseNode] = {}
    for name, text, up in [
        ("section", WHOLE, None), ("one", WHOLE[:40], "section"), ("two", WHOLE[41:], "section"),
        ("pump", WHOLE[:19], "one"), ("valve", WHOLE[20:40], "one"), ("filter", WHOLE[41:], "two"),
    ]:  # fmt: skip
        node = TextNode(id_=name, text=text, metadata={"name": name, "team": "red"}, start_char_idx=WHOLE.index(text))
        node.excluded_llm_metadata_keys = ["team"]
        node.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id="manual")
        if up is not None:
            node.relationships[NodeRelationship.PARENT] = RelatedNodeInfo(node_id=up)
            children: Any = found[up].relationships.setdefault(NodeRelationship.CHILD, [])
            children.append(RelatedNodeInfo(node_id=name))
        found[name] = node
    return found


def given(*names: str) -> list[NodeWithScore]:
    return [NodeWithScore(node=tree()[name], score=1.0 - at / 10) for at, name in enumerate(names)]


def docstore(kind: type[SimpleDocumentStore] = SimpleDocumentStore) -> SimpleDocumentStore:
    store = kind()
    store.add_documents([*tree().values(), Document(id_="manual", text="All of the manual.")])
    return store


def shown(found: list[NodeWithScore]) -> dict[str, str]:
    return {node.node_id: node.text for node in found}


def told(node: NodeWithScore) -> dict[str, Any]:
    return {key: value for key, value in (provenance(node) or {}).items() if key != "checksum"}


async def test_a_node_gets_the_text_of_its_parent_and_stays_what_it_was() -> None:
    before = given("valve", "pump", "filter")
    expand = ParentExpansionPostprocessor(docstore())
    found = expand.postprocess_nodes(before)
    assert [(node.node_id, node.score, node.text) for node in found] == [
        ("valve", 1.0, "The pump is primed. The valve is closed."), ("filter", 0.8, "The filter is rinsed."),
    ]  # fmt: skip
    assert told(found[0]) == {"retrieved": {"score": 1.0}, "text": "The valve is closed."}
    assert isinstance(found[0].node, TextNode)
    assert found[0].node.start_char_idx == WHOLE.index("The valve")
    assert found[0].node.get_content(MetadataMode.LLM) == f"name: one\n\n{found[0].text}"
    assert await expand.apostprocess_nodes(before) == found
    assert before == given("valve", "pump", "filter")
    again = expand.postprocess_nodes(found)
    assert again == found


def test_parents_of_anywhere(tmp_path: Path) -> None:
    storage = StorageContext.from_defaults(docstore=docstore())
    index = VectorStoreIndex([], embed_model=HashEmbedding(), storage_context=storage)
    chunks = {name: Chunk(name, node.get_content()) for name, node in tree().items()}
    kb = KnowledgeBase.create("kb", root=tmp_path)
    kb.add([Chunk("valve", "The valve is closed.", "one")], parents=[chunks["one"]])
    expected = {"valve": "The pump is primed. The valve is closed."}
    for store in (docstore(), storage, index, tree(), chunks, kb):
        assert shown(ParentExpansionPostprocessor(store).postprocess_nodes(given("valve"))) == expected
    from_kb = HybridRetriever(channels={"kb": kb.bm25()}).retrieve("valve")
    assert shown(ParentExpansionPostprocessor(kb).postprocess_nodes(from_kb)) == expected
    odd = ParentExpansionPostprocessor({"one": "no node"}).postprocess_nodes(given("valve"))
    assert "1 of 1 parents are not in the store" in told(odd[0])["degraded"][0]


def test_the_source_is_a_parent_where_that_is_asked_for() -> None:
    before = given("section", "pump")
    assert shown(ParentExpansionPostprocessor(docstore()).postprocess_nodes(before))["section"] == WHOLE
    with_source = ParentExpansionPostprocessor(docstore(), use_source=True).postprocess_nodes(before)
    assert shown(with_source) == {"section": "All of the manual.", "pump": "The pump is primed. The valve is closed."}


@pytest.mark.parametrize(
    ("names", "options", "expected"),
    [
        (("pump", "filter"), {"levels": 2}, {"pump": WHOLE}),
        (("pump", "filter"), {"levels": None, "max_chars": 60}, {"pump": "The pump is primed. The valve is closed."}),
        (("pump", "filter"), {"levels": None, "min_children_ratio": 0.6}, {"pump": "The pump is primed."}),
        (("pump", "filter", "valve"), {"levels": None, "min_children_ratio": 0.6}, {"pump": WHOLE}),
        (("pump", "one"), {}, {"pump": "The pump is primed. The valve is closed."}),
        (("one", "pump"), {}, {"one": WHOLE}),
    ],
)
def test_levels_and_how_many_children_are_enough(
    names: tuple[str, ...], options: dict[str, Any], expected: dict[str, str]
) -> None:
    found = shown(ParentExpansionPostprocessor(docstore(), **options).postprocess_nodes(given(*names)))
    assert {name: text for name, text in found.items() if name != "filter"} == expected


def test_rights_hold_for_parents() -> None:
    red = MetadataFilters(filters=[MetadataFilter(key="team", value="red")])
    parents = docstore()
    expand = ParentExpansionPostprocessor(parents, require=red)
    assert shown(expand.postprocess_nodes(given("filter", "valve")))["valve"].startswith("The pump")
    own = {"team": {"$in": ["red"], "$not": {"$any": ["red"]}}}  # LlamaIndex's == is not met by a list with it
    assert json.loads(expand.to_json())["require"] == {"$and": [own]}
    for require in ({"team": "blue"}, {}, MetadataFilters(filters=[])):
        closed = ParentExpansionPostprocessor(parents, require=require)
        found = closed.postprocess_nodes(given("valve", "pump"))
        assert shown(found) == {"valve": "The valve is closed.", "pump": "The pump is primed."}
        assert told(found[0]) == {}


def test_rights_that_change_hold_at_once() -> None:
    expand = ParentExpansionPostprocessor(docstore(), require={"team": {"$in": ["red"]}})
    assert shown(expand.postprocess_nodes(given("valve")))["valve"].startswith("The pump")
    assert expand.require is not None
    expand.require["team"]["$in"].remove("red")
    assert shown(expand.postprocess_nodes(given("valve"))) == {"valve": "The valve is closed."}


def test_repr_does_not_show_what_is_in_the_store() -> None:
    assert WHOLE not in repr(ParentExpansionPostprocessor(tree()))


class Broken(SimpleDocumentStore):
    def get_nodes(self, node_ids: list[str], raise_error: bool = True) -> list[BaseNode]:
        raise ConnectionError("no route")

    async def aget_nodes(self, node_ids: list[str], raise_error: bool = True) -> list[BaseNode]:
        raise ConnectionError("no route")


async def test_a_store_that_fails_keeps_all_as_they_were(caplog: pytest.LogCaptureFixture) -> None:
    expand = ParentExpansionPostprocessor(docstore(Broken))
    for found in (
        expand.postprocess_nodes(given("valve", "pump")),
        await expand.apostprocess_nodes(given("valve", "pump")),
    ):
        assert [(node.node_id, node.score, node.text) for node in found] == [
            ("valve", 1.0, "The valve is closed."), ("pump", 0.9, "The pump is primed."),
        ]  # fmt: skip
        assert told(found[0])["degraded"] == [
            "parents: ContextExpansionError: parents could not be fetched: ConnectionError"
        ]
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    with pytest.raises(ContextExpansionError, match="no route"):
        ParentExpansionPostprocessor(docstore(Broken), on_error="raise").postprocess_nodes(given("valve"))


def test_a_missing_parent_is_said_and_others_are_not_lost(caplog: pytest.LogCaptureFixture) -> None:
    store = docstore()
    store.delete_document("one")
    found = ParentExpansionPostprocessor(store).postprocess_nodes(given("valve", "filter", "pump"))
    assert list(shown(found)) == ["valve", "filter", "pump"]
    assert "1 of 2 parents are not in the store" in caplog.text


async def test_a_store_without_async_is_asked_in_a_worker_thread() -> None:
    asked: list[threading.Thread] = []

    class SyncOnly(SimpleDocumentStore):
        def get_nodes(self, node_ids: list[str], raise_error: bool = True) -> list[BaseNode]:
            asked.append(threading.current_thread())
            return super().get_nodes(node_ids, raise_error)

        async def aget_nodes(self, node_ids: list[str], raise_error: bool = True) -> list[BaseNode]:
            raise NotImplementedError

    found = await ParentExpansionPostprocessor(docstore(SyncOnly)).apostprocess_nodes(given("valve"))
    assert shown(found)["valve"].startswith("The pump")
    assert [thread is threading.main_thread() for thread in asked] == [False]


async def test_a_store_is_awaited() -> None:
    class Slow(SimpleDocumentStore):
        async def aget_nodes(self, node_ids: list[str], raise_error: bool = True) -> list[BaseNode]:
            await asyncio.sleep(0)
            return await super().aget_nodes(node_ids, raise_error)

        def get_nodes(self, node_ids: list[str], raise_error: bool = True) -> list[BaseNode]:
            raise AssertionError

    expand = ParentExpansionPostprocessor(docstore(Slow), levels=None)
    assert shown(await expand.apostprocess_nodes(given("valve"))) == {"valve": WHOLE}


def test_a_hierarchy_as_the_library_makes_it() -> None:
    document = Document(id_="doc", text=" ".join(f"Sentence {at} tells of the pump number {at}." for at in range(40)))
    parsed = HierarchicalNodeParser.from_defaults(chunk_sizes=[256, 128, 64]).get_nodes_from_documents([document])
    store = SimpleDocumentStore()
    store.add_documents(parsed)
    leaves = get_leaf_nodes(parsed)
    retriever = BM25Retriever.from_nodes(leaves, k=3)
    found = retriever.retrieve("pump number 7")
    by_id = {node.node_id: node for node in parsed}
    (best, *_) = ParentExpansionPostprocessor(store, merge=False).postprocess_nodes(found)
    leaf = by_id[best.node_id]
    assert leaf.parent_node is not None
    parent = by_id[leaf.parent_node.node_id]
    assert (best.score, best.text) == (found[0].score, parent.get_content())
    assert told(best)["text"] == found[0].text == leaf.get_content()
    (top, *_) = ParentExpansionPostprocessor(store, levels=None, merge=False).postprocess_nodes(found)
    assert parent.parent_node is not None
    assert top.text == by_id[parent.parent_node.node_id].get_content()
    piped = (retriever.pipeline.channel >> stage_of(ParentExpansionPostprocessor(store, merge=False))).search(
        "pump number 7", 1
    )
    assert [(hit.id, hit.text) for hit in piped] == [(best.node_id, best.text)]


# Windows


def sentences(size: int = 1) -> list[BaseNode]:
    text = "One pump. Two valves. Three filters. Four alarms. Five doors. Six lamps. Seven hoses."
    parser = SentenceWindowNodeParser.from_defaults(
        sentence_splitter=lambda given: [f"{part}." for part in given.removesuffix(".").split(". ")],
        window_size=size,
        id_func=lambda i, document: f"s{i}",
    )
    return parser.get_nodes_from_documents([Document(id_="doc", text=text)])


async def test_windows_come_once_for_the_best_of_their_nodes() -> None:
    parsed = sentences()
    found = [NodeWithScore(node=parsed[at], score=score) for at, score in [(3, 0.9), (6, 0.8), (2, 0.7)]]
    before = copy.deepcopy(found)
    expand = SentenceWindowPostprocessor()
    after = expand.postprocess_nodes(found)
    assert [(node.node_id, node.score, node.text) for node in after] == [
        ("s3", 0.9, "Two valves. Three filters. Four alarms. Five doors."), ("s6", 0.8, "Six lamps. Seven hoses."),
    ]  # fmt: skip
    assert told(after[0]) == {"retrieved": {"score": 0.9}, "text": "Four alarms."}
    assert isinstance(after[0].node, TextNode)
    assert after[0].node.start_char_idx == 37
    assert "Three" not in after[0].node.get_content(MetadataMode.LLM).replace(after[0].text, "")
    assert await expand.apostprocess_nodes(found) == after
    assert found == before


def test_windows_are_joined_by_the_nodes_relationships_where_places_are_not_known() -> None:
    parsed = sentences()
    for node in parsed:
        assert isinstance(node, TextNode)
        node.start_char_idx = None
    found = [NodeWithScore(node=parsed[at]) for at in (3, 2, 0)]
    after = SentenceWindowPostprocessor().postprocess_nodes(found)
    assert [node.text for node in after] == [
        "Two valves. Three filters. Four alarms. Five doors.", "One pump. Two valves.",
    ]  # fmt: skip


def test_windows_from_a_retriever() -> None:
    retriever = HybridRetriever.from_nodes(sentences(2), HashEmbedder(16))
    found = (retriever.pipeline.channel >> stage_of(SentenceWindowPostprocessor())).search("Two valves", 2)
    assert found.hits[0].text.startswith("One pump. Two valves. Three filters. Four alarms.")
    assert len(" ".join(hit.text for hit in found).split(". ")) <= 7


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        (ParentExpansionPostprocessor, {"store": {}, "docstore": {}}, "here it is `store`"),
        (ParentExpansionPostprocessor, {"store": {}, "simple_ratio_thresh": 0.5}, "here it is `min_children_ratio`"),
        (ParentExpansionPostprocessor, {"store": {}, "min_children_ratio": 2.0}, "min_children_ratio"),
        (ParentExpansionPostprocessor, {"store": {}, "levels": 0}, "levels"),
        (ParentExpansionPostprocessor, {"store": {}, "max_token": 3}, "Did you mean 'max_tokens'"),
        (ParentExpansionPostprocessor, {"store": {}, "require": {"a": {"$gtt": 1}}}, r"Did you mean '\$gt"),
        (ParentExpansionPostprocessor, {"store": 3}, "parents are in"),
        (SentenceWindowPostprocessor, {"target_metadata_key": "window"}, "here it is `window_key`"),
        (SentenceWindowPostprocessor, {"max_chars": 0}, "max_chars"),
    ],
)
def test_a_wrong_option_is_refused(kind: type[Any], options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        kind(**options)


def test_a_copy_over_a_docstore_does_the_same() -> None:
    expand = ParentExpansionPostprocessor(docstore(), levels=2, require={"team": "red"})
    twin = pickle.loads(pickle.dumps(expand))
    assert twin.postprocess_nodes(given("valve")) == expand.postprocess_nodes(given("valve"))
    again = ParentExpansionPostprocessor.from_dict(expand.to_dict(), store=docstore())
    assert again.to_dict() == expand.to_dict()
    assert [node.node_id for node in expand.postprocess_nodes([NodeWithScore(node=node) for node in nodes()])] == [
        node.node_id for node in nodes()
    ]
