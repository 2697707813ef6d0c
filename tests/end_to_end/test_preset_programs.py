"""integrations/presets: each program prints what its README says, and the README's scripts go on from there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.docs.blocks import blocks, printed
from tests.end_to_end.programs import INTEGRATIONS, as_script, commands, installed
from tests.model_server import model_server, writes
from voicevault_retrievers.pipeline.presets import preset_names

if not installed("chromadb", "langchain_core", "llama_index"):
    pytest.skip("needs the extras `demo`, `chroma`, `langchain` and `llama-index`", allow_module_level=True)

PRESETS = preset_names()
TABLE = (INTEGRATIONS / "presets" / "README.md").read_text(encoding="utf-8")
READMES = {name: (INTEGRATIONS / "presets" / name / "README.md").read_text(encoding="utf-8") for name in PRESETS}
VARIES = re.compile(r"\d+\.\d+(?: #+)?|(?<=dense )\d+")
"""Scores, their bars, and ranks by vectors: their last digits are another machine's."""


SAYS = ("[2, 1]", '["How is it reset?"]', '["What is it reset with?"]', "With the green key. [Source: pump.txt]")
"""What stands in for an Ollama says, in the order in which the presets ask it."""


class Printed(NamedTuple):
    program: str
    again: str
    """By a second run of the program."""
    scripts: list[str]
    own: list[str]
    """By the command lines for documents and models of one's own."""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Printed]:
    """What each preset prints; its scripts search what its program has left. All in one process."""
    folder = tmp_path_factory.mktemp("presets")
    for name in ("pump", "valve"):
        text = f"Section 12. The {name}\n\nThe {name} is reset with the green key, as section 12 requires.\n"
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch, model_server(writes(*SAYS)) as server:
        patch.setenv("VOICEVAULT_HOME", str(tmp_path_factory.mktemp("home") / "kbs"))
        sessions = [tuple(_session(name, folder, server.url)) for name in PRESETS]
        sessions.append(tuple(block.code for block in blocks(TABLE)))
        outputs = dict(zip([*PRESETS, "all"], printed(tuple(sessions), ("-W", "error")), strict=True))
        assert len(server.prompts) == len(SAYS), outputs
    assert outputs.pop("all") == [block.prints for block in blocks(TABLE)] != []
    return {name: Printed(out[0], out[1], out[2:4], out[4:]) for name, out in outputs.items()}


def _session(name: str, own: Path, url: str) -> Iterator[str]:
    first, *others = commands(f"presets/{name}")
    yield as_script(first)
    yield as_script(first)
    yield from (block.code for block in blocks(READMES[name]))
    for line in others:
        given = line.replace("--ollama qwen3:8b", f"--ollama qwen3:8b --base-url {url}").replace(".pdf", ".txt")
        given = given.replace("--preset legal", f"--preset {_with_the_reranker_that_is_installed(own)}")
        yield as_script(given, own)


def _with_the_reranker_that_is_installed(own: Path) -> Path:
    """A copy of the preset `legal`, as its README has one make it."""
    copy, preset = own / "legal.yaml", (INTEGRATIONS / "presets" / "legal.yaml").read_text(encoding="utf-8")
    copy.write_text(preset.replace("model: multilingual", "model: accurate"), encoding="utf-8")
    return copy


def test_there_is_a_folder_for_each_preset_and_a_row() -> None:
    assert PRESETS == ["casefile", "legal", "newsroom", "pdf-chat", "voicevault"]
    for name, text in READMES.items():
        assert f"\n| [{name}]({name}/) | " in TABLE
        assert text.split("\n\n")[1].startswith("You get ")


@pytest.mark.parametrize("name", PRESETS)
def test_a_program_prints_what_its_readme_says(name: str, told: dict[str, Printed]) -> None:
    (_, block), *_ = re.findall(r"```(sh)\n.*?```\n\n```text\n(.*?)```", READMES[name], re.DOTALL)
    there = [_rounded(line) for line in told[name].program.splitlines()]
    at = 0
    for line in block.splitlines():
        given = _rounded(line)
        if line == "...":
            continue
        beginning = given.removesuffix(" ...")
        at = 1 + next((n for n in range(at, len(there)) if there[n].startswith(beginning)), len(there))
        assert at <= len(there), f"not printed, or not in this place: {line}"


@pytest.mark.parametrize("name", PRESETS)
def test_a_readme_says_what_a_second_run_of_its_program_prints_else(name: str, told: dict[str, Printed]) -> None:
    readme, first = " ".join(READMES[name].split()), list(map(_rounded, told[name].program.splitlines()))
    again = list(map(_rounded, told[name].again.splitlines()))
    assert len(again) == len(first)
    other = [line for line, before in zip(again, first, strict=True) if line != before]
    assert [line for line in other if f"`{line}`" not in readme] == []
    assert ("A second run prints the same." in readme) is not bool(other)


def _rounded(line: str) -> str:
    return VARIES.sub("0", line)


def test_every_answer_is_cited_and_every_marker_resolved(told: dict[str, Printed]) -> None:
    text = told["voicevault"].program
    answers = re.findall(r"^A: (.*)\n((?:   .*\n)+)", text, re.MULTILINE)
    assert len(answers) == 2
    for answer, below in answers:
        markers = re.findall(r"\[Source: [^\]]+\]", answer)
        named = re.findall(r"^   (\[Source: [^\]]+\]) names source \d", below, re.MULTILINE)
        assert markers == named != []


def test_the_parts_of_a_score_and_the_badges_add_up(told: dict[str, Printed]) -> None:
    for part in told["pdf-chat"].program.split("\n\n")[1:]:
        counts = dict((badge, int(number)) for number, badge in re.findall(r"(\d) (hybrid|keyword|semantic)", part))
        badges = re.findall(r"^   \d\. \[(\w+)\]", part, re.MULTILINE)
        assert {badge: badges.count(badge.capitalize()) for badge in counts} == counts
        assert sum(counts.values()) == len(badges) == 5
        for hit in re.split(r"^   \d\. ", part, flags=re.MULTILINE)[1:]:
            added = [float(number) for number in re.findall(r"adds (\d\.\d+)", hit)]
            score = float(re.findall(r"(\d\.\d+)$", hit.splitlines()[0])[0])
            assert sum(added) == pytest.approx(score, abs=0.003)
            assert ("*" in hit.splitlines()[-1]) == ("[Semantic]" not in hit)
    assert "maintenance-guide.md" not in told["pdf-chat"].program.split("(one file)")[1]


def test_what_a_person_may_not_see_is_not_printed(told: dict[str, Printed]) -> None:
    engineer, guide, stranger = told["casefile"].program.strip().split("\n\n")[1:]
    assert "operations-manual.pdf" in engineer
    assert {"incident-log.txt", "visitor-faq.html"} >= set(re.findall(r"Source: ([\w.-]+)", guide)) != set()
    assert "Source" not in stranger


@pytest.mark.parametrize("name", PRESETS)
def test_the_scripts_of_a_readme_run_after_its_program(name: str, told: dict[str, Printed]) -> None:
    given = blocks(READMES[name])
    assert len(given) == READMES[name].count("```python") == 2
    assert told[name].scripts == [block.prints for block in given]


def test_documents_and_models_of_ones_own(told: dict[str, Printed]) -> None:
    (case,), (*made, found), (news,), (uploads,), (answer,) = (told[name].own for name in PRESETS)
    assert "model: qwen3:8b\n\nyou, Q: " in case
    assert re.findall(r"\d\. \[Source: (\w+).txt\] .* llm_rerank \d", case) == ["pump", "valve"]
    assert made == [""] * 3
    assert re.search(r"^\d\. \[Source: pump.txt\] graph: graph #1.* rerank", found, re.MULTILINE)
    assert news.count("Q: What broke in a storm?\n   1. INC-") == 3
    assert "pump.txt: 1 chunks, 1 new\nvalve.txt: 1 chunks, 1 new\n" in uploads
    assert "A: With the green key. [Source: pump.txt]\n   [Source: pump.txt] names source 1\n" in answer
