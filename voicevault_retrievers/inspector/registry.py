"""The knowledge bases and collections to inspect, by name, and the pipelines over them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from voicevault_retrievers._support.caches import LRUCache
from voicevault_retrievers._support.mutex import Mutex
from voicevault_retrievers.engines.addresses import connect, is_address, open_bases
from voicevault_retrievers.engines.engine import Engine
from voicevault_retrievers.errors import ConfigError, RetrievalError, unknown
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.pipeline.presets import Preset, load_preset, preset_names
from voicevault_retrievers.pipeline.presets.files import DEFAULT, default_preset
from voicevault_retrievers.pipeline.presets.sections import filled
from voicevault_retrievers.rerank.grouping import FOLDED
from voicevault_retrievers.store import KnowledgeBase, default_root
from voicevault_retrievers.store.manifest import NAME as MANIFEST
from voicevault_retrievers.store.names import existing, locate, names
from voicevault_retrievers.store.reload import Present, Remade, state_of

Given: TypeAlias = str | Path | KnowledgeBase | Engine
"""A base by its name, folder or address, or opened."""

PIPELINES = 16
"""The most pipelines cached, by last use."""


class Shelf:
    """The given bases, or all below `root`; and the presets to search them with.

    Only these bases can be requested: a name is looked up, and never becomes a path. Each search sees what was
    committed before it, also by other processes. Threads share one object. `presets` are names of shipped presets and
    paths of YAML files; the first is the default, and all shipped presets are offered too. Without any the default
    ranks as the library does.
    """

    def __init__(
        self, bases: Iterable[Given] | None = None, *, root: Path | str | None = None, presets: Sequence[str] = ()
    ) -> None:
        self._root = root
        self._connected: list[Engine] = []
        self._given = None if bases is None else _by_name(map(self._connect, bases), root)
        if self._given == {}:
            raise ConfigError("name at least one knowledge base")
        self._presets = _presets(presets)
        self._opened: dict[str, Present] = {}
        self._pipelines: LRUCache[tuple[tuple[str, ...], str], Remade[Pipeline]] = LRUCache(PIPELINES)
        self._mutex = Mutex()

    @property
    def names(self) -> list[str]:
        """The names of the bases, in the order given."""
        return bases_below(self._root) if self._given is None else list(self._given)

    @property
    def chosen(self) -> list[str]:
        """The bases searched by default: all that were given, or the first below `root`."""
        return self.names[:1] if self._given is None else self.names

    @property
    def preset_names(self) -> list[str]:
        """The names of the presets, the default first."""
        return list(self._presets)

    def described(self, name: str) -> dict[str, Any]:
        """The `name` of a base and its number of `chunks`, or the `error` where that is unavailable."""
        try:
            return {"name": name, "chunks": len(self.base(name))}
        except (RetrievalError, OSError) as error:
            return {"name": name, "chunks": None, "error": str(error)}

    def base(self, name: str) -> KnowledgeBase | Engine:
        """A base at its present commit. Raises ConfigError for an unknown name, or a base that no longer exists."""
        found = self._present(name)
        if found is None:
            raise ConfigError(f"knowledge base {name!r} does not exist any more")
        return found

    def pipeline(self, wanted: Sequence[str], preset: str) -> Pipeline:
        """The pipeline of a preset over present bases; errors as of `base`, `open_bases` and `Preset.over`."""
        if preset not in self._presets:
            raise unknown("preset", preset, self._presets)
        key = (tuple(sorted(set(wanted))), preset)
        present = {name: self._present(name) for name in key[0]}

        def made() -> Pipeline:
            sources = [self._source(name) if base is None else base for name, base in present.items()]
            pipeline = self._preset(preset).over(open_bases(sources, root=self._root))
            return pipeline.grouping(pipeline.group_by or FOLDED)

        with self._mutex:
            kept = self._pipelines.get(key) or Remade()
            self._pipelines.put(key, kept)
        return kept.now([one if isinstance(one, Engine) else state_of(one) for one in present.values()], made)

    def close(self) -> None:
        """Close the connections of collections given by address."""
        for engine in self._connected:
            engine.close()

    def _preset(self, name: str) -> Preset:
        found = self._presets[name]
        if found is None:
            found = self._presets[name] = load_preset(name)
        return found

    def _connect(self, base: Given) -> Given:
        """The collection at an address; other values unchanged."""
        if not isinstance(base, str) or not is_address(base):
            return base
        self._connected.append(connect(filled(base)))
        return self._connected[-1]

    def _source(self, name: str) -> Path | KnowledgeBase | Engine:
        if self._given is not None and name in self._given:
            return self._given[name]
        if self._given is None and name in self.names:
            return locate(name, self._root)
        raise unknown("knowledge base", name, self.names)

    def _present(self, name: str) -> KnowledgeBase | Engine | None:
        """A base at its present commit; None where it no longer exists."""
        source = self._source(name)
        if isinstance(source, Engine):
            return source
        with self._mutex:
            if name not in self._opened:
                self._opened[name] = Present(source)
            opened = self._opened[name]
        return opened.base()


def bases_below(root: Path | str | None) -> list[str]:
    """The names of the knowledge bases in a folder, damaged ones too."""
    folder = default_root() if root is None else Path(root)
    return [name for name in names(folder) if (folder / name / MANIFEST).exists()]


def _by_name(bases: Iterable[Given], root: Path | str | None) -> dict[str, Path | KnowledgeBase | Engine]:
    """The bases by name; an engine's by its collection's name, as an address may hold a password."""
    found: dict[str, Path | KnowledgeBase | Engine] = {}
    for given in bases:
        one = existing(given, root) if isinstance(given, str | Path) else given
        if one.name in found:
            raise ConfigError(f"two bases have the name {one.name!r}: each is named once")
        found[one.name] = one
    return found


def _presets(given: Sequence[str]) -> dict[str, Preset | None]:
    """The presets by name, the given ones first and loaded, so that their errors are raised at once."""
    found: dict[str, Preset | None] = {}
    for name in given:
        label = Path(name).stem if Path(name).suffix in (".yaml", ".yml") else name
        if label in found:
            raise ConfigError(f"presets have names of their own, and two are called {label!r}")
        found[label] = load_preset(name)
    found = found or {DEFAULT: default_preset()}
    return found | {name: None for name in preset_names() if name not in found}
