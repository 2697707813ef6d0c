"""Connections to PostgreSQL: a pool for threads, and one pool for each event loop."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import WeakSet

from voicevault_retrievers._support.extras import require
from voicevault_retrievers._support.forks import leave_to_parent, reset_in_child
from voicevault_retrievers._support.mutex import Mutex
from voicevault_retrievers._support.per_loop import PerLoop
from voicevault_retrievers.engines.postgres.asking import Lost, SqlStatement, TooSlow, adone, bounded, done
from voicevault_retrievers.engines.postgres.texts import is_plain
from voicevault_retrievers.errors import ConfigError, SearchError, SearchNotAvailableError, SearchTimeoutError

TRIES = 6
"""How often a request is tried in all, after a lost connection or a conflict of transactions."""

CONNECTING = 10
"""The most seconds that connecting may take."""

SETTING = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
"""The syntax of PostgreSQL setting names."""

_SPACES = re.compile(r"[\\\s]")
_ESCAPED = r"\\\g<0>"
_AUTHORITY = re.compile("[a-z]+://[^/?]*")
_PORTS = re.compile("[0-9,]*")
_MARK = "voicevault.direct"
_DIRECT = f"SELECT current_setting('{_MARK}', true)"
_SET = "SELECT set_config(key, value, true) FROM json_each_text(%(settings)s::json)"
_NO_SETTINGS = "unsupported startup parameter"
"""What PgBouncer answers where a connection has settings."""
_AWAY = ("08", "28", "3D", "53300", "57P")
"""The beginnings of the SQLSTATEs that mean that a server cannot be used."""


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

    `settings` are set on each connection. A pooler, such as PgBouncer, may refuse or ignore them, and send each
    transaction over another connection. Behind one they are set in each transaction, and no statement is prepared: a
    statement takes three more round trips. Raises ConfigError for a `dsn` that libpq cannot parse.
    """

    def __init__(self, dsn: str, timeout: float | None, size: int, settings: Mapping[str, str]) -> None:
        self._given = _parts(dsn)
        self.timeout = timeout
        self.size = size
        limit = 0 if timeout is None else max(1, int(1000 * timeout))
        own = {
            "statement_timeout": str(limit),
            "jit": "off",  # compilation takes longer than these statements
            "plan_cache_mode": "force_custom_plan",  # a plan for any values compares each row with all that a list has
        }
        self._settings = {**own, **settings}
        self._set = SqlStatement(_SET, {"settings": json.dumps(self._settings)})
        self._pooler = False
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
                        return done(connection, ask, self._first, again=left < TRIES - 1)
                except Exception as error:  # noqa: BLE001 - raised again where another try is of no use
                    _check(error, left)
                    if isinstance(error, Lost):
                        self._drop(pool)
        return None

    async def aask(self, ask: Any) -> Any:
        """`ask` on the running event loop."""
        with self._errors():
            for left in reversed(range(TRIES)):
                opened = await self._aopened()
                try:
                    async with opened.pool.connection() as connection:
                        return await adone(connection, ask, self._first, again=left < TRIES - 1)
                except Exception as error:  # noqa: BLE001 - as above
                    _check(error, left)
                    if isinstance(error, Lost):
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
            self._try()
            with self._mutex:
                if self._pool is None:
                    self._pool = self._made("ConnectionPool", "Connection")
                    self._pool.open()
                pool = self._pool
        return pool

    async def _aopened(self) -> _LoopPool:
        if not self._of_loop.has():
            await self._atry()
        return await self._of_loop.get()

    def _try(self) -> None:
        """Connect once: raises errors at once, where a pool would wait, and notices a pooler."""
        known = self._pooler
        try:
            with self._class("Connection").connect(**self._options) as connection:
                self._pooler = connection.execute(_DIRECT).fetchone() != ("on",)
        except require("psycopg", extra="postgres").OperationalError as error:
            self._notice(error, known)
            self._try()

    async def _atry(self) -> None:
        """`_try` on the running event loop."""
        known = self._pooler
        try:
            async with await self._class("AsyncConnection").connect(**self._options) as connection:
                self._pooler = await (await connection.execute(_DIRECT)).fetchone() != ("on",)
        except require("psycopg", extra="postgres").OperationalError as error:
            self._notice(error, known)
            await self._atry()

    def _notice(self, error: Exception, known: bool) -> None:
        """Raises the error, unless it is of a pooler that was not known when the connection was asked for."""
        if known or _NO_SETTINGS not in str(error):
            raise error
        self._pooler = True

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

    @property
    def _first(self) -> SqlStatement | None:
        """What sets the settings in each transaction, behind a pooler."""
        return self._set if self._pooler else None

    @property
    def _options(self) -> Mapping[str, Any]:
        told = {} if self._pooler else {**self._settings, _MARK: "on"}
        settings = [f"-c {name}={_SPACES.sub(_ESCAPED, value)}" for name, value in told.items()]
        patience = CONNECTING if self.timeout is None else max(2, min(CONNECTING, int(self.timeout)))
        return {
            "connect_timeout": patience,
            **self._given,
            "options": " ".join(filter(None, [self._given.get("options"), *settings])),
            "client_encoding": "utf8",
            "autocommit": True,
            **({"prepare_threshold": None} if self._pooler else {}),
        }

    def _class(self, name: str) -> Any:
        return bounded(getattr(require("psycopg", extra="postgres"), name), self.timeout)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        psycopg, pools = require("psycopg", extra="postgres"), require("psycopg_pool", extra="postgres")
        try:
            yield
        except psycopg.errors.LockNotAvailable as error:
            raise SearchTimeoutError(
                f"what was to be changed at {self.place} was in use by others for {self.timeout} s: try again"
            ) from error
        except (psycopg.errors.QueryCanceled, TooSlow) as error:
            raise SearchTimeoutError(f"{self.place} did not answer within {self.timeout} s") from error
        except pools.PoolTimeout as error:
            raise SearchTimeoutError(
                f"all {self.size} connections to {self.place} were busy for {self.timeout} s: give a larger size=... "
                "or ask less at once"
            ) from error
        except (Lost, pools.PoolClosed) as error:
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
    passing = (states.DeadlockDetected, states.SerializationFailure, states.UniqueViolation, pools.PoolClosed, Lost)
    if not left or not isinstance(error, passing):
        raise error
