"""Engines by address, so that a configuration names a collection in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit
from urllib.request import url2pathname

from voicevault_retrievers._support.hosts import MASK, mask_credentials
from voicevault_retrievers.core.protocols import Embedder
from voicevault_retrievers.engines.engine import Engine
from voicevault_retrievers.errors import ConfigError, unknown
from voicevault_retrievers.store import Bases, KnowledgeBase
from voicevault_retrievers.store.analyzers import SavedAnalyzer
from voicevault_retrievers.store.names import check_name

SCHEMES = {
    "chroma": "chroma",
    "chroma+file": "chroma",
    "chromas": "chroma",
    "elasticsearch": "elastic",
    "elasticsearchs": "elastic",
    "lancedb": "lancedb",
    "milvus": "milvus",
    "milvus+file": "milvus",
    "milvuss": "milvus",
    "opensearch": "elastic",
    "opensearchs": "elastic",
    "postgresql": "postgres",
    "qdrant": "qdrant",
    "qdrant+file": "qdrant",
    "qdrants": "qdrant",
}
"""For each scheme, the module of this package that opens its addresses, with `at(address, **options)`."""


def open_bases(
    names: Iterable[str | Path | KnowledgeBase | Engine],
    *,
    root: Path | str | None = None,
    embedder: Embedder | None = None,
) -> Bases | Engine:
    """The knowledge bases as one collection, or an engine's collection, given alone by its address.

    A knowledge base may also be given by its path, as a Path or as `file:///FOLDER/BASE`. Raises ConfigError where a
    collection is given beside others, and what `Bases` and `connect` raise.
    """
    given = [_local(name) for name in names]
    if not any(isinstance(name, Engine) or is_address(name) for name in given):
        return Bases(cast("list[str | Path | KnowledgeBase]", given), root=root, embedder=embedder)
    if len(given) > 1:
        raise ConfigError(
            "an engine's collection is searched alone: name one address, or copy what else is to be found"
        )
    (one,) = given
    return one if isinstance(one, Engine) else connect(str(one), embedder=embedder)


def several_bases(
    given: str | Path | KnowledgeBase | Engine | Iterable[str | Path | KnowledgeBase | Engine],
) -> list[str | Path | KnowledgeBase | Engine]:
    """The given bases as a list; ConfigError, before anything is opened, for a value that names no base."""
    if isinstance(given, str | Path | KnowledgeBase | Engine) or not isinstance(given, Iterable):
        given = [given]
    named = list(given)
    for one in map(_local, named):
        if is_address(one):
            _scheme(str(one))
            if MASK in one and one == mask_credentials(one):
                raise ConfigError(f"{one} was written down without its credentials: give kb_names again, with them")
        elif isinstance(one, str | Path):
            check_name(one if isinstance(one, str) else one.name)
        elif not isinstance(one, KnowledgeBase | Engine):
            raise ConfigError(f"a knowledge base is a name, a Path, an open one, or an engine, not {one!r}")
    return named


def shown(names: Iterable[Any]) -> list[Any]:
    """Bases as a text may show them: addresses without credentials."""
    return [mask_credentials(one) if isinstance(one, str) else one for one in names]


def _local(name: Any) -> Any:
    """The path of a `file://` address; anything else as it is."""
    return Path(url2pathname(urlsplit(name).path)) if isinstance(name, str) and name.startswith("file://") else name


def is_address(name: object) -> bool:
    """Whether a knowledge base's name is an engine's address."""
    return isinstance(name, str) and "://" in name


def connect(
    address: str, *, embedder: Embedder | None = None, analyzer: SavedAnalyzer | None = None, **options: Any
) -> Engine:
    """The collection of an engine at an address; sends no request yet. See `Engine` for the options.

    - `qdrant://[key@]host[:6333]/COLLECTION`, `qdrants://` for TLS, `qdrant+file:///FOLDER/COLLECTION` in local mode
    - `postgresql://[user[:password]@]host[:5432]/DATABASE#COLLECTION`
    - `chroma://host[:8000]/COLLECTION`, `chromas://` for TLS, `chroma+file:///FOLDER/COLLECTION`
    - `milvus://[user:password@]host[:19530]/COLLECTION`, `milvuss://` for TLS, `milvus+file:///FILE.db/COLLECTION`
    - `lancedb:///FOLDER/COLLECTION`
    - `elasticsearch://[key@]host[:9200]/COLLECTION`, `opensearch://[user:password@]host[:9200]/COLLECTION`, by TLS
      `elasticsearchs://` and `opensearchs://`

    Raises ConfigError for any other address, MissingExtraError where the engine's client is not installed.
    """
    at: Callable[..., Engine] = import_module(f"voicevault_retrievers.engines.{SCHEMES[_scheme(address)]}").at
    return at(address, embedder=embedder, analyzer=analyzer, **options)


def _scheme(address: str) -> str:
    if not is_address(address):  # which may hold a password
        raise ConfigError(f"an engine address begins with its scheme, SCHEME://, one of {', '.join(SCHEMES)}")
    scheme = address.partition("://")[0]
    if scheme not in SCHEMES:
        raise unknown("engine address (SCHEME://...)", scheme, SCHEMES)
    return scheme
