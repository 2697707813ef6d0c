"""Engines sync their files after each change: tests keep them in memory, where the system has enough of it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

MEMORY = Path("/dev/shm")  # noqa: S108 - pytest makes a folder of its own in it
ROOM = 4 << 30
"""Bytes that have to be free."""

if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
