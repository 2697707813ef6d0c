"""Every error the package raises.

RetrievalError
├── SearchError                    a channel failed
│   ├── SearchNotAvailableError    a channel cannot be asked: its server is down, or too many of its calls hang
│   ├── SearchTimeoutError         a call exceeded its deadline (also a TimeoutError)
│   └── FilterNotSupportedError    a channel cannot apply a filter, so it was not searched
├── RerankerError                  a reranker failed
│   └── RerankerNotAvailableError  a reranker's model cannot be loaded (also a ModelNotAvailableError)
├── ContextExpansionError          parents could not be fetched
├── FLAREError                     active retrieval failed
├── StageError                     a stage or rewriter that a search does not skip failed
├── InvalidScoreError              a score is NaN or infinite (also a ValueError)
├── ConfigError                    an option is wrong (also a ValueError)
│   ├── AccessError                a search names no access rights where they are mandatory
│   └── NotIndexedError            the index lacks what a channel searches: vectors, questions, a graph
├── EmbeddingError                 a text has no vector: the model gave zeros, or numbers that are not finite
├── ModelNotAvailableError         a model does not exist, or cannot be loaded
├── DocumentError                  a file cannot be read as a document
├── IndexDamagedError              files on disk do not match the manifest
├── IncompatibleIndexError         an index was made by another analyzer, embedder or format
├── StorageError                   a file cannot be read or written: permission, space (also an OSError)
├── LockedError                    another process is writing
└── MissingExtraError              an optional dependency is not installed (also an ImportError)

`is_setup_error` tells which errors, including those of other packages, mean a wrong set-up that no retry mends.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from types import FunctionType

_PAUSES = {"GraphBubbleUp", "WaitingForEvent"}
"""Class names of the exceptions with which LangGraph and LlamaIndex workflows pause an agent's run."""


class RetrievalError(Exception):
    """The base class of all errors that the package raises on purpose."""


class SearchError(RetrievalError):
    """A channel failed."""


class SearchNotAvailableError(SearchError):
    """A channel cannot be asked now: its server is down, or too many of its calls hang."""


class SearchTimeoutError(SearchError, TimeoutError):
    """A call exceeded its deadline and was abandoned."""


class FilterNotSupportedError(SearchError):
    """A channel cannot apply the filter, so it was skipped rather than searched without it."""


class RerankerError(RetrievalError):
    """A reranker failed on candidates."""


class ModelNotAvailableError(RetrievalError):
    """A model does not exist under its name, or cannot be loaded."""


class RerankerNotAvailableError(RerankerError, ModelNotAvailableError):
    """A reranker's model does not exist, or cannot be loaded."""


class ContextExpansionError(RetrievalError):
    """Parents or neighbours could not be fetched."""


class FLAREError(RetrievalError):
    """Active retrieval failed."""


class StageError(RetrievalError):
    """A stage or rewriter that a search does not skip failed. `__cause__` is the exception that it raised.

    The message names only the stage or rewriter and the class of that exception, because a foreign exception may quote
    documents. The error is also an instance of that class, with the same attributes, so handlers and retries by class
    work.
    """

    def __init__(self, message: str) -> None:
        Exception.__init__(self, message)

    def __str__(self) -> str:
        return str(self.args[0])

    __repr__ = Exception.__repr__

    @classmethod
    def of(cls, part: str, error: Exception) -> StageError:
        """The StageError of a stage or rewriter `part` that raised `error`."""
        kind = type(error)
        message = f"{part} raised {kind.__name__}, and a search does not go on without it (see __cause__, skippable)"
        try:
            made: StageError = type(cls.__name__, (cls, kind), {"__module__": cls.__module__})(message)
        except TypeError:  # the class cannot be a base class beside StageError
            return cls(message)
        made.__dict__.update(vars(error))
        return made


class InvalidScoreError(RetrievalError, ValueError):
    """A score is NaN or infinite."""


class ConfigError(RetrievalError, ValueError):
    """An option, a filter or a configuration is wrong."""


class AccessError(ConfigError):
    """A search names no access rights (`require`) where they are mandatory, so it was refused."""


class NotIndexedError(ConfigError):
    """The index lacks what a channel searches: vectors, questions, a graph.

    In a fusion, and in a preset's pipeline, the channel is skipped like a channel that failed.
    """


class EmbeddingError(RetrievalError):
    """A model gave a vector that is all zeros or not finite. `at` is the text's position in the embedded batch."""

    def __init__(self, message: str, at: int = 0) -> None:
        super().__init__(message)
        self.at = at


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


def told(error: BaseException) -> str:
    """The class of an error, with its message where `safe_message` returns one."""
    message = safe_message(error)
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def safe_message(error: BaseException) -> str:
    """The message of an error of this package; empty for any other error, which may quote documents, keys, addresses.

    Where the message quotes a foreign exception from which the error was raised, the class of that exception replaces
    the quote.
    """
    if not is_own(type(error)):
        return ""
    text = str(error)
    for cause in _chain(error, lambda one: one.__cause__ or one.__context__):
        if not is_own(type(cause)):
            for said in filter(None, (repr(cause), str(cause))):
                text = text.replace(said, type(cause).__name__)
    return text


def _chain(error: BaseException, before: Callable[[BaseException], BaseException | None]) -> Iterator[BaseException]:
    """Yield an error and its causes, each once, as causes may form a cycle."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        found = before(found)


def pauses(error: BaseException) -> bool:
    """Whether an exception pauses an agent's run, and so is not a failure."""
    return any(kind.__name__ in _PAUSES for kind in type(error).__mro__)


def is_own(kind: type) -> bool:
    """Whether a class is this package's own; a subclass outside the package is not when it adds functions."""
    for one in kind.__mro__:
        if one.__module__.split(".")[0] == __name__.split(".")[0]:
            return True
        if any(_is_code(attribute) for attribute in vars(one).values()):
            return False
    return False


def _is_code(attribute: object) -> bool:
    function = getattr(attribute, "fget", None) or getattr(attribute, "__func__", None) or attribute
    return isinstance(function, FunctionType) and not function.__module__.startswith("pydantic")


def unknown(kind: str, name: object, known: Iterable[str]) -> ConfigError:
    """A ConfigError for an unknown name, which suggests the nearest known name."""
    names = sorted(known)
    hint = nearest(name, names)
    return ConfigError(f"unknown {kind} {name!r}.{hint} Known: {', '.join(names) or 'none'}.")


def nearest(name: object, known: Sequence[str]) -> str:
    """A question, after a space, that suggests the nearest of the known names; empty where none is near."""
    near = get_close_matches(str(name), known, n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def is_setup_error(error: BaseException) -> bool:
    """Whether an error means a wrong set-up: such an error is always raised, and never skipped like an outage.

    Set-up errors are a wrong option, a missing model or resource (also HTTP 404), another embedder than the index's, a
    vector of another dimension, and a package that is not installed. An error caused by a set-up error is one as well.
    """
    for one in _chain(error, lambda one: one.__cause__):
        if isinstance(one, NotIndexedError | SearchError) or isinstance(one.__cause__, SearchNotAvailableError):
            return False
        if isinstance(one, _SETUP) or _status(one) == _NOT_FOUND:
            return True
        if not isinstance(one, RetrievalError | OSError) and _DIMENSIONS.match(str(one)):
            return True
    return False


_SETUP = (AssertionError, ConfigError, ImportError, IncompatibleIndexError, ModelNotAvailableError)
"""Libraries such as FAISS refuse invalid arguments with a bare AssertionError."""
_NOT_FOUND = 404
_DIMENSIONS = re.compile(
    r"(?is)(?=.*\b(?:dim|dims|dimensions?|dimensional|shapes?|columns|vector lengths?|blob size)\b)"
    r"(?=.*(?:expect|match|differ|aligned|must be the same|configured|invalid))(?=.*\d.*\d).{1,500}\Z"
)
"""Matches the messages with which numpy and the clients of vector stores report a mismatch of dimensions."""


def _status(error: BaseException) -> object:
    """The HTTP status of a client's error; None where there is none."""
    response = getattr(error, "response", None)
    found = (getattr(part, "status_code", None) for part in (error, response))
    return next((status for status in found if status is not None), None)
