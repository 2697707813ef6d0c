"""Elasticsearch and OpenSearch as engines: BM25 by this package's terms, vectors, both in one round trip."""

from voicevault_retrievers.engines.elastic.products import ElasticsearchEngine, OpenSearchEngine, at

__all__ = ["ElasticsearchEngine", "OpenSearchEngine", "at"]
