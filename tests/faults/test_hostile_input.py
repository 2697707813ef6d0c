"""What somebody else made to do harm: refused by name, with nothing run, nothing read outside, little work done."""

from __future__ import annotations

import contextlib
import copyreg
import functools
import importlib
import io
import operator
import os
import pickle
import pty
import runpy
import shutil
import socket
import struct
import subprocess
import sys
import tracemalloc
import types
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bs4
import docx
import numpy as np
import pypdf
import pytest
import rank_bm25
from docx.oxml.styles import CT_Styles
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers import HashEmbedder
from voicevault_retrievers import documents
from voicevault_retrievers.documents import _html, _load, _pdf, discover
from voicevault_retrievers.errors import ConfigError, DocumentError, IncompatibleIndexError, RetrievalError
from voicevault_retrievers.store import KnowledgeBase, pickle_import, safe_unpickling
from voicevault_retrievers.store.names import check_name, locate, names
from voicevault_retrievers.store.voicevault import import_voicevault, read_bm25

EMBEDDER = HashEmbedder(2)
load = functools.partial(documents.load, limits=None)
"""Tests of what a loader does look into it; for the limits see `test_reading_limits.py`."""
TEXTS = ["a quick fox", "a lazy dog", "birds"]
CANARY = "canary"
PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


def ranker(**state: Any) -> rank_bm25.BM25Okapi:
    made = rank_bm25.BM25Okapi([text.split() for text in TEXTS])
    made.__dict__.update(state)
    return made


class Call:
    """Pickles as a call."""

    def __init__(self, function: Callable[..., Any], *arguments: Any, state: Any = None) -> None:
        self.reduced = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self) -> Any:
        return self.reduced

    def __call__(self) -> None:
        """What it makes may be called in turn."""


def objects(*values: Any) -> Any:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


TOUCH = f"open({CANARY!r}, 'w').close()"
GADGETS: dict[str, tuple[str, Callable[[], Any]]] = {
    "os.system": ("system", lambda: Call(os.system, f"touch {CANARY}")),
    "os.open": ("open", lambda: Call(os.open, CANARY, os.O_CREAT)),
    "subprocess.Popen": ("Popen", lambda: Call(subprocess.Popen, ["touch", CANARY])),
    "eval": ("eval", lambda: Call(eval, TOUCH)),
    "exec": ("exec", lambda: Call(exec, TOUCH)),
    "compile": ("compile", lambda: Call(Call(compile, TOUCH, "x", "eval"))),
    "open": ("open", lambda: Call(open, CANARY, "w")),
    "__import__": ("__import__", lambda: Call(__import__, "antigravity")),
    "getattr": ("getattr", lambda: Call(Call(getattr, Call(__import__, "os"), "system"), f"touch {CANARY}")),
    "import_module": ("importlib.import_module", lambda: Call(importlib.import_module, "antigravity")),
    "attrgetter": ("operator.attrgetter", lambda: Call(Call(operator.attrgetter, "system"), "os")),
    "methodcaller": ("operator.methodcaller", lambda: Call(operator.methodcaller, "touch")),
    "partial": ("functools.partial", lambda: functools.partial(eval, TOUCH)),
    "dynamic class": ("types.new_class", lambda: Call(types.new_class, "x")),
    "run_path": ("runpy.run_path", lambda: Call(runpy.run_path, CANARY)),
    "spawn": ("pty.spawn", lambda: Call(pty.spawn, ["touch", CANARY])),
    "socket": ("socket.create_connection", lambda: Call(socket.create_connection, ("localhost", 9))),
    "rmtree": ("shutil.rmtree", lambda: Call(shutil.rmtree, ".")),
    "loads": ("loads", lambda: Call(pickle.loads, pickle.dumps(Call(eval, TOUCH)))),
    "numpy.load": ("load", lambda: Call(np.load, CANARY)),
    "array of objects": ("numpy.dtype O8", lambda: objects(Call(eval, TOUCH))),
    "empty array of objects": ("numpy.dtype O8", lambda: objects(None)),
    "structured array": ("numpy.dtype V8", lambda: np.zeros(1, dtype=[("x", "f8")])),
    "type": ("type", lambda: Call(type, "x", (), {})),
    "a class of this module": ("Call", lambda: Call),
    "bytearray": ("bytearray", lambda: Call(bytearray, 1 << 40)),
    "range": ("range", lambda: range(1 << 40)),
    "tokenizer": ("tokenize", lambda: tokenize),
    "gadget in a state": ("system", lambda: ranker(tokenizer=Call(os.system, f"touch {CANARY}"))),
}
GADGETS["gadget in a gadget"] = ("print", lambda: Call(print, [GADGETS["subprocess.Popen"][1]()]))


def tokenize(text: str) -> list[str]:
    return text.split()


NESTED: list[Callable[[Any], Any]] = [
    lambda gadget: gadget,
    lambda gadget: (ranker(), gadget),
    lambda gadget: {"bm25": ranker(), "unused": [{"deep": (gadget,)}]},
    lambda gadget: [ranker(doc_freqs=[gadget]), ["a"]],
    lambda gadget: (ranker(), [{"text": "x", "metadata": {"key": gadget}}]),
]


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Canaries appear in the test's own folder."""
    monkeypatch.chdir(tmp_path)


def refused(data: bytes, message: str = "") -> str:
    """What the refusal of a pickle says; nothing was run."""
    path = Path("bm25.pkl")
    path.write_bytes(data)
    with pytest.raises(RetrievalError, match=r"bm25\.pkl") as caught:
        read_bm25(path)
    assert sorted(os.listdir()) == ["bm25.pkl"]
    assert not {"antigravity", "this"} & set(sys.modules)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 1000
    return str(caught.value)


def test_the_canary_sings() -> None:
    pickle.loads(pickle.dumps([Call(eval, TOUCH)]))
    assert os.listdir() == [CANARY]


@pytest.mark.parametrize("gadget", GADGETS)
def test_a_gadget_is_refused_by_name_wherever_it_is_and_nothing_is_run(gadget: str) -> None:
    name, make = GADGETS[gadget]
    for protocol in PROTOCOLS:
        for nested in NESTED:
            for fix_imports in (True, False):
                said = refused(pickle.dumps(nested(make()), protocol=protocol, fix_imports=fix_imports), name)
                assert "which no rank-bm25 index needs: refused, and nothing in it was run" in said


RAW = """os.system posix.system nt.system subprocess.Popen builtins.eval builtins.exec builtins.__import__
    builtins.getattr __builtin__.eval commands.getoutput importlib.import_module operator.attrgetter types.CodeType
    types.FunctionType copyreg.add_extension copyreg.__newobj__ copyreg.__reduce_ex__ antigravity.geohash this.s
    numpy.load numpy.core.multiarray.fromfile numpy.core.multiarray.fromstring pip.main
    numpy.core.multiarray._reconstruct.__globals__ numpy.f2py.os.system numpy.dtype.__class__ _codecs.decode
    collections.OrderedDict.__class__.__base__.__subclasses__ collections.OrderedDict.__reduce_ex__
    rank_bm25.BM25Okapi.__init__.__globals__ rank_bm25.Pool rank_bm25.np.load rank_bm25.BM25 sys.modules
    langchain_core.documents.base.Document.construct langchain_core.load.load""".split()


def short(text: str) -> bytes:
    return b"\x8c" + bytes([len(text)]) + text.encode()


@pytest.mark.parametrize("dotted", RAW)
def test_a_name_is_refused_in_every_spelling(dotted: str) -> None:
    module, _, name = dotted.rpartition(".")
    first, _, rest = dotted.partition(".")
    for head, tail in {(module, name), (first, rest)}:
        line = f"{head}\n{tail}\n".encode()
        refused(b"c" + line + b"(Vx\ntR.", dotted)
        refused(b"\x80\x04" + short(head) + short(tail) + b"\x93(Vx\ntR.", dotted)
        refused(b"\x80\x04" + short(head) + b"\x94" + short(tail) + b"\x94h\x00h\x01\x930h\x00h\x01\x93)\x81.", dotted)
        refused(b"(Vx\ni" + line + b".", dotted)
        refused(b"(c" + line + b"Vx\no.", dotted)
        refused(b"c" + line + b")}\x92.", dotted)
        refused(b"N(](c" + line + b"ae0.", dotted)  # popped at once


INSTRUCTIONS: dict[str, tuple[bytes, str]] = {
    "PERSID": (b"Pos.system\n.", "PERSID os.system"),
    "BINPERSID": (b"Vos.system\nQ.", "BINPERSID"),
    "EXT1": (b"\x80\x02\x82\x77.", "EXT1 119"),
    "EXT2": (b"\x80\x02\x83\x77\x00.", "EXT2 119"),
    "EXT4": (b"\x80\x02\x84\x77\x00\x00\x00.", "EXT4 119"),
    "OBJ": (b"(cnumpy\ndtype\nVf8\no.", "OBJ"),
    "INST": (b"(Vf8\nicollections\nOrderedDict\n.", "INST collections.OrderedDict"),
    "NEWOBJ_EX": (b"\x80\x04crank_bm25\nBM25Okapi\n)}\x92.", "NEWOBJ_EX"),
    "NEXT_BUFFER": (b"\x80\x05\x97.", "NEXT_BUFFER"),
    "READONLY_BUFFER": (b"\x80\x05N\x98.", "READONLY_BUFFER"),
    "new dtype": (b"\x80\x02cnumpy\ndtype\n)\x81.", "a new numpy.dtype"),
    "call of a class": (b"crank_bm25\nBM25Okapi\n)R.", "a call of rank_bm25.BM25Okapi"),
    "call of an argument": (b"c__builtin__\nlist\n)R.", "a call of builtins.list"),
    "instance": (b"ccopy_reg\n_reconstructor\n(cnumpy\nndarray\nc__builtin__\nobject\nNtR.", "a new numpy.ndarray"),
    "state of a class": (b"crank_bm25\nBM25Okapi\n}(V__setstate__\nNub.", "a state for rank_bm25.BM25Okapi"),
    "state of a function": (b"cnumpy\ndtype\n}b.", "a state for numpy.dtype"),
    "state of a dict": (b"}}b.", "a state for dict"),
    "another encoding": (b"c_codecs\nencode\n(Vx\nVrot13\ntR.", "_codecs.encode rot13"),
    "escapes": (b"cos\x1b[31m\nsystem\n.", r"os\x1b[31m.system"),
}  # fmt: skip


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_an_instruction_that_could_lead_to_code_is_refused_by_name(name: str) -> None:
    copyreg.add_extension("os", "system", 0x77)
    try:
        data, message = INSTRUCTIONS[name]
        refused(data, message)
    finally:
        copyreg.remove_extension("os", "system", 0x77)


DEEP = 100_000
LONG = struct.pack("<Q", 1 << 62)
SMALL_ARRAY = b"cnumpy.core.numeric\n_frombuffer\n(C\x01xcnumpy\ndtype\n(Vf8\ntR"
ENDLESS: dict[str, bytes] = {
    "marks": b"(" * DEEP + b".",
    "lists": b"]" * DEEP + b"a" * (DEEP - 1) + b".",
    "tuples": b")" + b"\x85" * DEEP + b".",
    "dicts": b"}" + b"Vx\n}" * DEEP + b"s" * DEEP + b".",
    "calls": b"cnumpy\ndtype\n" * DEEP + b")R" * DEEP + b".",
    "text": b"\x8d" + LONG + b"x.",
    "bytes": b"\x8e" + LONG + b"x.",
    "bytearray": b"\x96" + LONG + b"x.",
    "frame": b"\x80\x04\x95" + LONG + b"N.",
    "number": b"\x8b\xff\xff\xff\x7f\x01.",
    "digits": b"L" + b"9" * 1_000_000 + b"L\n.",
    "memo": b"Nr\xff\xff\xff\xff.",
    "memo of digits": b"Np" + b"9" * 4000 + b"\n.",
    "array": SMALL_ARRAY + b"L99999999999L\n\x85VC\ntR.",
    "shape": SMALL_ARRAY + b"(L99999999999L\nI0\ntVC\ntR.",
    "bytes of a number": b"c__builtin__\nbytes\n(L99999999999L\ntR.",
    "hash of shared tuples": b"})" + b"2\x86" * 99 + b"Ns.",
    "set of shared tuples": b"\x8f()" + b"2\x86" * 99 + b"\x90.",
    "numbers of one hash": b"}(" + b"".join(b"L%dL\nN" % (n * ((1 << 61) - 1)) for n in range(1, 999)) + b"u.",
    "itself": b"\x80\x02]q\x00h\x00a.",
    "fractions of one hash": b"}(" + b"".join(b"F%d\nN" % (1 << 61 * n) for n in range(16)) + b"u.",
}


@pytest.mark.parametrize("name", ENDLESS)
def test_what_is_endless_is_refused_at_once_and_allocates_nothing(name: str) -> None:
    tracemalloc.start()
    try:
        refused(ENDLESS[name])
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


@given(place=st.integers(0, 1 << 16), byte=st.integers(0, 255), protocol=st.sampled_from(PROTOCOLS), cut=st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_changed_pickle_is_read_or_refused(place: int, byte: int, protocol: int, cut: bool) -> None:
    data = bytearray(pickle.dumps({"bm25": ranker(), "ids": np.array(["a", "b", "c"]), "texts": TEXTS}, protocol))
    data[place % len(data)] = byte
    Path("bm25.pkl").write_bytes(data[: place % len(data) + 1] if cut else data)
    with contextlib.suppress(RetrievalError):
        assert read_bm25("bm25.pkl").count == len(TEXTS)


def test_copies_count_as_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safe_unpickling, "MAX_STEPS", 1000)
    numbers = b"(" + b"K\x01" * 300 + b"lq\x00"
    refused(numbers + b"c__builtin__\nset\n(h\x00tR" * 3 + b".", "more than 1000 instructions and items")
    refused(b"N0" * 501 + b".", "more than 1000 instructions and items")


def test_metadata_that_is_endless_written_out_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    shared: Any = "x"
    for _ in range(12):
        shared = [shared, shared]
    value = (ranker(), [{"text": "x", "metadata": {"key": shared}}] * 3)
    monkeypatch.setattr(pickle_import, "MAX_ROOM", 10_000)
    refused(pickle.dumps(value), "more than 10000 characters of text and metadata")
    monkeypatch.setattr(pickle_import, "MAX_DEPTH", 4)
    refused(pickle.dumps(value), "metadata deeper than 4")
    text = "x" * 4000
    refused(pickle.dumps((ranker(), [text] * 3)), "more than 10000 characters of text and metadata")


@pytest.mark.parametrize("counts", [None, 7, [1], {"a": None}, {"a": [2]}, {"a": -1}, {1: 2}, {"a": 1 << 80}, {}])
def test_term_frequencies_of_any_kind_are_compared_or_passed_over(counts: Any) -> None:
    value = (ranker(doc_freqs=[counts] * 3), ["a", "b", "c"], TEXTS)
    Path("bm25.pkl").write_bytes(pickle.dumps(value))
    with pytest.raises(IncompatibleIndexError, match="two lists"):
        read_bm25("bm25.pkl").told_apart()


def test_long_texts_are_compared_at_once() -> None:
    words = [f"w{number}" for number in range(100_000)]
    Path("bm25.pkl").write_bytes(pickle.dumps((ranker(doc_freqs=[dict.fromkeys(words, 1)] * 3), [" ".join(words)] * 3)))
    found = read_bm25("bm25.pkl").told_apart()
    assert (found.ids, len(found.texts or ())) == (None, 3)


@dataclass
class Piece:
    text: Any = "x"


def test_an_object_of_a_foreign_class_is_its_fields_and_no_more() -> None:
    pieces = [Piece(text) for text in TEXTS]
    for protocol in PROTOCOLS:
        Path("bm25.pkl").write_bytes(pickle.dumps((ranker(), pieces), protocol))
        assert read_bm25("bm25.pkl").texts == tuple(TEXTS)
        for part, name in ((tokenize, "tokenize"), (Call(tokenize, "x"), "tokenize"), (Call(Piece), "a call of")):
            refused(pickle.dumps((ranker(), pieces, part), protocol), name)
        refused(pickle.dumps((ranker(), [Piece(tokenize)] * 3), protocol), "tokenize")


def test_a_pickle_over_the_limit_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("bm25.pkl").touch()
    os.truncate("bm25.pkl", safe_unpickling.MAX_BYTES + 1)
    monkeypatch.setattr(Path, "read_bytes", None)
    with pytest.raises(IncompatibleIndexError, match=r"bm25.pkl has 512 MiB, more than 512"):
        read_bm25("bm25.pkl")


def old(value: Any, folder: Path | str = "old") -> Path:
    Path(folder).mkdir(exist_ok=True)
    Path(folder, "bm25.pkl").write_bytes(pickle.dumps(value))
    return Path(folder)


def stored(folder: Path, count: int = len(TEXTS)) -> Path:
    """A Chroma database whose vectors are written out; the folder of the vectors."""
    chromadb = pytest.importorskip("chromadb")
    client = chromadb.PersistentClient(str(folder), chromadb.config.Settings(anonymized_telemetry=False))
    collection = client.create_collection("chunks", configuration={"hnsw": {"sync_threshold": 2, "batch_size": 2}})
    for place in range(count):
        collection.add(ids=[str(place)], embeddings=[[1.0, float(place)]], documents=[f"text {place}"])
    client.close()
    return next(path for path in folder.iterdir() if path.is_dir())


def test_only_what_is_in_the_folder_of_the_base_is_read(tmp_path: Path) -> None:
    def refuse(message: str, folder: Path | str = "old") -> None:
        with pytest.raises(ConfigError, match=message):
            import_voicevault(folder, "new", root="root")
        assert not Path("root").exists()

    outside = old((ranker(), TEXTS), "outside")
    refuse("without '..'", "old/../outside")
    refuse("without '..'", tmp_path / "old" / ".." / "outside")
    refuse("is not the folder", "outside/bm25.pkl")
    Path("old").mkdir()
    refuse("bm25.pkl is not a file")
    Path("old/bm25.pkl").symlink_to(outside / "bm25.pkl")
    refuse("bm25.pkl is not a file")  # a link to nothing below old
    Path("old/bm25.pkl").unlink()
    Path("old/bm25.pkl").symlink_to(tmp_path / "outside" / "bm25.pkl")
    refuse("bm25.pkl leads out of .*old, to .*outside")
    Path("old/bm25.pkl").unlink()
    Path("old/bm25.pkl").symlink_to("bm25.pkl")
    refuse("bm25.pkl is not a file")
    Path("old/bm25.pkl").unlink()
    os.mkfifo("old/bm25.pkl")
    refuse("bm25.pkl is not a file")
    Path("old/bm25.pkl").unlink()
    Path("old/within").write_bytes(pickle.dumps((ranker(), TEXTS)))
    Path("old/bm25.pkl").symlink_to("within")
    assert len(import_voicevault("old", "new", root=tmp_path)) == len(TEXTS)


def test_a_database_that_leads_out_is_not_read() -> None:
    vectors = stored(Path("outside"))
    folder = old(ranker())
    (folder / "chroma").symlink_to(Path("outside").resolve(), target_is_directory=True)
    with pytest.raises(ConfigError, match=r"chroma leads out of .*old, to .*outside"):
        import_voicevault(folder, "new", root="root", embedder=EMBEDDER)
    (folder / "chroma").unlink()
    shutil.copytree("outside", folder / "chroma")
    shutil.rmtree(folder / "chroma" / vectors.name)
    (folder / "chroma" / vectors.name).symlink_to(vectors.resolve(), target_is_directory=True)
    with pytest.raises(ConfigError, match=rf"{vectors.name} leads out of .*old, to .*outside"):
        import_voicevault(folder, "new", root="root", embedder=EMBEDDER)
    (folder / "chroma" / vectors.name).unlink()
    shutil.copytree(vectors, folder / "chroma" / vectors.name)
    assert len(import_voicevault(folder, "new", root="root", embedder=EMBEDDER)) == len(TEXTS)


def test_what_a_database_says_to_run_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = old(ranker())
    vectors = stored(folder)
    functions = importlib.import_module("chromadb.utils.embedding_functions").known_embedding_functions
    for function in functions.values():
        monkeypatch.setattr(function, "build_from_config", lambda config: Path(CANARY).touch())
    monkeypatch.setenv("CHROMA_API_IMPL", "chromadb.api.segment.SegmentAPI")
    monkeypatch.setenv("chroma_api_impl", "chromadb.api.segment.SegmentAPI")
    assert len(import_voicevault(folder, "new", root="root", embedder=EMBEDDER)) == len(TEXTS)
    (vectors / "index_metadata.pickle").write_bytes(pickle.dumps(Call(eval, TOUCH)))
    with pytest.raises(RetrievalError, match="Chroma cannot read"):
        import_voicevault(folder, "other", root="root", embedder=EMBEDDER)
    assert not Path(CANARY).exists()
    assert names("root") == ["new"]


def test_files_of_vectors_are_not_opened_where_none_are_wanted() -> None:
    folder = old(ranker())
    for path in stored(folder).iterdir():
        path.write_bytes(b"\xff" * path.stat().st_size)
    assert {chunk.text for chunk in import_voicevault(folder, "new", root="root")} == {"text 0", "text 1", "text 2"}


BASES = [
    "", ".", "..", "../x", "x/../y", "/etc", "/", "a/b", "a\\b", "..\\x", "C:x", "x\0", "\0", "x\n", "x\r", "\tx",
    "．．", "．．／x", "a／b", "a∕b", "a⁄b", "a＼b", "a․․b", "a‥b", "a…b", "x\u202egnp", "\u202ex", "x\u200b",
    "x\ufeff", "x\u200d", "x\u2066", "a..b", "x.", "x..", "x ", " x", "x .", ".hidden", "-x", "~", "~root", "$HOME",
    "x;rm", "x*", "con", "CON", "Con.txt", "nul", "AUX.x.y", "com1", "LPT9", "com¹.x", "e\u0301\u0301", "\u0301",
    "a" + "\u0301" * 60, "x" * 129, "漢" * 100, "e\u0301" * 129, "\ud800", "x\udcff", "%2e%2e", "file:x", "x?y", "x|y",
    "a\x7f", "a\x1b[31m",
]  # fmt: skip


@pytest.mark.parametrize("base", BASES, ids=ascii)
def test_a_name_that_leads_elsewhere_or_misleads_is_none(base: str) -> None:
    with pytest.raises(ConfigError, match="is not the name of a knowledge base") as caught:
        KnowledgeBase.create(base, root="root")
    assert str(caught.value).isprintable()
    assert os.listdir() == []


def test_a_name_is_composed_and_stays_one_folder() -> None:
    for name in ("e\u0301" * 127 + "x", "Ärzte 2024", "日本語", "v1.2", "console", "com10", "a-b_c", "_", "com1x"):
        assert locate(name, "root").parent == Path("root")
    assert check_name("e\u0301") == "é"
    with pytest.raises(ConfigError, match="holds a NUL"):
        locate(Path("a\0b", "x"))
    with pytest.raises(ConfigError, match="holds a NUL"):
        locate("x", "a\0b")


def test_a_very_long_name_is_refused_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("unicodedata.normalize", None)
        with pytest.raises(ConfigError) as caught:
            check_name("x" + "\u0301\u0316" * 1_000_000)
    assert len(str(caught.value)) < 3000


def test_a_link_out_of_the_root_is_no_knowledge_base_by_name_and_one_by_path(tmp_path: Path) -> None:
    KnowledgeBase.create("kb", root="outside").close()
    Path("root").mkdir()
    Path("root/kb").symlink_to(tmp_path / "outside" / "kb", target_is_directory=True)
    Path("root/loop").symlink_to("loop")
    for make in (KnowledgeBase.open, KnowledgeBase.create, KnowledgeBase.open_or_create):
        with pytest.raises(ConfigError, match=r"root/kb is a link out of root: give the folder itself"):
            make("kb", root="root")
    assert names("root") == []
    assert len(KnowledgeBase.open(Path("root/kb"))) == 0
    KnowledgeBase.create("real", root="root").close()
    Path("root/alias").symlink_to("real", target_is_directory=True)
    assert len(KnowledgeBase.open("alias", root="root")) == 0


def reading(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[Any]:
    """What a function of a library is asked, from now on."""
    asked: list[Any] = []
    function = getattr(owner, name)

    def noted(*given: Any, **named: Any) -> Any:
        asked.append(given)
        return function(*given, **named)

    monkeypatch.setattr(owner, name, noted)
    return asked


def word(path: str, change: Callable[[bytes], bytes], part: str = "word/document.xml") -> Path:
    """A DOCX, one part of which is changed."""
    whole = io.BytesIO()
    document = docx.Document()
    document.add_paragraph("hello")
    document.save(whole)
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for name in source.namelist():
            made.writestr(name, change(source.read(name)) if name == part else source.read(name))
    return Path(path)


def laughs(levels: int, of: bytes = b"hello") -> Callable[[bytes], bytes]:
    """Entities, each ten times the one before."""
    entities = b"".join(b'<!ENTITY a%d "%s">' % (n, b"&a%d;" % (n - 1) * 10) for n in range(1, levels))
    declared = b'<!DOCTYPE x [<!ENTITY a0 "ha">' + entities + b"]>"
    return lambda xml: xml.replace(b"?>", b"?>" + declared, 1).replace(of, b"&a%d;" % (levels - 1))


@pytest.mark.parametrize("beside", [b"", os.urandom(1 << 20)], ids=["alone", "beside what does not pack"])
def test_a_zip_bomb_is_refused_before_a_byte_is_unpacked(monkeypatch: pytest.MonkeyPatch, beside: bytes) -> None:
    word("bomb.docx", lambda xml: xml + bytes((16 << 20) + 1))
    with zipfile.ZipFile("bomb.docx", "a") as archive:
        archive.writestr("word/media/image.png", beside)
    unpacked = reading(monkeypatch, zipfile.ZipExtFile, "read")
    with pytest.raises(DocumentError, match=r"bomb.docx declares 1[67] MiB unpacked, .*word/document.xml.*zip bomb"):
        load("bomb.docx")
    assert unpacked == []


@pytest.mark.parametrize("part", ["word/document.xml", "word/styles.xml", "[Content_Types].xml"])
def test_a_docx_that_lies_about_sizes_is_refused(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    word("liar.docx", lambda xml: xml + b" " * (1 << 20), part)
    data = Path("liar.docx").read_bytes()
    with zipfile.ZipFile("liar.docx") as archive:
        size = archive.getinfo(part).file_size
    Path("liar.docx").write_bytes(data.replace(struct.pack("<I", size), struct.pack("<I", 100)))
    with pytest.raises(DocumentError, match=r"liar.docx is damaged"):
        load("liar.docx")


@pytest.mark.parametrize(
    ("levels", "of"), [(2, b"hello"), (12, b"hello"), (12, b"<w:body>"), (60, b"hello")], ids=ascii
)
def test_entities_in_a_docx_are_refused(levels: int, of: bytes) -> None:
    word("laughs.docx", laughs(levels, of))
    with pytest.raises(DocumentError, match=r"laughs.docx (declares XML entities|is damaged)"):
        load("laughs.docx")


def test_entities_outside_the_text_of_a_docx_are_not_written_out() -> None:
    assert [part.text for part in load(word("styles.docx", laughs(60), "word/styles.xml")).parts] == ["hello"]


def test_a_docx_of_very_many_paragraphs_is_refused_before_one_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("voicevault_retrievers.documents._docx.MAX_PARAGRAPHS", 100)
    read = reading(monkeypatch, sys.modules["voicevault_retrievers.documents._docx"], "_paragraph")
    with pytest.raises(DocumentError, match=r"many.docx has 102 paragraphs, more than 100"):
        load(word("many.docx", lambda xml: xml.replace(b"<w:body>", b"<w:body>" + b"<w:p/>" * 101)))
    assert read == []


def test_paragraphs_inside_each_other_in_a_cell_are_read_once() -> None:
    inner = b"<w:p>" * 100 + b"<w:r><w:t>deep</w:t></w:r>" + b"</w:p>" * 100
    table = b"<w:body><w:tbl><w:tr><w:tc>" + inner + b"</w:tc></w:tr></w:tbl>"
    path = word("nested.docx", lambda xml: xml.replace(b"<w:body>", table))
    assert [part.text for part in load(path).parts] == ["deep\n\nhello"]
    deeper = inner.replace(b"<w:p>", b"<w:p>" * 100).replace(b"</w:p>", b"</w:p>" * 100)
    with pytest.raises(DocumentError, match=r"deep.docx is damaged"):
        load(word("deep.docx", lambda xml: xml.replace(b"<w:body>", b"<w:body>" + deeper)))


def test_styles_are_looked_up_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    style = '<w:style w:type="paragraph" w:styleId="s{0}"><w:name w:val="s{0}"/><w:basedOn w:val="Heading1"/></w:style>'
    styles = "".join(style.format(n) for n in range(500)).encode()
    path = word("styles.docx", lambda xml: xml.replace(b"</w:styles>", styles + b"</w:styles>"), "word/styles.xml")
    searched = reading(monkeypatch, CT_Styles, "xpath")
    load(path)
    assert len(searched) < 10


def paper(path: str, kids: int, declared: int, content: bytes = b"BT /F1 9 Tf (x) Tj ET") -> Path:
    """A PDF whose pages are one page, named again and again."""
    parts = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Count %d/Kids[%s]>>" % (declared, b"3 0 R " * kids),
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>",
        b"<</Length %d>>stream\n%s\nendstream" % (len(content), content),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    data, places = b"%PDF-1.4\n", []
    for number, part in enumerate(parts, 1):
        places.append(len(data))
        data += b"%d 0 obj%s\nendobj\n" % (number, part)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    data += b"xref\n0 6\n0000000000 65535 f \n" + table
    data += b"trailer<</Size 6/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % data.index(b"xref\n")
    Path(path).write_bytes(data)
    return Path(path)


@pytest.mark.parametrize(("kids", "declared"), [(1, 100_000), (_pdf.MAX_PAGES + 1, 1), (120_000, 1)], ids=str)
def test_a_pdf_of_very_many_pages_is_refused_before_one_is_read(
    monkeypatch: pytest.MonkeyPatch, kids: int, declared: int
) -> None:
    read = reading(monkeypatch, pypdf.PageObject, "extract_text")
    with pytest.raises(DocumentError, match=r"long.pdf (has (100000|20001) pages, more than 20000|is damaged)"):
        load(paper("long.pdf", kids, declared))
    assert read == []


def test_pages_that_share_a_drawing_draw_it_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_pdf, "RATIO_FROM", 100_000)
    monkeypatch.setattr(_pdf, "MAX_RATIO", 2)
    path = paper("shared.pdf", 100, 100, b"BT /F1 9 Tf (x) Tj ET " + b" " * 30_000)
    read = reading(monkeypatch, pypdf.PageObject, "extract_text")
    with pytest.raises(DocumentError, match=r"shared.pdf draws 0 MiB on its pages, 3 times its size"):
        load(path)
    assert len(read) == 100_000 // 30_022


UNCLOSED = {"a": "<a ", "quote": "<a b='", "slash": "<a/", "comment": "<!-- >", "section": "<![if >", "end": "</a"}


@pytest.mark.parametrize("name", UNCLOSED)
def test_html_that_is_never_closed_is_refused_unparsed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    parsed = reading(monkeypatch, bs4, "BeautifulSoup")
    Path("open.html").write_text("text" + UNCLOSED[name] * 20_000)
    with pytest.raises(DocumentError, match=r"open.html has 20000 times a <\S* that no \S*> closes"):
        load("open.html")
    assert parsed == []


def test_html_of_very_many_tags_is_refused_unparsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = reading(monkeypatch, bs4, "BeautifulSoup")
    Path("many.html").write_text("<p>" * (_html.MAX_TAGS + 1))
    with pytest.raises(DocumentError, match=r"many.html has 1500003 characters and 500001 tags"):
        load("many.html")
    assert parsed == []


def test_a_text_of_one_very_long_line_is_refused() -> None:
    Path("line.txt").write_text("x" * _load.MAX_LINE + "\nx")
    assert len(load("line.txt").parts) == 1
    Path("line.txt").write_text("x\n" + "x" * (_load.MAX_LINE + 1))
    with pytest.raises(DocumentError, match=rf"line.txt has a line of {_load.MAX_LINE + 1} characters, more than"):
        load("line.txt")


def test_a_link_to_itself_is_no_document() -> None:
    Path("folder").mkdir()
    Path("folder/loop.txt").symlink_to("loop.txt")
    Path("folder/real.txt").write_text("x")
    assert [file.name for _, file in discover("folder")] in (["real.txt"], ["loop.txt", "real.txt"])
    with pytest.raises(DocumentError, match=r"loop.txt cannot be read"):
        load("folder/loop.txt")
