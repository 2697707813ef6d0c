"""Milliseconds that imports of the package take beyond what they stand on; writes results/imports.json.

python -m tests.benchmarks.imports
"""

from __future__ import annotations

import statistics
import subprocess
import sys

from tests.benchmarks.results import Row, write

RUNS = 15
PROGRAM = "import time, {first}; start = time.perf_counter(); {second}; print((time.perf_counter() - start) * 1e3)"
EVERYTHING = "from voicevault_retrievers import *"
CASES = {
    "the package, beyond numpy": ("numpy", "import voicevault_retrievers"),
    "every name of it, beyond numpy": ("numpy", EVERYTHING),
    "numpy itself": ("sys", "import numpy"),
    "its LlamaIndex classes, beyond llama_index.core": ("llama_index.core", "import voicevault_retrievers.llama_index"),
    "llama_index.core itself": ("sys", "import llama_index.core"),
}


def main() -> None:
    """Time fresh processes, in turns."""
    times: dict[str, list[float]] = {case: [] for case in CASES}
    for _ in range(RUNS):
        for case, (first, second) in CASES.items():
            command = [sys.executable, "-c", PROGRAM.format(first=first, second=second)]
            times[case].append(float(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    rows = [Row("import", case, "median ms", round(statistics.median(found), 1)) for case, found in times.items()]
    write("imports", rows, ["voicevault-retrievers", "numpy", "llama-index-core"])


if __name__ == "__main__":
    main()
