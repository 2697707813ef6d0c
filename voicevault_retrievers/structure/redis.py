"""Parents in Redis: JSON `{id, text, token_count, metadata}` under their ids, all of a query's in one round trip."""

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
    """The parent that a stored value is: JSON (text or bytes) or a mapping, with `text`, and perhaps `metadata`.

    The store's key says its id. None for what is no parent. `parent_id` is that of its own parent, where it has one.
    """
    told = value if isinstance(value, Mapping) else _json(value)
    if not isinstance(told, Mapping) or not isinstance(told.get("text"), str):
        return None
    above, metadata = told.get("parent_id"), told.get("metadata")
    return Chunk(
        parent_id,
        told["text"],
        above if isinstance(above, str) and above else None,
        metadata if isinstance(metadata, Mapping) else {},
    )


def json_of(parent: Chunk, count_tokens: TokenCounter = estimate_tokens) -> str:
    """What a store keeps of a parent. Raises ConfigError where its metadata are not JSON's."""
    above = {} if parent.parent_id is None else {"parent_id": parent.parent_id}
    told = {"id": parent.id, "text": parent.text, "token_count": count_tokens(parent.text), **above}
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
"""How many parents are written at once."""


class RedisParents:
    """A parent store in Redis, for `ParentExpansion`: under `key` JSON `{"id", "text", "token_count", "metadata"}`.

    `client` is the address of a server (`redis://host:6379/0`), or a client of redis-py, `decode_responses` or not.
    With an address, or a client that is not async, async searches ask in a worker thread. An async client serves the
    event loop that it belongs to, and no search that is not async. What is not such JSON counts as missing.

    `timeout` is for how many seconds a server that is given by its address may be silent; None waits. A client has its
    own. Raises ConfigError for a `key` without `{id}`, MissingExtraError where redis-py is not installed, and what
    redis-py raises where the server cannot be asked: the expansion then leaves the hits as they are, and says so.
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
        """The client of redis-py; one for an address is made when it is first used."""
        if not isinstance(self._given, str):
            return self._given
        redis, retry = require("redis", extra="redis"), require("redis.retry", extra="redis")
        # Once more where a connection that lay idle was closed meanwhile; never after a wait.
        once = retry.Retry(require("redis.backoff", extra="redis").NoBackoff(), 1, (redis.ConnectionError,))
        try:
            return redis.Redis.from_url(
                self._given, socket_timeout=self.timeout, socket_connect_timeout=self.timeout, retry=once
            )
        except ValueError as error:
            raise ConfigError(f"the address of a Redis is like redis://host:6379/0 ({error})") from error

    def fetch(self, ids: Sequence[str]) -> dict[str, Chunk]:
        """Those of the given parents that are here, by id."""
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
        """Write parents, each in the place of the one of its id; how many. They go after so many `seconds`, if given.

        Raises ConfigError for metadata that are not JSON's, before anything is written.
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
        """Remove parents; how many were here."""
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
        # Not decoded by the client: one value that is no text would cost the others.
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
            answer.close()  # type: ignore[attr-defined]  # a coroutine, which nobody will await
            raise ContextExpansionError(
                "these parents are kept by an async client: search with asearch or ainvoke, or give RedisParents the "
                "server's address"
            )
        return answer

    def __repr__(self) -> str:
        given = repr(mask_credentials(self._given)) if isinstance(self._given, str) else type(self._given).__name__
        return f"RedisParents({given}, key={self.key!r}, timeout={self.timeout})"


def _in_thread(function: Any) -> Plan[Any]:
    """A call that an event loop must not wait for."""
    (outcome,) = yield (Call("parents", function),)
    return value_of(outcome)
