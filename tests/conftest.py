"""No test depends on how fast the machine is; a CI run draws the same examples each time."""

from __future__ import annotations

import os
import signal
import threading

from hypothesis import HealthCheck, settings

settings.register_profile(
    "tests", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="CI" in os.environ
)
settings.load_profile("tests")

# Tests of Ctrl-C start programs, which would ignore it as well where this process was started in the background.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)
