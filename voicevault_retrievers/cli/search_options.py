"""What a search on the command line asks, and of what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from voicevault_retrievers._support.hosts import mask_credentials
from voicevault_retrievers.core.filters import Filter, both, scope
from voicevault_retrievers.core.protocols import TextModel
from voicevault_retrievers.core.types import Query
from voicevault_retrievers.engines.addresses import is_address, open_bases
from voicevault_retrievers.engines.engine import Engine
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.pipeline.presets import load_preset
from voicevault_retrievers.pipeline.presets.sections import filled, text_model
from voicevault_retrievers.pipeline.query_file import FileQuery
from voicevault_retrievers.store import Bases


@dataclass(frozen=True)
class SearchOptions:
    """Which bases are asked by which preset, for how many hits, under which filters. ConfigError for a wrong filter.

    `llm` names the preset's language model, as the section `llm` of a preset does. In an engine's address `${NAME}`
    reads the environment.
    """

    kbs: tuple[str, ...]
    preset: str = "voicevault"
    top_k: int | None = None
    where: Filter | None = None
    require: Filter | None = None
    root: Path | None = None
    llm: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        Query("", where=self.where, require=self.require)

    @property
    def names(self) -> list[str]:
        """What is opened."""
        return [str(filled(name)) if is_address(name) else name for name in self.kbs]

    @property
    def shown(self) -> list[str]:
        """What may be printed: of an address neither the user and the password, nor what stands behind `?`."""
        return [mask_credentials(name) for name in self.kbs]

    def narrowed(self, asked: FileQuery) -> FileQuery:
        """The query under these filters and its own, with its own number of hits or this one."""
        query = asked.query
        where, require = both(self.where, query.where), scope(self.require, query.require)
        k = self.top_k if asked.k is None else asked.k
        return replace(asked, query=replace(query, where=where, require=require), k=k)

    @contextmanager
    def opened(self) -> Iterator[Bases | Engine]:
        """What is searched; an engine's connections are closed behind it."""
        base = open_bases(self.names, root=self.root)
        try:
            yield base
        finally:
            if isinstance(base, Engine):
                base.close()

    def over(self, base: Bases | Engine) -> Pipeline:
        """The preset over what is searched."""
        return load_preset(self.preset, llm=self.model).over(base)

    @property
    def model(self) -> TextModel | None:
        """The language model that is named, if one is."""
        return text_model(dict(self.llm))
