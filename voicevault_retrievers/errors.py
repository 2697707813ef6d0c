"""Every error the package raises.

RetrievalError
├── SearchError                    a channel failed
│   ├── SearchNotAvailableError    what it needs is not there: server down, too many hung calls
│   ├── SearchTimeoutError         it outlived its deadline (also a TimeoutError)
│   └── FilterNotSupportedError    it cannot apply a filter, so it was not searched
├── RerankerError                  a reranker failed
│   └── RerankerNotAvailableError  its model cannot be loaded
├── ContextExpansionError          parents could not be fetched
├── FLAREError                     active retrieval failed
├── InvalidScoreError              a score is NaN or infinite (also a ValueError)
├── ConfigError                    an option is wrong (also a ValueError)
├── DocumentError                  a file cannot be read as a document
├── IndexDamagedError              files on disk are not what the manifest says
├── IncompatibleIndexError         made by another analyzer, embedder or format
├── StorageError                   a file cannot be read or written: permission, space (also an OSError)
├── LockedError                    another process is writing
└── MissingExtraError              an optional dependency is not installed (also an ImportError)
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class RetrievalError(Exception):
    """The root of all errors raised on purpose."""


class SearchError(RetrievalError):
    """A channel failed."""


class SearchNotAvailableError(SearchError):
    """A channel cannot be asked now: its server is down, or too many of its calls hang."""


class SearchTimeoutError(SearchError, TimeoutError):
    """A call outlived its deadline and was abandoned."""


class FilterNotSupportedError(SearchError):
    """A channel cannot apply the filter, so it was skipped rather than searched without it."""


class RerankerError(RetrievalError):
    """A reranker failed on candidates."""


class RerankerNotAvailableError(RerankerError):
    """A reranker's model or service cannot be had."""


class ContextExpansionError(RetrievalError):
    """Parents or neighbours could not be fetched."""


class FLAREError(RetrievalError):
    """Active retrieval failed."""


class InvalidScoreError(RetrievalError, ValueError):
    """A score is NaN or infinite."""


class ConfigError(RetrievalError, ValueError):
    """An option, a filter or a configuration is wrong."""


class DocumentError(RetrievalError):
    """A file cannot be read as a document."""


class IndexDamagedError(RetrievalError):
    """Files on disk are missing, cut or changed."""


class IncompatibleIndexError(RetrievalError):
    """An index was made with another format, analyzer or embedder."""


class StorageError(RetrievalError, OSError):
    """The file system refuses to read or write: permission, space, a folder that is gone."""


class LockedError(RetrievalError):
    """Another process is writing to the knowledge base."""


class MissingExtraError(RetrievalError, ImportError):
    """An optional dependency is not installed."""


def unknown(kind: str, name: object, known: Iterable[str]) -> ConfigError:
    """An error for a name that is none of the known ones; it offers the nearest."""
    names = sorted(known)
    near = get_close_matches(str(name), names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return ConfigError(f"unknown {kind} {name!r}.{hint} Known: {', '.join(names) or 'none'}.")
