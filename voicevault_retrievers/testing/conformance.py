"""What every engine must keep, as one test class."""

from __future__ import annotations

from voicevault_retrievers.testing.concurrency import TogetherSuite
from voicevault_retrievers.testing.filtering import Filters
from voicevault_retrievers.testing.keyword_search import KeywordSuite
from voicevault_retrievers.testing.other_clients import Others
from voicevault_retrievers.testing.recipes import Recipes
from voicevault_retrievers.testing.vector_search import VectorSuite
from voicevault_retrievers.testing.writing import WritingSuite


class EngineConformance(Recipes, WritingSuite, KeywordSuite, VectorSuite, Filters, TogetherSuite, Others):
    """The tests of an `Engine`: derive from it, and give the fixture `connect`.

        class TestMine(EngineConformance):
            @pytest.fixture(scope="class")
            @classmethod
            def connect(cls, tmp_path_factory):
                folder = tmp_path_factory.mktemp("mine")
                return lambda name, **options: MyEngine(name, path=folder, **options)

    `connect` makes an engine of a collection's name (letters, digits and underscores) and the options of `Engine`.
    What the engine's `capabilities` leave open is held to what the class says: `recall`, `tau`,
    `ties_at_k` and `alone`.
    """
