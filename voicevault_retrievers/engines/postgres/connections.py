"""Connections to PostgreSQL: a pool for threads, and one pool for each event loop."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from time import monotonic
from typing import Any, NamedTuple
from weakref import WeakSet

from voicevault_retrievers._support.extras import require
from voicevault_retrievers._support.forks import leave_to_parent, reset_in_child
from voicevault_retrievers._support.mutex import Mutex
from voicevault_retrievers._support.per_loop import PerLoop
from voicevault_retrievers.core.execution.steps import Steps, arun, run
from voicevault_retrievers.engines.postgres.texts import is_plain
from voicevault_retrievers.errors import ConfigError, SearchError, SearchNotAvailableError, SearchTimeoutError

TRIES = 6
"""How often a request is tried in all, after a lost connection or a conflict of transactions."""

CONNECTING = 10
"""The most seconds that connecting may take."""

GRACE = 2.0
"""Seconds beyond the timeout in which a server has to cancel a statement itself."""

SETTING = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
"""The syntax of PostgreSQL setting names."""

_SPACES = re.compile(r"[\\\s]")
_ESCAPED = r"\\\g<0>"
_AUTHORITY = re.compile("[a-z]+://[^/?]*")
_PORTS = re.compile("[0-9,]*")
_AWAY = ("08", "28", "3D", "53300", "57P")
"""The beginnings of the SQLSTATEs that mean that a server cannot be used."""


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


class _Lost(Exception):  # noqa: N818 - never leaves this module
    """The connection was lost."""


class _TooSlow(Exception):  # noqa: N818 - as above
    """The server does not answer in time."""


class _LoopPool(NamedTuple):
    """The pool of an event loop, and the connections that it made."""

    pool: Any
    made: WeakSet[Any]

    async def close(self) -> None:
        """Close the pool; where its workers were cancelled, as at the end of a loop, psycopg leaves the rest open."""
        try:
            await self.pool.close()
        except asyncio.CancelledError:
            for connection in list(self.made):
                await connection.close()
            raise


class Pools:
    """The connections to one database; `size` is the most for threads, and for each event loop.

    `settings` are set on each connection. Raises ConfigError for a `dsn` that libpq cannot parse.
    """

    def __init__(self, dsn: str, timeout: float | None, size: int, settings: Mapping[str, str]) -> None:
        self._given = _parts(dsn)
        self.timeout = timeout
        self.size = size
        self._settings = settings
        self._mutex = Mutex()
        self._pool: Any = None
        self._of_loop: PerLoop[_LoopPool] = PerLoop(self._apool, _LoopPool.close)
        reset_in_child(self, Pools._forked)

    @property
    def place(self) -> str:
        """The server's address, for messages."""
        return f"PostgreSQL at {self._given.get('host', 'localhost')}:{self._given.get('port', 5432)}"

    def ask(self, ask: Any) -> Any:
        """Run a statement or a transaction, and wait for the result."""
        with self._errors():
            for left in reversed(range(TRIES)):
                pool = self._opened()
                try:
                    with pool.connection() as connection:
                        return _done(connection, ask, again=left < TRIES - 1)
                except Exception as error:  # noqa: BLE001 - raised again where another try is of no use
                    _check(error, left)
                    if isinstance(error, _Lost):
                        self._drop(pool)
        return None

    async def aask(self, ask: Any) -> Any:
        """`ask` on the running event loop."""
        with self._errors():
            for left in reversed(range(TRIES)):
                opened = await self._aopened()
                try:
                    async with opened.pool.connection() as connection:
                        return await _adone(connection, ask, again=left < TRIES - 1)
                except Exception as error:  # noqa: BLE001 - as above
                    _check(error, left)
                    if isinstance(error, _Lost):
                        await self._of_loop.aclose(opened)
        return None

    def close(self) -> None:
        """Close the connections of threads; the next statement opens one again."""
        self._drop(self._pool)

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        await self._of_loop.aclose()

    def _opened(self) -> Any:
        pool = self._pool
        if pool is None:
            self._class("Connection").connect(**self._options).close()  # raises errors at once, where a pool would wait
            with self._mutex:
                if self._pool is None:
                    self._pool = self._made("ConnectionPool", "Connection")
                    self._pool.open()
                pool = self._pool
        return pool

    async def _aopened(self) -> _LoopPool:
        if not self._of_loop.has():
            await (await self._class("AsyncConnection").connect(**self._options)).close()
        return await self._of_loop.get()

    async def _apool(self) -> _LoopPool:
        """A pool; `PerLoop` closes it when its loop ends.

        That the pool's workers are cancelled then is not enough: `asyncio.wait_for` of Python 3.10 and 3.11 may swallow
        it, and then a worker ends only when its pool is closed.
        """
        made: WeakSet[Any] = WeakSet()

        async def noted(connection: Any) -> None:
            made.add(connection)

        pool = self._made("AsyncConnectionPool", "AsyncConnection", configure=noted)
        await pool.open()  # does not wait, so that no other task opens a pool meanwhile
        return _LoopPool(pool, made)

    def _made(self, pool: str, connection: str, **options: Any) -> Any:
        made = getattr(require("psycopg_pool", extra="postgres"), pool)
        return made(
            kwargs=self._options,
            connection_class=self._class(connection),
            min_size=0,
            max_size=self.size,
            timeout=30.0 if self.timeout is None else self.timeout,
            reconnect_timeout=CONNECTING,
            open=False,
            **options,
        )

    def _drop(self, pool: Any) -> None:
        with self._mutex:
            mine = pool is self._pool
            self._pool = None if mine else self._pool
        if mine and pool is not None:
            pool.close()

    def _forked(self) -> None:
        leave_to_parent(self._pool)
        self._pool = None

    @cached_property
    def _options(self) -> Mapping[str, Any]:
        limit = 0 if self.timeout is None else max(1, int(1000 * self.timeout))
        own = {"statement_timeout": str(limit), "jit": "off"}  # JIT compilation takes longer than these statements
        settings = [f"-c {name}={_SPACES.sub(_ESCAPED, value)}" for name, value in {**own, **self._settings}.items()]
        patience = CONNECTING if self.timeout is None else max(2, min(CONNECTING, int(self.timeout)))
        return {
            "connect_timeout": patience,
            **self._given,
            "options": " ".join(filter(None, [self._given.get("options"), *settings])),
            "client_encoding": "utf8",
            "autocommit": True,
        }

    def _class(self, name: str) -> Any:
        return _bounded(getattr(require("psycopg", extra="postgres"), name), self.timeout)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        psycopg, pools = require("psycopg", extra="postgres"), require("psycopg_pool", extra="postgres")
        try:
            yield
        except psycopg.errors.LockNotAvailable as error:
            raise SearchTimeoutError(
                f"what was to be changed at {self.place} was in use by others for {self.timeout} s: try again"
            ) from error
        except (psycopg.errors.QueryCanceled, _TooSlow) as error:
            raise SearchTimeoutError(f"{self.place} did not answer within {self.timeout} s") from error
        except pools.PoolTimeout as error:
            raise SearchTimeoutError(
                f"all {self.size} connections to {self.place} were busy for {self.timeout} s: give a larger size=... "
                "or ask less at once"
            ) from error
        except (_Lost, pools.PoolClosed) as error:
            raise SearchNotAvailableError(f"{self.place} broke the connection off") from error
        except psycopg.Error as error:
            if isinstance(error, psycopg.OperationalError) and (error.sqlstate or "08").startswith(_AWAY):
                raise SearchNotAvailableError(f"{self.place} cannot be used: {self._told(error)}") from error
            raise SearchError(f"{self.place} refused a statement: {self._told(error)}") from error

    def _told(self, error: Exception) -> str:
        password = self._given.get("password")
        return str(error).replace(password, "***") if password else str(error)


def settings_of(given: Any) -> dict[str, str]:
    """Checked PostgreSQL settings by name; ConfigError, which does not repeat values, for an invalid one."""
    if given is not None and not isinstance(given, Mapping):
        raise ConfigError('settings are a mapping of names to strings, such as {"work_mem": "64MB"}')
    found = dict(given or {})
    for name, value in found.items():
        if not isinstance(name, str) or not SETTING.fullmatch(name):
            raise ConfigError(f"a setting of PostgreSQL has a name such as work_mem or voicevault.user, not {name!r}")
        if not is_plain(value):
            raise ConfigError(f"the setting {name} is a string that PostgreSQL can hold: write a number as one")
    return found


def misread() -> ConfigError:
    """The error for an invalid address, which repeats nothing of it: any part may belong to a password."""
    return ConfigError(
        "the address of a PostgreSQL is like postgresql://user:password@host:5432/database; in a user's name or a "
        "password each of / ? # @ : [ ] % is written as %2F and so on"
    )


def _parts(dsn: str) -> Mapping[str, Any]:
    psycopg = require("psycopg", extra="postgres")
    if isinstance(dsn, str) and dsn.startswith(("postgres://", "postgresql://")):
        found = _AUTHORITY.match(dsn)
        if found is None or "@" in dsn[found.end() :] or found[0].count("@") > 1:
            raise misread()
    try:
        given: dict[str, Any] = dict(psycopg.conninfo.conninfo_to_dict(dsn)) if isinstance(dsn, str) else {}
    except psycopg.ProgrammingError:  # the message may hold the password
        given = {}
    if not given or not _PORTS.fullmatch(str(given.get("port", ""))):
        raise misread()
    return given


def _check(error: Exception, left: int) -> None:
    """Raises the error where retrying cannot help, or no try is left."""
    psycopg, pools = require("psycopg", extra="postgres"), require("psycopg_pool", extra="postgres")
    states = psycopg.errors
    passing = (states.DeadlockDetected, states.SerializationFailure, states.UniqueViolation, pools.PoolClosed, _Lost)
    if not left or not isinstance(error, passing):
        raise error


def _bounded(base: Any, timeout: float | None) -> Any:
    """A connection class that waits for the server at most `timeout` seconds and `GRACE`."""

    class Bounded(base):  # type: ignore[misc]  # a class of psycopg's
        unhurried = False

        def wait(self, steps: Any, *args: Any, **options: Any) -> Any:
            bounded = steps if timeout is None or self.unhurried else _until(steps, timeout + GRACE, self)
            return super().wait(bounded, *args, **options)

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
                raise _TooSlow
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
            raise _Lost from error
        raise


_UNHURRIED = SqlStatement(
    "SELECT set_config('lock_timeout', current_setting('statement_timeout'), true), "
    "set_config('statement_timeout', '0', true)"
)


def _done(connection: Any, ask: Any, *, again: bool) -> Any:
    with _noticing(connection, ask):
        if not isinstance(ask, Transaction):
            return _executed(connection, ask)
        with connection.transaction():
            if ask.unhurried:
                _executed(connection, _UNHURRIED)
            return run(ask.steps(again), partial(_executed, connection))


async def _adone(connection: Any, ask: Any, *, again: bool) -> Any:
    with _noticing(connection, ask):
        if not isinstance(ask, Transaction):
            return await _aexecuted(connection, ask)
        async with connection.transaction():
            if ask.unhurried:
                await _aexecuted(connection, _UNHURRIED)
            return await arun(ask.steps(again), partial(_aexecuted, connection))


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
