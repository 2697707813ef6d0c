"""Each option is declared once: frameworks, presets, the command line and the reference have those of the table."""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain_core")
pytest.importorskip("llama_index.core")

from voicevault_retrievers import langchain, llama_index
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.fusion import AdaptiveSum
from voicevault_retrievers.lexical import BM25
from voicevault_retrievers.pipeline.options import OPTIONS, Expand, Fusion, OptionGroup, Rerank
from voicevault_retrievers.pipeline.presets import KEYS, Preset
from voicevault_retrievers.pipeline.presets.stages import STAGE_OPTIONS
from voicevault_retrievers.rerank import CrossEncoderRerank

GROUPS: dict[str, type[OptionGroup]] = {"expansion": Expand, "fusion": Fusion, "rerank": Rerank}
WHOLE = [option for option in OPTIONS if "." not in option.name]
OF_LLAMA_INDEX = {"similarity_top_k", "callback_manager", "object_map", "objects", "verbose"}
"""What LlamaIndex's own retrievers are given."""
OF_LANGCHAIN = {"made", "traced_texts", "text_of"}
"""Fields that say nothing of a search: how it was made, what traces carry, what `from_documents` indexes."""
OLD = (
    "weights",
    "depth",
    "on_error",
    "max_chunks_per_page",
    "route",
    "flare",
    "questions",
    "graph",
    "llm",
    "parents",
    "root",
)
FACES: dict[str, Any] = {"langchain": langchain.HybridRetriever, "llama_index": llama_index.HybridRetriever}
both = pytest.mark.parametrize("face", FACES)


def named(face: str, option: Any) -> str:
    return (option.llama_index if face == "llama_index" else "") or option.name


def signature_of(face: str) -> dict[str, Any]:
    """The options of a class, with their defaults, but for what every retriever of its framework has."""
    if face == "langchain":
        base = langchain.HybridRetriever.__mro__[
            [one.__name__ for one in langchain.HybridRetriever.__mro__].index("BaseRetriever")
        ]
        own = langchain.HybridRetriever.model_fields.keys() - base.model_fields.keys() - OF_LANGCHAIN  # type: ignore[attr-defined]
        return {name: langchain.HybridRetriever.model_fields[name] for name in own}
    parameters = inspect.signature(llama_index.HybridRetriever).parameters
    return {name: one for name, one in parameters.items() if name not in OF_LLAMA_INDEX | {"unknown"}}


@both
def test_a_retriever_has_the_fourteen_options_and_no_other(face: str) -> None:
    assert len(WHOLE) == 14
    assert signature_of(face).keys() == {named(face, option) for option in WHOLE}


@both
def test_no_option_takes_anything(face: str) -> None:
    for name, option in signature_of(face).items():
        assert option.annotation is not Any, name


@both
def test_each_option_is_in_the_class_or_one_above_it(face: str) -> None:
    text = " ".join(kind.__doc__ or "" for kind in FACES[face].__mro__ if kind.__module__.startswith("voicevault"))
    for option in WHOLE:
        assert f"`{named(face, option)}" in text or f"`{named(face, option)}=" in text, option.name


@pytest.mark.parametrize("name", GROUPS)
def test_a_group_has_the_options_of_the_table_and_says_each(name: str) -> None:
    own = [option.name.partition(".")[2] for option in OPTIONS if option.name.startswith(f"{name}.")]
    assert [field.name for field in fields(GROUPS[name])] == own  # type: ignore[arg-type]  # each is a dataclass
    for option in own:
        assert f"`{option}`" in (GROUPS[name].__doc__ or ""), option


def test_defaults_are_those_that_a_plain_preset_has() -> None:
    plain = Preset.plain(["bm25"])
    told = {option.name: option.default for option in OPTIONS}
    assert (int(told["k"]), int(told["fusion.depth"])) == (plain.k, plain.depths["bm25"])
    assert (told["fusion"], told["fusion.on_error"]) == (f"{type(plain.method).__name__}()", plain.on_error)
    assert plain.method == AdaptiveSum()
    assert plain.build({"bm25": BM25.from_chunks([])}).channel.weights == {"bm25": float(told["fusion.weights"])}  # type: ignore[attr-defined]
    assert (plain.expansion, plain.route, plain.stages, plain.timeout, dict(plain.flare)) == (None, None, (), None, {})
    assert told["rerank.depth"] == "all"
    assert CrossEncoderRerank().depth is None


@pytest.mark.parametrize("option", [option for option in OPTIONS if option.preset], ids=lambda option: option.name)
def test_a_preset_has_the_option_under_its_key(option: Any) -> None:
    section, *rest = option.preset.split(".")
    assert section in KEYS
    if section == "stages" and rest:
        stage, *own = rest
        assert set(own) <= set(STAGE_OPTIONS[stage])


def test_the_command_has_its_options() -> None:
    pytest.importorskip("click")
    from voicevault_retrievers.cli.search import search

    known = {name for parameter in search.params for name in parameter.opts}
    assert {option.cli for option in OPTIONS if option.cli} <= known


def test_the_reference_has_the_table() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/options.md").read_text()
    rows = [
        "| Option | In LlamaIndex | Default | What it says | In a preset's file | `voicevault search` |",
        "|---|---|---|---|---|---|",
    ]
    for option in OPTIONS:
        other = f"`{option.llama_index}`" if option.llama_index else ""
        codes = [f"`{text}`" if text else "" for text in (option.preset, option.cli)]
        rows.append(f"| `{option.name}` | {other} | {option.default} | {option.says} | {codes[0]} | {codes[1]} |")
    assert "\n".join(rows) in page


@both
@pytest.mark.parametrize("option", OLD)
def test_an_option_that_is_in_a_group_is_said_where(face: str, option: str) -> None:
    with pytest.raises(ConfigError, match=f"has no option '{option}'; here it is"):
        FACES[face](channels={"bm25": BM25.from_chunks([])}, **{option: 3})


@both
@pytest.mark.parametrize(
    ("group", "said"),
    [
        ({"fusion": {"methd": "rrf"}}, "option of Fusion 'methd'. Did you mean 'method'"),
        ({"fusion": Fusion(weights={"dense": 1.0})}, "dense"),
        ({"fusion": {"weights": 3}}, "weights is a mapping of channel names"),
        ({"fusion": {"depth": {"dense": 3}}}, "unknown channel in depth 'dense'"),
        ({"rerank": Rerank(depth=3)}, "depth of rerank are for its model"),
        ({"rerank": Rerank(CrossEncoderRerank(), timeout=3.0)}, "has its own timeout"),
        ({"rerank": {"max_chunks_per_page": 0}}, "max_chunks_per_page"),
        ({"expansion": {"route": 3}}, "route is true, a mapping"),
    ],
)
def test_what_is_wrong_in_a_group_is_named(face: str, group: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        FACES[face](channels={"bm25": BM25.from_chunks([])}, **group)
