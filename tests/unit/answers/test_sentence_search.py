"""What the sentences of an answer are searched with: the rights of what the answer is written from hold for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from voicevault_retrievers import BM25, Chunk, Flare, Hit, Pipeline, Query, Ranking, acheck_claims, check_claims
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.rerank import CallableScorer

OPEN = Chunk("open", "The pump is primed with oil.", metadata={"team": "a"})
SECRET = Chunk("secret", "The pump pressure is held at 70 bar.", metadata={"team": "b"})
BM = BM25.from_chunks([OPEN, SECRET])
PIPELINE = Pipeline(BM)
RIGHTS = {"team": "a"}
SCORER = CallableScorer(lambda query, passages: [1.0] * len(passages), name="any")
SEARCHES: dict[str, Any] = {
    "channel": BM,
    "pipeline": PIPELINE,
    "function": lambda text, top_k: BM.search(text, top_k),
    "hits": lambda text, top_k: list(BM.search(text, top_k)),
}


def drafting(prompts: list[str]) -> Any:
    drafts = iter(["It is primed with oil. The pressure is held at [[90]] bar.", "The pressure is held at 70 bar."])

    def write(prompt: str) -> str:
        prompts.append(prompt)
        return next(drafts)

    return write


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("told", ["query", "result", "hits"])
def test_an_answer_is_written_from_what_its_rights_permit(name: str, told: str) -> None:
    query = Query("Assess the pump", require=RIGHTS)
    found = PIPELINE.search(query)
    prompts: list[str] = []
    given: Any = {"query": (query, found), "result": (query.text, found), "hits": (query.text, found.hits)}[told]
    answer = Flare(drafting(prompts), SEARCHES[name]).answer(*given)
    assert answer.retrievals == 1
    assert [hit.require for hit in answer.hits] == [RIGHTS]
    assert [hit.id for hit in answer.hits] == ["open"]
    assert not any("held at 70 bar" in prompt for prompt in prompts)
    allowed = Flare(drafting([]), SEARCHES[name]).answer("Assess the pump", PIPELINE.search("oil", 1))
    assert [hit.id for hit in allowed.hits] == ["open", "secret"]


@pytest.mark.parametrize("name", SEARCHES)
async def test_claims_are_checked_under_the_rights_of_the_hits(name: str) -> None:
    says = "The pressure is held at 70 bar."
    hits = PIPELINE.search(Query("pump", require=RIGHTS)).hits * 2  # of two searches, in any order
    for claims in (
        check_claims(says, SEARCHES[name], scorer=SCORER, hits=hits),
        await acheck_claims(says, SEARCHES[name], scorer=SCORER, hits=hits),
    ):
        assert [claim.best and claim.best.id for claim in claims] in ([None], ["open"])
    (claim,) = check_claims(says, SEARCHES[name], scorer=SCORER)
    assert claim.best is not None
    assert claim.best.id == "secret"


async def test_an_async_function_serves_async_methods_and_says_so_to_the_others() -> None:
    async def search(text: str, top_k: int) -> Ranking:
        return BM.search(text, top_k)

    says = "The pressure is held at 70 bar."
    (claim,) = await acheck_claims(says, search, scorer=SCORER)
    assert claim.best is not None
    assert claim.best.id == "secret"
    (claim,) = check_claims(says, search, scorer=SCORER)
    assert claim.best is None
    assert "async alone" in claim.errors[0].message


@pytest.mark.parametrize("given", [[1], ["text"], "text", None])
def test_what_is_no_result_is_said(given: Any) -> None:
    def search(text: str, top_k: int) -> Sequence[Hit]:
        return given  # type: ignore[no-any-return]  # as somebody might

    (claim,) = check_claims("The pressure is held at 70 bar.", search, scorer=SCORER)
    assert "a search gives a Ranking or a list of hits" in claim.errors[0].message


@pytest.mark.parametrize("options", [{"search": object()}, {"top_k": 0}, {"timeout": -1}])
async def test_wrong_options_are_refused_by_both(options: dict[str, Any]) -> None:
    given = {"search": BM, **options}
    search = given.pop("search")
    with pytest.raises(ConfigError):
        check_claims("The pump is primed.", search, **given)
    with pytest.raises(ConfigError):
        await acheck_claims("The pump is primed.", search, **given)


def test_a_grouped_result_is_extended_by_new_passages_alone_each_under_its_page() -> None:
    texts = ("The pump is primed with oil.", "The pump pressure is held at 70 bar.", "The pump colour is green.")
    chunks = [
        Chunk(f"p{page}", text, metadata={"source_file": "a.pdf", "page_number": page})
        for page, text in enumerate(texts, 1)
    ]
    flare = Flare(drafting([]))
    result = Pipeline(BM25.from_chunks(chunks), k=2, group_by="document", flare=flare).search(
        Query("Assess the pump", route="analytical")
    )
    assert [hit.id for hit in result.hits] == ["p1"]
    assert {(cited.page_number, cited.text) for cited in result.context.citations} == set(enumerate(texts, 1))
