"""LangChain's BM25Retriever: changed in place, kept in a folder, made of a vector store."""

from __future__ import annotations

import copy
import json
import pickle
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import rank_bm25
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore

from tests.frameworks.langchain_parts import TEXTS, documents, ids
from tests.helpers import HashEmbedder, ListChannel
from voicevault_retrievers import langchain
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import (
    ConfigError,
    IncompatibleIndexError,
    IndexDamagedError,
    LockedError,
)
from voicevault_retrievers.langchain import BM25Retriever, HybridRetriever, VectorStoreChannel
from voicevault_retrievers.lexical import BM25, BM25Plus, Formula
from voicevault_retrievers.lexical.formulas import FORMULAS
from voicevault_retrievers.store import KnowledgeBase, files
from voicevault_retrievers.text import Analyzer, CustomAnalyzer

QUERIES = ["pump seal", "door", "hot water lamp", "zeppelin", "the"]
NEW = Document("A spare lamp for the pump", id="spare", metadata={"page": 7, "owner": "ann"})


def english(given: Sequence[Document] | None = None, **options: Any) -> BM25Retriever:
    return BM25Retriever.from_documents(documents() if given is None else given, language="en", **options)


def told(retriever: BM25Retriever, queries: Sequence[str] = QUERIES) -> list[list[Document]]:
    return [retriever.invoke(query, k=20) for query in queries]


def test_mistyped_words_and_prefixes_are_found_in_documents_and_in_the_copy_of_a_store() -> None:
    given = [Document("You receive a pump", id="pump"), Document("The installation of a valve", id="valve")]
    store = InMemoryVectorStore.from_documents(given, DeterministicFakeEmbedding(size=8))
    for make, source in ((BM25Retriever.from_documents, given), (BM25Retriever.from_vector_store, store)):
        retriever = make(source, operators=True, fuzzy=True)
        result = retriever.search("recieve")
        assert [hit.id for hit in result.hits] == ["pump"]
        assert [failure.message for failure in result.errors] == ["no chunk has 'recieve': 'receive' was searched"]
        assert not result.degraded
        assert [document.id for document in retriever.invoke("instal*")] == ["valve"]


# Adding and deleting


async def test_what_is_added_is_found_at_once_as_if_it_had_been_there_from_the_start() -> None:
    for add in (BM25Retriever.add, BM25Retriever.add_documents):
        retriever = english()
        assert add(retriever, [NEW]) == ["spare"]
        assert told(retriever) == told(english([*documents(), NEW]))
    for aadd in (BM25Retriever.aadd, BM25Retriever.aadd_documents):
        retriever = english()
        assert await aadd(retriever, [NEW]) == ["spare"]
        assert told(retriever) == told(english([*documents(), NEW]))


def test_an_id_that_is_there_is_replaced() -> None:
    retriever = english()
    retriever.add([Document("Now about oil", id="seal", metadata={"page": 0})])
    assert ids(retriever.invoke("oil")) == ["seal"]
    assert "seal" not in ids(retriever.invoke("pump seal hot"))
    others = [document for document in documents() if document.id != "seal"]
    assert told(retriever) == told(english([*others, Document("Now about oil", id="seal", metadata={"page": 0})]))


def test_ids_are_the_calls_or_the_documents_or_their_digests() -> None:
    retriever = english([])
    plain = Document("A lamp")
    assert retriever.add([NEW, plain], ids=["one", "two"]) == ["one", "two"]
    (digest,) = retriever.add([plain])
    assert retriever.add([plain, plain]) == [digest, digest]
    assert set(ids(retriever.invoke("lamp"))) == {"one", "two", digest}
    assert (plain.id, NEW.id) == (None, "spare")
    with pytest.raises(ConfigError, match="2 documents and 1 ids"):
        retriever.add([NEW, plain], ids=["one"])


async def test_what_is_deleted_never_comes_back() -> None:
    retriever = english([*documents(), NEW])
    assert retriever.delete(["spare", "missing"]) == 1
    assert await retriever.adelete(["spare"]) == 0
    assert told(retriever) == told(english())
    retriever.add([Document("A hose", id="other")])
    assert "spare" not in {found for query in [*TEXTS.values(), "spare lamp"] for found in ids(retriever.invoke(query))}
    assert retriever.delete([*TEXTS, "other"]) == len(TEXTS) + 1
    assert told(retriever) == [[]] * len(QUERIES)


async def test_a_change_runs_in_a_worker_thread() -> None:
    threads = []

    def splitting(text: str) -> list[str]:
        threads.append(threading.current_thread().name)
        return text.split()

    retriever = BM25Retriever.from_documents([], analyzer=splitting)
    await retriever.aadd([NEW])
    assert threads == ["voicevault-worker"]
    await retriever.adelete(["spare"])
    assert set(threads) == {"voicevault-worker"}


def test_a_search_sees_all_of_a_change_or_nothing() -> None:
    retriever = english([])
    pairs = [[Document(f"pump {n}", id=f"{n}-{side}") for side in "ab"] for n in range(40)]
    torn: list[str] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            found = [str(key).split("-")[0] for key in ids(retriever.invoke("pump", k=100))]
            torn.extend(key for key in found if found.count(key) != 2)

    def write(part: list[list[Document]]) -> None:
        for pair in part:
            retriever.add(pair)

    readers = [threading.Thread(target=read) for _ in range(3)]
    writers = [threading.Thread(target=write, args=(part,)) for part in (pairs[::2], pairs[1::2])]
    for thread in [*readers, *writers]:
        thread.start()
    for thread in writers:
        thread.join()
    for pair in pairs[::3]:
        retriever.delete([str(document.id) for document in pair])
    done.set()
    for thread in readers:
        thread.join()
    assert torn == []
    assert len(retriever.invoke("pump", k=100)) == 2 * (len(pairs) - len(pairs[::3]))


@pytest.mark.parametrize("ranker", [rank_bm25.BM25Okapi, rank_bm25.BM25L, rank_bm25.BM25Plus])
def test_a_rank_bm25_object_grows_with_its_own_tokenizer(ranker: Any) -> None:
    def shouting(text: str) -> list[str]:
        return text.upper().split()

    texts = list(TEXTS.values())
    some, whole = (ranker([shouting(text) for text in given]) for given in (texts, [*texts, NEW.page_content]))
    some.tokenizer = shouting
    retriever = BM25Retriever.from_rank_bm25(some, documents(), k=20)
    retriever.add([NEW])
    for query in ("PUMP seal", "lamp"):
        expected = dict(zip([*TEXTS, "spare"], whole.get_scores(shouting(query)), strict=True))
        found = {document.id: document.metadata["relevance_score"] for document in retriever.invoke(query)}
        assert found == {key: pytest.approx(expected[str(key)]) for key in found}
        assert "spare" in found


def test_a_retriever_over_another_channel_says_what_it_cannot_do(tmp_path: Path) -> None:
    retriever = BM25Retriever(bm25=ListChannel([("a", 1.0)]))
    for change in (lambda: retriever.add([NEW]), lambda: retriever.delete(["a"]), lambda: retriever.persist(tmp_path)):
        with pytest.raises(ConfigError, match="only a BM25"):
            change()


def test_copies_share_the_index_and_pickles_do_not() -> None:
    retriever = english()
    shallow, pickled, deep = copy.copy(retriever), pickle.loads(pickle.dumps(retriever)), copy.deepcopy(retriever)
    before = told(retriever)
    retriever.add([NEW])
    assert told(shallow) == told(retriever) != before
    assert told(pickled) == told(deep) == before
    pickled.add([NEW])
    assert told(pickled) == told(retriever)


def test_the_repr_is_a_recipe_and_unknown_options_are_refused() -> None:
    retriever = english(k=2)
    retriever.add([NEW])
    assert "BM25(Lucene(k1=1.5, b=0.75), analyzer=Analyzer(language='en'" in repr(retriever)
    assert f"chunks={len(TEXTS) + 1}" in repr(retriever)
    with pytest.raises(ConfigError, match="Did you mean 'where'"):
        english(were={"page": 1})


# Filters


async def test_what_is_added_is_filtered_like_the_rest() -> None:
    retriever = english(where={"page": {"$gte": 1}})
    retriever.add([NEW, Document("A pump of the shop", id="shop", metadata={"page": 0})])
    assert set(ids(retriever.invoke("pump"))) == {"hose", "spare"}
    assert ids(retriever.invoke("pump", where={"owner": "ann"})) == ["spare"]
    assert ids(await retriever.ainvoke("pump", where={"owner": {"$exists": False}})) == ["hose"]
    retriever.delete(["spare"])
    assert retriever.invoke("pump", where={"owner": "ann"}) == []


def test_access_counts_only_over_what_is_permitted_after_changes() -> None:
    mine, others = documents()[:3], documents()[3:]
    rights = {"page": {"$lte": 1}}
    retriever = english([*mine, *others], require=rights)
    permitted = [document for document in documents() if document.metadata["page"] <= 1]
    retriever.add([Document("pump pump pump secret", id="secret", metadata={"page": 9})])
    assert told(retriever) == told(english(permitted, require=rights))
    retriever.delete(["seal", "secret", "door"])
    assert told(retriever) == told(
        english([document for document in permitted if document.id != "seal"], require=rights)
    )


# On disk


@pytest.mark.parametrize("language", ["en", "de", "auto", None])
def test_a_reopened_retriever_ranks_and_scores_as_before(tmp_path: Path, language: str | None) -> None:
    texts = {
        "a": "Die Häuser wurden gestrichen, und die Pumpen laufen wieder.",
        "b": "The pumps are running again and the houses have been painted.",
        "c": "水泵又开始运转了。房子也刷过了。",
        "d": "ポンプがまた動き出した。家も塗られた。",
    }
    given = [Document(text, id=key, metadata={"of": {"n": [1, None, "x"]}}) for key, text in texts.items()]
    retriever = BM25Retriever.from_documents(given, language=language)
    retriever.add([Document("Running houses", id="e"), Document("gone", id="f")])
    retriever.delete(["f"])
    retriever.persist(tmp_path / "kept")
    again = BM25Retriever.from_persist_dir(tmp_path / "kept")
    queries = ["Haus Pumpe", "running house", "水泵 房子", "ポンプ", "gone"]
    assert told(again, queries) == told(retriever, queries)
    assert any(told(again, queries)[:4])


@pytest.mark.parametrize("formula", [made(k1=0.9, b=0.3) for made in FORMULAS.values()] + [BM25Plus(1.2, 0.5, 0.7)])
def test_the_formula_and_its_constants_are_kept(tmp_path: Path, formula: Formula) -> None:
    retriever = english(formula=formula)
    retriever.persist(tmp_path / "kept")
    again = BM25Retriever.from_persist_dir(tmp_path / "kept")
    assert told(again) == told(retriever)
    assert again.bm25.formula == formula  # type: ignore[attr-defined]  # a BM25


def test_what_rankings_depend_on_is_kept_and_a_retrievers_own_options_are_not(tmp_path: Path) -> None:
    chunks = [langchain.chunk_of(document) for document in documents()]
    options: dict[str, Any] = {"statistics": "filtered", "exclude_nonpositive": True, "operators": True, "fuzzy": 2}
    bm25 = BM25.from_chunks(chunks, Analyzer("en"), **options)
    BM25Retriever(bm25=bm25, k=1, where={"page": 0}).persist(tmp_path / "kept")
    again = BM25Retriever.from_persist_dir(tmp_path / "kept", require={"page": {"$lte": 1}})
    assert (again.k, again.where, again.require) == (None, None, {"page": {"$lte": 1}})
    assert isinstance(again.bm25, BM25)
    assert {name: getattr(again.bm25, name) for name in options} == options


@pytest.mark.parametrize("ranker", [rank_bm25.BM25Okapi, rank_bm25.BM25L, rank_bm25.BM25Plus])
def test_a_rank_bm25_retriever_is_kept_with_a_named_tokenizer(tmp_path: Path, ranker: Any) -> None:
    texts = list(TEXTS.values())
    named = CustomAnalyzer(str.split, name="spaces")
    theirs = ranker([text.split() for text in texts])
    retriever = BM25Retriever.from_rank_bm25(theirs, documents(), preprocess_func=named)
    expected = dict(zip(TEXTS, theirs.get_scores(["pump", "seal"]), strict=True))
    assert {document.id: document.metadata["relevance_score"] for document in retriever.invoke("pump seal")} == {
        key: pytest.approx(expected[key]) for key in ("flush", "seal", "hose")
    }
    retriever.persist(tmp_path / "kept")
    again = BM25Retriever.from_persist_dir(tmp_path / "kept", analyzer=named)
    assert told(again, ["pump seal"]) == told(retriever, ["pump seal"])


def test_terms_of_a_function_without_a_name_cannot_be_kept(tmp_path: Path) -> None:
    retriever = BM25Retriever.from_documents(documents(), preprocess_func=str.split)
    with pytest.raises(ConfigError, match=r'CustomAnalyzer\(function, name="\.\.\."\)'):
        retriever.persist(tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_a_custom_analyzer_is_given_again(tmp_path: Path) -> None:
    retriever = BM25Retriever.from_documents(documents(), analyzer=CustomAnalyzer(str.split, name="spaces"))
    retriever.persist(tmp_path / "kept")
    again = BM25Retriever.from_persist_dir(tmp_path / "kept", analyzer=CustomAnalyzer(str.split, name="spaces"))
    assert told(again) == told(retriever)
    again.add([NEW])
    assert ids(again.invoke("spare")) == ["spare"]
    again.persist(tmp_path / "kept")
    with pytest.raises((ConfigError, IncompatibleIndexError)):
        BM25Retriever.from_persist_dir(tmp_path / "kept")


def segments(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lock"}


@pytest.mark.parametrize("many", [0, 5000], ids=["in the log", "in segments"])
async def test_persisting_again_brings_the_folder_up_to_date(tmp_path: Path, many: int) -> None:
    folder = tmp_path / "kept"
    retriever = english([*documents(), *(Document(f"pipe {n}", id=f"n{n}") for n in range(many))])
    retriever.persist(folder)
    written = segments(folder)
    retriever.persist(folder)
    assert segments(folder) == written
    retriever.add([NEW, Document("Now about oil", id="seal")])
    retriever.delete(["hose"])
    assert segments(folder) == written
    await retriever.apersist(str(folder))
    queries = [*QUERIES, "hose", "oil", "pipe 7"]
    again = BM25Retriever.from_persist_dir(str(folder))
    assert told(again, queries) == told(retriever, queries)
    again.add([Document("A second door", id="second")])
    again.delete(["door"])
    changed = told(again, queries)
    assert ids(changed[1]) == ["second"]
    assert told(BM25Retriever.from_persist_dir(folder), queries) == told(retriever, queries)
    again.persist(folder)
    assert told(BM25Retriever.from_persist_dir(folder), queries) == told(again, queries) == changed
    assert KnowledgeBase.open(folder).verify() == []


def test_a_folder_is_searched_as_the_knowledge_base_that_it_is(tmp_path: Path) -> None:
    english().persist(tmp_path / "kept")
    assert [hit.id for hit in KnowledgeBase.open(tmp_path / "kept").bm25().search("door")] == ["door"]


def foreign(path: Path, name: str) -> None:
    if name == "file":
        path.write_text("notes")
    elif name == "knowledge base":
        with KnowledgeBase.create(path, analyzer=Analyzer("en")) as base:
            base.add([Chunk("a", "somebody's")])
    else:
        path.mkdir()
        (path / name).write_text("{}" if name != "retriever.json" else '{"similarity_top_k": 2, "verbose": false}')


@pytest.mark.parametrize("what", ["file", "docstore.json", "retriever.json", "knowledge base"])
def test_a_folder_that_holds_something_else_is_left_alone(tmp_path: Path, what: str) -> None:
    foreign(tmp_path / "taken", what)
    before = segments(tmp_path)
    with pytest.raises((ConfigError, IncompatibleIndexError), match=r"taken.*retriever\.json"):
        english().persist(tmp_path / "taken")
    with pytest.raises((ConfigError, IncompatibleIndexError), match=r"taken.*retriever\.json"):
        BM25Retriever.from_persist_dir(tmp_path / "taken")
    assert segments(tmp_path) == before


def test_nothing_persisted_is_an_error_and_an_empty_retriever_is_kept(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no persisted BM25Retriever"):
        BM25Retriever.from_persist_dir(tmp_path / "nowhere")
    english([]).persist(tmp_path)
    again = BM25Retriever.from_persist_dir(tmp_path)
    assert told(again) == [[]] * len(QUERIES)
    again.add([NEW])
    assert ids(again.invoke("spare")) == ["spare"]


def test_metadata_that_is_not_jsons_is_refused_and_the_folder_can_be_used_after(tmp_path: Path) -> None:
    retriever = english([Document("pump", id="a", metadata={"tags": {1, 2}})])
    with pytest.raises(ConfigError, match="'a' cannot be kept as JSON"):
        retriever.persist(tmp_path / "kept")
    retriever.add([Document("pump", id="a", metadata={"tags": [1, 2]})])
    retriever.persist(tmp_path / "kept")
    assert ids(BM25Retriever.from_persist_dir(tmp_path / "kept").invoke("pump")) == ["a"]


def test_another_analyzer_is_refused(tmp_path: Path) -> None:
    english().persist(tmp_path / "kept")
    with pytest.raises(IncompatibleIndexError, match="was made with"):
        BM25Retriever.from_documents(documents(), language="de").persist(tmp_path / "kept")


def test_a_writer_elsewhere_is_named(tmp_path: Path) -> None:
    english().persist(tmp_path / "kept")
    with KnowledgeBase.open(tmp_path / "kept") as base:
        base.delete(["door"])
        with pytest.raises(LockedError):
            english([NEW]).persist(tmp_path / "kept")


def written(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def write(file: Path) -> None:
        body = files.read_json(file)
        change(body)
        files.write_json(file, body)

    return write


def changed(key: str, value: object) -> Callable[[Path], object]:
    """A change of the file alone, as a person or a disk makes it."""
    return lambda file: file.write_text(json.dumps({**json.loads(file.read_text()), key: value}))


@pytest.mark.parametrize(
    ("harm", "error"),
    [
        (written(lambda body: body.update(format=2)), IncompatibleIndexError),
        (written(lambda body: body.update(stemming=True)), IncompatibleIndexError),
        (written(lambda body: body.pop("statistics")), IncompatibleIndexError),
        (written(lambda body: body["formula"].update(name="bm26")), IncompatibleIndexError),
        (written(lambda body: body["formula"].update(delta=1.0)), IncompatibleIndexError),
        (written(lambda body: body.update(formula="lucene")), IncompatibleIndexError),
        (changed("statistics", "index"), IndexDamagedError),
        (changed("formula", {"name": "lucene", "k1": 1.3, "b": 0.75}), IndexDamagedError),
        (changed("format", 2), IndexDamagedError),
        (changed("checksum", "0" * 64), IndexDamagedError),
        (lambda file: file.write_text("{"), IndexDamagedError),
        (lambda file: file.write_text("[]"), IncompatibleIndexError),
    ],
)
def test_a_retriever_file_that_is_not_understood_is_refused(
    tmp_path: Path, harm: Callable[[Path], object], error: type[Exception]
) -> None:
    english().persist(tmp_path / "kept")
    harm(tmp_path / "kept" / "retriever.json")
    with pytest.raises(error, match=r"retriever\.json"):
        BM25Retriever.from_persist_dir(tmp_path / "kept")
    with pytest.raises(error, match=r"retriever\.json"):
        english().persist(tmp_path / "kept")


def test_a_first_persist_that_was_killed_can_be_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("voicevault_retrievers.store.KnowledgeBase.replace", killed)
        with pytest.raises(KeyboardInterrupt):
            english().persist(tmp_path / "kept")
    assert BM25Retriever.from_persist_dir(tmp_path / "kept").invoke("pump") == []
    english().persist(tmp_path / "kept")
    assert ids(BM25Retriever.from_persist_dir(tmp_path / "kept").invoke("pump")) == ids(english().invoke("pump"))


def test_rights_are_the_retrievers_own(tmp_path: Path) -> None:
    parts: list[dict[str, Any]] = [{"page": -1}]
    retriever = BM25Retriever.from_documents(documents(), require={"$and": parts})
    assert retriever.invoke("pump") == []
    parts.clear()
    assert retriever.invoke("pump") == []


# Of a vector store


class Listless(VectorStore):
    """Holds documents that can only be had by their ids."""

    def __init__(self) -> None:
        self.held = {str(document.id): document for document in documents()}

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        return [self.held[key] for key in ids if key in self.held]

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        return list(self.held.values())[:k]

    @classmethod
    def from_texts(cls, *args: Any, **kwargs: Any) -> Listless:
        return cls()


class Docstored(Listless):
    """As FAISS does: an in-memory docstore, whose documents need not know their ids."""

    def __init__(self) -> None:
        held = {f"row-{at}": Document(text) for at, text in enumerate(TEXTS.values())}
        self.docstore = type("InMemoryDocstore", (), {"_dict": held})()
        self.held = held


def chroma() -> VectorStore:
    client = pytest.importorskip("chromadb").EphemeralClient()
    name, embeddings = f"bm25-{len(client.list_collections())}", DeterministicFakeEmbedding(size=8)
    store: VectorStore = pytest.importorskip("langchain_chroma").Chroma(name, embeddings, client=client)
    flat = [Document(d.page_content, id=d.id, metadata={"page": d.metadata["page"]}) for d in documents()]
    store.add_documents([*flat, Document("The bare one", id="bare")])
    return store


def in_memory() -> InMemoryVectorStore:
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
    store.add_documents(documents())
    store.add_texts(["One without an id of its own"])
    return store


@pytest.mark.parametrize("made", [chroma, in_memory, Docstored])
def test_what_a_vector_store_holds_has_the_ids_of_its_hits(made: Callable[[], VectorStore]) -> None:
    store = made()
    retriever = BM25Retriever.from_vector_store(store, language="en", k=20)
    assert len(retriever.bm25.index) == len(VectorStoreChannel(store).search("pump", 100)) > 4  # type: ignore[attr-defined]
    both = HybridRetriever(channels={"bm25": retriever, "dense": store}, k=20).invoke("rated for hot water")
    assert both[0].page_content == TEXTS["seal"]
    assert set(both[0].metadata["voicevault"]["channels"]) == {"bm25", "dense"}
    assert len(both) == len({document.page_content for document in both})


def test_a_store_that_cannot_list_is_asked_by_id(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigError, match=r"Listless cannot list what it holds: pass ids="):
        BM25Retriever.from_vector_store(Listless())
    found = BM25Retriever.from_vector_store(Listless(), ids=["seal", "door"], language="en")
    assert (ids(found.invoke("pump")), caplog.text) == (["seal"], "")
    some = BM25Retriever.from_vector_store(chroma(), ids=iter(["seal", "door", "gone"]), language="en")
    assert ids(some.invoke("pump")) == ["seal"]
    assert "1 of 3 ids are not in the vector store" in caplog.text
    with pytest.raises(ConfigError, match="0 of 2 ids"):
        BM25Retriever.from_vector_store(Listless(), ids=["0", "1"])


def test_what_is_no_listing_store_is_named() -> None:
    class Opaque(Listless):
        get_by_ids = VectorStore.get_by_ids

    with pytest.raises(ConfigError, match="Opaque gives no documents by id"):
        BM25Retriever.from_vector_store(Opaque(), ids=["seal"])
    with pytest.raises(ConfigError, match="expected a LangChain VectorStore, not HashEmbedder"):
        BM25Retriever.from_vector_store(HashEmbedder())  # type: ignore[arg-type]
    empty = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
    assert BM25Retriever.from_vector_store(empty).invoke("pump") == []


# What makes the terms


def test_the_language_is_found_out_unless_it_is_given() -> None:
    german = Document("Die Häuser und die Gärten wurden von uns mit der Farbe gestrichen", id="de")
    english_ = Document("The houses and the gardens have been painted by us with that colour", id="en")
    for found in (BM25Retriever.from_documents([german, english_]), BM25Retriever.from_texts([german.page_content])):
        assert "language='auto'" in repr(found)
        assert len(found.invoke("Haus")) == 1
    hybrid = HybridRetriever.from_documents([german, english_], HashEmbedder())
    assert hybrid.channels["bm25"].analyzer == Analyzer("auto")
    fixed = HybridRetriever.from_documents([german], HashEmbedder(), language="de")
    assert fixed.channels["bm25"].analyzer == Analyzer("de")
    assert BM25Retriever.from_documents([german], language=None).invoke("Haus") == []


def test_one_thing_makes_the_terms() -> None:
    spaces = CustomAnalyzer(str.split, name="spaces")
    for found in (
        BM25Retriever.from_documents(documents(), analyzer=spaces),
        BM25Retriever.from_documents(documents(), preprocess_func=spaces),
    ):
        assert (ids(found.invoke("Flush")), found.invoke("flush")) == (["flush"], [])
    hybrid = HybridRetriever.from_documents(documents(), HashEmbedder(), analyzer=spaces)
    assert hybrid.channels["bm25"].analyzer is spaces
    for options in ({"language": "de"}, {"preprocess_func": str.split}):
        with pytest.raises(ConfigError, match="give one of them"):
            BM25Retriever.from_documents(documents(), analyzer=spaces, **options)  # type: ignore[arg-type]


def test_a_hybrid_retriever_finds_what_its_bm25_retriever_was_given_since() -> None:
    retriever = english()
    hybrid = HybridRetriever(channels={"words": retriever})
    retriever.add([NEW])
    assert ids(hybrid.invoke("spare")) == ["spare"]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))], ids=["copy", "pickle"])
def test_a_copy_follows_its_own_store(copied: Any) -> None:
    """Both channels search the copy of the store: what is added to one is not half in the other."""
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
    store.add_documents([Document("a green pump", id="pump"), Document("a red valve", id="valve")])
    channels = {"bm25": BM25Retriever.from_vector_store(store), "dense": store}
    original = HybridRetriever(channels=channels, fusion="rrf")
    other = copied(original)
    other.add([Document("a zebra lamp", id="lamp")])
    store.delete(["pump"])

    def found(retriever: Any, text: str) -> dict[str | None, set[str]]:
        return {one.id: set(one.metadata["voicevault"]["channels"]) for one in retriever.invoke(text)}

    assert found(other, "zebra lamp")["lamp"] == found(other, "green pump")["pump"] == {"bm25", "dense"}
    assert found(original, "zebra lamp").keys() == found(original, "green pump").keys() == {"valve"}
