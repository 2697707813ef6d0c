"""What a forked child does with its parent's locks and objects."""

from __future__ import annotations

import gc
import os
from threading import Event, Thread

import pytest

from tests.forking import ended, fork
from voicevault_retrievers._support import forks
from voicevault_retrievers._support.forks import leave_to_parent, reset_in_child, used_by_parent
from voicevault_retrievers._support.mutex import Mutex
from voicevault_retrievers.models.graph_model import Calls

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


def test_a_mutex_that_another_thread_holds_is_free_in_the_child_and_held_in_the_parent() -> None:
    mutex, begun, end = Mutex(), Event(), Event()

    def hold() -> None:
        with mutex:
            begun.set()
            end.wait()

    thread = Thread(target=hold)
    thread.start()
    begun.wait()

    def child() -> int:
        with mutex:
            return 7

    assert ended(fork(child)) == 7
    assert not mutex._lock.acquire(blocking=False)
    end.set()
    thread.join()


def test_a_mutex_of_the_thread_that_forks_stays_held() -> None:
    mutex = Mutex()
    with mutex:
        child = fork()
    if not child:  # left the block as well
        os._exit(7 if mutex._lock.acquire(blocking=False) else 1)
    assert ended(child) == 7


def test_the_end_of_a_child_does_not_wait_for_calls_of_its_parent() -> None:
    calls = Calls()
    reset_in_child(calls, Calls._reset)
    with calls.running():
        assert ended(fork(lambda: calls.close() or 7)) == 7  # type: ignore[func-returns-value]  # which waits 30 s else


class Holder:
    def __init__(self) -> None:
        self.connection: list[str] | None = ["the parent's"]
        reset_in_child(self, Holder.forked)

    def forked(self) -> None:
        leave_to_parent(self.connection)
        self.connection = None

    def is_reset(self) -> int:
        return 7 if self.connection is None and ["the parent's"] in forks._left else 1


def test_an_object_is_reset_in_each_child_while_it_lives() -> None:
    holder = Holder()
    others = len(forks._resets)
    assert ended(fork(holder.is_reset)) == 7
    assert holder.connection == ["the parent's"]
    assert ["the parent's"] not in forks._left
    del holder
    gc.collect()
    assert len(forks._resets) < others


def test_a_child_is_told_what_its_parent_used() -> None:
    assert not used_by_parent("a library of this test")
    assert ended(fork(lambda: 7 if used_by_parent("a library of this test") else 1)) == 7
    assert ended(fork(lambda: 1 if used_by_parent("another") else 7)) == 7
    assert not used_by_parent("a library of this test")
