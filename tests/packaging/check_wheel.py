"""Builds the wheel and uses it in fresh environments, away from the checkout.

With `[demo]`: the demo runs, the preset loads, torch is absent. With `[all]` and the constraints: every module imports.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRESET = "from voicevault_retrievers import load_preset; assert load_preset('voicevault').k == 5"
NO_TORCH = "from importlib.util import find_spec; assert find_spec('torch') is None, 'torch is installed'"
MODULES = (
    "import importlib, pkgutil, voicevault_retrievers as package\n"
    "names = [m.name for m in pkgutil.walk_packages(package.__path__, 'voicevault_retrievers.')]\n"
    "names = [name for name in names if '.testing' not in name]  # which needs pytest\n"
    "assert len(names) > 50, names\n"
    "for name in names: importlib.import_module(name)\n"
    "assert 'site-packages' in package.__file__, package.__file__\n"
)


def main() -> None:
    """Build, install, use; the first command that fails ends it."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        _run([sys.executable, "-m", "build", "--wheel", "--outdir", folder, str(ROOT)], place)
        (wheel,) = place.glob("*.whl")
        with ThreadPoolExecutor() as pool:
            for check in [pool.submit(_demo, place, wheel), pool.submit(_all, place, wheel)]:
                check.result()
    sys.stdout.write("the wheel works: [demo] without torch, [all] with every module\n")


def _demo(place: Path, wheel: Path) -> None:
    demo = _environment(place / "demo", f"{wheel}[demo]")
    _run([str(demo / "voicevault"), "demo", "--no-measure", "--root", str(place / "kbs")], place)
    for program in (PRESET, NO_TORCH):
        _run([str(demo / "python"), "-c", program], place)


def _all(place: Path, wheel: Path) -> None:
    everything = _environment(place / "all", f"{wheel}[all]")
    _run([str(everything / "python"), "-W", "ignore", "-c", MODULES], place)


def _environment(folder: Path, requirement: str) -> Path:
    venv.create(folder)
    install = [sys.executable, str(ROOT / "tests" / "packaging" / "install.py"), str(folder)]
    _run([*install, "--constraint", str(ROOT / "constraints.txt"), requirement], folder)
    return folder / "bin"


def _run(command: list[str], folder: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")


if __name__ == "__main__":
    main()
