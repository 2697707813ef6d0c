"""The drivers: calls, deadlines, abandonment, and that sync and async are one thing."""

from __future__ import annotations

import asyncio
import contextvars
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import pytest

from tests.helpers import until
from voicevault_retrievers.core.execution.driver import aexecute, execute
from voicevault_retrievers.core.execution.event_loop import call_or_await
from voicevault_retrievers.core.execution.plan import MAX_ABANDONED, Call, CircuitBreaker, Plan, Span
from voicevault_retrievers.core.execution.workers import COMPUTING, RESERVED, Workers
from voicevault_retrievers.errors import SearchNotAvailableError, SearchTimeoutError

Driver = Callable[..., Any]


def _sync(plan: Plan[Any], **options: Any) -> Any:
    return execute(plan, **options)


def _async(plan: Plan[Any], **options: Any) -> Any:
    return asyncio.run(aexecute(plan, **options))


BOTH = pytest.mark.parametrize("driver", [_sync, _async], ids=["sync", "async"])


@pytest.fixture
def hang() -> Iterator[Callable[[], None]]:
    """A function that does not return until the test is over."""
    over = threading.Event()
    yield over.wait  # type: ignore[misc]
    over.set()


def _each(*calls: Call) -> Plan[list[Any]]:
    return (yield calls)


@BOTH
def test_outcomes_come_in_the_order_of_the_steps(driver: Driver) -> None:
    met = threading.Barrier(2)  # both calls run at the same time, or neither returns

    def nested() -> Plan[str]:
        (value,) = yield (Call("inner", lambda: "inner"),)
        return str(value)

    def plan() -> Plan[list[Any]]:
        return (yield (Call("a", lambda: met.wait(30)), nested(), Call("b", lambda: met.wait(30)), _each()))

    first, inner, second, empty = driver(plan())
    assert {first, second} == {0, 1}
    assert inner == "inner"
    assert empty == []


@BOTH
def test_an_exception_is_an_outcome_and_an_uncaught_one_is_raised(driver: Driver) -> None:
    def fail() -> None:
        raise ValueError("no")

    (outcome,) = driver(_each(Call("a", fail)))
    assert isinstance(outcome, ValueError)

    def plan() -> Plan[None]:
        (got,) = yield (Call("a", fail),)
        raise got

    with pytest.raises(ValueError, match="no"):
        driver(plan())


@BOTH
def test_a_call_past_its_deadline_is_abandoned_and_the_others_are_kept(
    driver: Driver, hang: Callable[[], None]
) -> None:
    late, fine = driver(_each(Call("slow", hang, timeout=0.05), Call("fine", lambda: 1)))
    assert isinstance(late, SearchTimeoutError)
    assert str(late) == "slow did not answer within its 0.05 s"
    assert fine == 1
    (late,) = driver(_each(Call("slow", hang)), timeout=0.05)  # the whole run has a deadline too
    assert isinstance(late, SearchTimeoutError)
    assert driver(_each(Call("a", lambda: 1, timeout=1e12)), timeout=1e12) == [1]  # as far as one likes


@BOTH
def test_a_repeated_ask_gets_what_is_left_of_its_time(driver: Driver, hang: Callable[[], None]) -> None:
    breaker = CircuitBreaker()
    started: list[int] = []

    def plan() -> Plan[Any]:
        yield (Call("slow", hang, timeout=0.05, breaker=breaker),)
        (second,) = yield (Call("slow", lambda: started.append(1), timeout=0.05, breaker=breaker),)
        return [second]

    assert isinstance(driver(plan())[0], SearchTimeoutError)
    assert started == []


@BOTH
def test_a_lane_with_too_many_hung_calls_is_refused_until_one_ends(driver: Driver) -> None:
    breaker, over = CircuitBreaker(), threading.Event()
    hung = [Call("slow", over.wait, timeout=1.0, breaker=breaker) for _ in range(MAX_ABANDONED)]  # all begin within it
    assert all(isinstance(outcome, SearchTimeoutError) for outcome in driver(_each(*hung)))
    (refused,) = driver(_each(Call("slow", lambda: 1, breaker=breaker)))
    assert isinstance(refused, SearchNotAvailableError)
    over.set()
    for _ in range(1000):
        if not breaker.is_open:
            break
        threading.Event().wait(0.01)
    assert driver(_each(Call("slow", lambda: 1, breaker=breaker))) == [1]


@BOTH
def test_calls_with_equal_keys_are_made_once_in_a_run(driver: Driver) -> None:
    made: list[int] = []

    def call() -> Call:
        return Call("a", lambda: made.append(1) or len(made), key=("a", 1))

    def plan() -> Plan[list[Any]]:
        together = yield (call(), call())
        later = yield (call(),)
        return [*together, *later]

    assert driver(plan()) == [1, 1, 1]


@BOTH
def test_context_variables_reach_calls_and_do_not_come_back(driver: Driver) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    variable.set("caller")

    def inside() -> str:
        seen = variable.get()
        variable.set("call")
        return seen

    assert driver(_each(Call("a", inside))) == ["caller"]
    assert variable.get() == "caller"


@BOTH
def test_spans_tell_what_ran(driver: Driver) -> None:
    spans: list[Span] = []
    driver(_each(Call("a", lambda: 1, kind="channel"), Call("b", lambda: 1 / 0, kind="stage")), spans=spans)
    assert {(span.name, span.kind, type(span.error)) for span in spans} == {
        ("a", "channel", type(None)),
        ("b", "stage", ZeroDivisionError),
    }


@BOTH
def test_an_interrupt_in_a_call_is_raised_in_the_caller(driver: Driver) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        driver(_each(Call("a", interrupt)))


@BOTH
def test_a_call_that_is_cancelled_by_its_own_doing_is_an_outcome(driver: Driver) -> None:
    def cancelled() -> None:
        raise asyncio.CancelledError

    (outcome,) = driver(_each(Call("a", cancelled)))
    assert isinstance(outcome, SearchNotAvailableError)


def test_a_search_goes_on_while_another_thread_imports_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until that has ended the module is there, and lacks what it will have."""
    monkeypatch.setitem(sys.modules, "asyncio", ModuleType("asyncio"))
    assert execute(_each(Call("a", lambda: 7))) == [7]


class Stop(BaseException):
    pass


async def test_an_interrupt_in_a_local_call_beside_others_is_raised(hang: Callable[[], None]) -> None:
    def stop() -> None:
        raise Stop

    with pytest.raises(Stop):
        await aexecute(_each(Call("local", stop, local=True), Call("remote", hang)))


async def test_an_interrupt_in_a_coroutine_is_raised() -> None:
    async def stop() -> None:
        raise Stop

    with pytest.raises(Stop):
        await aexecute(_each(Call("a", int, stop)))


async def test_searches_that_are_cancelled_do_not_count_as_hung() -> None:
    breaker, over = CircuitBreaker(), threading.Event()
    started = threading.Semaphore(0)

    def wait() -> None:
        started.release()
        over.wait()

    for _ in range(MAX_ABANDONED + 1):
        task = asyncio.ensure_future(aexecute(_each(Call("a", wait, breaker=breaker))))
        await asyncio.to_thread(started.acquire)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert not breaker.is_open
    over.set()


async def test_a_coroutine_runs_on_the_loop_and_is_cancelled_at_its_deadline() -> None:
    cancelled = asyncio.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def thread() -> str:
        return threading.current_thread().name

    late, name = await aexecute(_each(Call("slow", int, forever, timeout=0.02), Call("here", str, thread)))
    await cancelled.wait()
    assert isinstance(late, SearchTimeoutError)
    assert name == threading.current_thread().name


async def test_cancelling_the_search_cancels_its_coroutines() -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def forever() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    task = asyncio.ensure_future(aexecute(_each(Call("slow", int, forever))))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await cancelled.wait()


def test_calls_made_inside_calls_do_not_wait_for_a_free_thread() -> None:
    workers, depth = Workers(limit=1), 5
    done: list[Any] = []

    def dive(level: int) -> int:
        if level == 0:
            return 0
        ready = threading.Event()
        got: list[int] = []
        workers.submit(lambda: dive(level - 1), lambda value: (got.append(value), ready.set()))
        assert ready.wait(30)
        return got[0] + 1

    finished = threading.Event()
    workers.submit(lambda: dive(depth), lambda value: (done.append(value), finished.set()))
    assert finished.wait(30)
    assert done == [depth]


def test_more_calls_than_threads_all_run() -> None:
    workers, left, finished = Workers(limit=2), threading.Semaphore(0), []
    for number in range(20):
        workers.submit(lambda number=number: number, lambda value: (finished.append(value), left.release()))
    for _ in range(20):
        assert left.acquire(timeout=30)
    assert sorted(finished) == list(range(20))


def test_calls_that_hang_leave_threads_to_those_of_other_groups() -> None:
    workers, gate, left = Workers(limit=2), threading.Event(), threading.Semaphore(0)
    try:
        for _ in range(50):
            workers.submit(gate.wait, lambda value: None, "remote")
        for _ in range(20):
            workers.submit(lambda: 1, lambda value: left.release(), "local")
        for _ in range(20):
            assert left.acquire(timeout=30)
        together = threading.Barrier(RESERVED + 1)
        for _ in range(RESERVED):
            workers.submit(partial(together.wait, 30), lambda value: None, "local")
        together.wait(30)
    finally:
        gate.set()


async def test_what_a_coroutine_calls_in_threads_is_of_its_own_group() -> None:
    """A hundred that hang below one channel leave threads to what another one calls under the same name."""
    gate = threading.Event()

    def channel(function: Callable[[], Any]) -> Call:
        async def afind() -> Any:
            return await aexecute(_each(Call("engine", function)))

        return Call("dense", function, afind, breaker=CircuitBreaker())

    hangs = channel(gate.wait)
    hung = [asyncio.ensure_future(aexecute(_each(hangs))) for _ in range(100)]
    try:
        await asyncio.sleep(0.01)
        assert await asyncio.wait_for(aexecute(_each(channel(lambda: 1))), 30) == [[1]]
    finally:
        gate.set()
        await asyncio.gather(*hung)


async def test_a_coroutine_of_a_worker_thread_is_awaited_on_the_loop_of_the_search() -> None:
    seen: list[object] = []

    async def embed() -> int:
        await asyncio.sleep(0)
        seen.append(asyncio.get_running_loop())
        return 7

    def called() -> int:
        return call_or_await(refused, embed)

    assert await aexecute(_each(Call("embed", called))) == [7]
    assert await aexecute(_each(Call("outer", lambda: execute(_each(Call("inner", called)))))) == [[7]]
    assert seen == [asyncio.get_running_loop()] * 2
    (outcome,) = await asyncio.to_thread(execute, _each(Call("embed", called)))
    assert isinstance(outcome, NotImplementedError)


async def test_a_search_on_the_loop_below_a_coroutine_does_not_wait_for_the_loop() -> None:
    async def outer() -> Any:
        await asyncio.sleep(0)
        return execute(_each(Call("inner", lambda: call_or_await(lambda: 1, asyncio.Event().wait))))

    assert await aexecute(_each(Call("outer", lambda: call_or_await(refused, outer)))) == [[1]]


async def test_what_a_worker_thread_awaits_is_cancelled_with_its_search() -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    search = asyncio.ensure_future(aexecute(_each(Call("hung", lambda: call_or_await(refused, hang)))))
    await asyncio.wait_for(begun.wait(), 30)
    search.cancel()
    await asyncio.wait_for(cancelled.wait(), 30)


def refused() -> Any:
    raise NotImplementedError


@pytest.mark.program
def test_a_hung_call_does_not_keep_the_process_alive() -> None:
    program = (
        "import threading\n"
        "from voicevault_retrievers.core.execution.plan import Call\n"
        "from voicevault_retrievers.core.execution.driver import execute\n"
        "def plan():\n"
        "    return (yield (Call('slow', threading.Event().wait, timeout=0.05),))\n"
        "print(type(execute(plan())[0]).__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "SearchTimeoutError"


def test_an_idle_worker_keeps_nothing_of_its_last_call() -> None:
    class Big:
        pass

    workers, big = Workers(limit=1), Big()
    left = weakref.ref(big)
    workers.submit(partial(id, big), lambda value: None)
    del big
    until(lambda: left() is None)


def _threads(driver: Driver, count: int = 2, **options: Any) -> list[str]:
    """The threads that local calls run in, and one that is not."""

    def where() -> str:
        return threading.current_thread().name

    calls = [Call(f"local {at}", where, local=True, **options) for at in range(count)]
    names: list[str] = driver(_each(*calls, Call("remote", where)))
    return names


def test_without_a_deadline_local_calls_run_in_the_callers_thread() -> None:
    *local, remote = _threads(_sync)
    assert set(local) == {threading.current_thread().name}
    assert remote.startswith("voicevault-worker")


def test_on_an_event_loop_local_calls_take_one_hop_together() -> None:
    """They run one after the other in one worker thread, whatever else is asked at the same time."""
    order: list[tuple[str, str]] = []

    def plan() -> Plan[None]:
        for _ in range(2):
            names = [f"local {at}" for at in range(3)]
            yield tuple(Call(n, partial(lambda n: order.append((n, threading.current_thread().name)), n), local=True)
                        for n in names)  # fmt: skip

    asyncio.run(aexecute(plan()))
    assert [name for name, _ in order] == ["local 0", "local 1", "local 2"] * 2
    for turn in (order[:3], order[3:]):
        assert len({thread for _, thread in turn}) == 1
    assert all(thread.startswith("voicevault-worker") for _, thread in order)


@BOTH
def test_a_local_call_that_may_be_late_runs_where_it_can_be_left(driver: Driver, hang: Callable[[], None]) -> None:
    *local, _ = _threads(driver, timeout=30)
    assert all(name.startswith("voicevault-worker") for name in local)
    (late,) = driver(_each(Call("slow", hang, local=True, timeout=0.02)))
    assert isinstance(late, SearchTimeoutError)
    (late,) = driver(_each(Call("slow", hang, local=True)), timeout=0.02)
    assert isinstance(late, SearchTimeoutError)


@BOTH
def test_a_local_call_that_fails_fails_alone_and_what_waits_runs_beside(driver: Driver) -> None:
    began, go_on = threading.Event(), threading.Event()

    def remote() -> str:
        began.set()
        return "answered" if go_on.wait(30) else "alone"

    def fail() -> None:
        assert began.wait(30)  # the remote call has begun before the local ones
        raise KeyError("gone")

    error, value, answer = driver(
        _each(Call("a", fail, local=True), Call("b", lambda: go_on.set() or 7, local=True), Call("c", remote))
    )
    assert (type(error), value, answer) == (KeyError, 7, "answered")


def test_of_what_only_computes_no_more_runs_at_a_time_than_there_are_cores() -> None:
    running, most, lock = 0, 0, threading.Lock()

    def compute() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.002)
        with lock:
            running -= 1

    async def many() -> None:
        calls = (aexecute(_each(Call("sum", compute, local=True, computes=True))) for _ in range(40))
        await asyncio.gather(*calls)

    asyncio.run(many())
    assert 1 <= most <= COMPUTING.limit == os.cpu_count()


def test_local_calls_that_nobody_waits_for_any_more_never_begin() -> None:
    ran: list[str] = []
    inside, over = threading.Event(), threading.Event()

    def first() -> None:
        inside.set()
        over.wait(30)

    async def cancelled() -> None:
        calls = Call("first", first, local=True), Call("second", lambda: ran.append("second"), local=True)
        search = asyncio.ensure_future(aexecute(_each(*calls)))
        await asyncio.to_thread(inside.wait, 30)
        search.cancel()
        with pytest.raises(asyncio.CancelledError):
            await search
        over.set()
        await asyncio.sleep(0.05)

    asyncio.run(cancelled())
    assert ran == []


def test_what_a_plan_sets_in_its_context_holds_for_the_rest_of_it() -> None:
    """Also where it is resumed in a worker thread, and then on the event loop."""
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="nobody")
    seen: list[tuple[str, bool]] = []

    def note() -> None:
        seen.append((name.get(), threading.current_thread() is threading.main_thread()))

    def plan() -> Plan[None]:
        yield (Call("first", lambda: None, local=True, computes=True),)
        name.set("somebody")
        note()
        yield (Call("waits", lambda: None),)
        note()
        yield (Call("second", note, local=True, computes=True),)

    for _ in range(2):
        asyncio.run(aexecute(plan()))
    assert seen == [("somebody", False), ("somebody", True), ("somebody", False)] * 2
    assert name.get() == "nobody"


def test_what_computes_in_one_search_takes_one_hop_and_tells_meanwhile() -> None:
    """Its plans, too, go on there, and whoever watches is told of a call before the next one has ended."""
    threads: list[str] = []
    told, heard = threading.Event(), list[str]()

    def where(wait: bool = False) -> None:
        threads.append(threading.current_thread().name)
        assert not wait or told.wait(30)

    def plan() -> Plan[str]:
        yield (Call("one", where, local=True, computes=True),)
        threads.append(threading.current_thread().name)
        yield (Call("two", partial(where, wait=True), local=True, computes=True),)
        return "done"

    async def observe(span: Span, outcome: object) -> None:
        heard.append(span.name)
        told.set()

    assert asyncio.run(aexecute(plan(), observe=observe)) == "done"
    assert heard == ["one", "two"]
    assert len(threads) == 3
    assert len(set(threads)) == 1
    assert threads[0].startswith("voicevault-worker")


async def test_a_search_that_is_cancelled_while_it_computes_makes_no_further_call() -> None:
    inside, over, ran = threading.Event(), threading.Event(), list[str]()
    closed = threading.Event()

    def first() -> None:
        ran.append("first")
        inside.set()
        assert over.wait(30)

    def plan() -> Plan[None]:
        try:
            yield (Call("first", first, local=True, computes=True),)
            yield (Call("second", lambda: ran.append("second"), local=True, computes=True),)
        finally:
            closed.set()

    task = asyncio.create_task(aexecute(plan()))
    await asyncio.to_thread(inside.wait, 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not closed.is_set()  # its generator runs yet
    over.set()
    assert await asyncio.to_thread(closed.wait, 30)
    assert ran == ["first"]
