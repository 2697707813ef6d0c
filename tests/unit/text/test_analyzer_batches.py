"""Many texts at once: the same terms as one by one, whatever cuts them into pieces."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from voicevault_retrievers._support import compiled
from voicevault_retrievers.text import Analyzed, Analyzer, batch, scan
from voicevault_retrievers.text.analyzer import AUTO
from voicevault_retrievers.text.pieces import BREAKS, encoded, split
from voicevault_retrievers.text.terms import _read, words

WORDS = (
    "the pumps", "und der Behälter", "los números", "насосы и", "ERR_2043", "电池维护", "§ 433", "\x05x", "l'eau",
    "a.B",
)  # fmt: skip
LINES = st.lists(st.sampled_from(WORDS) | st.text(max_size=8), max_size=6).map(" ".join)
LANGUAGES = st.sampled_from([AUTO, None, "en", "de", "fr"])


@pytest.fixture(params=["numba", "plain"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "numba" and not compiled.installed():
        pytest.skip("numba is not installed")
    monkeypatch.setattr(scan, "pays", lambda texts: request.param == "numba")
    return str(request.param)


@given(texts=st.lists(LINES, max_size=6), language=LANGUAGES, bytes_at_once=st.sampled_from([1, 20, 1 << 20]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_batch_is_its_texts_one_by_one(way: str, texts: list[str], language: str | None, bytes_at_once: int) -> None:
    one = Analyzer(language)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(batch, "BATCH", bytes_at_once)
        patched.setattr(batch, "MOST", bytes_at_once)
        found = one.analyse(texts)
    expected = Analyzed.of(one(text) for text in texts)
    assert [found.document(at) for at in range(len(found))] == [expected.document(at) for at in range(len(expected))]
    assert set(found.vocabulary) >= set(expected.vocabulary)
    assert len(set(found.vocabulary)) == len(found.vocabulary)
    assert (found.terms.dtype, found.ends.dtype) == (expected.terms.dtype, expected.ends.dtype)


def test_many_and_long_pieces(way: str) -> None:
    texts = [
        " ".join(f"w{n % 70_001} averylongwordindeed{n % 50}" for n in range(start, start + 900))
        for start in range(0, 72_000, 900)
    ]
    found = Analyzer(None).analyse(texts)
    assert [found.document(at) for at in (0, 79)] == [Analyzer(None)(texts[at]) for at in (0, 79)]


@given(first=LINES, second=LINES, between=st.sampled_from([chr(code) for code in BREAKS]))
def test_pieces_are_read_on_their_own(first: str, second: str, between: str) -> None:
    one = Analyzer("en")
    assert one(first.rstrip("§ ") + between + second) == one(first.rstrip("§ ")) + one(second)


@given(piece=st.text(st.characters(min_codepoint=33, max_codepoint=126) | st.sampled_from("éßﬁ"), min_size=1))
def test_plain_pieces_have_a_shorter_way(piece: str) -> None:
    assert [word for one in split(encoded(piece)) for word in words(one)] == [
        word for one in split(encoded(piece)) for word in _read(one.decode())
    ]


def test_progress_counts_texts() -> None:
    told: list[tuple[int, int]] = []
    Analyzer().analyse(["a pump"] * 3, lambda done, total: told.append((done, total)))
    assert told[-1] == (3, 3)
    assert len(Analyzer().analyse([])) == 0
