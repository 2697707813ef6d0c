"""The conformance tests of engines, as one test class."""

from __future__ import annotations

from voicevault_retrievers.testing.concurrency import TogetherSuite
from voicevault_retrievers.testing.filtering import Filters
from voicevault_retrievers.testing.keyword_search import KeywordSuite
from voicevault_retrievers.testing.other_clients import Others
from voicevault_retrievers.testing.recipes import Recipes
from voicevault_retrievers.testing.vector_search import VectorSuite
from voicevault_retrievers.testing.writing import WritingSuite


class EngineConformance(Recipes, WritingSuite, KeywordSuite, VectorSuite, Filters, TogetherSuite, Others):
    """The tests of an `Engine`: derive a class from it, with the fixture `connect`.

        class TestMine(EngineConformance):
            @pytest.fixture(scope="class")
            @classmethod
            def connect(cls, tmp_path_factory):
                folder = tmp_path_factory.mktemp("mine")
                return lambda name, **options: MyEngine(name, path=folder, **options)

    `connect` makes an engine from a collection's name (letters, digits and underscores) and the options of `Engine`.
    Where the engine's `capabilities` leave a behaviour open, the class attributes `recall`, `tau`, `ties_at_k`
    and `alone` say what is required.
    """
