"""The settings of a search on the command line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
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
from voicevault_retrievers.pipeline.presets import Preset, load_preset
from voicevault_retrievers.pipeline.presets.files import default_preset
from voicevault_retrievers.pipeline.presets.sections import filled, text_model
from voicevault_retrievers.pipeline.query_file import FileQuery
from voicevault_retrievers.rerank.grouping import FOLDED, GroupBy
from voicevault_retrievers.store import Bases
from voicevault_retrievers.store.names import existing, locate, vacant


@dataclass(frozen=True)
class SearchOptions:
    """The bases, preset, number of hits and filters of a search. ConfigError for a wrong filter.

    Without a preset the search ranks as the library does by default. `llm` names the preset's language model, as the
    section `llm` of a preset does. `${NAME}` in an engine's address is read from the environment.
    """

    kbs: tuple[str, ...]
    preset: str | None = None
    top_k: int | None = None
    where: Filter | None = None
    require: Filter | None = None
    root: Path | None = None
    llm: Mapping[str, Any] = field(default_factory=dict)
    group_by: GroupBy | None = None

    def __post_init__(self) -> None:
        Query("", where=self.where, require=self.require)

    @property
    def names(self) -> list[str]:
        """The names and addresses to open."""
        return [str(filled(name)) if is_address(name) else name for name in self.kbs]

    @property
    def shown(self) -> list[str]:
        """The bases' names for printing: addresses without user, password and the part after `?`."""
        return [mask_credentials(name) for name in self.kbs]

    def narrowed(self, asked: FileQuery) -> FileQuery:
        """The query under these filters and its own, with its own number of hits, else this one."""
        query = asked.query
        where, require = both(self.where, query.where), scope(self.require, query.require)
        k = self.top_k if asked.k is None else asked.k
        return replace(asked, query=replace(query, where=where, require=require), k=k)

    @contextmanager
    def opened(self) -> Iterator[Bases | Engine]:
        """The opened bases or engine; an engine's connections are closed at the end."""
        base = open_bases(self.names, root=self.root)
        try:
            yield base
        finally:
            if isinstance(base, Engine):
                base.close()

    def over(self, base: Bases | Engine) -> Pipeline:
        """The preset over the opened bases or engine; without another grouping, equal texts are folded."""
        pipeline = self.loaded().over(base)
        return pipeline.grouping(self.group_by or pipeline.group_by or FOLDED)

    def loaded(self) -> Preset:
        """The preset by its name or file, or the default one."""
        return default_preset(llm=self.model) if self.preset is None else load_preset(self.preset, llm=self.model)

    @property
    def model(self) -> TextModel | None:
        """The language model that the options name; None where they name none."""
        return text_model(dict(self.llm))


def check_exist(kbs: Iterable[str], root: Path | None) -> None:
    """Raises ConfigError, with the nearest name, where none of the named knowledge bases exists.

    Where some exist, results note the others.
    """
    named = list(kbs)
    if not any(is_address(name) or not vacant(locate(name, root)) for name in named):
        for name in named:
            existing(name, root)
