"""Vector search and hybrid search as LangChain retrievers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypedDict, TypeVar

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import LangSmithRetrieverParams
from langchain_core.runnables import Runnable
from langchain_core.runnables.utils import ConfigurableFieldSpec, get_unique_config_specs
from langchain_core.vectorstores import VectorStore
from pydantic import BeforeValidator, Field, field_serializer
from typing_extensions import Unpack

from voicevault_retrievers._support.checks import id_list
from voicevault_retrievers.adapters import changes
from voicevault_retrievers.adapters.embedders import model_of
from voicevault_retrievers.adapters.placeholders import NotOpenBase, beside
from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.core.execution.driver import aexecute
from voicevault_retrievers.core.execution.plan import in_thread
from voicevault_retrievers.core.protocols import Embedder, VectorIndex
from voicevault_retrievers.dense.channel import VectorChannel
from voicevault_retrievers.dense.exact import MemoryVectors
from voicevault_retrievers.engines.addresses import open_bases, several_bases, shown
from voicevault_retrievers.engines.chroma import ChromaVectors
from voicevault_retrievers.engines.engine import Engine
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.fusion.fuse import OnError
from voicevault_retrievers.langchain.base import PipelineRetriever
from voicevault_retrievers.langchain.bm25 import analyzer_of, chunks_with
from voicevault_retrievers.langchain.channels import as_channel
from voicevault_retrievers.langchain.composed import ComposedRetriever, Expansion, FusionOption, RerankOption
from voicevault_retrievers.langchain.convert import TextOf, chunks_of
from voicevault_retrievers.langchain.models import as_embedder
from voicevault_retrievers.langchain.validation import AS_GIVEN, LIVE, GivenTextOf
from voicevault_retrievers.lexical import BM25, Formula
from voicevault_retrievers.lexical.analysis import AnyAnalyzer
from voicevault_retrievers.pipeline.options import Expand, Rerank
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.pipeline.presets import Base, Preset
from voicevault_retrievers.pipeline.presets.sections import STRUCTURAL, GivenChannels, channel_of, given_channels
from voicevault_retrievers.store import Bases, KnowledgeBase
from voicevault_retrievers.structure.graph import GraphStore

COLLECTION = "voicevault"
BASES_KEPT = 64
"""How many sets of open knowledge bases are kept where calls configure `kb_names`."""

Part: TypeAlias = (
    Channel | Runnable[Any, Any] | VectorStore | GraphStore | Callable[..., Any] | Mapping[str, object] | bool
)
"""A component that can be a channel; True or a mapping of options stands for a channel of the knowledge base."""

V = TypeVar("V", bound="VectorRetriever")
H = TypeVar("H", bound="HybridRetriever")


class VectorRetriever(PipelineRetriever):
    """Vector search in a LangChain `vectorstore`, or in an `index` of this package.

    Scores are cosines, in (0, 1], higher is nearer; for the scores of a vector store see `VectorStoreChannel`.
    `embeddings` embed the queries for an index: LangChain Embeddings, an Embedder, or None for all-MiniLM-L6-v2.
    `from_documents` makes an index: exact and in memory, or a Chroma collection where it is given a folder.
    """

    vectorstore: Annotated[VectorStore | None, LIVE] = None
    index: Annotated[VectorIndex | None, LIVE] = None
    embeddings: Any = None
    on_error: OnError = "skip"
    text_of: GivenTextOf = None

    @classmethod
    def from_documents(
        cls: type[V],
        documents: Iterable[Document],
        embeddings: Any = None,
        *,
        persist_dir: str | Path | None = None,
        collection_name: str = COLLECTION,
        **options: Any,
    ) -> V:
        """A retriever over documents, embedded now: exact in memory, or in a Chroma collection in `persist_dir`.

        Equal documents are indexed once. They are added to a collection that exists already.
        """
        if persist_dir is None and collection_name != COLLECTION:
            raise ConfigError("collection_name is for a collection in persist_dir; in memory it would not be used")
        embedder = as_embedder(embeddings)
        chunks = chunks_of(documents, options.get("text_of"))
        index: VectorIndex
        if persist_dir is None:
            index = MemoryVectors.build(chunks, embedder)
        else:
            index = ChromaVectors.open(persist_dir, collection_name)
            index.add(chunks, embedder)
        return cls(index=index, embeddings=embedder if embeddings is None else embeddings, **options)

    @classmethod
    async def afrom_documents(cls: type[V], documents: Iterable[Document], embeddings: Any = None, **options: Any) -> V:
        """`from_documents` in a worker thread; async embeddings are awaited."""
        return await aexecute(
            in_thread("from_documents", partial(cls.from_documents, documents, embeddings, **options))
        )

    @classmethod
    def from_persist_dir(
        cls: type[V],
        persist_dir: str | Path,
        embeddings: Any = None,
        *,
        collection_name: str = COLLECTION,
        **options: Any,
    ) -> V:
        """A retriever over what `from_documents` wrote, with the same embeddings. ConfigError where it is empty."""
        index = ChromaVectors.open(persist_dir, collection_name) if Path(persist_dir).is_dir() else None
        if not index:
            raise ConfigError(
                f"{persist_dir} holds no Chroma collection {collection_name!r} with documents: "
                "give the persist_dir and collection_name that from_documents had"
            )
        return cls(index=index, embeddings=embeddings, **options)

    def _check(self) -> None:
        super()._check()
        if (self.vectorstore is None) == (self.index is None):
            raise ConfigError("a VectorRetriever searches either a vectorstore or an index: give one of them")
        if self.vectorstore is not None and self.embeddings is not None:
            raise ConfigError("a vectorstore has its own embeddings; those given would not be used")

    def _unstaged(self) -> Pipeline:
        return Pipeline(self._channel(), on_error=self.on_error)

    def _channel(self) -> Channel:
        if self.index is not None:
            return VectorChannel(self.index, as_embedder(self.embeddings), timeout=self.timeout)
        return as_channel(self.vectorstore, timeout=self.timeout)

    def _get_ls_params(self, **kwargs: Any) -> LangSmithRetrieverParams:
        params = super()._get_ls_params(**kwargs)
        embeddings = self.embeddings if self.vectorstore is None else self.vectorstore.embeddings
        params["ls_vector_store_provider"] = type(self.index if self.vectorstore is None else self.vectorstore).__name__
        return _with_embedding(params, embeddings)


class HybridOptions(TypedDict, total=False):
    """The options of a HybridRetriever except those that say what is searched."""

    preset: str | Path | Preset | None
    k: int
    where: dict[str, Any] | None
    require: dict[str, Any] | None
    expansion: Expansion
    fusion: FusionOption
    rerank: RerankOption
    stages: Sequence[Any]
    timeout: float | None
    name: str | None
    tags: list[str] | None
    metadata: dict[str, Any] | None


class HybridRetriever(ComposedRetriever):
    """Hybrid search of knowledge bases and of channels of any kind; for fusion and reranking see `ComposedRetriever`.

    `kb_names` are the knowledge bases: names, paths (a Path, or `file:///FOLDER/BASE`) or open bases, whose channels
    are `bm25` and `dense`. `embeddings` are needed where the bases' own cannot be loaded by name. `kb_names` may also
    be one collection of an engine, by its address (see `engines.addresses.connect`). `channels` maps names to channels:
    each is a Channel, a retriever, any runnable that returns documents, or a vector store. Documents are the same where
    their ids are equal. Channels without a common id share a document where the texts are equal and no metadata key
    that both have differs; `as_channel(part, id_key=...)` names the metadata that is the id instead.

    `channels={"questions": True, "graph": {"hops": 2}}` adds the knowledge bases' own channels, with the options of
    `KnowledgeBase.questions` and `graph`. A graph store, such as FalkorDBGraph, is searched as the channel `graph`, and
    a preset reads that graph too.
    """

    kb_names: Annotated[Sequence[str | Path | KnowledgeBase | Engine], BeforeValidator(several_bases)] = Field(
        default_factory=list
    )
    channels: Annotated[Mapping[str, Part], AS_GIVEN] = Field(default_factory=dict)
    embeddings: Annotated[Embeddings | Embedder | None, AS_GIVEN] = None
    text_of: GivenTextOf = None

    @property
    def lc_attributes(self) -> dict[str, Any]:
        """What LangChain's dumps have in place of `kb_names`: paths as `file://` addresses, and no credentials."""
        return {"kb_names": self._dumped(self.kb_names)} if self.kb_names else {}

    @field_serializer("kb_names", when_used="json")
    def _dumped(self, names: Sequence[Any]) -> list[Any]:
        return [one.absolute().as_uri() if isinstance(one, Path) else one for one in shown(names)]

    @classmethod
    def from_documents(
        cls: type[H],
        documents: Iterable[Document],
        embeddings: Any = None,
        *,
        language: str | None = "auto",
        formula: Formula | str = "lucene",
        analyzer: AnyAnalyzer | None = None,
        channels: Mapping[str, Part] | None = None,
        text_of: TextOf = None,
        **options: Unpack[HybridOptions],
    ) -> H:
        """BM25 (`bm25`) and exact vector search (`dense`) over documents held in memory, which are embedded now.

        `channels` are searched beside these two. `embeddings` are LangChain Embeddings, an Embedder, or None for
        all-MiniLM-L6-v2. `language` chooses the stemmer and stopwords ("auto" detects each document's language, None
        uses neither); `analyzer` makes the terms instead. `text_of` says what is indexed before a document's text, such
        as its title: a function of the document, or metadata keys. Equal documents are indexed once.
        """
        chunks = chunks_of(documents, text_of)
        own = {
            "bm25": BM25.from_chunks(chunks, analyzer_of(language, analyzer), formula=formula),
            "dense": VectorChannel.from_chunks(chunks, as_embedder(embeddings)),
        }
        return cls(channels=beside(own, channels), text_of=text_of, **options)

    @classmethod
    async def afrom_documents(cls: type[H], documents: Iterable[Document], embeddings: Any = None, **options: Any) -> H:
        """`from_documents` in a worker thread; async embeddings are awaited."""
        return await aexecute(
            in_thread("from_documents", partial(cls.from_documents, documents, embeddings, **options))
        )

    def add(self, documents: Iterable[Document], *, ids: Sequence[str] | None = None) -> list[str]:
        """Add documents to all channels, where they are found at once. Returns their ids.

        A document replaces the one with the same id. `ids` take precedence over the documents' own; a document without
        an id gets a digest of its content. All channels over documents in memory can be changed, and one external
        channel beside them: a vector store or a Chroma collection. A BM25Retriever over a copy of that store follows
        the store. Everything is checked and embedded before anything is changed. Raises ConfigError, naming the
        channel, where a channel cannot be changed.
        """
        chunks = chunks_with(documents, ids, self.text_of)
        changes.add(self._changed(), chunks)
        return [chunk.id for chunk in chunks]

    async def aadd(self, documents: Iterable[Document], *, ids: Sequence[str] | None = None) -> list[str]:
        """`add` in a worker thread; async embeddings and stores are awaited."""
        return await aexecute(in_thread("add", partial(self.add, documents, ids=ids)))

    def delete(self, ids: Iterable[str]) -> None:
        """Delete documents from all channels. Unknown ids are ignored. Raises as `add`."""
        changes.delete(self._changed(), id_list(ids))

    async def adelete(self, ids: Iterable[str]) -> None:
        """`delete` in a worker thread; an async store is awaited."""
        await aexecute(in_thread("delete", partial(self.delete, ids)))

    def _changed(self) -> Channel:
        if self.kb_names:
            raise changes.of_bases("HybridIndex")
        return self._unstaged().channel

    def reload(self) -> bool:
        """Read new commits of the knowledge bases, and bases created since. Returns whether there was anything new.

        Knowledge bases that calls have configured are read again too.
        """
        changed = [bases.reload() for bases in self.made.all("bases")]
        if any(changed):
            self.made.forget(type(self).__name__)
        return any(changed)

    @property
    def config_specs(self) -> list[ConfigurableFieldSpec]:
        """The fields of its components that a call can configure, as `config={"configurable": {...}}`."""
        expanders, reranker = Expand.of(self.expansion).parts, Rerank.of(self.rerank).model
        given = [*self.channels.values(), *self.stages, reranker, *expanders]
        given += [getattr(part, "llm", None) for part in expanders]
        parts = [part for part in given if isinstance(part, Runnable)]
        return get_unique_config_specs(spec for part in parts for spec in part.config_specs)

    def _get_ls_params(self, **kwargs: Any) -> LangSmithRetrieverParams:
        params = super()._get_ls_params(**kwargs)
        stores = [part for part in self.channels.values() if isinstance(part, VectorStore)]
        if stores:
            params["ls_vector_store_provider"] = type(stores[0]).__name__
        embeddings = next((store.embeddings for store in stores if store.embeddings is not None), self.embeddings)
        return _with_embedding(params, embeddings)

    def _check(self) -> None:
        beside({}, self.channels)
        if not self.kb_names and not self.channels:
            raise ConfigError("a HybridRetriever searches kb_names, channels, or both: give one of them")
        if not self.kb_names and self.embeddings is not None:
            raise ConfigError("embeddings are for kb_names; with channels alone they would not be used")
        if self.embeddings is not None:
            as_embedder(self.embeddings)  # raises for what embeds nothing
        super()._check()
        if not self.kb_names:
            self._built()
        elif not self._is_built():
            self._assembled(NotOpenBase())  # raises where options do not go together

    def _unstaged(self) -> Pipeline:
        return self._assembled(self._bases() if self.kb_names else None)

    def _assembled(self, bases: Base | None) -> Pipeline:
        if bases is None:
            return self._over(self._parts())
        made = {name: channel_of(bases, name, options) for name, options in self._given().made.items()}
        return self._over_base(bases, made, self._parts())

    def _given(self) -> GivenChannels:
        return given_channels(self.channels, based=bool(self.kb_names))

    def _channel_names(self) -> Sequence[str]:
        return (*(super()._channel_names() if self.kb_names else ()), *self.channels)

    def _parts(self) -> Mapping[str, Channel]:
        parts = self._given().parts
        return self.made.get("channels", [dict(parts)], lambda: _channels(parts))

    def _graph_store(self) -> GraphStore | None:
        given = self._given().graph
        return super()._graph_store() if given is None else given

    def _bases(self) -> Bases | Engine:
        """The knowledge bases, opened once for all copies of this retriever."""

        def opened() -> Bases | Engine:
            embedder = None if self.embeddings is None else as_embedder(self.embeddings)
            return open_bases(self.kb_names, embedder=embedder)

        return self.made.get("bases", [self.kb_names, self.embeddings], opened, keep=BASES_KEPT)


def _channels(parts: Mapping[str, Part]) -> dict[str, Channel]:
    channels = {name: as_channel(part) for name, part in parts.items()}
    return {name: channel.named(name) if name in STRUCTURAL else channel for name, channel in channels.items()}


def _with_embedding(params: LangSmithRetrieverParams, embeddings: Any) -> LangSmithRetrieverParams:
    if embeddings is not None:
        params["ls_embedding_provider"] = type(embeddings).__name__
        params["ls_embedding_model"] = model_of(embeddings)
    return params
