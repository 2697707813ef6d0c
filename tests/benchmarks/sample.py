"""Quality on the shipped sample documents and their forty questions; writes results/sample.json.

python -m tests.benchmarks.sample
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from rich.console import Console

from tests.benchmarks.results import Row, write
from voicevault_retrievers.cli.demo import indexed, measured
from voicevault_retrievers.pipeline.presets import load_preset


def main() -> None:
    """Index, measure, write."""
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory() as folder, indexed(console, Path(folder), load_preset("voicevault")) as base:
        systems = measured(console, base)
    rows = [
        Row(system, "sample", metric, value) for system, values in systems.items() for metric, value in values.items()
    ]
    write("sample", rows, ["voicevault-retrievers", "numpy", "PyStemmer", "onnxruntime", "semantic-text-splitter"])


if __name__ == "__main__":
    main()
