"""The tests that compute with models' weights, as they run on other processors: `make processors`.

    python -m tests.processors

Libraries that choose their instructions by a variable, and numba for this package's own loops, are told to use AVX2
alone; but for oneDNN: OpenVINO, which holds one, asks the processor itself for bf16, and then finds no way to compute
it. onnxruntime asks the processor itself, so qemu-user runs the interpreter as a Haswell, whose 8-bit products saturate
(AVX2 without VNNI). A token takes a quarter of a second there, and one of a float32 graph, whose sums differ by their
last digits alone, two seconds: it runs the tests of graphs of 8 bits, and without numpy's own instructions beyond SSE,
whose partial sort ends the emulated process.
Debian's qemu knows no AVX-512: its Cascadelake is one that hides it. What this processor has is what runs first.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

AVX2: Mapping[str, str] = {
    "ATEN_CPU_CAPABILITY": "avx2",  # torch
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
    "NUMBA_CPU_FEATURES": "+avx,+avx2,+bmi,+bmi2,+fma,+popcnt,+sse4.2",
    "NUMBA_CPU_NAME": "haswell",
    "OPENBLAS_CORETYPE": "Haswell",
}
ALL = ("-m", "weights or compiled", "tests")
EMULATED = ("-m", "int8", "tests/unit/rerank/test_cross_encoder.py", "tests/unit/dense/test_embedders.py")

AT_ONCE = 2
"""Processors: an emulated one is a program on one core."""


@dataclass(frozen=True)
class Processor:
    """A way to run the tests."""

    name: str
    tests: Sequence[str]
    runner: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


PROCESSORS = (
    Processor("this one", ALL),
    Processor("AVX2, by the libraries' own settings", ALL, variables=AVX2),
    *(
        Processor(
            f"{name}, emulated",
            EMULATED,
            ("qemu-x86_64", "-cpu", name),
            {"NPY_DISABLE_CPU_FEATURES": "X86_V3"},
        )
        for name in ("Haswell", "Cascadelake-Server")
    ),
)


def main() -> None:
    """Run each, print its result; the exit status is 1 where one fails or cannot be run."""
    any_failed = False
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for processor, (failed, said) in zip(PROCESSORS, pool.map(result, PROCESSORS), strict=True):
            sys.stdout.write(f"{processor.name}: {said}\n")
            sys.stdout.flush()
            any_failed |= failed
    sys.exit(any_failed)


def result(processor: Processor) -> tuple[bool, str]:
    """Whether it failed, and what is to be said."""
    if processor.runner and shutil.which(processor.runner[0]) is None:
        return True, f"{processor.runner[0]} is not here: apt-get install qemu-user"
    began = time.monotonic()
    command = [*processor.runner, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *processor.tests]
    environment = {**os.environ, **processor.variables, "VOICEVAULT_RUNNER": " ".join(processor.runner)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    lines = re.findall(r"^.*(?: passed| failed| error).* in .*$", done.stdout, re.MULTILINE)
    if done.returncode:
        sys.stdout.write(done.stdout[-6000:] + done.stderr[-2000:])
    return done.returncode != 0, f"{lines[-1] if lines else 'no result'} ({time.monotonic() - began:.0f} s)"


if __name__ == "__main__":
    main()
