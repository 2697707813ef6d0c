"""What traces show of a search: its calls, as spans or as runs of a framework, and the hits that access rights permit.

Texts of documents are shown only where they are asked for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from voicevault_retrievers.core.filters import Filter, compile_filter
from voicevault_retrievers.core.queries import Query
from voicevault_retrievers.errors import SearchNotAvailableError, told

KINDS = frozenset({"rewriter", "channel", "fusion", "stage"})
"""The kinds of calls that traces show."""

Note = Callable[[Any], object]


class Work(Protocol):
    """A call that is recorded: see `execution.plan.Call`."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def texts(self) -> Sequence[str]: ...

    @property
    def k(self) -> int | None: ...


class Recorder(ABC):
    """Records the calls of a search as runs of a framework.

    A run begins and ends around the call itself, or ends at the call's deadline. An async search awaits `abegin` and
    `aend` on its event loop, whichever thread makes the call. What these methods raise ends the search.
    """

    def __init__(self) -> None:
        self._open: dict[Work, Any] = {}
        self._late: dict[Work, Exception] = {}
        self._is_over = False

    @abstractmethod
    def begin(self, work: Work) -> Any:
        """Begin the run of a call, below the current run, and return it."""

    async def abegin(self, work: Work) -> Any:
        """`begin` on the event loop."""
        return self.begin(work)

    @abstractmethod
    def inside(self, run: Any) -> AbstractContextManager[object]:
        """A context in which a run is the current one."""

    @abstractmethod
    def end(self, run: Any, work: Work, outcome: Any) -> None:
        """End a run with the value of its call (see `data_of`), or with an exception that says how it failed."""

    async def aend(self, run: Any, work: Work, outcome: Any) -> None:
        """`end` on the event loop."""
        self.end(run, work, outcome)

    def opened(self, work: Work, run: Any) -> None:
        """Keep a run until it is closed; where the call is late or the search over already, the run ends now."""
        self._open[work] = run
        if self._is_over or work in self._late:
            self._drop(work)

    def closed(self, work: Work) -> Any:
        """The run of a call, which is to be ended now; None where it has been ended, or never begun."""
        return self._open.pop(work, None)

    def late(self, work: Work, error: Exception) -> Any:
        """`closed` for a call that has passed its deadline; where its run has yet to begin, it ends with this error."""
        self._late[work] = error
        return self.closed(work)

    def shut(self) -> None:
        """End the runs of the calls that the search did not wait for, and those that begin from now on."""
        self._is_over = True
        for work in tuple(self._open):
            self._drop(work)

    def _drop(self, work: Work) -> None:
        if (run := self.closed(work)) is not None:
            self.end(run, work, self._late.get(work) or SearchNotAvailableError("the search that asked is over"))


class Aborted(BaseException):
    """A recorder raised `error`, which ends the search: it is no failure of the call that was recorded."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


RECORDER: ContextVar[Recorder | None] = ContextVar("voicevault_recorder", default=None)
_REQUIRED: ContextVar[tuple[Filter, ...]] = ContextVar("voicevault_required", default=())


@contextmanager
def recording(recorder: Recorder | None) -> Iterator[None]:
    """Record the searches within the block; with None, they are not recorded."""
    token = RECORDER.set(recorder)
    try:
        yield
    except Aborted as aborted:
        raise aborted.error from aborted.error.__cause__
    finally:
        RECORDER.reset(token)
        if recorder is not None:
            recorder.shut()


@contextmanager
def permitting(require: Filter | None) -> Iterator[None]:
    """Show within the block only what `require` permits, beside that of the blocks around it."""
    if require is None:
        yield
        return
    token = _REQUIRED.set((*_REQUIRED.get(), require))
    try:
        yield
    finally:
        _REQUIRED.reset(token)


def data_of(value: Any, *, texts: bool = False) -> dict[str, Any]:
    """What a trace shows of the value of a call.

    `wordings` of a rewritten query; else `hits`, each with `id`, `rank` (from 1 for each wording of a channel) and
    `score`, and with `text` where `texts` are asked for; an `error` where the value cannot be read.
    """
    try:
        if isinstance(value, Query):
            return {"wordings": list(dict.fromkeys([value.text, *(variant.text for variant in value.variants)]))}
        return {
            "hits": [
                {"id": hit.chunk.id, "rank": rank, "score": _score(hit), **({"text": hit.chunk.text} if texts else {})}
                for rank, hit in _permitted(value)
            ]
        }
    except Exception as error:  # noqa: BLE001 - a trace must not make a search fail
        return {"error": told(error)}


def found_in(value: Any) -> list[tuple[str, float | None]]:
    """Ids and scores of the hits of a ranking, or of a channel's matches for each wording."""
    return [(hit.chunk.id, _score(hit)) for _, hit in _hits(value)]


def _permitted(value: Any) -> Iterator[tuple[int, Any]]:
    rights = [compile_filter(require) for require in _REQUIRED.get()]
    for rank, hit in _hits(value):
        metadata = getattr(hit, "access_metadata", hit.chunk.metadata)
        if all(passes(metadata) for passes in rights):
            yield rank, hit


def _hits(value: Any, rank: int = 1) -> Iterator[tuple[int, Any]]:
    if hasattr(value, "chunk"):
        yield rank, value
        return
    parts = getattr(value, "hits", value)
    if isinstance(parts, str) or not isinstance(parts, Sequence):  # an iterator is not read: the search still needs it
        return
    for at, part in enumerate(parts, 1):
        yield from _hits(part, at)


def _score(hit: Any) -> float | None:
    return None if hit.score is None else float(hit.score)
