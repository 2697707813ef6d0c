"""The recipe of an engine's collection: the analyzer of its keywords, the embedder of its vectors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from voicevault_retrievers.core.protocols import Embedder
from voicevault_retrievers.core.types import INDEXED_TEXT
from voicevault_retrievers.errors import ConfigError, IncompatibleIndexError
from voicevault_retrievers.store import analyzers, embedding
from voicevault_retrievers.store.analyzers import SavedAnalyzer
from voicevault_retrievers.store.manifest import EmbedderEntry

VERSION = 1


@dataclass(frozen=True)
class Recipe:
    """The recipe of a collection. `options` are other options that its engine fixes at creation."""

    analyzer: Mapping[str, Any]
    analyzer_fingerprint: str
    embedder: EmbedderEntry | None
    options: Mapping[str, Any]

    @classmethod
    def of(cls, analyzer: SavedAnalyzer | None, embedder: Embedder | None, options: Mapping[str, Any]) -> Recipe:
        """The recipe of a new collection. Raises ConfigError for an analyzer without a name."""
        made = analyzers.named(analyzer)
        entry = None if embedder is None else embedding.describe(embedder)
        return cls(made.recipe(), made.fingerprint, entry, dict(options))

    @classmethod
    def parse(cls, text: str, name: str) -> Recipe:
        """The recipe in `text`. Raises IncompatibleIndexError for one that this version cannot search."""
        try:
            told = json.loads(text)
            version, entry = told["version"], told["embedder"]
            if version > VERSION:
                raise IncompatibleIndexError(
                    f"collection {name!r} was made by a newer version of this package (format {version}): upgrade it"
                )
            if (indexed := told.get("indexed_text", "text alone")) != INDEXED_TEXT:
                raise IncompatibleIndexError(
                    f"collection {name!r} is an index of {indexed!r}, not of {INDEXED_TEXT!r}: add the documents to a "
                    "new collection"
                )
            analyzer, options = told["analyzer"], told["options"]
            if not isinstance(analyzer, dict) or not isinstance(options, dict):
                raise TypeError("its analyzer and its options are objects")
            made = None if entry is None else EmbedderEntry(**entry)
            return cls(analyzer, told["analyzer_fingerprint"], made, options)
        except (KeyError, TypeError, ValueError) as error:
            raise IncompatibleIndexError(
                f"collection {name!r} was not made by this package, or not in this way ({error!r}): give another name, "
                "or search it as a vector store of its framework"
            ) from error

    def text(self) -> str:
        """The recipe as one line, which `parse` reads."""
        entry = None if self.embedder is None else vars_of(self.embedder)
        return json.dumps(
            {
                "version": VERSION,
                "analyzer": dict(self.analyzer),
                "analyzer_fingerprint": self.analyzer_fingerprint,
                "embedder": entry,
                "options": dict(self.options),
                "indexed_text": INDEXED_TEXT,
            },
            sort_keys=True,
        )

    def make_analyzer(self, given: SavedAnalyzer | None, name: str) -> SavedAnalyzer:
        """The analyzer of the recipe; IncompatibleIndexError where `given` differs, or terms have changed."""
        made = analyzers.make(self.analyzer, given, name)
        analyzers.check(made, self.analyzer_fingerprint, name)
        return made

    def make_embedder(self, given: Embedder | None, name: str) -> Embedder | None:
        """The embedder of the recipe: `given` if it fits, else loaded by name; raises as `KnowledgeBase.embedder`."""
        if given is not None:
            embedding.check(self.embedder, given, name)
            return given
        return None if self.embedder is None else embedding.make(self.embedder, name)

    def check_options(self, given: Mapping[str, Any], name: str) -> None:
        """Raises ConfigError where a given option differs from the collection's."""
        for key, value in given.items():
            if self.options.get(key) != value:
                raise ConfigError(
                    f"collection {name!r} was made with {key}={self.options.get(key)!r}, not {value!r}: open it "
                    f"without {key}, or copy it into a new one"
                )


def vars_of(entry: EmbedderEntry) -> dict[str, Any]:
    """An embedder's entry as plain data."""
    return {name: getattr(entry, name) for name in ("fingerprint", "dimension", "model", "backend", "probe")}
