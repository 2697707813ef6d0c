"""What the runtimes of ONNX graphs share: files, tokens, batches of similar length, and the end of the process."""

from __future__ import annotations

import atexit
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from logging import getLogger
from threading import Condition, current_thread, main_thread
from typing import Any, ClassVar, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers._support.extras import require
from voicevault_retrievers._support.mutex import Mutex
from voicevault_retrievers.errors import ConfigError, ModelNotAvailableError, RetrievalError
from voicevault_retrievers.models.weights import HUB, Backend, Weights, fetch

LONGEST_WAIT = 30.0
"""Seconds that the end of the process waits for calls that still run."""


class Calls:
    """Counts calls that run; once it is closed, it waits for them and lets no other thread begin one.

    A thread that outlived its deadline may still compute when the interpreter ends. Where a library in C++ or Rust
    returns to an interpreter that is gone, it aborts the whole process, whose work was done.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._running = 0
        self._closed = False

    @contextmanager
    def running(self) -> Iterator[None]:
        """A call. Raises RetrievalError where the process is ending and this is not its main thread."""
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
        """Wait for the calls that run, 30 seconds at the most."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._running, LONGEST_WAIT)


NATIVE = Calls()
atexit.register(NATIVE.close)


_LOG = getLogger(__name__)

Floats: TypeAlias = NDArray[np.float32]
Ints: TypeAlias = NDArray[np.int64]
Feed: TypeAlias = dict[str, Ints]
Text: TypeAlias = str | tuple[str, str]

ENCODED_AT_ONCE = 1024
"""Texts whose tokens are held at one time, and among which lengths are sorted."""

POSITIONS = 512
"""The longest input of the known models, in tokens."""


class GraphOutput(NamedTuple):
    """What a graph gave for some of the texts: where they stand, its first output, the mask of their tokens."""

    at: list[int]
    output: Floats
    mask: Ints


class GraphSession(NamedTuple):
    """A loaded graph: what it is fed, its first output for that (from any thread), how many texts run at a time.

    `precision` is what it computes in, `reason` why that was chosen.
    """

    inputs: frozenset[str]
    compute: Callable[[Feed], Floats]
    at_once: int
    precision: str
    reason: str


class GraphModel(ABC):
    """A graph and its tokenizer, loaded on first use, once, by whichever thread comes first."""

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
        self._loaded: tuple[GraphSession, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_weights": None, "_loaded": None}

    @property
    def weights(self) -> Weights:
        """The files, fetched on first use; raises as `fetch` does."""
        if self._weights is None:
            self._weights = fetch(self.name, self.backend)
        return self._weights

    @property
    def kind(self) -> str:
        """The backend, and what of its precision its outputs depend on by more than noise; nothing is loaded."""
        return self.weights.precision

    @property
    def precision_used(self) -> str | None:
        """What the graph computes in; None before it is loaded."""
        return self._loaded[0].precision if self._loaded else None

    @property
    def precision_reason(self) -> str | None:
        """Why it computes in that; None before it is loaded."""
        return self._loaded[0].reason if self._loaded else None

    def load(self) -> tuple[GraphSession, Any]:
        """The session and the tokenizer.

        Raises MissingExtraError, and ModelNotAvailableError where a file is damaged or cannot be read.
        """
        with self._lock:
            if self._loaded is None:
                with NATIVE.running():
                    self._loaded = self._load()
            return self._loaded

    def _load(self) -> tuple[GraphSession, Any]:
        tokenizers = require("tokenizers", extra=self.extra)
        weights = self.weights
        weights.verify()
        try:
            tokenizer = tokenizers.Tokenizer.from_file(str(weights.tokenizer))
            tokenizer.no_padding()
            tokenizer.enable_truncation(self.max_tokens)
            session = self._session(weights, tokenizer)
        except RetrievalError:
            raise
        except Exception as error:  # the libraries raise bare subclasses of Exception, and MemoryError
            raise ModelNotAvailableError(
                f"{self.name} cannot be loaded from {weights.folder}: {type(error).__name__}: {error}"
            ) from error
        _LOG.info("%s computes in %s by %s: %s", self.name, session.precision, self.backend, session.reason)
        return session, tokenizer

    @abstractmethod
    def _session(self, weights: Weights, tokenizer: Any) -> GraphSession: ...

    def run(self, texts: Sequence[Text], *, alone: bool = False) -> Iterator[GraphOutput]:
        """The graph's first output for every text or pair, in batches of similar length; `alone` one at a time.

        Raises as `load` does, and RetrievalError where a batch fails.
        """
        session, tokenizer = self.load()
        for start in range(0, len(texts), ENCODED_AT_ONCE):
            with NATIVE.running():
                encodings = tokenizer.encode_batch(texts[start : start + ENCODED_AT_ONCE])
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
    """Positions in groups of at most `size`, by rising length."""
    order = sorted(range(len(lengths)), key=lambda at: lengths[at])
    for start in range(0, len(order), size):
        yield order[start : start + size]


def mean_pooled(states: Floats, mask: Ints) -> Floats:
    """The mean of the token states: (n, tokens, d) and a mask (n, tokens) to (n, d)."""
    weights = mask[:, :, None].astype(np.float32)
    return cast(Floats, (states * weights).sum(axis=1) / weights.sum(axis=1))


def cls_pooled(states: Floats, mask: Ints) -> Floats:
    """The state of the first token: (n, tokens, d) to (n, d). The mask is not needed."""
    return states[:, 0]


def feed_of(encodings: Sequence[Any]) -> Feed:
    """What the graphs of transformers are fed for encoded texts, padded to the longest."""
    shape = (len(encodings), max(len(encoding.ids) for encoding in encodings))
    ids, mask, types = (np.zeros(shape, dtype=np.int64) for _ in range(3))
    for row, encoding in enumerate(encodings):
        length = len(encoding.ids)
        ids[row, :length] = encoding.ids
        mask[row, :length] = 1
        types[row, :length] = encoding.type_ids
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
