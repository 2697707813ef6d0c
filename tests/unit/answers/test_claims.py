"""Claims of an answer: what counts as one, what it is checked against first, and what supports it on real documents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from voicevault_retrievers import BM25, Chunk, ContextBuilder, Hit, KnowledgeBase, Ranking, resolve_citations
from voicevault_retrievers.answers.claims import Claim, acheck_claims, check_claims
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.fusion.hybrid import hybrid_search
from voicevault_retrievers.rerank.calibration import Calibration, Threshold
from voicevault_retrievers.rerank.scorers import CallableScorer

TEXTS = {
    "oil": "The pump is primed with clean oil",
    "bar": "The pressure is held at 70 bar",
    "gate": "The gate was painted green",
}
CHUNKS = [Chunk(key, text, metadata={"source_file": f"{key}.pdf"}) for key, text in TEXTS.items()]
CHANNEL = BM25.from_chunks(CHUNKS)
HALF = Threshold(Calibration(1.0, 0.0), 0.5)
"""Supports what scores at least 0."""


def shared(query: str, passages: Sequence[str]) -> list[float]:
    """The words that a passage shares with the claim, less half of the claim's."""
    words = {word.strip(".,").casefold() for word in query.split()}
    return [len(words & {word.casefold() for word in passage.split()}) - len(words) / 2 for passage in passages]


SCORER = CallableScorer(shared, name="shared")


def checked(answer: Any, search: Any = CHANNEL, **options: Any) -> tuple[Claim, ...]:
    return check_claims(answer, search, scorer=SCORER, **options)


ANSWER = "The pump is primed with clean oil. The gate was painted red in 1998 by the mayor of Wales."


async def test_each_sentence_has_its_best_chunk_and_how_far_that_supports_it() -> None:
    oil, gate = checked(ANSWER, threshold=HALF)
    assert (oil.best and oil.best.id, oil.score, oil.supported) == ("oil", 7 - 7 / 2, True)
    assert (gate.best and gate.best.id, gate.score, gate.supported) == ("gate", 4 - 11 / 2, False)
    assert [ANSWER[claim.start : claim.end] for claim in (oil, gate)] == [oil.text, gate.text]
    assert oil.errors == gate.errors == ()
    assert await acheck_claims(ANSWER, CHANNEL, scorer=SCORER, threshold=HALF) == (oil, gate)


def test_without_a_threshold_it_does_not_say_whether_a_claim_is_supported() -> None:
    assert [claim.supported for claim in checked(ANSWER)] == [None, None]
    assert [claim.score for claim in checked(ANSWER)] == [7 - 7 / 2, 4 - 11 / 2]


@pytest.mark.parametrize(
    "answer",
    [
        "", "  \n", "Yes. [1]", "## The pump", "**The pump**", "Is the pump primed?", "[Source: oil.pdf]", "It is so.",
        "<think>The pump is primed with oil.</think>",
    ],
)  # fmt: skip
def test_what_says_nothing_is_left_out(answer: str) -> None:
    assert checked(answer, lambda text, top_k: pytest.fail("searched")) == ()


def test_markers_lists_and_emphasis_are_not_part_of_a_statement() -> None:
    answer = "# Pump\n\n- The pump is primed [Source: oil.pdf].\n2. The gate was painted. [Source: gate.pdf]\n"
    context = ContextBuilder().build([Hit(chunk) for chunk in CHUNKS])
    first, second = checked(answer, citations=context.citations)
    assert (first.statement, second.statement) == ("The pump is primed.", "The gate was painted.")
    assert second.text == "2. The gate was painted. [Source: gate.pdf]"
    assert [marker.citations[0].chunk_id for claim in (first, second) for marker in claim.markers] == ["oil", "gate"]


def test_a_cited_block_that_supports_a_claim_is_enough() -> None:
    hits = [Hit(chunk, score) for chunk, score in zip(CHUNKS, (3.0, 2.0, 1.0), strict=True)]
    context = ContextBuilder(markers="numbered").build(hits)
    answer = "The pump is primed with clean oil [1]."
    options: dict[str, Any] = {"citations": context.citations, "numbered": True, "threshold": HALF, "hits": hits}
    (claim,) = checked(answer, lambda text, top_k: pytest.fail("searched"), **options)
    assert claim.best is not None
    assert (claim.best.chunk, claim.best.score) == (CHUNKS[0], 3.0)
    assert (claim.supported, claim.score, claim.cited_score) == (True, 7 - 7 / 2, 7 - 7 / 2)
    resolved = resolve_citations(answer, context.citations, numbered=True)
    assert checked(resolved, CHANNEL, threshold=HALF, hits=hits) == (claim,)


def test_where_the_cited_block_does_not_support_a_claim_what_does_is_searched_for() -> None:
    context = ContextBuilder(markers="numbered").build([Hit(chunk) for chunk in CHUNKS])
    (claim,) = checked(
        "The pump is primed with clean oil [3].", citations=context.citations, numbered=True, threshold=HALF
    )
    assert (claim.best and claim.best.id, claim.supported) == ("oil", True)
    assert claim.cited_score == 1 - 7 / 2  # "the"


def test_a_cited_block_is_read_as_the_model_read_it() -> None:
    parent = Hit(Chunk("child", "nothing of it"), context="The pump is primed with clean oil")
    context = ContextBuilder(markers="numbered").build([parent])
    (claim,) = checked(
        "The pump is primed with clean oil [1].", citations=context.citations, numbered=True, threshold=HALF,
        hits=[parent],
    )  # fmt: skip
    assert claim.supported
    assert claim.best is not None
    assert (claim.best.id, claim.best.chunk.text) == ("child", "nothing of it")


def test_a_search_that_fails_is_noted_on_its_claim_alone() -> None:
    def search(text: str, top_k: int) -> Ranking:
        if "gate" in text:
            raise OSError("down")
        return CHANNEL.search(text, top_k)

    oil, gate = checked(ANSWER, search, threshold=HALF)
    assert (oil.supported, oil.errors) == (True, ())
    assert (gate.best, gate.score, gate.supported) == (None, None, None)
    assert [(str(failure), str(failure.error)) for failure in gate.errors] == [("claims: OSError", "down")]
    with pytest.raises(ConfigError, match="search is a channel"):
        checked("The pump is primed.", 5)


def test_a_scorer_that_fails_is_noted_and_nothing_is_said_to_be_supported() -> None:
    def fails(query: str, passages: Sequence[str]) -> list[float]:
        raise RuntimeError("no memory")

    claims = check_claims(ANSWER, CHANNEL, scorer=CallableScorer(fails, name="fails"), threshold=HALF)
    assert [(claim.best, claim.supported) for claim in claims] == [(None, None)] * 2
    said = [[(str(failure), str(failure.error)) for failure in claim.errors] for claim in claims]
    assert said == [[("rerank: RuntimeError", "no memory")]] * 2


def test_a_claim_of_which_nothing_is_found_has_no_chunk() -> None:
    (claim,) = checked("Zebras graze quietly.", threshold=HALF)
    assert (claim.best, claim.score, claim.supported, claim.errors) == (None, None, None, ())


@pytest.mark.parametrize("options", [{"threshold": 0.5}, {"top_k": 0}, {"timeout": -1}])
def test_wrong_options_are_refused(options: Any) -> None:
    with pytest.raises(ConfigError):
        checked(ANSWER, **options)


SAID = [
    "Each of the two lids of T4 is tightened to 40 Nm.",
    "The laboratory in Vestby needs four working days.",
    "Rising copper with steady iron points to a bearing cage.",
    "Growth on the blades is removed with the low-pressure lance at 60 bar.",
    "A well-washed rotor gives back between 4 and 7 per cent of output.",
    "The exchange of the oil is begun within an hour of standstill.",
]
NOT_SAID = [
    "The station has a swimming pool for its visitors.",
    "Penguins elect a new emperor every spring.",
    "The laboratory was founded by a Swedish chemist in 1911.",
    "The rotor hub is cast from recycled church bells.",
    "Oil prices fell sharply after the war.",
    "Napoleon never crossed the sound.",
]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The sample documents, with the real embedder."""
    for needed in ("tokenizers", "pypdf", "semantic_text_splitter"):
        pytest.importorskip(needed)
    from voicevault_retrievers.dense import load_embedder
    from voicevault_retrievers.documents import load, split

    folder = Path(__file__).parents[3] / "notebooks" / "data" / "documents"
    with KnowledgeBase.create(tmp_path_factory.mktemp("kb") / "sample", embedder=load_embedder()) as made:
        made.add([chunk for file in sorted(folder.iterdir()) for chunk in split(load(file))])
        yield made


def search_of(base: KnowledgeBase) -> Any:
    channels = {"bm25": base.bm25(), "dense": base.dense()}
    return lambda text, top_k: hybrid_search(channels, text, top_k)


@pytest.mark.weights
async def test_the_cross_encoder_tells_what_the_sample_documents_say(base: KnowledgeBase) -> None:
    search = search_of(base)
    answer = " ".join(text for pair in zip(SAID, NOT_SAID, strict=True) for text in pair)
    claims = check_claims(answer, search, threshold=HALF)
    assert claims == await acheck_claims(answer, search, threshold=HALF)
    assert [claim.text for claim in claims if claim.supported] == SAID
    assert [claim.text for claim in claims if not claim.supported] == NOT_SAID
    found = {claim.text: claim.best.chunk for claim in claims if claim.best}
    assert {found[text].metadata["source_file"] for text in SAID} == {"maintenance-guide.md"}
    assert "40 Nm" in found[SAID[0]].text


@pytest.mark.weights
def test_a_wrong_citation_scores_lower_than_the_chunk_that_says_it(base: KnowledgeBase) -> None:
    hits = hybrid_search({"bm25": base.bm25()}, "visitors parking", 1).hits
    context = ContextBuilder(markers="numbered").build(hits)
    (claim,) = check_claims(
        f"{SAID[1][:-1]} [1].", search_of(base), citations=context.citations, numbered=True, threshold=HALF
    )
    assert claim.supported
    assert claim.cited_score is not None
    assert claim.score is not None
    assert claim.cited_score < claim.score
    assert claim.best is not None
    assert "Vestby" in claim.best.chunk.text
