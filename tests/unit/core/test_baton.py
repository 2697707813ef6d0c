"""Who computes, of threads that search at the same time."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from voicevault_retrievers.core.execution import baton
from voicevault_retrievers.core.execution.baton import Baton


@pytest.fixture
def started() -> Iterator[Callable[..., threading.Thread]]:
    threads: list[threading.Thread] = []

    def start(function: Callable[[], None]) -> threading.Thread:
        threads.append(threading.Thread(target=function))
        threads[-1].start()
        return threads[-1]

    yield start
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def waits(one: Baton, count: int) -> None:
    """Return once so many threads wait for it."""
    while len(one._waiting) < count:
        threading.Event().wait(0.001)


def test_who_has_waited_longest_is_next_and_one_at_a_time_has_it(started: Callable[..., threading.Thread]) -> None:
    one, order, inside, most = Baton(), list[int](), 0, 0

    def search(at: int) -> None:
        nonlocal inside, most
        with one.held(), one.held():  # whoever has it has it
            inside += 1
            most = max(most, inside)
            order.append(at)
            inside -= 1

    threads = []
    with one.held():
        for at in range(5):
            threads.append(started(lambda at=at: search(at)))
            waits(one, at + 1)
    for thread in threads:
        thread.join(30)
    assert (order, most) == ([0, 1, 2, 3, 4], 1)


def test_who_steps_aside_lets_another_one_begin_and_goes_on_without_waiting(
    started: Callable[..., threading.Thread],
) -> None:
    one, began, go_on = Baton(), threading.Event(), threading.Event()

    def search() -> None:
        with one.held():
            began.set()
            assert go_on.wait(30)

    with one.held():
        started(search)
        waits(one, 1)
        assert not began.is_set()
        with one.aside():
            assert began.wait(30)
            with one.aside():  # who does not have it has nothing to give
                pass
        assert one._computing == 2
        go_on.set()
    with one.aside():  # nor has this thread now
        pass


def test_a_baton_that_does_not_come_is_not_waited_for(
    started: Callable[..., threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(baton, "PATIENCE", 0.01)
    one, done = Baton(), threading.Event()

    def search() -> None:
        with one.held():
            done.set()

    with one.held():
        started(search)
        assert done.wait(30)
    with one.held():
        pass
    assert one._computing == 0


def test_who_is_interrupted_while_waiting_neither_keeps_it_nor_waits_on(
    started: Callable[..., threading.Thread],
) -> None:
    one, holding, go_on = Baton(), threading.Event(), threading.Event()

    def search() -> None:
        with one.held():
            holding.set()
            waits(one, 1)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            assert go_on.wait(30)

    started(search)
    assert holding.wait(30)
    with pytest.raises(KeyboardInterrupt), one.held():
        pass
    assert (one._computing, len(one._waiting)) == (1, 0)
    go_on.set()


def test_one_that_is_lost_costs_others_their_patience_once(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Baton()
    one._computing = 1  # whoever had it ended without passing it on
    monkeypatch.setattr(baton, "PATIENCE", 0.01)
    with one.held():
        assert one._computing == 1
    assert one._computing == 0


def test_a_search_that_fails_gives_it_back() -> None:
    one = Baton()
    with pytest.raises(KeyError), one.held(), one.aside():
        raise KeyError
    assert one._computing == 0
