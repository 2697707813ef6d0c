"""The programs of integrations/ with a user's own documents and models, by the command lines of their READMEs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import printed
from tests.end_to_end.programs import as_script, commands, installed
from tests.model_server import model_server, writes

for module in ("langchain_openai", "llama_index.llms.openai"):
    pytest.importorskip(module)
pytestmark = pytest.mark.skipif(not installed("langchain"), reason="needs the extras `agents` and `demo`")

FOLDERS = ("langchain_chain", "llama_index_query_engine", "agent_tools")


def test_a_model_that_is_served_answers_from_a_folder_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manuals = tmp_path / "manuals"
    manuals.mkdir()
    (manuals / "pump.md").write_text("# Pump\n\nThe pump is reset with the green key.\n", encoding="utf-8")
    lines = [line for folder in FOLDERS for line in commands(folder, "openai")]
    assert len(lines) == 4
    with model_server(writes(*["With the green key. [1] Or not. [7]"] * 4)) as server:
        address = f"{server.url}/v1"
        for name, value in {"API_KEY": "key", "BASE_URL": address, "API_BASE": address}.items():
            monkeypatch.setenv(f"OPENAI_{name}", value)
        monkeypatch.setenv("VOICEVAULT_HOME", str(tmp_path / "kbs"))
        ((chain, engine, *agents),) = printed((tuple(as_script(line, manuals) for line in lines),))
    for said in (chain, engine):
        assert "A: With the green key. [1] Or not. [7]\n   [1] [Source: pump.md | Section: Pump]\n" in said
    for said in (chain, engine, *agents):
        assert said.startswith("model: ")
        assert "scripted" not in said
        assert said.rstrip().endswith("[7] names no source")
    assert [prompt.count("green key") for prompt in server.prompts[:2]] == [0, 1]  # LangChain's is the system's
