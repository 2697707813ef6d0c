"""Install into an environment by uv, in a third of pip's time and from where pip is told to look.

    install.py ENVIRONMENT ARGUMENTS, which are those of `uv pip install`

uv reads none of pip's configuration, so what that says is told to it: indexes, of which it takes the best version as
pip does, links, constraints, and the certificates to trust. Files are linked from a cache that is removed after that,
not copied; no file has two links then, which nltk refuses to read.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

OPTIONS = {
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
    "constraint": "--constraint",
}
"""Of pip, and the option of uv for each of its values."""


def configured() -> dict[str, str]:
    """The options that files or variables give to `pip install`."""
    told = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    lines = re.findall(r"^([\w:-]+)\.([\w-]+)='(.*)'$", told.stdout, re.MULTILINE)
    held = {section: {name: value for own, name, value in lines if own == section} for section, *_ in lines}
    return {**held.get("global", {}), **held.get("install", {}), **held.get(":env:", {})}


def main(environment: Path, *given: str) -> int:
    """The exit status of uv."""
    pip = configured()
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(environment / "bin" / "python")]
    uv += ["--index-strategy", "unsafe-best-match"]
    for name, option in OPTIONS.items():
        for value in pip.get(name, "").replace("\\n", " ").split():
            uv += [option, value]
    trusted = {"SSL_CERT_FILE": pip["cert"]} if "cert" in pip else {}
    with tempfile.TemporaryDirectory(dir=environment) as cache:
        uv += ["--link-mode", "hardlink", "--cache-dir", cache]
        return subprocess.run([*uv, *given], env={**trusted, **os.environ}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
