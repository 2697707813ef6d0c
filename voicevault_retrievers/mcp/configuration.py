"""What a server offers, and to whom: knowledge bases by name, and clients by their tokens.

```yaml
version: 1
bases:
  plant: {}                              # all of it, as the preset finds it
  cases:
    description: Closed cases, by year.  # for the model, which picks a base by it
    root: ../kbs                         # paths are below the folder of this file
    preset: legal
    k: 8
    where: {status: closed}              # narrows what is found
    require: {public: true}              # access: what does not pass does not exist
  archive:
    address: ${ARCHIVE}                  # an engine's collection
clients:                                 # over HTTP; without them all bases are for whoever connects
  desk: {token: "${DESK_TOKEN}", bases: [plant, cases]}
  guest: {token: "${GUEST_TOKEN}", bases: [plant], require: {public: true}}
hosts: [search.example.org]              # by which names, beside its address, clients call the server
max_tokens: 8000                         # of an answer to a model
```

`${NAME}` reads the environment; a token is always read from there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from voicevault_retrievers._support import yaml_texts
from voicevault_retrievers._support.checks import header, whole, whole_or_none
from voicevault_retrievers.core.filters import Filter, Predicate, canonical, compile_filter, says_nothing, scope
from voicevault_retrievers.engines.addresses import is_address
from voicevault_retrievers.errors import AccessError, ConfigError, unknown
from voicevault_retrievers.pipeline.presets import load_preset
from voicevault_retrievers.pipeline.presets.sections import filled, section
from voicevault_retrievers.store.names import check_name

VERSION = 1
PRESET = "voicevault"
MAX_TOKENS = 8000
SHORTEST = 16
"""The fewest characters of a token: shorter ones can be guessed."""

_VARIABLE = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True)
class Offer:
    """A knowledge base as offered to one client, under `name`; `address` is that of an engine's collection.

    `require` are the client's access rights: chunks that do not pass do not exist for it. `where` narrows what is
    found, listed and read, without changing the statistics.
    """

    name: str
    preset: str = PRESET
    root: Path | None = None
    address: str | None = field(default=None, repr=False)
    k: int | None = None
    where: Filter | None = None
    require: Filter | None = None
    description: str = ""

    @property
    def group(self) -> tuple[Any, ...]:
        """The settings that bases searched as one have in common."""
        return self.address, self.root, self.preset, self.k, canonical(self.where), canonical(self.require)

    @cached_property
    def permits(self) -> Predicate:
        """Whether the client may read a text with the given metadata."""
        return compile_filter(scope(self.require))

    @cached_property
    def passes(self) -> Predicate:
        """Whether a chunk with the given metadata is visible to the client."""
        narrowed = compile_filter(self.where)
        return lambda metadata: self.permits(metadata) and narrowed(metadata)


@dataclass(frozen=True)
class Client:
    """A client with its offers."""

    name: str
    offers: tuple[Offer, ...]
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Configuration:
    """The clients, each with a token; or a single client without one, for anyone who connects."""

    clients: tuple[Client, ...]
    hosts: tuple[str, ...] = ()
    max_tokens: int = MAX_TOKENS

    def __post_init__(self) -> None:
        for client in self.clients:
            for offer in client.offers:
                if offer.require is None and load_preset(offer.preset).access == "mandatory":
                    raise AccessError(
                        f"base {offer.name!r} is offered to {client.name!r} without access rights, which its preset "
                        f"{offer.preset!r} has as mandatory: give the base, or the client, a `require` in --config FILE"
                    )

    @property
    def guarded(self) -> bool:
        """Whether clients are identified by tokens."""
        return all(client.token for client in self.clients)

    @property
    def local(self) -> Client:
        """The only client, without a token; ConfigError where clients have tokens."""
        if self.guarded:
            raise ConfigError(
                "clients are told apart by their tokens, over HTTP: give --http, or a configuration without clients"
            )
        return self.clients[0]


def local(kbs: Sequence[str], *, preset: str = PRESET, root: Path | None = None) -> Configuration:
    """Knowledge bases for anyone who connects; ConfigError for no name, a repeated name, or an invalid one."""
    if any(map(is_address, kbs)):
        raise ConfigError("an engine's address may hold a password: give the collection a name in --config FILE")
    names = [check_name(name) for name in kbs]
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"name at least one knowledge base, and each once, not {names}")
    load_preset(preset)
    return Configuration((Client("local", tuple(Offer(name, preset, root) for name in names)),))


def load_configuration(path: Path, *, preset: str = PRESET, root: Path | None = None) -> Configuration:
    """The configuration in a YAML file; `preset` and `root` are the defaults of bases.

    Raises ConfigError for unknown or malformed settings, and for accidental openness, such as an empty `require`.
    """
    try:
        data = yaml_texts.read(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    given = section("configuration", data, "version", "bases", "clients", "hosts", "max_tokens")
    if given.get("version") != VERSION or isinstance(given["version"], bool):
        raise ConfigError(f"the configuration says `version: {VERSION}`; this one has {given.get('version')!r}")
    bases = {
        check_name(str(name)): _offer(str(name), filled(one), path.parent, Offer("", preset, root))
        for name, one in _named("bases", given.get("bases")).items()
    }
    if not bases:
        raise ConfigError("the configuration names no bases: give `bases: {NAME: {}}`")
    return Configuration(
        _clients(given, bases), tuple(_texts("hosts", given)), whole("max_tokens", given.get("max_tokens", MAX_TOKENS))
    )


def _offer(name: str, data: Any, folder: Path, default: Offer) -> Offer:
    kind = f"base {name!r}"
    given = section(kind, data, "address", "description", "k", "preset", "require", "root", "where")
    address, preset = given.get("address"), str(given.get("preset", default.preset))
    if address is not None and (not is_address(address) or "root" in given):
        raise ConfigError(f"{kind}: address is an engine's, SCHEME://..., and has no root beside it")
    if "preset" in given and Path(preset).suffix in (".yaml", ".yml"):
        preset = str(folder / preset)
    load_preset(preset)
    return Offer(
        name=check_name(name),
        preset=preset,
        root=folder / Path(str(given["root"])).expanduser() if "root" in given else default.root,
        address=address,
        k=whole_or_none(f"k of {kind}", given.get("k")),
        where=_filter(f"where of {kind}", given, "where"),
        require=_filter(f"require of {kind}", given, "require"),
        description=" ".join(str(given.get("description", "")).split()),
    )


def _clients(given: Mapping[str, Any], bases: Mapping[str, Offer]) -> tuple[Client, ...]:
    if "clients" not in given:
        return (Client("local", tuple(bases.values())),)
    clients = tuple(_client(str(name), one, bases) for name, one in _named("clients", given["clients"]).items())
    if not clients:
        raise ConfigError("clients names none, so nobody could connect: give some, or leave it out")
    if len({client.token for client in clients}) < len(clients):
        raise ConfigError("two clients have one token: each needs its own")
    return clients


def _client(name: str, data: Any, bases: Mapping[str, Offer]) -> Client:
    kind = f"client {name!r}"
    given = section(kind, data, "bases", "require", "token")
    wanted = [check_name(one) for one in _texts("bases", given)]
    for one in wanted:
        if one not in bases:
            raise unknown(f"base of {kind}", one, bases)
    if not wanted or len(set(wanted)) < len(wanted):
        raise ConfigError(f"{kind}: bases is a list of at least one, each once, not {wanted}")
    rights = _filter(f"require of {kind}", filled({"require": given.get("require")}), "require", "require" in given)
    offers = tuple(replace(bases[one], require=scope(bases[one].require, rights)) for one in wanted)
    return Client(name, offers, _token(kind, given.get("token")))


def _token(kind: str, given: Any) -> str:
    """The token in an environment variable, unparsed, as it may look like a number."""
    named = _VARIABLE.fullmatch(given) if isinstance(given, str) else None
    if named is None:
        raise ConfigError(f"{kind}: token names a variable of the environment, as ${{NAME}}, not the token itself")
    if named[1] not in os.environ:
        raise ConfigError(f"{kind}: the environment has no {named[1]}, which its token is read from")
    token = header(f"the token of {kind}, ${{{named[1]}}},", os.environ[named[1]])
    if len(token) < SHORTEST:
        raise ConfigError(
            f"{kind}: the token in {named[1]} has fewer than {SHORTEST} characters: "
            'make one with python -c "import secrets; print(secrets.token_urlsafe())"'
        )
    return token


def _filter(kind: str, given: Mapping[str, Any], key: str, present: bool | None = None) -> Filter | None:
    """A filter, or None where absent; ConfigError for an empty filter, which is probably a mistake."""
    if not (key in given if present is None else present):
        return None
    found = given[key]
    if not isinstance(found, Mapping) or says_nothing(found):
        raise ConfigError(
            f"{kind} is a filter, such as {{public: true}}, not {found!r}: leave it out to restrict nothing"
        )
    return found


def _named(kind: str, data: Any) -> Mapping[str, Any]:
    """A mapping with arbitrary keys."""
    return section(kind, data, *(data if isinstance(data, Mapping) else ()))


def _texts(name: str, given: Mapping[str, Any]) -> list[str]:
    found = given.get(name, [])
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise ConfigError(f"{name} is a list of names, not {found!r}")
    return found
