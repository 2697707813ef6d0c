"""Opens a store in this process and asks it once: `python -m tests.benchmarks.store_open SYSTEM FOLDER`.

Writes as JSON the milliseconds of opening and of the first search of each kind, the code imported before, and on Linux
the most that was resident until then.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

from tests.benchmarks.store_systems import DIMENSION, Lookup, loaded

QUESTION = "effects of vitamin D on the immune system"
STATUS = Path("/proc/self/status")


def main(system: str, folder: Path) -> dict[str, float]:
    """Open, then search in each way that there is, once."""
    opens = loaded(system)
    lookup = Lookup([QUESTION], np.full((1, DIMENSION), DIMENSION**-0.5, dtype=np.float32))
    start = time.perf_counter()
    store = opens(folder, lookup)
    figures = {"open ms": (time.perf_counter() - start) * 1e3}
    for kind, search in store.searches.items():
        start = time.perf_counter()
        if not search(QUESTION):
            raise ValueError(f"{system} has found nothing by {kind}")
        figures[f"first {kind} search ms"] = (time.perf_counter() - start) * 1e3
        lines = STATUS.read_text().splitlines() if STATUS.exists() else []
        peaks = (int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM"))
        figures |= {f"peak MB after a {kind} search": peak for peak in peaks}
    return figures


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1], Path(sys.argv[2]))))
