"""How queries score the documents of a fake search server's index.

BM25 is Lucene's: lengths are kept in one byte (`SmallFloat.intToByte4`), frequencies count deleted documents until a
merge, scores are float32. Vectors are compared exactly. Shapes are those of "Term query", "Terms query", "Range query",
"Exists query", "IDs query", "Boolean query", "Script score query", "kNN search", "kNN query", "Reciprocal rank fusion"
(Elasticsearch), "k-NN query", "Hybrid query", "Score ranker processor" (OpenSearch), "Filters", "Terms" and "Sum
aggregation", "Dense vector", "k-NN vector", "Keyword", "Text" field types, "_source field".
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from tests.engines.elastic_index import Document, Documents, only, refused, single

WINDOW = 10_000
CLAUSES = 1024
_PARTS = (
    "double n = 1.0 - params.b + params.b * doc['length'].value / params.mean; return Math.max(0.0, params.weight * "
    "((params.alpha * _score + params.beta * n) / (_score + params.gamma * n)  + params.add - params.absent));"
)
_COSINE = {
    "Elasticsearch": "cosineSimilarity(params.vector, 'vector') + 1.0",
    "OpenSearch": "cosineSimilarity(params.vector, doc['vector']) + 1.0",
}

Scores = dict[str, float]


class Index(Documents):
    """An index that answers searches."""

    # Queries.

    def scores(self, query: Any) -> Scores:
        """The documents that a query finds, with their scores."""
        if not isinstance(query, Mapping) or len(query) != 1:
            raise refused("[query] malformed query", "parsing_exception")
        ((kind, told),) = query.items()
        known: dict[str, Callable[[Any], Scores]] = {
            "term": self._term,
            "terms": self._terms,
            "range": self._range,
            "exists": self._exists,
            "ids": self._ids,
            "bool": self._bool,
            "script_score": self._script_score,
        }
        if self.product == "OpenSearch":
            known["knn"] = self._knn_query
        if kind not in known:
            raise refused(f"unknown query [{kind}]", "parsing_exception")
        return known[kind](told)

    def _term(self, told: Any) -> Scores:
        ((field, value),) = told.items()
        boost = 1.0
        if isinstance(value, Mapping):
            only(value, ("value", "boost"), "term")
            boost, value = value.get("boost", 1.0), value["value"]
            if boost < 0:
                raise refused("negative [boost] are not allowed", "parsing_exception")
        names = self.having(field, str(value))
        if field == "terms":
            return {name: single(boost * self.seen[name].terms[value]) for name in names}
        if field == "words":
            return self._bm25(value, boost, names)
        return dict.fromkeys(names, boost)

    def _bm25(self, word: str, boost: float, names: set[str]) -> Scores:
        if self.statistics is None:
            counted = [held.words.total() for held in (*self.seen.values(), *self.ghosts) if held.words]
            self.statistics = len(counted), sum(counted)
        documents, length = self.statistics
        frequency = len(names) + sum(word in held.words for held in self.ghosts)
        idf = math.log(1 + (documents - frequency + 0.5) / (frequency + 0.5))
        k1, b, found = self.bm25["k1"], self.bm25["b"], {}
        for name in names:
            held = self.seen[name]
            norm = k1 * (1 - b + b * held.length / (length / documents))
            found[name] = single(boost * idf * held.words[word] / (held.words[word] + norm))
        return found

    def _terms(self, told: Any) -> Scores:
        ((field, values),) = told.items()
        return dict.fromkeys(set().union(*(self.having(field, str(one)) for one in values)), 1.0)

    def _range(self, told: Any) -> Scores:
        ((field, ends),) = told.items()
        only(ends, ("gt", "gte", "lt", "lte"), "range")
        assert self.fields[field]["type"] == "keyword"
        tests: dict[str, Callable[[str, str], bool]] = {
            "gt": lambda value, end: value > end,
            "gte": lambda value, end: value >= end,
            "lt": lambda value, end: value < end,
            "lte": lambda value, end: value <= end,
        }
        return {
            name: 1.0
            for name, held in self.seen.items()
            if any(all(tests[op](one, end) for op, end in ends.items()) for one in held.indexed.get(field, ()))
        }

    def _exists(self, told: Any) -> Scores:
        only(told, ("field",), "exists")
        return {name: 1.0 for name, held in self.seen.items() if held.indexed.get(told["field"]) not in (None, [])}

    def _ids(self, told: Any) -> Scores:
        only(told, ("values",), "ids")
        return {name: 1.0 for name in told["values"] if name in self.seen}

    def _bool(self, told: Any) -> Scores:
        only(told, ("filter", "must_not", "should", "minimum_should_match"), "bool")
        if sum(len(told.get(part, ())) for part in ("filter", "must_not", "should")) > CLAUSES:
            raise refused("Query contains too many nested clauses", "too_many_nested_clauses")
        should = [self.scores(one) for one in told.get("should", ())]
        least = told.get("minimum_should_match", 1 if should and not told.get("filter") else 0)
        found = {name: math.fsum(one[name] for one in should if name in one) for one in should for name in one}
        if not least:
            found = {**dict.fromkeys(self.seen, 0.0), **found}
        for one in told.get("filter", ()):
            passing = self.scores(one)
            found = {name: score for name, score in found.items() if name in passing}
        for one in told.get("must_not", ()):
            failing = self.scores(one)
            found = {name: score for name, score in found.items() if name not in failing}
        return {name: single(score) for name, score in found.items()}

    def _script_score(self, told: Any) -> Scores:
        only(told, ("query", "script"), "script_score")
        only(told["script"], ("source", "params"), "script")
        source, params, found = told["script"]["source"], told["script"]["params"], self.scores(told["query"])
        if source == _COSINE[self.product]:
            return {name: single(self._cosine(name, params["vector"]) + 1) for name in found}
        if source != _PARTS:
            raise refused("compile error", "script_exception")
        return {name: single(self._part(score, self.seen[name], **params)) for name, score in found.items()}

    def _part(self, f: float, held: Document, **p: float) -> float:
        n = 1 - p["b"] + p["b"] * held.indexed["length"] / p["mean"]
        value = (p["alpha"] * f + p["beta"] * n) / (f + p["gamma"] * n) + p["add"] - p["absent"]
        return max(0.0, p["weight"] * value)

    # Vectors.

    def _cosine(self, name: str, vector: Sequence[float]) -> float:
        row, asked = self.seen[name].vector.astype(np.float64), np.asarray(vector, np.float64)
        return float(np.dot(row, asked) / math.sqrt(float(np.dot(row, row)) * float(np.dot(asked, asked))))

    def _nearest(self, vector: Sequence[float], k: int, passing: Collection[str] | None) -> Scores:
        told = self.fields.get("vector")
        if told is None or len(vector) != told.get("dims", told.get("dimension")):
            raise refused("the query vector has other dimensions", "query_shard_exception")
        names = [one for one, held in self.seen.items() if held.vector is not None]
        scored = {
            one: single((1 + self._cosine(one, vector)) / 2) for one in names if passing is None or one in passing
        }
        order = sorted(scored, key=lambda one: (-scored[one], hash(one)))  # not by id
        return {one: scored[one] for one in order[:k]}

    def _knn(self, told: Any) -> Scores:
        """The top-level `knn`, and the retriever of this name."""
        only(told, ("field", "query_vector", "k", "num_candidates", "filter"), "knn")
        if not 1 <= told["k"] <= told["num_candidates"] <= WINDOW:
            raise refused("[num_candidates] cannot be less than [k], nor exceed 10000")
        assert told["field"] == "vector"
        return self._nearest(told["query_vector"], told["k"], self.scores({"bool": {"filter": told["filter"]}}))

    def _knn_query(self, told: Any) -> Scores:
        ((field, asked),) = told.items()
        only(asked, ("vector", "k", "filter"), "knn")
        if not 1 <= asked["k"] <= WINDOW:
            raise refused("k must be in (0, 10000]")
        assert field == "vector"
        return self._nearest(asked["vector"], asked["k"], self.scores(asked["filter"]))

    # Searches.

    def search(self, body: Any) -> dict[str, Any]:
        """`hits` and `aggregations` of a search."""
        own = ("knn", "retriever") if self.product == "Elasticsearch" else ("search_pipeline",)
        only(body, ("query", "size", "_source", "sort", "search_after", "track_total_hits", "aggs", *own), "search")
        if body.get("size", 10) > WINDOW:
            raise refused("Result window is too large")
        found = self._found(body)
        order = body.get("sort", [{"_score": "desc"}])
        rows = [(self._sort_of(name, score, order), name, score) for name, score in found.items()]
        rows.sort(key=lambda row: row[0])
        if "search_after" in body:
            after = self._keyed(body["search_after"], order)
            rows = [row for row in rows if row[0] > after]
        hits = [self._hit(name, score, body, order) for _, name, score in rows[: body.get("size", 10)]]
        total = {"total": {"value": len(found), "relation": "eq"}} if body.get("track_total_hits", True) else {}
        told: dict[str, Any] = {"hits": {**total, "max_score": None, "hits": hits}}
        if "aggs" in body:
            told["aggregations"] = {key: self._aggregated(one, set(found)) for key, one in body["aggs"].items()}
        return told

    def _found(self, body: Any) -> Scores:
        if "knn" in body:
            return self._knn(body["knn"])
        if "retriever" in body:
            only(body["retriever"], ("rrf",), "retriever")
            rrf = body["retriever"]["rrf"]
            only(rrf, ("retrievers", "rank_constant", "rank_window_size"), "rrf")
            if rrf["rank_window_size"] < body["size"]:
                raise refused("[rank_window_size] must be greater than or equal to [size]")
            legs = [self._retrieved(one) for one in rrf["retrievers"]]
            return self._fused(legs, rrf["rank_constant"], rrf["rank_window_size"])
        if "hybrid" in body["query"]:
            hybrid = body["query"]["hybrid"]
            only(hybrid, ("queries", "pagination_depth", "filter"), "hybrid")
            (processor,) = body["search_pipeline"]["phase_results_processors"]
            told = processor["score-ranker-processor"]["combination"]
            only(told, ("technique", "rank_constant"), "combination")
            assert told["technique"] == "rrf"
            legs = [self.scores(one) for one in hybrid["queries"]]
            return self._fused(legs, told["rank_constant"], hybrid["pagination_depth"])
        return self.scores(body["query"])

    def _retrieved(self, told: Any) -> Scores:
        ((kind, asked),) = told.items()
        if kind == "knn":
            return self._knn(asked)
        only(asked, ("query",), kind)
        return self.scores(asked["query"])

    def _fused(self, legs: Sequence[Scores], k: int, depth: int) -> Scores:
        fused: Scores = {}
        for leg in legs:
            for rank, name in enumerate(sorted(leg, key=lambda one: (-leg[one], one))[:depth], 1):
                fused[name] = fused.get(name, 0.0) + 1 / (k + rank)
        return {name: single(score) for name, score in fused.items()}

    def _values(self, name: str, score: float, order: Sequence[Any]) -> list[Any]:
        values: list[Any] = []
        for one in order:
            ((field, way),) = one.items()
            assert way in ("asc", "desc")
            if field != "_score" and (self.fields[field]["type"] == "text" or not self._columns(field)):
                raise refused(f"field [{field}] has no doc values")
            values.append(score if field == "_score" else self.seen[name].indexed[field])
        return values

    def _columns(self, field: str) -> bool:
        return bool(self.fields[field].get("doc_values", True)) and self.fields[field]["type"] != "text"

    def _keyed(self, values: Sequence[Any], order: Sequence[Any]) -> list[Any]:
        return [
            -value if next(iter(one.values())) == "desc" else value for value, one in zip(values, order, strict=True)
        ]

    def _sort_of(self, name: str, score: float, order: Sequence[Any]) -> list[Any]:
        return self._keyed(self._values(name, score, order), order)

    def _hit(self, name: str, score: float, body: Any, order: Sequence[Any]) -> dict[str, Any]:
        held = self.seen[name]
        source = {field: value for field, value in held.stored.items() if field in body["_source"]}
        scored = any("_score" in one for one in order)
        hit = {"_index": self.name, "_id": name, "_score": score if scored else None, "_source": source}
        return {**hit, "sort": self._values(name, score, order)} if "sort" in body else hit

    def _aggregated(self, told: Any, names: set[str]) -> Any:
        ((kind, asked),) = told.items()
        if kind == "sum":
            only(asked, ("field",), kind)
            return {"value": float(sum(self.seen[name].indexed.get(asked["field"]) or 0 for name in names))}
        if kind == "filters":
            only(asked, ("filters",), kind)
            return {
                "buckets": {
                    key: {"doc_count": len(names & self.scores(query).keys())}
                    for key, query in asked["filters"].items()
                }
            }
        if kind != "terms" or not self._columns(asked["field"]):
            raise refused(f"unknown aggregation [{kind}]", "parsing_exception")
        only(asked, ("field", "size"), kind)
        counted: Counter[str] = Counter()
        for name in names:
            value = self.seen[name].indexed.get(asked["field"])
            counted.update(set(value) if isinstance(value, list) else () if value is None else [value])
        buckets = [{"key": key, "doc_count": n} for key, n in counted.most_common(asked.get("size", 10))]
        return {"doc_count_error_upper_bound": 0, "sum_other_doc_count": 0, "buckets": buckets}
