"""Expansions of a preset: made by their names, over the chunks that the pipeline searches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helpers import HashEmbedder, ListChannel
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.lexical import BM25
from voicevault_retrievers.pipeline.builder import compose
from voicevault_retrievers.pipeline.presets import Preset
from voicevault_retrievers.query import AcronymExpansion, SynonymExpansion
from voicevault_retrievers.store import Bases, KnowledgeBase

CHUNKS = [
    Chunk("a", "the World Health Organization (WHO)"),
    Chunk("b", "World Health Organization rules"),
    Chunk("c", "a compressor"),
]


def preset(expansion: Any) -> Preset:
    return Preset.of({"version": 1, "channels": {"bm25": {}}, "expansion": expansion})


@pytest.mark.parametrize(
    ("expansion", "made"),
    [
        (None, "None"),
        ([], "Together([])"),
        ({"size": 2}, "RuleExpansion(2)"),
        ({"method": "acronyms", "least": 1}, "AcronymExpansion(least=1)"),
        ({"method": "compounds", "language": "nl"}, "CompoundExpansion(language='nl', least=4)"),
        ({"method": "rm3", "documents": 5, "terms": 7}, "RM3(documents=5, terms=7, original=0.5)"),
        (
            [{"method": "rules"}, {"method": "acronyms"}],
            "Together([RuleExpansion(3), AcronymExpansion(least=0.5)])",
        ),
    ],
    ids=str,
)
def test_expansions_by_name(expansion: Any, made: str) -> None:
    assert repr(preset(expansion).expansion) == made


@pytest.mark.parametrize(
    ("expansion", "message"),
    [
        ({"method": "acronym"}, "Did you mean 'acronyms'"),
        ({"method": "acronyms", "size": 3}, "unknown key in expansion 'acronyms' 'size'"),
        ({"method": "rm3", "term": 3}, "Did you mean 'terms'"),
        ({"method": "rm3", "terms": 0}, "terms is a whole number"),
        ({"method": "synonyms", "file": "/no/such/file"}, "cannot be read"),
        ("rules", "a mapping of options"),
    ],
    ids=str,
)
def test_what_is_wrong_is_named(expansion: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        preset(expansion)


def test_over_a_base_they_read_its_chunks(tmp_path: Path) -> None:
    acronyms = preset([{"method": "acronyms"}, {"method": "synonyms", "synonyms": {"pump": ["compressor"]}}])
    with KnowledgeBase.create(tmp_path / "kb") as kb, KnowledgeBase.create(tmp_path / "other") as other:
        kb.add(CHUNKS)
        assert set(acronyms.over(kb).search("WHO").ranking.ids) == {"a", "b"}
        assert acronyms.over(kb).search("pump").ranking.ids == ("c",)
        kb.delete(["a"])
        assert acronyms.over(kb).search("WHO").ranking.ids == ()
        other.add(CHUNKS[:1])
        found = acronyms.over(Bases([kb, other])).search("WHO")
        assert set(found.ranking.ids) == {"kb:b", "other:a"}


def test_feedback_over_a_base_with_vectors(tmp_path: Path) -> None:
    feedback = Preset.of({"version": 1, "expansion": {"method": "rm3"}})
    with KnowledgeBase.create(tmp_path / "kb", embedder=HashEmbedder()) as kb:
        kb.add([*CHUNKS, *(Chunk(f"x{at}", f"filler {at}") for at in range(30))])
        result = feedback.over(kb).search("rules")
        assert not result.errors
        assert result.ranking.ids[0] == "b"


def test_in_a_composition_of_ones_own() -> None:
    channels = {"bm25": BM25.from_chunks(CHUNKS), "dense": ListChannel([])}
    expansion = [AcronymExpansion(), SynonymExpansion({"rules": "laws"})]
    assert set(compose(channels, expansion=expansion).search("WHO").ranking.ids) == {"a", "b"}
