"""The base class of the test classes: fixtures, and what an engine may relax."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import pytest

from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.store import KnowledgeBase
from voicevault_retrievers.testing.clients import CollectionClient, Collections, Connect, ended
from voicevault_retrievers.testing.corpora import FILTERS, VALUES, WordEmbedder
from voicevault_retrievers.text import Analyzer

AUTO = Analyzer("auto")
EXACT = 1e-9
COSINE = 1e-5
FLOAT = 1e-6
"""The difference between equal sums of float32 that is accepted."""


_APPLIES = "applies"

Test = TypeVar("Test", bound=Callable[..., None])


def applies_where(applies: Callable[[type[Any]], object]) -> Callable[[Test], Test]:
    """A decorator for tests that only classes have for which `applies` is true."""

    def decorated(test: Test) -> Test:
        setattr(test, _APPLIES, applies)
        return test

    return decorated


class Filled(NamedTuple):
    """A collection and a knowledge base with the same chunks."""

    client: CollectionClient
    base: KnowledgeBase
    chunks: Sequence[Chunk]


class Suite:
    """The fixtures, and the class attributes by which an engine relaxes tests."""

    recall: ClassVar[float] = 0.9
    """The minimum recall@10 of an engine with approximate vector search."""

    tau: ClassVar[float] = 0.9
    """The minimum Kendall's tau of an engine whose keyword scores differ from a knowledge base's."""

    ties_at_k: ClassVar[bool] = True
    """Whether, of chunks with equal scores at rank k, the lowest ids are returned."""

    alone: ClassVar[bool] = False
    """Whether a collection can be open in only one client at a time, such as a locked folder."""

    threads_ending: ClassVar[int] = 1
    """How many threads of an engine's client may still be running when `close` returns."""

    ways: ClassVar[Sequence[str]] = ("sync", "async")
    """How tests call the engine. With "sync" alone, `test_sync_equals_async` still compares both: for an engine whose
    async methods run in threads, or that another class tests async."""

    other_options: ClassVar[Mapping[str, Any]] = {}
    """Options that a collection stores, with values other than the defaults: another client cannot change them.

    Their tests are left out where there are none.
    """

    values: ClassVar[Sequence[Any]] = VALUES
    """Metadata values on which filters are tested."""

    filters: ClassVar[Sequence[Mapping[str, Any]]] = FILTERS
    """The filters that are tested, on `v`, `w` and `page-number`."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Leave out the tests that do not apply to the class; see `applies_where`."""
        super().__init_subclass__(**options)
        for name in dir(cls):
            test = next((found for base in cls.__mro__ if (found := vars(base).get(name)) is not None), None)
            applies = getattr(test, _APPLIES, None)
            if applies is not None and name not in vars(cls):
                setattr(cls, name, test if applies(cls) else None)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make a test for each of `ways`."""
        if "way" in metafunc.fixturenames:
            metafunc.parametrize("way", self.ways, indirect=True)

    @pytest.fixture(scope="class")
    @classmethod
    def connect(cls) -> Connect:
        """To be overridden: a function that makes an engine from a collection's name and an engine's options."""
        raise NotImplementedError("give the fixture `connect`: name, **options -> Engine")

    @pytest.fixture(scope="class")
    @classmethod
    def loop(cls) -> Iterator[asyncio.AbstractEventLoop]:
        """The event loop of the async tests."""
        loop = asyncio.new_event_loop()
        yield loop
        ended(loop)

    @pytest.fixture
    def way(self, request: pytest.FixtureRequest, loop: asyncio.AbstractEventLoop) -> asyncio.AbstractEventLoop | None:
        """The event loop for async methods; None for sync methods."""
        return loop if request.param == "async" else None

    @pytest.fixture
    def collections(
        self, connect: Connect, way: asyncio.AbstractEventLoop | None, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[Collections]:
        """Opens collections, sync or async; each is removed when the test ends."""
        made = Collections(connect, way, tmp_path_factory.mktemp("bases"), alone=self.alone)
        yield made
        made.end()

    @pytest.fixture(scope="class")
    @classmethod
    def shared(
        cls, connect: Connect, loop: asyncio.AbstractEventLoop, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[Collections]:
        """Opens collections for the read-only tests of a class."""
        made = Collections(connect, None, tmp_path_factory.mktemp("shared"))
        yield made
        made.end(loop)


def fill(collections: Collections, chunks: Sequence[Chunk], **options: Any) -> Filled:
    """A new collection and a new knowledge base with the same chunks."""
    options = {"analyzer": AUTO, "embedder": WordEmbedder(), **options}
    base = collections.base(chunks, **options)
    client = collections(**options)
    client.upsert(chunks)
    return Filled(client, base, chunks)


def turned(filled: Filled, way: asyncio.AbstractEventLoop | None) -> Filled:
    """The filled collection with a sync client, or an async one where a loop is given."""
    return filled._replace(client=CollectionClient(filled.client.engine, way))
