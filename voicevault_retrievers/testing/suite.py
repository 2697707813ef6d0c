"""What the parts of the suite share: how collections are opened, and what an engine may do otherwise."""

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
"""What sums of float32 may differ by from one time to the next."""


_APPLIES = "applies"

Test = TypeVar("Test", bound=Callable[..., None])


def applies_where(applies: Callable[[type[Any]], object]) -> Callable[[Test], Test]:
    """Decorates a test that only classes have of which this is true."""

    def decorated(test: Test) -> Test:
        setattr(test, _APPLIES, applies)
        return test

    return decorated


class Filled(NamedTuple):
    """A collection, and a knowledge base of the same chunks."""

    client: CollectionClient
    base: KnowledgeBase
    chunks: Sequence[Chunk]


class Suite:
    """The fixtures, and what an engine may state of itself."""

    recall: ClassVar[float] = 0.9
    """The least recall@10 of an engine whose vector search is approximate."""

    tau: ClassVar[float] = 0.9
    """The least Kendall's tau of an engine whose keyword scores are not a knowledge base's."""

    ties_at_k: ClassVar[bool] = True
    """Whether the k best end with the lowest ids where more chunks have the last one's score."""

    alone: ClassVar[bool] = False
    """Whether only one client at a time can have a collection open, as where it is a folder that is locked."""

    threads_ending: ClassVar[int] = 1
    """How many threads of an engine's own client may still be ending when `close` returns."""

    ways: ClassVar[Sequence[str]] = ("sync", "async")
    """How tests call the engine. With "sync" alone, `test_sync_equals_async` still compares the two: for an engine that
    event loops have asked in threads, or that another class tests async."""

    other_options: ClassVar[Mapping[str, Any]] = {}
    """Options that a collection keeps, with values that are not the defaults: another client cannot change them.

    Their tests are left out where there are none.
    """

    values: ClassVar[Sequence[Any]] = VALUES
    """Values of metadata that filters are tried on."""

    filters: ClassVar[Sequence[Mapping[str, Any]]] = FILTERS
    """The filters that are tried, on `v`, `w` and `page-number`."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Leave out the tests that do not apply to what the class says, see `applies_where`."""
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
        """Give it: a function of a collection's name and an engine's options that gives the engine."""
        raise NotImplementedError("give the fixture `connect`: name, **options -> Engine")

    @pytest.fixture(scope="class")
    @classmethod
    def loop(cls) -> Iterator[asyncio.AbstractEventLoop]:
        """The event loop of the async half."""
        loop = asyncio.new_event_loop()
        yield loop
        ended(loop)

    @pytest.fixture
    def way(self, request: pytest.FixtureRequest, loop: asyncio.AbstractEventLoop) -> asyncio.AbstractEventLoop | None:
        """None for the synchronous methods."""
        return loop if request.param == "async" else None

    @pytest.fixture
    def collections(
        self, connect: Connect, way: asyncio.AbstractEventLoop | None, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[Collections]:
        """Opens collections, both ways; each is gone when the test ends."""
        made = Collections(connect, way, tmp_path_factory.mktemp("bases"), alone=self.alone)
        yield made
        made.end()

    @pytest.fixture(scope="class")
    @classmethod
    def shared(
        cls, connect: Connect, loop: asyncio.AbstractEventLoop, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[Collections]:
        """Opens collections that the tests of a class only read."""
        made = Collections(connect, None, tmp_path_factory.mktemp("shared"))
        yield made
        made.end(loop)


def fill(collections: Collections, chunks: Sequence[Chunk], **options: Any) -> Filled:
    """A new collection of these chunks beside a knowledge base of the same."""
    options = {"analyzer": AUTO, "embedder": WordEmbedder(), **options}
    base = collections.base(chunks, **options)
    client = collections(**options)
    client.upsert(chunks)
    return Filled(client, base, chunks)


def turned(filled: Filled, way: asyncio.AbstractEventLoop | None) -> Filled:
    """A filled collection, used the given way."""
    return filled._replace(client=CollectionClient(filled.client.engine, way))
