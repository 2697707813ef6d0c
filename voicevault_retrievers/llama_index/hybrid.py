"""Hybrid search as a LlamaIndex retriever."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.callbacks import CallbackManager
from llama_index.core.indices.base import BaseIndex
from llama_index.core.indices.vector_store.base import VectorStoreIndex
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import BaseNode, IndexNode, MetadataMode
from llama_index.core.vector_stores.types import BasePydanticVectorStore
from typing_extensions import Never, Unpack

from voicevault_retrievers._support.checks import id_list
from voicevault_retrievers._support.mutex import Mutex
from voicevault_retrievers.adapters import changes
from voicevault_retrievers.adapters.keyword_copy import KeywordCopy
from voicevault_retrievers.adapters.placeholders import NotOpenBase, beside
from voicevault_retrievers.core.channel import Channel, Stage
from voicevault_retrievers.core.execution.driver import aexecute
from voicevault_retrievers.core.execution.plan import in_thread
from voicevault_retrievers.core.protocols import Embedder
from voicevault_retrievers.core.types import Failure
from voicevault_retrievers.dense import load_embedder
from voicevault_retrievers.dense.channel import VectorChannel
from voicevault_retrievers.engines.addresses import open_bases, several_bases, shown
from voicevault_retrievers.engines.engine import Engine
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.lexical import BM25, Formula
from voicevault_retrievers.lexical.analysis import AnyAnalyzer
from voicevault_retrievers.llama_index.base import PipelineRetriever
from voicevault_retrievers.llama_index.bm25 import analyzer_of
from voicevault_retrievers.llama_index.channels import Part, as_channel
from voicevault_retrievers.llama_index.composed import (
    ComposedRetriever,
    Expansion,
    FusionOption,
    RerankOption,
    preset_of,
)
from voicevault_retrievers.llama_index.convert import chunks_of, kept_chunk_of
from voicevault_retrievers.llama_index.filters import Where
from voicevault_retrievers.llama_index.listing import copied
from voicevault_retrievers.llama_index.models import LlamaIndexEmbedder, as_embedder, checked_model, store_model
from voicevault_retrievers.llama_index.options import CommonOptions, GroupOption, mode_of, refuse
from voicevault_retrievers.pipeline.presets import Base, Preset
from voicevault_retrievers.pipeline.presets.missing_parts import NotOpenChannel, channel_if_there
from voicevault_retrievers.pipeline.presets.sections import STRUCTURAL, channel_of, given_channels
from voicevault_retrievers.store import Bases, KnowledgeBase
from voicevault_retrievers.structure.graph import GraphStore

H = TypeVar("H", bound="HybridRetriever")
KnowledgeBases = Sequence[str | Path | KnowledgeBase | Engine] | KnowledgeBase | Engine | str | Path
Channels: TypeAlias = Mapping[str, Part | GraphStore | Mapping[str, object] | bool]
"""Channels by name; True or a mapping of options stands for a channel of the knowledge base."""
EmbedModel = BaseEmbedding | Embedder | str | None


class HybridOptions(CommonOptions, total=False):
    """The options of a HybridRetriever except its preset and those that say what is searched."""

    k: int | None
    expansion: Expansion
    fusion: FusionOption
    rerank: RerankOption
    timeout: float | None
    similarity_top_k: int | None


class HybridRetriever(ComposedRetriever):
    """Hybrid search of knowledge bases and of channels of any kind; for fusion and reranking see `ComposedRetriever`.

    `kb_names` are the knowledge bases, opened on first use: names, paths (a Path, or `file:///FOLDER/BASE`) or open
    bases, whose channels are `bm25` and `dense`; or one collection of an engine, by its address (see
    `engines.addresses.connect`). `channels` maps names to channels: each is a Channel, a LlamaIndex retriever, an
    index, or a vector store. `embed_model` is for bases whose model cannot be loaded by its name, and for the vector
    stores, which are otherwise searched with the configured `Settings.embed_model`.

    `channels={"questions": True, "graph": {"hops": 2}}` adds the knowledge bases' own channels, with the options of
    `KnowledgeBase.questions` and `graph`. A graph store, such as FalkorDBGraph, is searched as the channel `graph`, and
    a preset reads that graph too.
    """

    def __init__(
        self,
        kb_names: KnowledgeBases = (),
        *,
        channels: Channels | None = None,
        embed_model: EmbedModel = None,
        preset: Preset | str | Path | None = None,
        k: int | None = None,
        where: Where = None,
        require: Where = None,
        expansion: Expansion = None,
        fusion: FusionOption = None,
        rerank: RerankOption = None,
        node_postprocessors: Sequence[BaseNodePostprocessor | Stage] | None = None,
        similarity_cutoff: float | None = None,
        group_by: GroupOption = None,
        timeout: float | None = None,
        similarity_top_k: int | None = None,
        callback_manager: CallbackManager | None = None,
        object_map: dict[str, Any] | None = None,
        objects: list[IndexNode] | None = None,
        verbose: bool = False,
        **unknown: Never,
    ) -> None:
        refuse(type(self), unknown)
        super().__init__(
            preset=preset,
            k=k,
            where=where,
            require=require,
            expansion=expansion,
            fusion=fusion,
            rerank=rerank,
            node_postprocessors=node_postprocessors,
            similarity_cutoff=similarity_cutoff,
            group_by=group_by,
            timeout=timeout,
            similarity_top_k=similarity_top_k,
            callback_manager=callback_manager,
            object_map=object_map,
            objects=objects,
            verbose=verbose,
        )
        self.kb_names = several_bases(kb_names)
        self.embed_model = checked_model(embed_model)
        self.channels = beside({}, channels)
        given = given_channels(self.channels, based=bool(self.kb_names))
        self._refuse_unused(given.parts)
        self.graph = self.preset.graph if given.graph is None and self.preset else given.graph
        self.object_map = {**_objects_of(given.parts), **self.object_map}
        parts = {name: as_channel(part) for name, part in _embedded(given.parts, embed_model).items()}
        parts = {name: part.named(name) if name in STRUCTURAL else part for name, part in parts.items()}
        wanted = {**(_wanted(self.preset, graph=self.graph) if self.kb_names else {}), **given.made}
        make = partial(_channels, wanted=wanted, asked=given.made)
        self._searched = _Searched(self._bases if self.kb_names else None, make, parts)
        self._over(beside({name: NotOpenChannel(name) for name in wanted}, parts))  # raises for options that do not fit

    @classmethod
    def from_nodes(
        cls: type[H],
        nodes: Sequence[BaseNode],
        embed_model: EmbedModel = None,
        *,
        language: str | None = "auto",
        formula: Formula | str | None = None,
        analyzer: AnyAnalyzer | None = None,
        preset: Preset | str | Path | None = None,
        channels: Channels | None = None,
        metadata_mode: MetadataMode | None = None,
        **options: Unpack[HybridOptions],
    ) -> H:
        """BM25 (`bm25`) and exact vector search (`dense`) over nodes held in memory.

        The nodes are embedded now, with the metadata of `metadata_mode`: those that LlamaIndex embeds, or none where
        there is a preset. The BM25 formula is `formula`, else the preset's, else "lucene".
        `embed_model` None is the preset's model, else as in `as_embedder`. `channels` are searched beside these two.
        `language` and `analyzer` are as in `BM25Retriever.from_nodes`.
        """
        refuse(cls, options, cls.from_nodes)
        chosen = preset_of(preset)
        usual = MetadataMode.EMBED if chosen is None else MetadataMode.NONE
        mode = usual if metadata_mode is None else mode_of(metadata_mode)
        base = InMemoryNodes(nodes, analyzer_of(language, analyzer), embed_model, chosen, mode)
        wanted = _wanted(chosen, formula, given_channels(beside({}, channels), based=True).graph)
        own = _channels(base, wanted, asked=wanted)
        retriever = cls(channels=beside(own, _embedded(channels, embed_model)), preset=chosen, **options)
        retriever.metadata_mode = mode
        return retriever

    @classmethod
    def from_index(
        cls: type[H],
        index: VectorStoreIndex,
        *,
        language: str | None = "auto",
        formula: Formula | str | None = None,
        analyzer: AnyAnalyzer | None = None,
        preset: Preset | str | Path | None = None,
        channels: Channels | None = None,
        metadata_mode: MetadataMode = MetadataMode.EMBED,
        **options: Unpack[HybridOptions],
    ) -> H:
        """BM25 over the nodes of an index (`bm25`), and the index itself (`dense`); `channels` are searched beside.

        `bm25` follows the index as in `BM25Retriever.from_vector_store`. Raises as `nodes_of`.
        """
        refuse(cls, options, cls.from_index)
        chosen, mode = preset_of(preset), mode_of(metadata_mode)
        if not isinstance(index, VectorStoreIndex):
            raise ConfigError(f"expected a VectorStoreIndex, not a {type(index).__name__}; a store goes in channels")
        keywords = _wanted(chosen, formula).get("bm25", {})
        own = {
            "bm25": KeywordCopy.of(*copied(index, mode=mode), analyzer_of(language, analyzer), **keywords),
            "dense": index,
        }
        retriever = cls(channels=beside(own, channels), preset=chosen, **options)
        retriever.metadata_mode = mode
        return retriever

    @classmethod
    async def afrom_nodes(cls: type[H], nodes: Sequence[BaseNode], embed_model: EmbedModel = None, **options: Any) -> H:
        """`from_nodes` in a worker thread; an async embedding model is awaited."""
        return await aexecute(in_thread("from_nodes", partial(cls.from_nodes, nodes, embed_model, **options)))

    @classmethod
    async def afrom_index(cls: type[H], index: VectorStoreIndex, **options: Any) -> H:
        """`from_index` in a worker thread."""
        return await aexecute(in_thread("from_index", partial(cls.from_index, index, **options)))

    def add(self, nodes: Iterable[BaseNode]) -> list[str]:
        """Add nodes to all channels, where they are found at once. Returns their ids.

        A node replaces the one with the same id. All channels over nodes in memory can be changed, and one external
        channel beside them: an index, a vector store or a Chroma collection. The BM25 of `from_index` follows its
        index. Everything is checked and embedded before anything is changed. Raises ConfigError, naming the channel,
        where a channel cannot be changed.
        """
        chunks = [kept_chunk_of(node, self.metadata_mode) for node in nodes]
        changes.add(self._changed(), chunks)
        return [chunk.id for chunk in chunks]

    async def aadd(self, nodes: Iterable[BaseNode]) -> list[str]:
        """`add` in a worker thread; async embedding models and stores are awaited."""
        return await aexecute(in_thread("add", partial(self.add, nodes)))

    def delete(self, node_ids: Iterable[str]) -> None:
        """Delete nodes from all channels. Unknown ids are ignored. Raises as `add`."""
        changes.delete(self._changed(), id_list(node_ids))

    async def adelete(self, node_ids: Iterable[str]) -> None:
        """`delete` in a worker thread; an async store is awaited."""
        await aexecute(in_thread("delete", partial(self.delete, node_ids)))

    def _changed(self) -> Channel:
        if self.kb_names:
            raise changes.of_bases("HybridVectorStore")
        return self._unstaged().channel

    def reload(self) -> bool:
        """Read new commits of the knowledge bases, and bases created since. Returns whether there was anything new.

        Copies made by `with_options` and `>>` read them too.
        """
        return self._searched.reload()

    def _base(self) -> Base | None:
        return (self._searched.bases or NotOpenBase()) if self.kb_names else None

    def _graph_store(self) -> GraphStore | None:
        return self.graph

    def _bases(self) -> Bases | Engine:
        embedder = None if self.embed_model is None else as_embedder(self.embed_model)
        return open_bases(self.kb_names, embedder=embedder)

    def _sources(self) -> tuple[Mapping[str, Channel], Sequence[Failure]]:
        return self._searched.get()

    def _ready(self) -> bool:
        return self._searched.ready

    def _refuse_unused(self, parts: Mapping[str, Part]) -> None:
        if not self.kb_names and not self.channels:
            raise ConfigError("a HybridRetriever searches kb_names, channels, or both: give one of them")
        stores = any(isinstance(part, BasePydanticVectorStore) for part in parts.values())
        if self.embed_model is not None and not self.kb_names and not stores:
            raise ConfigError(
                "embed_model is for kb_names and vector stores; other channels have their own, and it would not be used"
            )

    def _parts(self) -> Iterator[tuple[str, Any]]:
        yield from self.channels.items()
        yield from super()._parts()

    def _recipe(self) -> dict[str, Any]:
        given = self.embed_model  # the repr of a LlamaIndex model may show its key
        model = LlamaIndexEmbedder(given) if isinstance(given, BaseEmbedding) else given
        options = {name: part for name, part in self.channels.items() if name not in self._searched.given}
        said = {"kb_names": shown(self.kb_names), "embed_model": model, "channels": {**self._searched.given, **options}}
        return {**said, **super()._recipe()}


class _Searched:
    """The channels that a retriever and all its copies share, and the failures of channels that cannot be searched."""

    def __init__(
        self,
        bases: Callable[[], Bases | Engine] | None,
        make: Callable[[Bases | Engine], Mapping[str, Channel]],
        given: Mapping[str, Channel],
    ) -> None:
        self._open = bases
        self._channels = make
        self.given = given
        self._bases: Bases | Engine | None = None
        self._made: tuple[Mapping[str, Channel], Sequence[Failure]] | None = None if bases else (given, ())
        self._mutex = Mutex()

    @property
    def bases(self) -> Bases | Engine | None:
        """The knowledge bases, or None where they are not open yet."""
        return self._bases

    @property
    def ready(self) -> bool:
        """Whether the knowledge bases are open."""
        return self._made is not None

    def get(self) -> tuple[Mapping[str, Channel], Sequence[Failure]]:
        """The channels and failures, over the known state of the bases; takes no lock once they are built."""
        made = self._made
        if made is None:
            with self._mutex:
                made = self._made = self._made or self._make()
        return made

    def reload(self) -> bool:
        """Read what is new in the bases. A base that is not open yet has nothing new."""
        with self._mutex:
            changed = self._bases is not None and self._bases.reload()
            if changed:
                self._made = None
        return changed

    def _make(self) -> tuple[Mapping[str, Channel], Sequence[Failure]]:
        if self._bases is None and self._open is not None:
            self._bases = self._open()
        own = {} if self._bases is None else self._channels(self._bases)
        return {**own, **self.given}, getattr(self._bases, "notes", ())


class InMemoryNodes:
    """Nodes in memory in the role of a preset's knowledge base: they make channels."""

    def __init__(
        self,
        nodes: Sequence[BaseNode],
        analyzer: AnyAnalyzer,
        embed_model: EmbedModel = None,
        preset: Preset | None = None,
        metadata_mode: MetadataMode = MetadataMode.EMBED,
    ) -> None:
        self.chunks = chunks_of(nodes, metadata_mode)
        self.analyzer = analyzer
        self.embed_model = embed_model
        self.preset = preset

    def bm25(self, **options: Any) -> Channel:
        return BM25.from_chunks(self.chunks, self.analyzer, **options)

    def dense(self, **options: Any) -> Channel:
        return VectorChannel.from_chunks(self.chunks, self._embedder(), **options)

    def _embedder(self) -> Embedder:
        if self.embed_model is None and self.preset is not None:
            return load_embedder(self.preset.model, self.preset.backend)
        return as_embedder(self.embed_model)


def _wanted(
    preset: Preset | None, formula: Formula | str | None = None, graph: GraphStore | None = None
) -> dict[str, Mapping[str, Any]]:
    """The channels to be built, with the options of each; without the graph channel where a graph store is given."""
    if preset is None:
        return {"bm25": {"formula": formula or "lucene"}, "dense": {}}
    if formula is not None:
        raise ConfigError(f"preset {preset.name!r} says which BM25 formula; formula={formula!r} is not given beside it")
    apart = graph is not None or preset.graph is not None
    return {name: options for name, options in preset.channels.items() if name != "graph" or not apart}


def _channels(base: Base, wanted: Mapping[str, Mapping[str, Any]], asked: Iterable[str] = ()) -> dict[str, Channel]:
    """The wanted channels. A preset's channel that the base lacks is left out; one of `asked` must be there."""
    make = {name: channel_of if name in asked else channel_if_there for name in wanted}
    return {name: make[name](base, name, options) for name, options in wanted.items()}


def _objects_of(channels: Mapping[str, Part]) -> dict[str, Any]:
    """The objects that index nodes of the channels point to, where the nodes themselves do not have them."""
    maps = [part.object_map for part in channels.values() if isinstance(part, PipelineRetriever)]
    maps += [part._object_map for part in channels.values() if isinstance(part, BaseIndex)]
    return {name: target for known in maps for name, target in known.items()}


def _embedded(channels: Channels | None, embed_model: EmbedModel) -> dict[str, Any]:
    """Vector stores as channels with this model, else the configured model; other channels unchanged."""

    def embedded(part: Any) -> Any:
        is_store = isinstance(part, BasePydanticVectorStore)
        return as_channel(part, embed_model=store_model(embed_model)) if is_store else part

    return {name: embedded(part) for name, part in beside({}, channels).items()}
