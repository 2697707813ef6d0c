"""Parent stores and graph stores by address, as presets and command lines name them."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.structure.graph.falkordb import FalkorDBGraph
from voicevault_retrievers.structure.graph.neo4j import Neo4jGraph
from voicevault_retrievers.structure.redis import RedisParents

_REDIS = ("redis", "rediss", "unix")
_FALKORDB = {"falkor": False, "falkors": True}
_NEO4J = ("bolt", "bolt+s", "bolt+ssc", "neo4j", "neo4j+s", "neo4j+ssc")
_SCHEME = re.compile(r"([a-z][a-z0-9+.\-]*)://")


def parent_store(address: str, **options: Any) -> RedisParents:
    """The parents in a Redis: `redis://[user:password@]host:port/0`, `rediss://` for TLS, `unix://` for a socket.

    `options` are those of `RedisParents`. Raises ConfigError for any other address, without repeating it, as it may
    hold a password.
    """
    parts = _parts("a store of parents", address, _REDIS)
    options_given = dict(_options(parts))
    if "password" in options_given:
        raise ConfigError("the password of a Redis stands before the host or the socket: redis://:password@host:6379/0")
    if unknown := sorted(options_given.keys() - {"db"}):
        raise ConfigError(f"{parts.scheme}:// takes db behind ?, not {unknown[0]!r}")
    number = parts.path.strip("/")
    if parts.scheme != "unix" and number and not number.isdecimal():
        raise ConfigError("the address of a Redis ends in the number of a database: redis://host:6379/0")
    return RedisParents(address, **options)


def graph_store(address: str, *, timeout: float | None = 5.0) -> FalkorDBGraph | Neo4jGraph:
    """A named graph on a server: `falkor://[user:password@]host:6379/name` in a FalkorDB (`falkors://` for TLS).

    `bolt://`, `neo4j://` and these with `+s` or `+ssc` address a Neo4j: `neo4j+s://user:password@host:7687/name`, where
    `?database=` names the database. `timeout` is in seconds, for each statement and for connecting; None waits. Raises
    ConfigError for any other address, without repeating it, as it may hold a password.
    """
    parts = _parts("a graph", address, (*_FALKORDB, *_NEO4J))
    name = unquote(parts.path[1:])
    if not name or not parts.hostname:
        raise ConfigError(f"the address of a graph ends in its name: {parts.scheme}://host:port/name")
    options = dict(_options(parts))
    known = ("database",) if parts.scheme in _NEO4J else ()
    if unknown := sorted(options.keys() - set(known)):
        raise ConfigError(f"{parts.scheme}:// takes {' and '.join(known) or 'no options'} behind ?, not {unknown[0]!r}")
    return _neo4j(name, parts, options, timeout) if parts.scheme in _NEO4J else _falkordb(name, parts, timeout)


def _falkordb(name: str, parts: SplitResult, timeout: float | None) -> FalkorDBGraph:
    return FalkorDBGraph(
        name,
        host=parts.hostname or "",
        port=parts.port or 6379,
        username=_unquoted(parts.username),
        password=_unquoted(parts.password),
        ssl=_FALKORDB[parts.scheme],
        timeout=timeout,
    )


def _neo4j(name: str, parts: SplitResult, options: dict[str, str], timeout: float | None) -> Neo4jGraph:
    auth = None if parts.username is None else (unquote(parts.username), unquote(parts.password or ""))
    uri = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    return Neo4jGraph(name, uri=uri, auth=auth, database=options.get("database"), timeout=timeout)


def _parts(what: str, address: Any, schemes: tuple[str, ...]) -> SplitResult:
    """The parts of an address with one of these schemes; ConfigError for any other."""
    scheme = _SCHEME.match(address) if isinstance(address, str) else None
    if scheme is None or scheme[1] not in schemes:
        found = "one without a scheme" if scheme is None else f"{scheme[1]}://"
        raise ConfigError(f"the address of {what} begins with {_listed(schemes)}, not {found}")
    try:
        parts: SplitResult = urlsplit(address)
        whole = "@" not in f"{parts.path}{parts.query}{parts.fragment}" and parts.port != 0
    except ValueError:
        whole = False
    if not whole:
        raise ConfigError(
            f"the address of {what} is like {scheme[1]}://user:password@host:port/name; in a user's name or a password "
            "each of / ? # @ : [ ] % is written as %2F and so on"
        )
    return parts


def _options(parts: SplitResult) -> list[tuple[str, str]]:
    return parse_qsl(parts.query, keep_blank_values=True)


def _unquoted(text: str | None) -> str | None:
    return unquote(text) if text else None


def _listed(schemes: tuple[str, ...]) -> str:
    return f"{', '.join(f'{one}://' for one in schemes[:-1])} or {schemes[-1]}://"
