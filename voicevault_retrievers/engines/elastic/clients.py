"""The connection to a search server: the vendor's clients, one for threads and one for each event loop."""

from __future__ import annotations

import json
import os
import re
import ssl
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import urlsplit

from voicevault_retrievers._support.extras import require
from voicevault_retrievers.engines.clients import Clients
from voicevault_retrievers.errors import (
    ConfigError,
    RetrievalError,
    SearchError,
    SearchNotAvailableError,
    SearchTimeoutError,
)

POOL = 10
"""The connections that OpenSearch's client keeps; its own default is 1 for threads. Elasticsearch's keeps as many."""

_REFUSED, _AWAY, _SLOW = (401, 403), (429, 502, 503), (408, 504)
_PLACE = re.compile(r"https?://[^/@?#\\\s]+(/[^@?#\s]*)?")


@dataclass(frozen=True, eq=False)
class ElasticRequest:
    """A request; `body` is sent as JSON, a list as a line of JSON each."""

    method: str
    path: str
    body: Any = None
    params: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str | None:
        """The body as it is sent."""
        if isinstance(self.body, list):
            return "".join(json.dumps(line) + "\n" for line in self.body)
        return None if self.body is None else json.dumps(self.body)

    @property
    def headers(self) -> dict[str, str]:
        """The headers that say what is sent and read."""
        kind = "x-ndjson" if isinstance(self.body, list) else "json"
        sent = {} if self.body is None else {"content-type": f"application/{kind}"}
        return {"accept": "application/json", **sent}


class NoIndexError(SearchError):
    """The collection does not exist."""


class CollectionExistsError(SearchError):
    """The collection exists already."""


_TLS = ("ca_certs", "client_cert", "client_key", "verify_certs", "ssl_assert_hostname", "ssl_show_warn")

_KINDS = {
    "index_not_found_exception": NoIndexError,
    "resource_already_exists_exception": CollectionExistsError,
}


@dataclass(frozen=True)
class Login:
    """A user with a password, or an API key; neither appears in texts."""

    user: tuple[str, str] | None = None
    api_key: str | None = None

    def __repr__(self) -> str:
        return "Login(...)"


class ElasticConnection(ABC):
    """A server at a URL. `options` are further ones of the vendor's client, such as its certificates."""

    product: ClassVar[str]

    def __init__(self, url: str, login: Login, timeout: float | None, options: Mapping[str, Any]) -> None:
        if not _is_place(url):
            raise ConfigError(
                "url= is like http://host:9200 or https://host:9200/prefix; a user, password or key is given apart"
            )
        self.url = url.rstrip("/")
        self._given = login, timeout, dict(options)
        self._clients = Clients(self._connected)

    @property
    def place(self) -> str:
        """The server in error texts."""
        return f"{self.product} at {self.url}"

    @property
    def timeout(self) -> float | None:
        """Seconds for each request."""
        return self._given[1]

    def shared(self) -> ElasticConnection:
        """The same server with separate connections."""
        return type(self)(self.url, *self._given)

    @abstractmethod
    def _made(self, awaited: bool, login: Login, options: Mapping[str, Any]) -> Any:
        """The vendor's client, the async one where `awaited`."""

    @abstractmethod
    def _send(self, client: Any, call: ElasticRequest) -> Any:
        """The vendor's answer, or an awaitable of it."""

    @abstractmethod
    def _failure(self, error: Exception) -> RetrievalError | None:
        """What an error of the vendor's client becomes; None for any other error."""

    @staticmethod
    def _body(answer: Any) -> Any:
        """The decoded body of an answer."""
        return answer

    def ask(self, call: ElasticRequest) -> Any:
        """The decoded answer."""
        client = self._clients.of_threads()
        with self._errors():
            return self._body(self._send(client, call))

    async def aask(self, call: ElasticRequest) -> Any:
        """`ask` on the running event loop."""
        client = await self._clients.of_loop()
        with self._errors():
            return self._body(await self._send(client, call))

    def close(self) -> None:
        """Close the connections of threads."""
        self._clients.close()

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        await self._clients.aclose()

    def _connected(self, awaited: bool) -> Any:
        login, _, options = self._given
        with self._errors():
            try:
                return self._made(awaited, login, options)
            except (TypeError, ValueError, OSError) as error:
                raise self._wrong(error) from error

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            told = self._failure(error)
            if told is None:
                raise
            raise told from error

    def _wrong(self, error: Exception) -> ConfigError:
        return ConfigError(f"{self.product}'s client refuses its options: {error}")

    def slow(self) -> SearchTimeoutError:
        """No answer in time."""
        return SearchTimeoutError(f"{self.place} did not answer within {self.timeout} s")

    def away(self, error: object) -> SearchNotAvailableError:
        """No connection."""
        return SearchNotAvailableError(f"{self.place} cannot be reached: {error}")

    def unreadable(self, error: Exception) -> SearchError:
        """An answer that is no JSON, or not the product's."""
        return SearchError(f"{self.place} gave an answer that cannot be read: {type(error).__name__}")

    def refusal(self, status: Any, told: Any) -> SearchError:
        """What an answer with an error becomes; `told` is its body, or an error in it."""
        error = told.get("error", told) if isinstance(told, Mapping) else told
        kind = error.get("type") if isinstance(error, Mapping) else None
        if status in _REFUSED:
            return SearchNotAvailableError(f"{self.place} refuses the user (HTTP {status})")
        if status in _AWAY:
            return SearchNotAvailableError(f"{self.place} cannot answer now (HTTP {status})")
        if status in _SLOW:
            return SearchTimeoutError(f"{self.place} did not answer within {self.timeout} s (HTTP {status})")
        return _KINDS.get(str(kind), SearchError)(
            f"{self.place} refused a request (HTTP {status}): {' '.join(str(_reason(error)).split())[:300]}"
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"


class ElasticsearchConnection(ElasticConnection):
    """Elasticsearch, by the package elasticsearch."""

    product = "Elasticsearch"

    def _made(self, awaited: bool, login: Login, options: Mapping[str, Any]) -> Any:
        clients = require("elasticsearch", extra="elasticsearch")
        make = clients.AsyncElasticsearch if awaited else clients.Elasticsearch
        given: dict[str, Any] = {"request_timeout": self.timeout, "max_retries": 0, **options}
        host = urlsplit(self.url).hostname or ""
        if awaited and self.url.startswith("https:") and (":" in host or host.rpartition(".")[2].isdigit()):
            given = _checking_addresses(given)
        return make(self.url, basic_auth=login.user, api_key=login.api_key, **given)

    def _send(self, client: Any, call: ElasticRequest) -> Any:
        return client.perform_request(
            call.method, call.path, params=dict(call.params), headers=call.headers, body=call.text
        )

    @staticmethod
    def _body(answer: Any) -> Any:
        return answer.body

    def _failure(self, error: Exception) -> RetrievalError | None:
        of, transport = (
            require("elasticsearch", extra="elasticsearch"),
            require("elastic_transport", extra="elasticsearch"),
        )
        if isinstance(error, transport.ConnectionTimeout):
            return self.slow()
        if isinstance(error, transport.ConnectionError):
            return self.away(error.message)
        if isinstance(error, (of.UnsupportedProductError, transport.SerializationError)):
            return self.unreadable(error)
        return self.refusal(error.meta.status, error.body) if isinstance(error, of.ApiError) else None


class OpenSearchConnection(ElasticConnection):
    """OpenSearch, by the package opensearch-py."""

    product = "OpenSearch"

    def _made(self, awaited: bool, login: Login, options: Mapping[str, Any]) -> Any:
        clients = require("opensearchpy", extra="opensearch")
        if login.api_key is not None:
            raise ConfigError("OpenSearch has users and passwords: give user=(name, password), not api_key=")
        make = clients.AsyncOpenSearch if awaited else clients.OpenSearch
        given: dict[str, Any] = {"timeout": self.timeout, "max_retries": 0, "pool_maxsize": POOL, **options}
        return make([self.url], http_auth=login.user, **given)

    def _send(self, client: Any, call: ElasticRequest) -> Any:
        return client.transport.perform_request(
            call.method, call.path, params=dict(call.params), headers=call.headers, body=call.text
        )

    def _failure(self, error: Exception) -> RetrievalError | None:
        of = require("opensearchpy", extra="opensearch")
        if isinstance(error, of.ConnectionTimeout):
            return self.slow()
        if isinstance(error, of.ConnectionError):
            return self.away(error.info)
        if isinstance(error, of.SerializationError):
            return self.unreadable(error)
        if isinstance(error, of.ImproperlyConfigured):
            return self._wrong(error)
        return self.refusal(error.status_code, error.info) if isinstance(error, of.TransportError) else None


def _checking_addresses(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of Elasticsearch's async client for an IP address, by which a certificate has to be of that address.

    By itself the client takes that of any host there, and reads no `ssl_assert_hostname`.
    """
    if not options.get("verify_certs", True) or {"ssl_context", "ssl_assert_fingerprint"} & options.keys():
        return dict(options)
    trusted = options.get("ca_certs") or require("certifi", extra="elasticsearch").where()
    context = ssl.create_default_context()
    context.load_verify_locations(**{"capath" if os.path.isdir(trusted) else "cafile": trusted})
    if certificate := options.get("client_cert"):
        context.load_cert_chain(certificate, options.get("client_key"))
    return {**{name: value for name, value in options.items() if name not in _TLS}, "ssl_context": context}


def _reason(error: Any) -> Any:
    """The text of an error: that of its root cause, where it has one."""
    if not isinstance(error, Mapping):
        return error
    causes = error.get("root_cause") or [error]
    return f"{causes[0].get('type')}: {causes[0].get('reason')}"


def _is_place(url: Any) -> bool:
    """Whether `url` is an address of a server, without user or password."""
    try:
        return bool(_PLACE.fullmatch(url) and urlsplit(url).hostname and urlsplit(url).port != 0)
    except (TypeError, ValueError):
        return False
