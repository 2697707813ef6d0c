"""Statements and transactions over one connection, sync and async."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any

from voicevault_retrievers._support.extras import require
from voicevault_retrievers.core.execution.steps import Steps, arun, run

GRACE = 2.0
"""Seconds beyond the timeout in which a server has to cancel a statement itself."""


@dataclass(frozen=True, eq=False)
class SqlStatement:
    """One statement; its result is its rows, or the number of changed rows."""

    text: Any
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class CopiedRows:
    """Rows for a table, in the binary format of COPY."""

    text: Any
    data: bytes


@dataclass(frozen=True, eq=False)
class Transaction:
    """The steps of one transaction. They may be run again from the start, and receive whether they are.

    An `unhurried` transaction has no statement timeout, but the usual timeout for locks.
    """

    steps: Callable[[bool], Steps[Any]]
    unhurried: bool = False


class Lost(Exception):  # noqa: N818 - a `Pools` raises another in its place
    """The connection was lost."""


class TooSlow(Exception):  # noqa: N818 - as above
    """The server does not answer in time."""


def bounded(base: Any, timeout: float | None) -> Any:
    """A connection class that waits for the server at most `timeout` seconds and `GRACE`."""

    class Bounded(base):  # type: ignore[misc]  # a class of psycopg's
        unhurried = False

        def wait(self, steps: Any, *args: Any, **options: Any) -> Any:
            timed = steps if timeout is None or self.unhurried else _until(steps, timeout + GRACE, self)
            return super().wait(timed, *args, **options)

    return Bounded


def _until(steps: Any, seconds: float, connection: Any) -> Generator[Any, Any, Any]:
    end = monotonic() + seconds
    try:
        wanted = next(steps)
        while True:
            ready = yield wanted
            if not ready and monotonic() > end:
                steps.close()
                connection.pgconn.finish()
                raise TooSlow
            wanted = steps.send(ready)
    except StopIteration as stop:
        return stop.value


@contextmanager
def _noticing(connection: Any, ask: Any) -> Iterator[None]:
    connection.unhurried = isinstance(ask, Transaction) and ask.unhurried
    try:
        yield
    except require("psycopg", extra="postgres").OperationalError as error:
        if connection.closed:
            raise Lost from error
        raise


_UNHURRIED = SqlStatement(
    "SELECT set_config('lock_timeout', current_setting('statement_timeout'), true), "
    "set_config('statement_timeout', '0', true)"
)


def _asked(ask: Any, first: SqlStatement | None, *, again: bool) -> Steps[Any]:
    """The steps of a transaction, of which `first` is the first one."""
    if first is not None:
        yield first
    if not isinstance(ask, Transaction):
        return (yield ask)
    if ask.unhurried:
        yield _UNHURRIED
    return (yield from ask.steps(again))


def done(connection: Any, ask: Any, first: SqlStatement | None, *, again: bool) -> Any:
    """The result of a statement or a transaction; with a `first` statement either is one transaction after it."""
    with _noticing(connection, ask):
        if first is None and not isinstance(ask, Transaction):
            return _executed(connection, ask)
        with connection.transaction():
            return run(_asked(ask, first, again=again), partial(_executed, connection))


async def adone(connection: Any, ask: Any, first: SqlStatement | None, *, again: bool) -> Any:
    """`done` on the running event loop."""
    with _noticing(connection, ask):
        if first is None and not isinstance(ask, Transaction):
            return await _aexecuted(connection, ask)
        async with connection.transaction():
            return await arun(_asked(ask, first, again=again), partial(_aexecuted, connection))


def _executed(connection: Any, step: Any) -> Any:
    if isinstance(step, CopiedRows):
        with connection.cursor() as cursor, cursor.copy(step.text) as copy:
            copy.write(step.data)
        return None
    cursor = connection.execute(step.text, step.parameters or None)
    return cursor.fetchall() if cursor.description else cursor.rowcount


async def _aexecuted(connection: Any, step: Any) -> Any:
    if isinstance(step, CopiedRows):
        async with connection.cursor() as cursor, cursor.copy(step.text) as copy:
            await copy.write(step.data)
        return None
    cursor = await connection.execute(step.text, step.parameters or None)
    return await cursor.fetchall() if cursor.description else cursor.rowcount
