"""The presets `legal` and `casefile`, copied from a knowledge base into engines: the same hits, scores and contexts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.engines.engines import SYSTEMS, System
from tests.engines.presets import THROUGH, asked_of, casefile, legal
from tests.helpers import HashEmbedder
from tests.model_server import ModelServer, model_server, says
from voicevault_retrievers import Chunk, KnowledgeBase, Result
from voicevault_retrievers.core.types import Query
from voicevault_retrievers.engines.copy import copy
from voicevault_retrievers.engines.engine import Engine
from voicevault_retrievers.engines.questions import engine_questions
from voicevault_retrievers.store.questions import question_index
from voicevault_retrievers.structure.graph import EmbeddedGraph, build_graph

TEXTS = {
    "s1": "Section 1. This Act may be cited as the Water Act.",
    "s2": "Section 2. Whoever breaks section 3 pays as section 4 says.",
    "s3": "Section 3. Nobody fishes at night in a harbour.",
    "s4": "Section 4. A fine of ten crowns.",
    "s5": "Section 5. Pilots come aboard at the outer buoy.",
    "s6": "Section 6. The harbour master keeps a book of pilots.",
}
CHUNKS = [
    Chunk(one, text, f"p-{one}", {"act": "Water Act", "header_id": "h", "owner": "ab"[at % 2]})
    for at, (one, text) in enumerate(TEXTS.items())
]
PARENTS = [
    Chunk(f"p-{chunk.id}", f"{chunk.text} So it was enacted, größer.", None, {"owner": chunk.metadata["owner"]})
    for chunk in CHUNKS
]
HEADER = Chunk("h", "The Water Act, 1901", None, {"owner": "a"})
SIMPLE, STANDARD = "What does section 2 of the Water Act say?", "Who fishes at night?"
COMPLEX = "Compare section 3 of the Water Act with the rule on pilots"
ASKED = (SIMPLE, STANDARD, COMPLEX)
Found: TypeAlias = tuple[Any, ...]
Through: TypeAlias = Callable[..., Any]


@pytest.fixture(scope="module")
def kb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KnowledgeBase]:
    with KnowledgeBase.create("law", root=tmp_path_factory.mktemp("law"), embedder=HashEmbedder()) as base:
        base.add(CHUNKS, parents=[*PARENTS, HEADER])
        question_index(base).update(asked_of)
        yield base


@pytest.fixture(scope="module")
def graph() -> EmbeddedGraph:
    made = EmbeddedGraph()
    build_graph(CHUNKS, made)
    return made


@pytest.fixture(scope="module", params=["qdrant", "postgres", "chroma", "milvus"])
def engine(
    request: pytest.FixtureRequest, kb: KnowledgeBase, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    system: System = SYSTEMS[request.param]
    system.skip()
    folder: Path = tmp_path_factory.mktemp(request.param)
    with system.opened(folder) as connect:
        opened = connect("law", embedder=HashEmbedder(), analyzer=kb.analyzer)
        done = copy(kb, opened)
        assert done.verified
        assert done.questions is not None
        assert engine_questions(opened).update(asked_of).unchanged == done.questions.written == len(CHUNKS)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def model() -> Iterator[ModelServer]:
    with model_server(says(json.dumps({"passages": [2, 1]}))) as server:
        yield server


def found(result: Result) -> Found:
    """What is to be the same everywhere; scores by vectors to what an engine keeps of them."""
    hits = [
        (hit.id, None if hit.score is None else pytest.approx(hit.score, abs=1e-6), hit.text) for hit in result.hits
    ]
    told = [error for error in result.errors if error.kind != "funnel"]  # why there is none is each one's own
    return hits, result.route, result.channels_used, told


@THROUGH
async def test_legal_finds_in_an_engine_what_it_finds_in_the_base(
    kb: KnowledgeBase, engine: Engine, graph: EmbeddedGraph, through: Through
) -> None:
    wanted = {text: legal().given(graph=graph).over(kb).search(text) for text in ASKED}
    searched = through(legal(), engine, graph=graph)
    for text in ASKED:
        for result in (searched.search(text), await searched.asearch(text)):
            assert found(result) == found(wanted[text])
    assert wanted[SIMPLE].channels_used == ("graph",)
    assert any("So it was enacted" in hit.text for hit in wanted[COMPLEX].hits)
    assert wanted[COMPLEX].hits[0].text.startswith(HEADER.text)


@THROUGH
async def test_casefile_reads_the_parents_that_were_copied(
    kb: KnowledgeBase, engine: Engine, model: ModelServer, through: Through
) -> None:
    asked = Query("pilots who fish at night in a harbour")
    searched = through(casefile(model), engine)
    wanted = casefile(model).over(kb).search(asked)
    assert wanted.hits[0].vote("llm_rerank") is not None
    assert all("So it was enacted" in hit.text for hit in wanted.hits)
    for result in (searched.search(asked), await searched.asearch(asked)):
        assert found(result) == found(wanted)
