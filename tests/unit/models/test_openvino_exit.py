"""A process whose threads still compute ends as it should."""

from __future__ import annotations

import subprocess
import sys
from threading import Event, Thread

import pytest

from voicevault_retrievers.errors import RetrievalError
from voicevault_retrievers.models.graph_model import Calls
from voicevault_retrievers.models.weights import Backend, find, installed

LEAVING = """
from threading import Event, Thread
from voicevault_retrievers.dense import load_embedder
embedder, begun = load_embedder(backend={backend!r}), Event()
def work():
    while True:
        embedder.embed_documents(["some text " * 100] * 8)
        begun.set()
Thread(target=work, daemon=True).start()
begun.wait()
"""


def test_the_end_waits_for_calls_and_lets_no_thread_begin_another() -> None:
    calls, begun, end = Calls(), Event(), Event()

    def call() -> None:
        with calls.running():
            begun.set()
            end.wait()

    refused: list[RetrievalError] = []

    def late() -> None:
        try:
            call()
        except RetrievalError as error:
            refused.append(error)

    caller, closing = Thread(target=call), Thread(target=calls.close)
    caller.start()
    begun.wait()
    closing.start()
    assert closing.is_alive()
    end.set()
    for thread in (caller, closing):
        thread.join()
    other = Thread(target=late)
    other.start()
    other.join()
    assert [str(error) for error in refused] == ["the process is ending: no model is run any more"]
    call()


@pytest.mark.program
@pytest.mark.parametrize("backend", ["onnx", "openvino"])
def test_a_thread_that_still_computes_does_not_abort_the_process(backend: Backend) -> None:
    if not (installed(backend) and find("all-MiniLM-L6-v2", backend)):
        pytest.skip(f"{backend} or the weights are not installed")
    program = LEAVING.format(backend=backend)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "terminate" not in done.stderr
