"""What differs between Elasticsearch and OpenSearch: the client, the mapping and search of vectors, RRF."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

from voicevault_retrievers.core.protocols import Embedder
from voicevault_retrievers.core.types import Vector
from voicevault_retrievers.engines.elastic import bodies
from voicevault_retrievers.engines.elastic.bodies import Search
from voicevault_retrievers.engines.elastic.clients import ElasticsearchConnection, OpenSearchConnection
from voicevault_retrievers.engines.elastic.engine import DEEPEST, ElasticEngine
from voicevault_retrievers.engines.rows import CHUNK
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.store.analyzers import SavedAnalyzer

CANDIDATES = 200
"""The fewest candidates that Elasticsearch considers for the nearest chunks."""


class ElasticsearchEngine(ElasticEngine):
    """An index of Elasticsearch 9, by its name; see `Engine`.

    `user` is a name and a password, `api_key` an API key, `client_options` are further ones of `Elasticsearch`. A new
    index has the index `settings`, such as `number_of_shards`, and vectors by `index`: a type of `dense_vector`'s
    `index_options`, "hnsw" by default, "flat" for exact search.
    """

    unexplained = "Elasticsearch"
    connection = ElasticsearchConnection
    cosine = "cosineSimilarity(params.vector, 'vector') + 1.0"

    def _vector_field(self, dimension: int, kind: str | None) -> Mapping[str, Any]:
        options = {"index_options": {"type": kind or "hnsw"}}
        return {"type": "dense_vector", "dims": dimension, "index": True, "similarity": "cosine", **options}

    def _neighbours(self, vector: Vector, size: int, clauses: Sequence[Any]) -> Search:
        return Search({"knn": _knn(vector, size, clauses), "size": size, "_source": CHUNK})

    def _natively_fused(
        self, keywords: Any, vector: Vector, k: int, size: int, depth: int, clauses: Sequence[Any]
    ) -> Search:
        legs = [{"standard": {"query": keywords}}, {"knn": _knn(vector, depth, clauses)}]
        fused = {"retrievers": legs, "rank_constant": k, "rank_window_size": depth}
        return Search({"retriever": {"rrf": fused}, "size": size, "_source": bodies.SCORED})


class OpenSearchEngine(ElasticEngine):
    """An index of OpenSearch, 2.19 or later, by its name; see `Engine`.

    `user` is a name and a password, `client_options` are further ones of `OpenSearch`. A new index has the index
    `settings`, such as `number_of_shards`, and vectors in the engine `index`: "lucene" by default, or "faiss".
    """

    unexplained = "OpenSearch"
    connection = OpenSearchConnection
    own_settings: ClassVar[Mapping[str, Any]] = {"knn": True}
    cosine = "cosineSimilarity(params.vector, doc['vector']) + 1.0"

    def _vector_field(self, dimension: int, kind: str | None) -> Mapping[str, Any]:
        method = {"name": "hnsw", "engine": kind or "lucene", "space_type": "cosinesimil"}
        return {"type": "knn_vector", "dimension": dimension, "method": method}

    def _neighbours(self, vector: Vector, size: int, clauses: Sequence[Any]) -> Search:
        return Search({"query": _knn_query(vector, size, clauses), "size": size, "_source": CHUNK})

    def _natively_fused(
        self, keywords: Any, vector: Vector, k: int, size: int, depth: int, clauses: Sequence[Any]
    ) -> Search:
        hybrid = {"queries": [keywords, _knn_query(vector, depth, clauses)], "pagination_depth": depth}
        ranker = {"combination": {"technique": "rrf", "rank_constant": k}}
        pipeline = {"phase_results_processors": [{"score-ranker-processor": ranker}]}
        return Search(
            {"query": {"hybrid": hybrid}, "size": size, "_source": bodies.SCORED, "search_pipeline": pipeline}
        )


def _knn(vector: Vector, size: int, clauses: Sequence[Any]) -> dict[str, Any]:
    candidates = min(max(2 * size, CANDIDATES), DEEPEST)
    asked = {"field": "vector", "query_vector": vector.tolist(), "k": size, "num_candidates": candidates}
    return {**asked, "filter": list(clauses)}


def _knn_query(vector: Vector, size: int, clauses: Sequence[Any]) -> dict[str, Any]:
    return {"knn": {"vector": {"vector": vector.tolist(), "k": size, "filter": {"bool": {"filter": list(clauses)}}}}}


def at(
    address: str, *, embedder: Embedder | None = None, analyzer: SavedAnalyzer | None = None, **options: Any
) -> ElasticEngine:
    """The collection at `elasticsearch://[key@]host[:9200]/COLLECTION` or `opensearch://[user:password@]host/...`.

    `elasticsearchs://` and `opensearchs://` use TLS; `user:password@` serves both. `options` are those of the engine.
    Raises ConfigError for any other address, without repeating it, as it may hold a key.
    """
    try:
        parts = urlsplit(address)
        port, (prefix, _, name) = parts.port, parts.path.rpartition("/")
        whole = bool(name and parts.hostname) and not parts.query and not parts.fragment and "@" not in parts.path
    except ValueError:
        whole = False
    if not whole:
        raise ConfigError(
            "the address of a collection is elasticsearch://[key@]host[:9200]/COLLECTION or opensearch://..., each "
            "with an s (elasticsearchs://) by TLS; in a key each of / ? # @ : [ ] % is written as %2F and so on"
        )
    host = f"[{parts.hostname}]" if ":" in str(parts.hostname) else parts.hostname
    login: dict[str, Any] = {}
    if parts.password is not None:
        login["user"] = unquote(parts.username or ""), unquote(parts.password)
    elif parts.username:
        login["api_key"] = unquote(parts.username)
    make = ElasticsearchEngine if parts.scheme.startswith("elasticsearch") else OpenSearchEngine
    scheme = "https" if parts.scheme.endswith("hs") else "http"
    given: dict[str, Any] = {"embedder": embedder, "analyzer": analyzer, **login, **options}
    return make(unquote(name), f"{scheme}://{host}:{port or 9200}{prefix}", **given)
