"""An index of the fake search servers: its mapping, its documents, and how queries score them.

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
from dataclasses import dataclass
from typing import Any

import numpy as np

WINDOW = 10_000
CLAUSES = 1024
LONGEST = 32_766
"""The most bytes of an indexed value of a keyword."""

_FREE = 24
_FREQUENCY = "return query.boost * doc.freq;"
_PARTS = (
    "double n = 1.0 - params.b + params.b * doc['length'].value / params.mean; return Math.max(0.0, params.weight * "
    "((params.alpha * _score + params.beta * n) / (_score + params.gamma * n)  + params.add - params.absent));"
)
_COSINE = {
    "Elasticsearch": "cosineSimilarity(params.vector, 'vector') + 1.0",
    "OpenSearch": "cosineSimilarity(params.vector, doc['vector']) + 1.0",
}
_FIELDS: dict[str, tuple[str, ...]] = {
    "text": ("index", "analyzer", "similarity", "index_options", "norms"),
    "keyword": ("doc_values",),
    "integer": (),
    "binary": (),
    "dense_vector": ("dims", "index", "similarity", "index_options"),
    "knn_vector": ("dimension", "method"),
}

Scores = dict[str, float]


class RefusedError(Exception):
    """An answer with a status and an error."""

    def __init__(self, status: int, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        cause = {"type": kind, "reason": reason}
        self.told = {"root_cause": [cause], **cause}


def refused(reason: str, kind: str = "illegal_argument_exception", status: int = 400) -> RefusedError:
    return RefusedError(status, kind, reason)


def only(body: Any, known: Collection[str], what: str) -> None:
    """Refuse what is no object, and keys that are not known."""
    if not isinstance(body, Mapping):
        raise refused(f"[{what}] expected an object", "parsing_exception")
    for key in body:
        if key not in known:
            raise refused(f"[{what}] unknown field [{key}]", "x_content_parse_exception")


def byte_of(length: int) -> int:
    """Lucene's SmallFloat.intToByte4."""
    if length < _FREE:
        return length
    rest = length - _FREE
    if rest.bit_length() < 4:
        return _FREE + rest
    shift = rest.bit_length() - 4
    return _FREE + ((rest >> shift & 7) | (shift + 1) << 3)


def length_of(byte: int) -> int:
    """Lucene's SmallFloat.byte4ToInt."""
    if byte < _FREE:
        return byte
    bits, shift = (byte - _FREE) & 7, (byte - _FREE >> 3) - 1
    return _FREE + (bits if shift < 0 else (bits | 8) << shift)


def single(value: float) -> float:
    return float(np.float32(value))


@dataclass(eq=False)
class Document:
    """A document: what is stored, what is indexed, and the frequencies of its `terms` and `words`."""

    stored: dict[str, Any]
    indexed: dict[str, Any]
    seq_no: int
    terms: Counter[str]
    words: Counter[str]
    vector: Any

    @property
    def length(self) -> int:
        """The length as the index knows it."""
        return length_of(byte_of(self.words.total()))


class Index:
    """An index. A search sees the documents of the last refresh."""

    def __init__(self, product: str, name: str, body: Mapping[str, Any]) -> None:
        self.product, self.name = product, name
        self.aliases = set(body.get("aliases", {}))
        self.mappings = body["mappings"]
        only(self.mappings, ("dynamic", "_meta", "_source", "properties"), "mappings")
        settings = body["settings"]["index"]
        only(settings, ("number_of_shards", "number_of_replicas", "similarity", "analysis", "knn"), "settings")
        self.fields: dict[str, Mapping[str, Any]] = {}
        for field, told in self.mappings["properties"].items():
            self._map(field, told)
        vector = self.fields.get("vector", {})
        if vector.get("type") == "knn_vector" and not settings.get("knn"):
            raise refused("index.knn is not set")
        if vector and vector["type"] != ("dense_vector" if product == "Elasticsearch" else "knn_vector"):
            raise refused(f"No handler for type [{vector['type']}]", "mapper_parsing_exception")
        self.bm25 = settings["similarity"][self.fields["words"]["similarity"]]
        assert self.bm25["type"] == "BM25"
        frequency = settings["similarity"][self.fields["terms"]["similarity"]]
        assert frequency == {"type": "scripted", "script": {"source": _FREQUENCY}}
        analysis = settings["analysis"]
        analyzer = analysis["analyzer"][self.fields["words"]["analyzer"]]
        assert analyzer["type"] == "custom"
        tokenizer = analysis["tokenizer"][analyzer["tokenizer"]]
        assert tokenizer["type"] == "whitespace"
        self.longest = tokenizer.get("max_token_length", 255)
        self.documents: dict[str, Document] = {}
        self.seen: dict[str, Document] = {}
        self.ghosts: list[Document] = []
        self.seq_no = 0
        self._known: dict[tuple[str, str], set[str]] = {}
        self._statistics: tuple[int, int] | None = None

    def _map(self, field: str, told: Mapping[str, Any]) -> None:
        if told["type"] not in _FIELDS:
            raise refused(f"No handler for type [{told['type']}]", "mapper_parsing_exception")
        only(told, ("type", *_FIELDS[told["type"]]), f"mapping of {field}")
        self.fields[field] = told

    # Documents.

    def put(self, name: str, source: dict[str, Any]) -> None:
        for field, value in source.items():
            if field not in self.mappings["properties"]:
                raise refused(f"dynamic introduction of [{field}] is not allowed", "strict_dynamic_mapping_exception")
            told = self.fields[field]
            for one in value if isinstance(value, list) else [value]:
                if told["type"] == "keyword" and one is not None and len(str(one).encode()) > LONGEST:
                    raise refused("immense term", "illegal_argument_exception")
        vector = source.get("vector")
        if vector is not None:
            size = self.fields["vector"].get("dims", self.fields["vector"].get("dimension"))
            if len(vector) != size or not any(vector):
                raise refused("the vector has other dimensions, or zero magnitude", "document_parsing_exception")
        hidden = self.mappings["_source"]["excludes"]
        stored = {field: value for field, value in source.items() if field not in hidden}
        self.seq_no += 1
        row = None if vector is None else np.asarray(vector, np.float32)
        terms, words = (self._split(source.get(field, "")) for field in ("terms", "words"))
        self.documents[name] = Document(stored, dict(source), self.seq_no, terms, words, row)

    def _split(self, text: str) -> Counter[str]:
        """What the whitespace tokenizer makes of a text: it cuts longer tokens."""
        steps = self.longest
        return Counter(part[at : at + steps] for part in text.split() for at in range(0, len(part), steps))

    def delete(self, name: str) -> None:
        self.seq_no += 1
        self.documents.pop(name, None)

    def refresh(self) -> None:
        gone = [held for name, held in self.seen.items() if self.documents.get(name) is not held]
        self.ghosts += [held for held in gone if held.words]
        if len(self.ghosts) > len(self.documents) // 3:
            self.ghosts = []  # merged
        self.seen = dict(self.documents)
        self._known, self._statistics = {}, None

    def _having(self, field: str, value: str) -> set[str]:
        if field not in self.fields:
            raise refused(f"No mapping found for [{field}]", "query_shard_exception")
        if self.fields[field].get("index") is False or self.fields[field]["type"] == "binary":
            raise refused(f"Cannot search on field [{field}] since it is not indexed.", "query_shard_exception")
        if not self._known:
            for name, held in self.seen.items():
                for key, told in held.indexed.items():
                    of = getattr(held, key) if key in ("terms", "words") else told if isinstance(told, list) else [told]
                    if key != "vector":
                        for one in of:
                            self._known.setdefault((key, str(one)), set()).add(name)
        return self._known.get((field, value), set())

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
        names = self._having(field, str(value))
        if field == "terms":
            return {name: single(boost * self.seen[name].terms[value]) for name in names}
        if field == "words":
            return self._bm25(value, boost, names)
        return dict.fromkeys(names, boost)

    def _bm25(self, word: str, boost: float, names: set[str]) -> Scores:
        if self._statistics is None:
            counted = [held.words.total() for held in (*self.seen.values(), *self.ghosts) if held.words]
            self._statistics = len(counted), sum(counted)
        documents, length = self._statistics
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
        return dict.fromkeys(set().union(*(self._having(field, str(one)) for one in values)), 1.0)

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
