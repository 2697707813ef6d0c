"""VoiceVault's knowledge bases, with real pickles and real Chroma collections, made into ours."""

from __future__ import annotations

import hashlib
import pickle
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rank_bm25
from langchain_core.documents import Document

from tests.helpers import HashEmbedder
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import ConfigError, IncompatibleIndexError, IndexDamagedError
from voicevault_retrievers.store import KnowledgeBase
from voicevault_retrievers.store.names import names
from voicevault_retrievers.store.voicevault import import_voicevault, read_bm25
from voicevault_retrievers.text import CustomAnalyzer

TEXTS = ["the quick brown fox", "a lazy dog", "the dog and the fox", "quick quick birds", "the the the"]
IDS = [f"chunk-{letter}" for letter in "ebdac"]
METADATA = [{"source_file": f"{name}.pdf", "page_number": page} for page, name in enumerate("aabbc", 1)]
RANKER = rank_bm25.BM25Okapi([text.split() for text in TEXTS])
SPLIT = CustomAnalyzer(str.split, name="split")
EMBEDDER = HashEmbedder(8)
ROWS = EMBEDDER.embed_documents(TEXTS)
RECORDS = [{"id": i, "text": t, "metadata": m} for i, t, m in zip(IDS, TEXTS, METADATA, strict=True)]
CHUNKS = {i: Chunk(i, t, metadata=m, kb="new") for i, t, m in zip(IDS, TEXTS, METADATA, strict=True)}
PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


@dataclass
class Piece:
    chunk_id: str
    content: str
    metadata: dict[str, Any]


@dataclass(frozen=True)
class Frozen:
    id: str
    text: str
    metadata: dict[str, Any]


@dataclass
class Kept:
    ranker: Any
    chunks: list[Any]


@dataclass(slots=True)
class Slotted:
    number: int
    text: str
    source_file: str


@dataclass(frozen=True, slots=True)
class Nameless:
    id: str
    text: str


def old(folder: Path, value: Any, protocol: int = 4) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bm25.pkl").write_bytes(pickle.dumps(value, protocol=protocol))
    return folder


def collected(folder: Path, *, ids: Sequence[str] = IDS, name: str = "chunks", scale: float = 1.0) -> None:
    """A Chroma collection of the chunks whose ids are given."""
    chromadb = pytest.importorskip("chromadb")
    client = chromadb.PersistentClient(str(folder), chromadb.config.Settings(anonymized_telemetry=False))
    collection = client.create_collection(name, embedding_function=None)
    places = [IDS.index(each) if each in IDS else 0 for each in ids]
    collection.add(
        ids=list(ids),
        embeddings=[(scale * ROWS[place]).tolist() for place in places],
        documents=[TEXTS[place] for place in places],
        metadatas=[METADATA[place] for place in places],
    )
    client.close()


def digests(folder: Path) -> dict[Path, tuple[int, str]]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path: (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest()) for path in files}


def chunks(kb: KnowledgeBase) -> dict[str, Chunk]:
    return {chunk.id: chunk for chunk in kb}


HELD: dict[str, Callable[[], Any]] = {
    "dicts": lambda: (RANKER, RECORDS),
    "flat dicts": lambda: [RANKER, [{"chunk_id": r["id"], "content": r["text"], **r["metadata"]} for r in RECORDS]],  # type: ignore[dict-item]
    "documents": lambda: {
        "retriever": RANKER,
        "documents": [Document(page_content=r["text"], metadata=r["metadata"], id=r["id"]) for r in RECORDS],  # type: ignore[arg-type]
        "arrays": {"rows": ROWS, "none": np.array([]), "mean": np.float64(0.5), "flags": np.array([True])},
        "others": [{"a"}, frozenset(["b"]), OrderedDict(c=1), Counter("d"), defaultdict(list, e=[b"f", b""]), 1 << 80],
    },
    "columns": lambda: {
        "bm25": RANKER,
        "chunk_ids": np.array(IDS),
        "corpus": [["tokens"]],
        "texts": TEXTS,
        "metadatas": METADATA,
    },
    "ids and dicts": lambda: (IDS, RANKER, RECORDS),
    "index, ids, texts, metadata": lambda: (RANKER, IDS, TEXTS, METADATA),
    "texts, metadata, index, ids": lambda: [TEXTS, METADATA, RANKER, IDS],
    "metadata with names of texts": lambda: (
        [{**said, "document": "a.pdf", "content": "x"} for said in METADATA],
        IDS,
        TEXTS,
        RANKER,
    ),
    "dataclasses": lambda: (RANKER, [Piece(r["id"], r["text"], r["metadata"]) for r in RECORDS]),  # type: ignore[arg-type]
    "dataclasses in a dataclass": lambda: Kept(RANKER, [Frozen(**r) for r in RECORDS]),  # type: ignore[arg-type]
    "other names": lambda: (
        [{"uid": r["id"], "body": r["text"], "metadata": {"id": r["id"], **r["metadata"]}} for r in RECORDS],  # type: ignore[dict-item]
        RANKER,
    ),
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("held", HELD)
def test_chunks_in_the_pickle_are_imported_and_score_as_rank_bm25_does(
    tmp_path: Path, held: str, protocol: int
) -> None:
    folder = old(tmp_path / "old", HELD[held](), protocol)
    kb = import_voicevault(folder, "new", root=tmp_path, analyzer=SPLIT)
    assert {i: (c.text, c.metadata["page_number"]) for i, c in chunks(kb).items()} == {
        i: (c.text, c.metadata["page_number"]) for i, c in CHUNKS.items()
    }
    for query in ("quick dog", "the", "fox fox birds", "nothing"):
        expected = dict(zip(IDS, RANKER.get_scores(query.split()), strict=True))
        found = {hit.id: hit.score for hit in kb.bm25(formula="okapi").search(query, 10)}
        assert found == pytest.approx({name: expected[name] for name in found}, abs=1e-9)
        assert all(expected[name] == 0 for name in IDS if name not in found)


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_members_of_no_name_are_told_apart_in_any_order(tmp_path: Path, order: tuple[int, ...]) -> None:
    members = [RANKER, IDS, TEXTS, METADATA]
    folder = old(tmp_path / "old", tuple(members[at] for at in order))
    assert chunks(import_voicevault(folder, "new", root=tmp_path)) == CHUNKS


def stemmed(text: str) -> list[str]:
    return [word.removesuffix("s").removesuffix("e") for word in text.lower().replace(",", "").split() if word != "the"]


WORDS = ["The pumps, the valves", "Oil leaks", "oil"]
TOKENISED: dict[str, tuple[list[str], list[list[str]], list[str]]] = {
    "stemmed, without stop words": (WORDS, [stemmed(text) for text in WORDS], ["pump-1", "oil-2", "oil-3"]),
    "with punctuation": (WORDS, [text.split() for text in WORDS], ["a", "b", "c"]),
    "pieces of words without spaces": (["水泵漏水", "阀门"], [["水泵", "漏水"], ["阀门"]], ["水1", "门2"]),
    "a word each": (["pump", "oil", "gas"], [["pump"], ["oil"], ["gas"]], ["pump-1", "oil-2", "gas-3"]),
}


@pytest.mark.parametrize("name", TOKENISED)
@pytest.mark.parametrize("first", ["ids", "texts"])
def test_texts_are_what_tokenises_to_the_index_whatever_tokenised_it(tmp_path: Path, name: str, first: str) -> None:
    texts, tokens, ids = TOKENISED[name]
    ranker = rank_bm25.BM25Okapi(tokens)
    folder = old(tmp_path / "old", (ranker, ids, texts) if first == "ids" else (texts, ranker, ids))
    found = chunks(import_voicevault(folder, "new", root=tmp_path))
    assert {name: chunk.text for name, chunk in found.items()} == dict(zip(ids, texts, strict=True))


NUMBERS = [7, 3, 11, 5, 2]


@pytest.mark.parametrize(
    "value",
    [
        {"bm25": RANKER, "ids": NUMBERS, "texts": TEXTS},
        (RANKER, NUMBERS, TEXTS),
        (TEXTS, [4, 4, 3, 4, 3], np.array(NUMBERS), RANKER),
        (RANKER, [{"id": number, "text": text} for number, text in zip(NUMBERS, TEXTS, strict=True)]),
        (RANKER, [Slotted(number, text, "a.pdf") for number, text in zip(NUMBERS, TEXTS, strict=True)], NUMBERS),
    ],
    ids=["named", "tuple", "array", "dicts", "slots"],
)
def test_ids_that_are_numbers_are_read_as_text(tmp_path: Path, value: Any) -> None:
    found = chunks(import_voicevault(old(tmp_path / "old", value, 5), "new", root=tmp_path))
    assert {name: chunk.text for name, chunk in found.items()} == dict(zip(map(str, NUMBERS), TEXTS, strict=True))


def test_what_an_object_says_beside_its_text_is_metadata(tmp_path: Path) -> None:
    held = (RANKER, [Slotted(1, text, "a.pdf") for text in TEXTS])
    found = chunks(import_voicevault(old(tmp_path / "old", held), "new", root=tmp_path))
    assert {(name, chunk.metadata["source_file"]) for name, chunk in found.items()} == {(n, "a.pdf") for n in "01234"}


def test_metadata_that_names_documents_gives_no_ids(tmp_path: Path) -> None:
    held = (RANKER, IDS, TEXTS, [{"doc_id": "manual", "id": number} for number in NUMBERS])
    found = chunks(import_voicevault(old(tmp_path / "old", held), "new", root=tmp_path))
    assert set(found) == set(IDS)
    assert dict(found[IDS[0]].metadata) == {"doc_id": "manual", "id": 7}


@pytest.mark.parametrize("ranker", [rank_bm25.BM25L, rank_bm25.BM25Plus])
def test_the_other_formulas_are_read(tmp_path: Path, ranker: Any) -> None:
    folder = old(tmp_path / "old", (ranker([text.split() for text in TEXTS]), RECORDS))
    assert chunks(import_voicevault(folder, "new", root=tmp_path)) == CHUNKS


def test_texts_without_ids_are_named_by_their_place(tmp_path: Path) -> None:
    found = chunks(import_voicevault(old(tmp_path / "old", (RANKER, TEXTS)), "new", root=tmp_path))
    assert {name: chunk.text for name, chunk in found.items()} == {str(at): text for at, text in enumerate(TEXTS)}


@pytest.mark.parametrize(
    "value",
    [
        RANKER,
        (RANKER, IDS),
        {"bm25": RANKER, "ids": IDS},
        [RANKER, TEXTS],
        (IDS, RANKER, TEXTS),
        (TEXTS, METADATA, IDS, RANKER),
        (RANKER, [dict(said) for said in METADATA], IDS),
    ],
    ids=["bare", "ids", "named ids", "texts", "ids and texts", "all", "ids and metadata"],
)
@pytest.mark.parametrize("inside", ["chroma", "."])
def test_chunks_and_vectors_come_from_the_collection_which_is_left_as_it_was(
    tmp_path: Path, value: Any, inside: str
) -> None:
    folder = old(tmp_path / "old", value)
    collected(folder / inside, scale=3.0)
    before = digests(folder)
    kb = import_voicevault(folder, tmp_path / "new", embedder=Unasked(8))
    assert digests(folder) == before
    assert chunks(kb) == CHUNKS
    again = KnowledgeBase.open("new", root=tmp_path, embedder=EMBEDDER)
    (hit,) = again.dense().search(TEXTS[1], 1)
    assert hit.id == IDS[1]
    assert hit.score == pytest.approx(1.0, abs=1e-6)


class Unasked(HashEmbedder):
    """Makes no vectors: they are there already."""

    def embed_documents(self, texts: Sequence[str]) -> Any:
        raise AssertionError("asked to embed")


def test_the_pickle_goes_before_the_collection(tmp_path: Path) -> None:
    folder = old(
        tmp_path / "old", (RANKER, [{**r, "text": f"{r['text']} more", "metadata": {"own": 1}} for r in RECORDS])
    )
    collected(folder)
    found = chunks(import_voicevault(folder, "new", root=tmp_path))[IDS[0]]
    assert (found.text, dict(found.metadata)) == (f"{TEXTS[0]} more", {**METADATA[0], "own": 1})


def test_texts_are_embedded_where_there_is_no_collection(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    folder = old(tmp_path / "old", (RANKER, RECORDS))
    kb = import_voicevault(folder, "new", root=tmp_path, embedder=EMBEDDER, progress=lambda *at: told.append(at))
    assert kb.dense().search(TEXTS[1], 1).ids == (IDS[1],)
    assert told == [(5, 5)]


def test_a_collection_is_named_where_there_are_several(tmp_path: Path) -> None:
    folder = old(tmp_path / "old", (RANKER, IDS))
    collected(folder)
    collected(folder, name="other", ids=["x"])
    with pytest.raises(ConfigError, match=r"collections of .* are chunks, other: give collection="):
        import_voicevault(folder, "new", root=tmp_path)
    with pytest.raises(ConfigError, match=r"are chunks, other: not 'third'"):
        import_voicevault(folder, "new", root=tmp_path, collection="third")
    assert len(import_voicevault(folder, "new", root=tmp_path, collection="chunks")) == 5


def ranker(**state: Any) -> rank_bm25.BM25Okapi:
    changed = rank_bm25.BM25Okapi([text.split() for text in TEXTS])
    changed.__dict__.update(state)
    return changed


ODD: dict[str, tuple[Any, str]] = {
    "counts": (ranker(corpus_size=7), "an index of 7 documents with 5 lengths and 5 term counts"),
    "lengths": (ranker(doc_len=[1, 2]), "an index of 5 documents with 2 lengths and 5 term counts"),
    "no state": (ranker(doc_len=None), "without its corpus_size, doc_len and doc_freqs"),
    "ids": ({"bm25": RANKER, "ids": IDS[:4]}, "an index of 5 documents and 4 ids"),
    "ids of fractions": ({"bm25": RANKER, "ids": [0.5] * 5, "texts": TEXTS}, "ids that are neither strings nor whole"),
    "texts that are numbers": ({"bm25": RANKER, "texts": [1] * 5}, "5 documents without their texts"),
    "chunks": ((RANKER, RECORDS[:3]), "an index of 5 documents and 3 chunks"),
    "two indexes": ((RANKER, RANKER), "a tuple with 2 rank-bm25 indexes, expected 1"),
    "none": ({"ids": IDS}, "a dict with 0 rank-bm25 indexes, expected 1"),
    "bare": (RANKER, "5 documents without their texts, and there is no chroma.sqlite3"),
    "some ids": ((RANKER, [*RECORDS[:4], {"text": "x"}]), "5 chunks, 4 of which have an id"),
    "some texts": ((RANKER, [*RECORDS[:4], {"id": "x"}]), "5 chunks, 4 of which have a text"),
    "ids alone": ((RANKER, IDS), "5 documents without their texts, and there is no chroma.sqlite3"),
    "ids by name": ({"bm25": RANKER, "ids": IDS}, "5 documents without their texts, and there is no chroma.sqlite3"),
    "words as ids": ((RANKER, [f"fox-{name}" for name in IDS]), "5 documents without their texts"),
    "numbers alone": ((list(range(5)), RANKER), "5 documents without their texts"),
    "ids for texts": ({"bm25": RANKER, "documents": IDS}, "texts that have next to none of the terms of its index"),
    "two lists of ids": ((RANKER, IDS, TEXTS, [f"other-{name}" for name in IDS]), "two lists of ids that differ"),
    "other ids": ((RANKER, RECORDS, [f"other-{name}" for name in IDS]), "two lists of ids that differ"),
    "two lists of texts": ((RANKER, IDS, TEXTS, [f"{text}." for text in TEXTS]), "may be the texts of its index"),
    "fewer texts": ((RANKER, IDS, TEXTS[:4]), "an index of 5 documents and 4 strings"),
    "metadata": ((RANKER, [{**r, "metadata": {"by": b"x"}} for r in RECORDS]), "metadata with a bytes"),
    "fields without names": ((RANKER, [Nameless(i, t) for i, t in zip(IDS, TEXTS, strict=True)]), "Nameless whose fi"),
}


@pytest.mark.parametrize("name", ODD)
def test_what_does_not_join_is_refused_with_both_counts_and_nothing_is_left(tmp_path: Path, name: str) -> None:
    value, message = ODD[name]
    with pytest.raises(IncompatibleIndexError, match=message):
        import_voicevault(old(tmp_path / "old", value), "new", root=tmp_path / "root")
    assert not list(tmp_path.glob("root/*"))


@pytest.mark.parametrize(
    ("value", "ids", "message"),
    [
        ((RANKER, IDS), IDS[:4], "has 5 chunks and .* has 4: they do not join; 'chunk-c' is in one of them alone"),
        ((RANKER, IDS), [*IDS[:4], "x"], "has 5 chunks and .* has 5: they do not join; '(chunk-c|x)' is in one"),
        ((RANKER, TEXTS), [*IDS[:4], "x"], "has 5 chunks and .* has 5: they do not join; 'the"),
        (RANKER, IDS[:4], "has 5 chunks and .* has 4: they do not join. Name"),
        ({"bm25": RANKER, "ids": [*IDS[:4], IDS[0]]}, IDS, "has 5 chunks and .* has 5: they do not join; 'chunk-"),
    ],
    ids=["fewer", "another", "another text", "fewer than a bare index has", "one twice"],
)
def test_a_collection_that_does_not_join_is_refused(
    tmp_path: Path, value: Any, ids: Sequence[str], message: str
) -> None:
    folder = old(tmp_path / "old", value)
    collected(folder, ids=ids)
    with pytest.raises(IncompatibleIndexError, match=message):
        import_voicevault(folder, "new", root=tmp_path / "root")
    assert not list(tmp_path.glob("root/*"))


def test_an_id_that_stands_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="two chunks have the id 'chunk-e'"):
        import_voicevault(old(tmp_path / "old", (RANKER, [*IDS[:4], IDS[0]], TEXTS)), "new", root=tmp_path)


def test_dicts_of_ids_alone_join_a_collection(tmp_path: Path) -> None:
    folder = old(tmp_path / "old", (RANKER, [{"id": name} for name in IDS]))
    collected(folder)
    found = chunks(import_voicevault(folder, "new", root=tmp_path))
    assert {name: chunk.text for name, chunk in found.items()} == dict(zip(IDS, TEXTS, strict=True))


def test_vectors_of_another_dimension_are_refused(tmp_path: Path) -> None:
    folder = old(tmp_path / "old", (RANKER, IDS))
    collected(folder)
    with pytest.raises(IncompatibleIndexError, match=r"have 8 dimensions, those of HashEmbedder\(16\) have 16"):
        import_voicevault(folder, "new", root=tmp_path, embedder=HashEmbedder(16))


def test_an_import_that_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    folder = old(tmp_path / "old", (RANKER, RECORDS))
    root = tmp_path / "root"
    with pytest.raises(AssertionError, match="asked to embed"):
        import_voicevault(folder, "new", root=root, embedder=Unasked())
    assert list(root.iterdir()) == []
    import_voicevault(folder, "new", root=root)
    with pytest.raises(ConfigError, match="is there already"):
        import_voicevault(folder, "new", root=root)
    assert names(root) == ["new"]
    assert [path.name for path in root.iterdir()] == ["new"]


def test_damaged_files_are_named(tmp_path: Path) -> None:
    folder = old(tmp_path / "old", (RANKER, IDS))
    whole = (folder / "bm25.pkl").read_bytes()
    for cut in (0, 1, len(whole) // 2, len(whole) - 1):
        (folder / "bm25.pkl").write_bytes(whole[:cut])
        with pytest.raises(IndexDamagedError, match=r"bm25.pkl is cut short, or no pickle of an index"):
            read_bm25(folder / "bm25.pkl")
    (folder / "bm25.pkl").unlink()
    with pytest.raises(ConfigError, match=r"bm25.pkl is not a file"):
        import_voicevault(folder, "new", root=tmp_path)


def test_a_damaged_collection_is_named(tmp_path: Path) -> None:
    pytest.importorskip("chromadb")
    folder = old(tmp_path / "old", (RANKER, IDS))
    (folder / "chroma.sqlite3").write_bytes(b"no database" * 100)
    with pytest.raises(IndexDamagedError, match=r"Chroma cannot read .*old"):
        import_voicevault(folder, "new", root=tmp_path)
