"""The base class of the runtimes for ONNX graphs: files, tokens, batches of similar length, and a safe process exit."""

from __future__ import annotations

import atexit
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from logging import getLogger
from threading import Condition, current_thread, main_thread
from typing import Any, ClassVar, NamedTuple, TypeAlias, cast
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers._support.characters import encodable
from voicevault_retrievers._support.extras import require
from voicevault_retrievers._support.forks import leave_to_parent, reset_in_child
from voicevault_retrievers._support.mutex import Mutex
from voicevault_retrievers.errors import ConfigError, ModelNotAvailableError, RetrievalError
from voicevault_retrievers.models.weights import HUB, Backend, Weights, fetch

LONGEST_WAIT = 30.0
"""The longest wait, in seconds, for running calls at process exit."""


class Calls:
    """Counts running calls. Once closed, it waits for them, and lets no other thread begin a call.

    A thread that exceeded its deadline may still compute when the interpreter exits. A library in C++ or Rust that
    returns to a finished interpreter aborts the whole process, although its work is done.
    """

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._changed = Condition()
        self._running = 0
        self._closed = False

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count a call while it runs. Raises RetrievalError at process exit, except in the main thread."""
        with self._changed:
            if self._closed and current_thread() is not main_thread():
                raise RetrievalError("the process is ending: no model is run any more")
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Wait for the running calls, at most 30 seconds."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._running, LONGEST_WAIT)


NATIVE = Calls()
reset_in_child(NATIVE, Calls._reset)
atexit.register(NATIVE.close)


_LOG = getLogger(__name__)

Floats: TypeAlias = NDArray[np.float32]
Ints: TypeAlias = NDArray[np.int64]
Feed: TypeAlias = dict[str, Ints]
Text: TypeAlias = str | tuple[str, str]

ENCODED_AT_ONCE = 1024
"""The number of texts whose tokens are in memory at a time, and within which texts are sorted by length."""

POSITIONS = 512
"""The longest input of the known models, in tokens."""


class GraphOutput(NamedTuple):
    """A graph's first output for some of the texts, with the texts' positions and the mask of their tokens."""

    at: list[int]
    output: Floats
    mask: Ints


class GraphSession(NamedTuple):
    """A loaded graph: its inputs, a thread-safe function to its first output, and the number of texts per run.

    `precision` is the precision of the computation, `reason` why it was chosen.
    """

    inputs: frozenset[str]
    compute: Callable[[Feed], Floats]
    at_once: int
    precision: str
    reason: str


KEPT = 2
"""The number of graphs that stay loaded when nobody uses them, such as those of a retriever made for each question."""


class LoadedGraph:
    """A graph and its tokenizer, loaded once in a process for all models with the same files and options (`at`)."""

    _known: ClassVar[WeakValueDictionary[Hashable, LoadedGraph]] = WeakValueDictionary()
    _recent: ClassVar[deque[LoadedGraph]] = deque(maxlen=KEPT)
    _mutex: ClassVar[Mutex] = Mutex()

    def __init__(self) -> None:
        self._lock = Mutex()
        self._loaded: tuple[GraphSession, Any] | None = None

    @classmethod
    def at(cls, key: Hashable) -> LoadedGraph:
        """The graph of a key, one object per process."""
        with cls._mutex:
            return cls._known.get(key) or cls._known.setdefault(key, cls())

    def load(self, load: Callable[[], tuple[GraphSession, Any]]) -> tuple[GraphSession, Any]:
        """What `load` returned to the first that asked."""
        with self._lock:
            if self._loaded is None:
                with NATIVE.running():
                    self._loaded = load()
        with self._mutex:
            if self not in self._recent:
                self._recent.append(self)
        return self._loaded

    @classmethod
    def forked(cls) -> None:
        """In a forked child: free no graph of the parent, as that would wait for threads which the child lacks."""
        leave_to_parent([*cls._recent])
        cls._recent.clear()


reset_in_child(LoadedGraph, lambda graphs: graphs.forked())


class GraphModel(ABC):
    """A graph and its tokenizer, loaded on first use, once for all models that compute alike; thread-safe."""

    backend: ClassVar[Backend]
    extra: ClassVar[str]

    def __init__(self, name: str, max_tokens: int, batch_size: int) -> None:
        if max_tokens < 3 or (name in HUB and max_tokens > POSITIONS):
            raise ConfigError(
                f"max_tokens of {name} is from 3 (special tokens count) to {POSITIONS}, not {max_tokens!r}"
            )
        if batch_size < 1:
            raise ConfigError(f"batch_size is at least 1, not {batch_size!r}")
        self.name = name
        self.max_tokens = max_tokens
        self.batch_size = batch_size
        self._lock = Mutex()
        self._weights: Weights | None = None
        self._graph: LoadedGraph | None = None
        self._loaded: tuple[GraphSession, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_weights": None, "_graph": None, "_loaded": None}

    @property
    def weights(self) -> Weights:
        """The model's files, fetched on first use; raises like `fetch`."""
        if self._weights is None:
            self._weights = fetch(self.name, self.backend)
        return self._weights

    @property
    def kind(self) -> str:
        """The backend, and the precision where it changes outputs by more than noise. Loads nothing."""
        return self.weights.precision

    @property
    def precision_used(self) -> str | None:
        """The precision of the computation; None before the graph is loaded."""
        return self._loaded[0].precision if self._loaded else None

    @property
    def precision_reason(self) -> str | None:
        """The reason for the precision; None before the graph is loaded."""
        return self._loaded[0].reason if self._loaded else None

    def load(self) -> tuple[GraphSession, Any]:
        """Load the session and the tokenizer.

        Raises MissingExtraError, and ModelNotAvailableError where a file is damaged or cannot be read.
        """
        with self._lock:
            if self._loaded is None:
                require("tokenizers", extra=self.extra)
                self.weights.verify()
                self._graph = LoadedGraph.at((type(self)._session, *self._computes()))
                self._loaded = self._graph.load(self._load)
            return self._loaded

    def _computes(self) -> tuple[Hashable, ...]:
        """What decides the outputs: models for which it is equal share a graph."""
        return self.weights, self.weights.digest, self.max_tokens, self.batch_size

    def _load(self) -> tuple[GraphSession, Any]:
        weights = self.weights
        try:
            tokenizers = require("tokenizers", extra=self.extra)
            tokenizer = tokenizers.Tokenizer.from_file(str(weights.tokenizer))
            tokenizer.no_padding()
            tokenizer.enable_truncation(self.max_tokens)
            session = self._session(weights, tokenizer)
        except RetrievalError:
            raise
        except Exception as error:  # the libraries raise direct subclasses of Exception, and MemoryError
            raise ModelNotAvailableError(
                f"{self.name} cannot be loaded from {weights.folder}: {type(error).__name__}: {error}"
            ) from error
        _LOG.info("%s computes in %s by %s: %s", self.name, session.precision, self.backend, session.reason)
        return session, tokenizer

    @abstractmethod
    def _session(self, weights: Weights, tokenizer: Any) -> GraphSession: ...

    def run(self, texts: Sequence[Text], *, alone: bool = False) -> Iterator[GraphOutput]:
        """Yield the graph's first output for texts or pairs, in batches of similar length, or one by one (`alone`).

        Raises like `load`, and RetrievalError where a batch fails.
        """
        session, tokenizer = self.load()
        for start in range(0, len(texts), ENCODED_AT_ONCE):
            with NATIVE.running():
                encodings = tokenizer.encode_batch([*map(_encodable, texts[start : start + ENCODED_AT_ONCE])])
            for group in batches([len(encoding.ids) for encoding in encodings], 1 if alone else session.at_once):
                feed = feed_of([encodings[at] for at in group])
                yield GraphOutput([start + at for at in group], self._computed(session, feed), feed["attention_mask"])

    def _computed(self, session: GraphSession, feed: Feed) -> Floats:
        try:
            with NATIVE.running():
                return session.compute({name: feed[name] for name in session.inputs & feed.keys()})
        except RetrievalError:
            raise
        except Exception as error:  # as in `_load`
            texts, tokens = feed["attention_mask"].shape
            raise RetrievalError(
                f"{self.name} failed on {texts} texts of {tokens} tokens: {type(error).__name__}: {error}. "
                "Where memory is short, a smaller batch_size needs less."
            ) from error


def batches(lengths: Sequence[int], size: int) -> Iterator[list[int]]:
    """Yield positions in groups of at most `size`, by rising length."""
    order = sorted(range(len(lengths)), key=lambda at: lengths[at])
    for start in range(0, len(order), size):
        yield order[start : start + size]


def mean_pooled(states: Floats, mask: Ints) -> Floats:
    """The mean of the token states: (n, tokens, d) and a mask (n, tokens) to (n, d)."""
    weights = mask[:, :, None].astype(np.float32)
    return cast(Floats, (states * weights).sum(axis=1) / weights.sum(axis=1))


def cls_pooled(states: Floats, mask: Ints) -> Floats:
    """The state of the first token: (n, tokens, d) to (n, d). The mask is ignored."""
    return states[:, 0]


def feed_of(encodings: Sequence[Any]) -> Feed:
    """The inputs of a transformer graph for encoded texts, padded to the longest."""
    shape = (len(encodings), max(len(encoding.ids) for encoding in encodings))
    ids, mask, types = (np.zeros(shape, dtype=np.int64) for _ in range(3))
    for row, encoding in enumerate(encodings):
        length = len(encoding.ids)
        ids[row, :length] = encoding.ids
        mask[row, :length] = 1
        types[row, :length] = encoding.type_ids
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}


def _encodable(text: Text) -> Text:
    return encodable(text) if isinstance(text, str) else (encodable(text[0]), encodable(text[1]))
