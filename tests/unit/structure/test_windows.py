"""Windows around sentences: what is shown of those that overlap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voicevault_retrievers.core.types import Chunk, Hit, Query, Ranking
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.structure.windows import Place, WindowExpansion, joined

SENTENCES = [f"S{at} says {word}." for at, word in enumerate(["this", "that", "much", "more", "less", "none", "all"])]


def ranking(found: Sequence[int], *, size: int = 1, document: str = "d", **metadata: Any) -> Ranking:
    """Sentences in this order, each with a window of `size` more on either side."""
    return Ranking(
        tuple(
            Hit(
                Chunk(f"{document}{at}", SENTENCES[at], document, {"at": at, "window": window(at, size), **metadata}),
                1.0 - rank / 10,
            )
            for rank, at in enumerate(found)
        )
    )


def window(at: int, size: int) -> str:
    return " ".join(SENTENCES[max(0, at - size) : at + size + 1])


def by_start(chunk: Chunk) -> Place:
    return Place(chunk.id, chunk.parent_id or "", chunk.metadata["at"] * (len(SENTENCES[0]) + 1))


def by_next(chunk: Chunk) -> Place:
    return Place(chunk.id, chunk.parent_id or "", next=f"{chunk.parent_id}{chunk.metadata['at'] + 1}")


def shown(found: Ranking, **options: Any) -> list[tuple[str, str]]:
    stage = WindowExpansion(options.pop("place_of", by_start), **options)
    return [(hit.id, hit.text) for hit in stage.refine(Query("q"), found)]


def span(first: int, last: int) -> str:
    return " ".join(SENTENCES[first : last + 1])


@pytest.mark.parametrize("place_of", [by_start, by_next])
def test_windows_that_overlap_are_one_text_for_the_best(place_of: Any) -> None:
    assert shown(ranking([3, 2, 1]), place_of=place_of) == [("d3", span(0, 4))]
    assert shown(ranking([5, 1, 4]), place_of=place_of) == [("d5", span(3, 6)), ("d1", span(0, 2))]


@given(st.lists(st.integers(0, 6), min_size=1, unique=True), st.integers(1, 3))
def test_each_sentence_around_what_was_found_is_shown_once(found: list[int], size: int) -> None:
    after = shown(ranking(found, size=size))
    around = [at for at in range(7) if any(abs(at - own) <= size for own in found)]
    assert sorted(" ".join(text for _, text in after).split()) == sorted(
        " ".join(SENTENCES[at] for at in around).split()
    )
    assert after[0][0] == f"d{found[0]}"


def test_a_hit_keeps_its_chunk_score_and_order() -> None:
    found = ranking([3, 2, 6])
    after = WindowExpansion(by_start).refine(Query("q"), found)
    assert [(hit.chunk, hit.score) for hit in after] == [(found.hits[at].chunk, found.hits[at].score) for at in (0, 2)]


def test_windows_of_two_documents_or_of_far_places_stay_apart() -> None:
    other = Ranking(
        (*(Hit(hit.chunk) for hit in ranking([1])), *(Hit(hit.chunk) for hit in ranking([2], document="e")))
    )
    assert shown(other) == [("d1", span(0, 2)), ("e2", span(1, 3))]
    assert len(shown(other, place_of=lambda chunk: None)) == 2
    again = Ranking(
        (*(Hit(hit.chunk) for hit in ranking([1])), Hit(Chunk("far", "x", "d", {"at": 99, "window": span(2, 3)})))
    )
    assert len(shown(again)) == 2


@pytest.mark.parametrize("between", ["Wait until the fan stands still. ", "Wait. "])
@pytest.mark.parametrize("gap", [" ", "  "])
def test_windows_that_share_a_repeated_sentence_alone_stay_apart(between: str, gap: str) -> None:
    first = ["Close the valve.", "Drain the tank.", "Press the red button."]
    second = ["Press the red button.", "Grease the bearing.", "Shut the door."]
    text = " ".join(first) + " " + between + " ".join(second)
    found = Ranking(
        tuple(
            Hit(Chunk(sentences[1], sentences[1], None, {"window": gap.join(sentences)}), 1.0 - at / 10)
            for at, sentences in enumerate((first, second))
        )
    )
    place = lambda chunk: Place(chunk.id, "d", text.index(chunk.text))  # noqa: E731
    assert shown(found, place_of=place) == [(one[1], gap.join(one)) for one in (first, second)]


def test_what_has_no_window_stays_as_it_is() -> None:
    found = Ranking((Hit(Chunk("a", "own")), Hit(Chunk("b", "own", metadata={"window": 3, "at": 1}))))
    assert WindowExpansion(by_start).refine(Query("q"), found) == found
    assert shown(ranking([2], around="wider"), window_key="around") == [("d2", "wider")]


def test_a_window_that_does_not_fit_gives_way() -> None:
    long, own, text = len(span(1, 4)), len(span(2, 4)), len(SENTENCES[2])
    assert shown(ranking([3, 2]), max_chars=long) == [("d3", span(1, 4))]
    assert shown(ranking([3, 2]), max_chars=long - 1) == [("d3", span(2, 4)), ("d2", SENTENCES[2])]
    assert own + text <= long - 1
    assert shown(ranking([3, 2]), max_chars=text) == [("d3", SENTENCES[3]), ("d2", "")]
    less = WindowExpansion(by_start, count_tokens=len).refine(Query("q", max_context_tokens=text), ranking([3]))
    assert less.hits[0].text == SENTENCES[3]
    (note,) = WindowExpansion(by_start, max_chars=1).refine(Query("q"), ranking([3])).errors
    assert (note.degrades, note.message[:6]) == (False, "1 of 1")
    with pytest.raises(ConfigError, match="max_tokens"):
        WindowExpansion(by_start, max_tokens=0)


@pytest.mark.parametrize(
    ("first", "second", "whole"),
    [
        ("a b. c d.", "c d. e f.", "a b. c d. e f."),
        ("a b. c d.", "c d.", "a b. c d."),
        ("a b.", "a b. c d.", "a b. c d."),
        ("a b. c", "cd e.", None),
        ("ab", "b c", None),
        ("a b.", "c d.", None),
        ("so so so", "so so so", "so so so"),
    ],
)
def test_texts_are_joined_between_words(first: str, second: str, whole: str | None) -> None:
    assert joined(first, second) == whole
