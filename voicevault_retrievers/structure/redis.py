"""Parents in Redis, as JSON `{id, text, token_count, metadata}` by id, all of a query's in one round trip."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from inspect import isawaitable
from typing import Any

from voicevault_retrievers._support.checks import seconds_or_none, whole_or_none
from voicevault_retrievers._support.extras import require
from voicevault_retrievers._support.hosts import mask_credentials
from voicevault_retrievers.core.execution.driver import aexecute
from voicevault_retrievers.core.execution.plan import Call, Plan, value_of
from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.errors import ConfigError, ContextExpansionError
from voicevault_retrievers.text.tokens import TokenCounter, estimate_tokens


def parent_of(parent_id: str, value: Any) -> Chunk | None:
    """The parent in a stored value: JSON (text or bytes) or a mapping, with `text`.

    `metadata` and `header` are optional.

    The argument `parent_id` is the parent's own id, from the store's key; the value's `parent_id` is that of its
    parent. None for an invalid value.
    """
    told = value if isinstance(value, Mapping) else _json(value)
    if not isinstance(told, Mapping) or not isinstance(told.get("text"), str):
        return None
    above, metadata, header = told.get("parent_id"), told.get("metadata"), told.get("header")
    return Chunk(
        parent_id,
        told["text"],
        above if isinstance(above, str) and above else None,
        metadata if isinstance(metadata, Mapping) else {},
        header=header if isinstance(header, str) else "",
    )


def json_of(parent: Chunk, count_tokens: TokenCounter = estimate_tokens) -> str:
    """The stored JSON of a parent. Raises ConfigError where its metadata are not JSON values."""
    others = {key: value for key, value in (("parent_id", parent.parent_id), ("header", parent.header)) if value}
    told = {"id": parent.id, "text": parent.text, "token_count": count_tokens(parent.text), **others}
    try:
        return json.dumps({**told, "metadata": dict(parent.metadata)}, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"the metadata of parent {parent.id!r} cannot be kept as JSON ({error}): use strings, finite numbers, "
            "booleans, None, and lists and dicts of these"
        ) from error


def _json(value: Any) -> Any:
    try:
        return json.loads(value)
    except (TypeError, ValueError, RecursionError):
        return None


TIMEOUT = 2.0
BATCH = 500
"""How many parents are written in one request."""


class RedisParents:
    """A parent store in Redis, for `ParentExpansion`: JSON `{"id", "text", "token_count", "metadata"}` under `key`.

    `client` is the address of a server (`redis://host:6379/0`), or a client of redis-py, with or without
    `decode_responses`. With an address or a sync client, async searches use a worker thread. An async client serves
    only async searches, on its own event loop. Values that are not such JSON count as missing.

    `timeout` is in seconds, for each answer of a server given by address; None waits. A client has its own. Raises
    ConfigError for a `key` without `{id}`, MissingExtraError where redis-py is not installed, and what redis-py raises
    where the server is unavailable: the expansion then leaves the hits unchanged, with a failure.
    """

    def __init__(self, client: Any, *, key: str = "parent:{id}", timeout: float | None = TIMEOUT) -> None:
        if not isinstance(key, str) or key.count("{id}") != 1:
            raise ConfigError(
                f"key says where a parent is, with {{id}} once in it, such as 'parent:{{id}}', not {key!r}"
            )
        if not isinstance(client, str) and not callable(getattr(client, "execute_command", None)):
            raise ConfigError(
                f"client is the address of a Redis or a client of redis-py, not a {type(client).__name__}"
            )
        self._given = client
        self.key = key
        self.timeout = seconds_or_none("timeout", timeout)

    @cached_property
    def client(self) -> Any:
        """The client of redis-py; for an address it is created at first use."""
        if not isinstance(self._given, str):
            return self._given
        redis, retry = require("redis", extra="redis"), require("redis.retry", extra="redis")
        # Retries once, where an idle connection was closed meanwhile; never after a timeout.
        once = retry.Retry(require("redis.backoff", extra="redis").NoBackoff(), 1, (redis.ConnectionError,))
        try:
            return redis.Redis.from_url(
                self._given, socket_timeout=self.timeout, socket_connect_timeout=self.timeout, retry=once
            )
        except ValueError as error:
            raise ConfigError(f"the address of a Redis is like redis://host:6379/0 ({error})") from error

    def fetch(self, ids: Sequence[str]) -> dict[str, Chunk]:
        """The given parents that exist, by id."""
        wanted = list(dict.fromkeys(ids))
        return self._found(wanted, self._now(self._asked(wanted))) if wanted else {}

    async def afetch(self, ids: Sequence[str]) -> dict[str, Chunk]:
        """`fetch` on the running event loop."""
        wanted = list(dict.fromkeys(ids))
        if not wanted:
            return {}
        if not self._is_async:
            return await aexecute(_in_thread(partial(self.fetch, wanted)))
        return self._found(wanted, await self._asked(wanted))

    def put(
        self, parents: Iterable[Chunk], *, seconds: int | None = None, count_tokens: TokenCounter = estimate_tokens
    ) -> int:
        """Write parents, replacing those with the same id; returns how many. They expire after `seconds`, if given.

        Raises ConfigError for metadata that are not JSON values, before anything is written.
        """
        return sum(len(self._now(batch.execute())) for batch in self._batches(parents, seconds, count_tokens))

    async def aput(
        self, parents: Iterable[Chunk], *, seconds: int | None = None, count_tokens: TokenCounter = estimate_tokens
    ) -> int:
        """`put` on the running event loop."""
        if not self._is_async:
            return int(
                await aexecute(_in_thread(partial(self.put, parents, seconds=seconds, count_tokens=count_tokens)))
            )
        return sum([len(await batch.execute()) for batch in self._batches(parents, seconds, count_tokens)])

    def delete(self, ids: Iterable[str]) -> int:
        """Remove parents; returns how many were removed."""
        keys = [self._key(parent_id) for parent_id in ids]
        return int(self._now(self.client.delete(*keys))) if keys else 0

    async def adelete(self, ids: Iterable[str]) -> int:
        """`delete` on the running event loop."""
        wanted = list(ids)
        if not self._is_async:
            return int(await aexecute(_in_thread(partial(self.delete, wanted))))
        keys = [self._key(parent_id) for parent_id in wanted]
        return int(await self.client.delete(*keys)) if keys else 0

    def _batches(self, parents: Iterable[Chunk], seconds: int | None, count_tokens: TokenCounter) -> list[Any]:
        seconds = whole_or_none("seconds", seconds)
        entries = [(self._key(parent.id), json_of(parent, count_tokens)) for parent in parents]
        batches = []
        for start in range(0, len(entries), BATCH):
            batch = self.client.pipeline(transaction=False)
            for key, value in entries[start : start + BATCH]:
                batch.set(key, value, ex=seconds)
            batches.append(batch)
        return batches

    def _asked(self, ids: Sequence[str]) -> Any:
        # The client must not decode: one value that is not UTF-8 would make all fail.
        return self.client.execute_command("MGET", *map(self._key, ids), NEVER_DECODE=True)

    def _found(self, ids: Sequence[str], values: Sequence[Any]) -> dict[str, Chunk]:
        found = {parent_id: parent_of(parent_id, value) for parent_id, value in zip(ids, values, strict=True)}
        return {parent_id: parent for parent_id, parent in found.items() if parent is not None}

    def _key(self, parent_id: str) -> str:
        return self.key.replace("{id}", parent_id)

    @property
    def _is_async(self) -> bool:
        if isinstance(self._given, str):
            return False
        return isinstance(self._given, require("redis.asyncio", extra="redis").Redis)

    def _now(self, answer: Any) -> Any:
        if isawaitable(answer):
            answer.close()  # type: ignore[attr-defined]  # closes the coroutine, which is never awaited
            raise ContextExpansionError(
                "these parents are kept by an async client: search with asearch or ainvoke, or give RedisParents the "
                "server's address"
            )
        return answer

    def __repr__(self) -> str:
        given = repr(mask_credentials(self._given)) if isinstance(self._given, str) else type(self._given).__name__
        return f"RedisParents({given}, key={self.key!r}, timeout={self.timeout})"


def _in_thread(function: Any) -> Plan[Any]:
    """A call in a worker thread, so that an event loop does not block."""
    (outcome,) = yield (Call("parents", function),)
    return value_of(outcome)
