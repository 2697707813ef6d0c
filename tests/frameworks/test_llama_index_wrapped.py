"""LlamaIndex: the vector store over another vector store."""

from __future__ import annotations

import asyncio
import gc
import shutil
import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import fsspec  # type: ignore[import-untyped]  # it has no types
import pytest
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.schema import BaseNode, NodeWithScore, TextNode
from llama_index.core.vector_stores import SimpleVectorStore, VectorStoreQuery, VectorStoreQueryResult
from llama_index.core.vector_stores.types import BasePydanticVectorStore, VectorStoreQueryMode

from tests.frameworks.llama_index_parts import TEXTS, HashEmbedding, embedded, nodes
from voicevault_retrievers.engines import foreign
from voicevault_retrievers.errors import ConfigError, IndexDamagedError, LockedError
from voicevault_retrievers.llama_index import HybridVectorStore, provenance
from voicevault_retrievers.store import KnowledgeBase

MODEL = HashEmbedding()
QUESTION = "drain the pump before winter"
MODES = ("default", "sparse", "hybrid")


def over(
    folder: Path, dense: BasePydanticVectorStore | None = None, given: Sequence[BaseNode] | None = None
) -> HybridVectorStore:
    store = HybridVectorStore.open(folder / "kb", dense=SimpleVectorStore() if dense is None else dense, language="en")
    store.add(embedded(nodes() if given is None else given))
    return store


def asked(mode: str = "default", text: str = QUESTION, k: int = 9, **options: Any) -> VectorStoreQuery:
    vector = MODEL.get_query_embedding(text)
    return VectorStoreQuery(vector, k, query_str=text, mode=VectorStoreQueryMode(mode), **options)


def found(store: HybridVectorStore, query: VectorStoreQuery) -> list[str]:
    """The ids of a query, sync and async, which agree."""
    result = store.query(query)
    assert result == asyncio.run(store.aquery(query))
    return list(result.ids or ())


# Changes that are cut off


class Failing(SimpleVectorStore):
    """Fails in the middle of what it is told to fail in, or after it."""

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "failing", ("", ""))

    def _run(self, name: str, whole: Any, half: Any) -> Any:
        at, when = self.failing
        if at == name and when == "before":
            raise OSError("the line is cut")
        done = half() if at == name and when == "midway" else whole()
        if at == name:
            raise OSError("the line is cut")
        return done

    def add(self, nodes: Sequence[BaseNode], **options: Any) -> list[str]:
        some = nodes[: len(nodes) // 2]
        return self._run("add", lambda: SimpleVectorStore.add(self, nodes), lambda: SimpleVectorStore.add(self, some))

    def delete_nodes(self, node_ids: Any = None, filters: Any = None, **options: Any) -> None:
        half = node_ids[: len(node_ids) // 2]
        self._run(
            "delete_nodes",
            lambda: SimpleVectorStore.delete_nodes(self, node_ids),
            lambda: SimpleVectorStore.delete_nodes(self, half),
        )

    def delete(self, ref_doc_id: str, **options: Any) -> None:
        self._run("delete", lambda: SimpleVectorStore.delete(self, ref_doc_id), lambda: None)

    def clear(self) -> None:
        self._run("clear", lambda: SimpleVectorStore.clear(self), lambda: None)


def fail(store: Failing, name: str, when: str) -> None:
    object.__setattr__(store, "failing", (name, when))


def change(store: HybridVectorStore, is_async: bool, name: str, *given: Any) -> None:
    if is_async:
        asyncio.run(getattr(store, {"add": "async_add"}.get(name, f"a{name}"))(*given))
    else:
        getattr(store, name)(*given)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("when", ["before", "midway", "after"])
def test_an_add_that_is_cut_off_adds_nothing_and_is_mended(tmp_path: Path, when: str, is_async: bool) -> None:
    dense = Failing()
    store = over(tmp_path, dense)
    before = {mode: found(store, asked(mode)) for mode in MODES}
    more = embedded([TextNode(id_=f"n{at}", text=QUESTION, metadata={"n": at}) for at in range(6)])
    fail(dense, "add", when)
    with pytest.raises(OSError, match="the line is cut"):
        change(store, is_async, "add", more)
    assert len(dense.data.embedding_dict) == 4 + {"before": 0, "midway": 3, "after": 6}[when]
    assert {mode: found(store, asked(mode)) for mode in MODES} == before
    assert len(store.get_nodes()) == len(store.client) == 4
    for k in (1, 3):
        assert found(store, asked(k=k)) == before["default"][:k]
    fail(dense, "", "")
    change(store, is_async, "add", more)
    for mode in MODES:
        assert set(found(store, asked(mode, k=99))) >= {f"n{at}" for at in range(6)}


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("when", ["before", "midway", "after"])
@pytest.mark.parametrize(
    ("name", "given", "left"),
    [
        ("delete_nodes", (["pump", "valve"],), {"filter", "alarm"}),
        ("delete", ("manual",), set()),
        ("clear", (), set()),
    ],
    ids=["delete_nodes", "delete", "clear"],
)
def test_a_deletion_that_is_cut_off_is_whole_and_is_mended(
    tmp_path: Path, name: str, given: Any, left: set[str], when: str, is_async: bool
) -> None:
    dense = Failing()
    store = over(tmp_path, dense)
    fail(dense, name, when)
    with pytest.raises(OSError, match="the line is cut"):
        change(store, is_async, name, *given)
    assert set(found(store, asked())) == left
    for mode in MODES:
        assert set(found(store, asked(mode, "the water pump"))) <= left
    assert {node.node_id for node in store.get_nodes()} == left
    fail(dense, "", "")
    if name == "clear":
        change(store, is_async, name)
        assert dense.data.embedding_dict == {}
    change(store, is_async, "add", embedded(nodes()))
    assert set(found(store, asked())) == set(TEXTS) == set(dense.data.embedding_dict)


def test_what_others_put_into_the_store_is_not_found(tmp_path: Path) -> None:
    dense = SimpleVectorStore()
    store = over(tmp_path, dense)
    expected = found(store, asked())
    dense.add(embedded([TextNode(id_=f"alien {at}", text=QUESTION) for at in range(50)]))
    assert found(store, asked()) == expected
    assert found(store, asked(k=1)) == expected[:1]
    assert store.query(asked("hybrid", k=1)).ids == ["valve"]


def test_a_search_that_ends_at_its_depth_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dense = SimpleVectorStore()
    store = over(tmp_path, dense)
    dense.add(embedded([TextNode(id_=f"alien {at}", text=QUESTION) for at in range(50)]))
    monkeypatch.setattr(foreign, "MAX_DEPTH", 51)
    result = store.query(asked(k=4))
    (node,) = result.nodes or ()
    (told,) = (provenance(NodeWithScore(node=node)) or {})["degraded"]
    assert "fewer pass the filter than were wanted" in told
    assert "goes on without" in caplog.text


# What it is over


def test_the_recipe(tmp_path: Path) -> None:
    dense = SimpleVectorStore()
    store = over(tmp_path, dense)
    assert store.dense is dense
    assert store.client.manifest.embedder is None
    assert repr(store) == f"HybridVectorStore({store.client!r}, dense=SimpleVectorStore)"
    store.close()
    with pytest.raises(ConfigError, match=r"keeps no vectors: give the store that does.*dense="):
        HybridVectorStore.open(tmp_path / "kb")
    with pytest.raises(ConfigError, match="leave that out"):
        HybridVectorStore.open(tmp_path / "new", dense=dense, embed_model=MODEL)
    HybridVectorStore.open(tmp_path / "own", embed_model=MODEL).close()
    with pytest.raises(ConfigError, match="keeps vectors of its own"):
        HybridVectorStore.open(tmp_path / "own", dense=dense)


def test_vectors_that_were_lost_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    over(tmp_path).close()
    assert caplog.text == ""
    again = HybridVectorStore.open(tmp_path / "kb", dense=SimpleVectorStore())
    assert "holds 4 nodes, and the SimpleVectorStore no vectors" in caplog.text
    assert found(again, asked()) == []
    assert found(again, asked("hybrid")) == ["valve", "pump"]


def test_embeddings_are_checked(tmp_path: Path) -> None:
    store = over(tmp_path, given=[])
    for wrong, message in (
        ([None], "node 'n0' has no embedding"),
        ([[1.0, 0.0], [1.0]], "node 'n1' has an embedding of dimension 1"),
        ([[1.0], [float("nan")]], "node 'n1' has an embedding that is zero or not finite"),
    ):
        with pytest.raises(ConfigError, match=message):
            store.add([TextNode(id_=f"n{at}", text="a", embedding=vector) for at, vector in enumerate(wrong)])
    assert store.add([]) == []
    assert len(store.client) == 0
    store.add([TextNode(id_="first", text="a", embedding=[1.0, 0.0])])
    with pytest.raises(ConfigError, match=r"dimension 3; knowledge base 'kb' keeps those of 'SimpleVectorStore', .* 2"):
        store.add([TextNode(id_="second", text="a", embedding=[1.0, 0.0, 0.0])])
    assert store.query(VectorStoreQuery([1.0, 0.0], 2)).ids == ["first"]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_change_that_is_refused_leaves_the_vectors_alone(tmp_path: Path, is_async: bool) -> None:
    dense = SimpleVectorStore()
    store = over(tmp_path, dense)
    before = dense.to_dict()
    pump = embedded(nodes())[0]
    wrong = pump.model_copy(update={"metadata": {"when": date(2024, 5, 1)}, "embedding": [1.0, *[0.0] * 15]})
    with pytest.raises(ConfigError, match="cannot be kept as JSON"):
        change(store, is_async, "add", [wrong])
    other = HybridVectorStore.open(tmp_path / "kb", dense=dense)
    with pytest.raises(LockedError):
        change(other, is_async, "add", [pump.model_copy(update={"embedding": [1.0, *[0.0] * 15]})])
    assert dense.to_dict() == before


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize(
    ("name", "given"),
    [("delete", ("manual",)), ("delete_nodes", (["late"],)), ("delete_nodes", (None, {"key": 9})), ("clear", ())],
    ids=str,
)
def test_what_others_have_committed_is_deleted_too(
    tmp_path: Path, wrapped: bool, name: str, given: tuple[Any, ...], is_async: bool
) -> None:
    options: Any = {"dense": SimpleVectorStore()} if wrapped else {"embed_model": MODEL}
    first, second = (HybridVectorStore.open(tmp_path / "kb", **options) for _ in range(2))
    late = nodes()[0].model_copy(update={"id_": "late", "metadata": {"key": 9}})
    second.add(embedded([late]))
    second.close()
    change(first, is_async, name, *given)
    assert first.get_nodes() == []
    assert not wrapped or options["dense"].data.embedding_dict == {}


def test_a_store_in_memory_does_not_change_while_it_is_searched(tmp_path: Path) -> None:
    changed, threads = threading.Event(), []

    class Iterated(SimpleVectorStore):
        def add(self, nodes: Sequence[BaseNode], **options: Any) -> list[str]:
            changed.set()
            return super().add(nodes)

        def query(self, query: VectorStoreQuery, **options: Any) -> VectorStoreQueryResult:
            changed.clear()
            threads.append(threading.Thread(target=store.add, args=(more,)))
            threads[-1].start()
            assert not changed.wait(0.2)
            return super().query(query)

    store = over(tmp_path, Iterated())
    more = embedded([TextNode(id_="more", text="a zebra")])
    store.query(asked())
    threads[0].join()
    assert changed.is_set()
    assert len(store.client) == 5


def test_a_vector_that_points_nowhere_is_refused(tmp_path: Path) -> None:
    store = over(tmp_path)
    for vector, message in (([0.0] * 16, "points nowhere"), ([], "give query_embedding")):
        for mode in ("default", "hybrid"):
            with pytest.raises(ConfigError, match=message):
                store.query(VectorStoreQuery(vector, query_str=QUESTION, mode=VectorStoreQueryMode(mode)))
        assert store.query(VectorStoreQuery(vector, query_str=QUESTION, mode=VectorStoreQueryMode.SPARSE)).ids


class Bare(BasePydanticVectorStore):
    """A store that can do the least: no deletion by ids, no clearing, and it adds beside what it has."""

    stores_text: bool = False
    held: list[Any] = []  # noqa: RUF012 - pydantic copies it
    prefix: str = ""
    distances: bool = False

    @property
    def client(self) -> None:
        return None

    def add(self, nodes: Sequence[BaseNode], **options: Any) -> list[str]:
        self.held.extend(nodes)
        return [f"{self.prefix}{node.node_id}" for node in nodes]

    def delete(self, ref_doc_id: str, **options: Any) -> None:
        self.held[:] = [node for node in self.held if node.ref_doc_id != ref_doc_id]

    def query(self, query: VectorStoreQuery, **options: Any) -> VectorStoreQueryResult:
        vector = query.query_embedding or []
        pairs = ((sum(a * b for a, b in zip(vector, node.embedding, strict=True)), node.node_id) for node in self.held)
        best = sorted(pairs, reverse=True)[: query.similarity_top_k]
        scores = [1 - score if self.distances else score for score, _ in best]
        return VectorStoreQueryResult(ids=[name for _, name in best], similarities=scores)


def test_a_store_that_can_do_little(tmp_path: Path) -> None:
    dense = Bare()
    store = over(tmp_path, dense)
    simple = over(tmp_path / "other")
    for mode in MODES:
        assert found(store, asked(mode)) == found(simple, asked(mode))
    for refused in (
        lambda: store.delete_nodes(["pump"]),
        lambda: store.add(embedded(nodes()[:1])),
        lambda: store.clear(),
    ):
        with pytest.raises(ConfigError, match="Bare cannot delete nodes by their ids"):
            refused()
    assert len(store.client) == len(dense.held) == 4
    store.delete("manual")
    assert (len(store.client), dense.held) == (0, [])
    store.add(embedded(nodes()))
    assert found(store, asked()) == found(simple, asked())


def test_a_store_that_gives_distances_is_ranks_only(tmp_path: Path) -> None:
    store = over(tmp_path, Bare(distances=True))
    result = store.query(asked())
    assert (result.ids, result.similarities) == (found(over(tmp_path / "other"), asked()), None)
    retrieved = VectorStoreIndex.from_vector_store(store, MODEL).as_retriever().retrieve(QUESTION)
    assert [node.score for node in retrieved] == [None, None]
    assert found(store, asked("hybrid"))[0] == "valve"


def test_a_store_with_ids_of_its_own_is_refused(tmp_path: Path) -> None:
    store = HybridVectorStore.open(tmp_path / "kb", dense=Bare(prefix="id-"))
    with pytest.raises(ConfigError, match=r"under ids of its own, such as \['id-pump'\] for \['pump'\]"):
        store.add(embedded(nodes()))
    assert len(store.client) == 0


def test_qdrant_takes_uuids_alone(tmp_path: Path) -> None:
    qdrant = pytest.importorskip("llama_index.vector_stores.qdrant")
    client = pytest.importorskip("qdrant_client").QdrantClient(":memory:")
    store = HybridVectorStore.open(
        tmp_path / "kb", dense=qdrant.QdrantVectorStore("kb", client=client, index_doc_id=False)
    )
    for name in ("pump", "12", "E1407479-3136-56C0-9908-BB02FB0339E2"):
        with pytest.raises(ConfigError, match=r"Qdrant takes no ids but UUIDs, such as '[0-9a-f-]{36}'"):
            store.add(embedded([TextNode(id_=name, text="a")]))
    assert not client.collection_exists("kb")


CHANGES = {
    "query": "aquery",
    "add": "async_add",
    "delete_nodes": "adelete_nodes",
    "delete": "adelete",
    "clear": "aclear",
}


def awaited(name: str) -> Any:
    async def twin(self: Any, *given: Any, **options: Any) -> Any:
        return getattr(self, name)(*given, **options)

    return twin


Async = type("Async", (SimpleVectorStore,), {twin: awaited(name) for name, twin in CHANGES.items()})


@pytest.mark.parametrize("kind", [SimpleVectorStore, Async])
async def test_async_methods_are_awaited_and_others_leave_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[SimpleVectorStore]
) -> None:
    ran: dict[str, threading.Thread] = {}

    def recorded(name: str, function: Any) -> Any:
        def method(*given: Any, **options: Any) -> Any:
            ran[name] = threading.current_thread()
            return function(*given, **options)

        return method

    for name in CHANGES:
        monkeypatch.setattr(SimpleVectorStore, name, recorded(name, getattr(SimpleVectorStore, name)))
    store = HybridVectorStore.open(tmp_path / "kb", dense=kind())
    await store.async_add(embedded(nodes()))
    await store.aquery(asked("hybrid"))
    await store.adelete_nodes(["pump"])
    await store.adelete("manual")
    await store.aclear()
    assert ran.keys() == CHANGES.keys()
    here = {name for name, thread in ran.items() if thread is threading.main_thread()}
    assert here == (set(CHANGES) if kind is Async else set())


def test_own_keys_of_llama_index_are_the_users(tmp_path: Path) -> None:
    given = TextNode(
        id_="n", text="a pump", metadata={"_node_content": "mine", "doc_id": "d", "_node_type": "t", "a": 1}
    )
    store = over(tmp_path, given=[given])
    for filters in ({"_node_type": "t"}, {"doc_id": {"$in": ["d"]}}, {"_node_type": {"$exists": True}}):
        for mode in MODES:
            (node,) = store.query(asked(mode, "pump", filters=filters)).nodes or ()
            assert node.to_dict() == given.to_dict()
            assert (provenance(NodeWithScore(node=node)) or {})["channels"]


# Elsewhere

SPOKEN = {
    "en": ("The pumps are primed in spring.", "prime the pump", "The alarm sounds."),
    "de": ("Die Pumpen werden im Frühling gefüllt.", "Pumpe füllen", "Der Alarm ertönt."),
    "zh": ("水泵在春天启动之前需要灌水。", "水泵灌水", "警报响起。"),
}


@pytest.mark.parametrize("place", ["disk", "memory", "url"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_copy_holds_what_was_committed(
    tmp_path: Path, wrapped: bool, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"dense": SimpleVectorStore()} if wrapped else {"embed_model": MODEL}
    store = HybridVectorStore.open(tmp_path / "kb", language="en", **options)
    store.add(embedded(nodes()))
    fs = fsspec.filesystem("memory") if place == "memory" else None
    name = f"/{tmp_path.name}"
    target = {"disk": str(tmp_path / "copies" / "one"), "memory": name, "url": f"memory:/{name}/deep"}[place]

    def copied(**more: Any) -> HybridVectorStore:
        return HybridVectorStore.from_persist_path(target, fs, dense=SimpleVectorStore if wrapped else None, **more)

    store.persist(target, fs)
    store.add(embedded([TextNode(id_="new", text="a zebra")]))
    assert {node.node_id for node in copied().get_nodes()} == set(TEXTS)
    store.persist(target, fs=fs)
    copy = copied() if wrapped else copied(embed_model=MODEL)
    assert copy.get_nodes() == store.get_nodes()
    for mode in (*MODES, "text_search"):
        assert copy.query(asked(mode)) == store.query(asked(mode))
    copy.delete_nodes(["new"])
    assert found(store, asked("sparse", "zebra")) == ["new"]
    copy.persist(target, fs)
    assert len(copied().client) == 4
    assert len(store.client) == 5
    names = {"one", "one.dense"} if wrapped else {"one"}
    assert {path.name for path in (tmp_path / "copies").glob("*")} == (names if place == "disk" else set())
    removed, rmtree = SimpleQueue[Path](), shutil.rmtree

    def noted(path: Path, **options: Any) -> None:
        rmtree(path, **options)
        removed.put(path)

    monkeypatch.setattr(shutil, "rmtree", noted)
    last = copied()
    assert found(last, asked("default")) == found(copy, asked("default"))
    folder = last.client.path
    del last
    for _ in range(600):
        gc.collect()  # a thread that searched may let go of it later, and in a circle
        if place == "disk" or not folder.exists():
            break
        with suppress(Empty):
            removed.get(timeout=0.1)
    assert folder.exists() == (place == "disk")


@pytest.mark.parametrize("language", list(SPOKEN))
def test_a_copy_is_searched_in_its_language(tmp_path: Path, language: str) -> None:
    text, question, other = SPOKEN[language]
    store = HybridVectorStore.open(
        tmp_path / "kb", language=None if language == "zh" else language, dense=SimpleVectorStore()
    )
    store.add(embedded([TextNode(id_="a", text=text), TextNode(id_="b", text=other)]))
    store.persist(str(tmp_path / "copy"))
    loaded = HybridVectorStore.from_persist_path(tmp_path / "copy", dense=SimpleVectorStore)
    assert found(loaded, asked("sparse", question)) == ["a"]
    for mode in MODES:
        assert loaded.query(asked(mode, question)) == store.query(asked(mode, question))


def test_a_storage_context_persists_both(tmp_path: Path) -> None:
    store = over(tmp_path)
    StorageContext.from_defaults(vector_store=store).persist(tmp_path / "storage")
    again = HybridVectorStore.from_persist_dir(str(tmp_path / "storage"), dense=SimpleVectorStore)
    for mode in MODES:
        assert again.query(asked(mode)) == store.query(asked(mode))
    store.persist(store.client.path)
    beside = HybridVectorStore.from_persist_path(store.client.path, dense=SimpleVectorStore)
    assert found(beside, asked()) == found(store, asked())


def test_a_copy_that_was_damaged_is_refused(tmp_path: Path) -> None:
    store = over(tmp_path)
    store.client.compact()
    fs = fsspec.filesystem("memory")
    path = f"/{tmp_path.name}"
    store.persist(path, fs)
    (chunks,) = (name for name in fs.find(path) if name.endswith("chunks.jsonl"))
    content = fs.cat_file(chunks)
    fs.pipe_file(chunks, content.replace(b"valve", b"value"))
    with pytest.raises(IndexDamagedError, match=r"chunks\.jsonl"):
        HybridVectorStore.from_persist_path(path, fs, dense=SimpleVectorStore())
    fs.pipe_file(chunks, content[:-1])
    with pytest.raises(IndexDamagedError, match=r"chunks\.jsonl"):
        HybridVectorStore.from_persist_path(path, fs, dense=SimpleVectorStore())


def test_the_manifest_comes_last(tmp_path: Path) -> None:
    moved: list[str] = []

    class Watched(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
        cachable = False

        def mv(self, path1: str, path2: str, *args: Any, **kwargs: Any) -> None:
            moved.append(path2)
            super().mv(path1, path2, *args, **kwargs)

    store = HybridVectorStore.open(tmp_path / "kb", embed_model=MODEL)
    store.add(embedded(nodes()))
    store.client.compact()
    store.persist(f"/{tmp_path.name}", Watched())
    assert len(moved) > 10
    assert [name.endswith("/manifest.json") for name in moved] == [False] * (len(moved) - 1) + [True]
    assert (
        KnowledgeBase.open(HybridVectorStore.from_persist_path(f"/{tmp_path.name}", Watched()).client.path).verify()
        == []
    )
