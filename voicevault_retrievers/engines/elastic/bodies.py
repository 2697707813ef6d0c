"""The bodies of requests: the index, its documents, filters, keyword and vector searches.

Chunks and parents are documents of one index, told apart by `kind`. The analysed terms of a chunk are words of the
letters a to z (`engines.encoding`), repeated as in the text and joined by spaces, which the index only splits again:
`terms` are scored exactly, by a similarity that gives frequencies, `words` by the index's own BM25.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from voicevault_retrievers.core.filters import Filter
from voicevault_retrievers.core.types import Chunk, Vector
from voicevault_retrievers.engines.encoding import encoded
from voicevault_retrievers.engines.facets import Facets, facet, number_of, of_metadata, present
from voicevault_retrievers.engines.facets import kind as kind_facet
from voicevault_retrievers.engines.filters import Clause, Scalar, translate
from voicevault_retrievers.engines.keywords import Keywords, Weighted
from voicevault_retrievers.engines.recipe import Recipe
from voicevault_retrievers.engines.rows import CHUNK, fields_of
from voicevault_retrievers.engines.server import Record
from voicevault_retrievers.lexical.formulas import Curve, Formula, Lucene
from voicevault_retrievers.text import untagged
from voicevault_retrievers.text.analyzed_texts import languages_of, tags_of

FORMULA = Lucene()
"""The formula that the index ranks by: Lucene's own, with the constants of its similarity."""

SCORED = [*CHUNK, "terms", "length"]
"""Those of a chunk that is scored here."""

MOST_TERMS = 65_536
"""The most terms of one query: `index.max_terms_count`."""

LONGEST_WORD = 4096
"""The most characters of an encoded term."""

PARTS = """double n = 1.0 - params.b + params.b * doc['length'].value / params.mean;
return Math.max(0.0, params.weight * ((params.alpha * _score + params.beta * n) / (_score + params.gamma * n)
 + params.add - params.absent));""".replace("\n", " ")
"""The exact score of one term, less that of its absence: `_score` is the frequency, by the similarity `frequency`."""

_META = "voicevault"


class Search(NamedTuple):
    """A search: its body, and whether it is ranked by statistics of all shards."""

    body: Mapping[str, Any]
    ranked: bool = False


# The index.


def index_of(
    recipe: Recipe, made: str, alias: str, vector: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """A new index with a recipe. `made` tells it from others of its name; `alias` is a name that is only its own."""
    plain, exact = {"type": "text", "index": False}, {"type": "keyword", "doc_values": False}
    words = {"type": "text", "analyzer": "words", "index_options": "freqs"}
    properties: dict[str, Any] = {
        "kind": exact,
        "key": {"type": "keyword"},
        "parent": {"type": "keyword"},
        **dict.fromkeys(("text", "header", "metadata", "digest"), plain),
        "row": {"type": "binary"},
        "length": {"type": "integer"},
        "languages": {"type": "keyword"},
        "facets": exact,
        "numbers": exact,
        "terms": {**words, "similarity": "frequency", "norms": False},
        "words": {**words, "similarity": "lucene"},
    }
    if recipe.embedder is not None:
        properties["vector"] = dict(vector)
    similarity = {
        "lucene": {"type": "BM25", "k1": FORMULA.k1, "b": FORMULA.b},
        "frequency": {"type": "scripted", "script": {"source": "return query.boost * doc.freq;"}},
    }
    analysis = {
        "tokenizer": {"words": {"type": "whitespace", "max_token_length": LONGEST_WORD}},
        "analyzer": {"words": {"type": "custom", "tokenizer": "words"}},
    }
    return {
        "settings": {"index": {**settings, "similarity": similarity, "analysis": analysis}},
        "mappings": {
            "dynamic": "strict",
            "_meta": {_META: {"recipe": recipe.text(), "made": made}},
            "_source": {"excludes": ["vector", "words"]},
            "properties": properties,
        },
        "aliases": {alias: {}},
    }


def told_of(mappings: Mapping[str, Any]) -> tuple[str, str]:
    """The recipe and `made` of an index; empty strings where it is not of this package."""
    told = mappings.get("_meta", {}).get(_META, {})
    return str(told.get("recipe", "")), str(told.get("made", ""))


# Documents.


def document_id(key: str) -> str:
    """The document's id, as the server limits ids to 512 bytes."""
    return key[0] + hashlib.blake2b(key[1:].encode(), digest_size=24).hexdigest()


def chunk_document(record: Record) -> dict[str, Any]:
    """The document of a chunk."""
    metadata = record.chunk.metadata
    numbers = [(key, value) for key, value in metadata.items() if type(value) in (int, float)]
    made = {
        "kind": "c",
        **fields_of(record.chunk, "c"),
        "digest": record.digest,
        "length": record.length,
        "languages": [str(ord(tag)) for tag in tags_of(languages_of(record.terms))],
        "terms": " ".join(encoded(term) for term, count in record.terms.items() for _ in range(count)),
        "words": " ".join(_word(term) for term, count in record.terms.items() for _ in range(count)),
        "facets": [str(one) for one in of_metadata(metadata)],
        "numbers": [ordered_number(key, value) for key, value in numbers],
    }
    if record.vector is not None:
        row = np.asarray(record.vector, "<f4")
        made |= {"vector": row.tolist(), "row": base64.b64encode(row.tobytes()).decode()}
    return made


def _word(term: str) -> str:
    """A term as the server ranks it: with one document frequency in all languages."""
    return encoded(untagged(term))


def parent_document(parent: Chunk) -> dict[str, Any]:
    """The document of a parent, which no search finds."""
    return {"kind": "p", **fields_of(parent, "p")}


def score_of(hit: Mapping[str, Any]) -> float:
    """The score of a hit, by which it is sorted first."""
    return float(hit["sort"][0] if "sort" in hit else hit["_score"])


def metadata_of(source: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of a document."""
    metadata: dict[str, Any] = json.loads(source["metadata"])
    return metadata


def frequencies_of(source: Mapping[str, Any], forms: Iterable[str]) -> dict[str, int]:
    """How often a chunk has each of these terms that it has."""
    counts = Counter(source["terms"].split())
    return {form: counts[word] for form in forms if (word := encoded(form)) in counts}


def vector_of(source: Mapping[str, Any]) -> Vector:
    """The vector of a document, as it was written."""
    vector: Vector = np.frombuffer(base64.b64decode(source["row"]), "<f4").astype(np.float32)
    return vector


# Filters.


class Terms(Facets):
    """The servers' language of queries: facets, and numbers as texts that sort as they do."""

    exact = Facets.exact | {"among", "ordered"}

    def equal(self, key: str, operand: Scalar) -> Clause:
        return _has(facet(key, operand))

    def unequal(self, key: str, operand: Scalar) -> Clause:
        return _without(self.equal(key, operand))

    def other(self, key: str, operand: Scalar) -> Clause:
        return self.every([self._comparable(key, operand), self.unequal(key, operand)])

    def among(self, key: str, texts: Sequence[str], negated: bool) -> Clause:
        numbers = [str(facet(key, text)) for text in texts]
        parts = [numbers[at : at + MOST_TERMS] for at in range(0, len(numbers), MOST_TERMS)]
        found = self.some([{"terms": {"facets": part}} for part in parts])
        return _without(found) if negated else found

    def ordered(self, key: str, operator: str, operand: Scalar) -> Clause:
        if isinstance(operand, str):
            return self._comparable(key, operand)
        edge, low = ordered_number(key, float(operand)), _number_prefix(key)
        ends = {"gte": low, "lte": low + "g"}  # behind every hexadecimal digit
        return {"range": {"numbers": {**_without_end(ends, operator), operator[1:]: edge}}}

    def exists(self, key: str, wanted: bool) -> Clause:
        return _has(present(key)) if wanted else _without(_has(present(key)))

    def every(self, clauses: Sequence[Clause]) -> Clause:
        return {"bool": {"filter": list(clauses)}}

    def some(self, clauses: Sequence[Clause]) -> Clause:
        return {"bool": {"should": list(clauses), "minimum_should_match": 1}}

    def _comparable(self, key: str, operand: Scalar) -> Clause:
        return _has(kind_facet(key, operand))


_LANGUAGE = Terms()


def passing(where: Filter | None) -> tuple[list[Clause], bool]:
    """Clauses that pass the chunks which a filter passes, and perhaps others; and whether they pass no others."""
    chunks: list[Clause] = [{"term": {"kind": "c"}}]
    clause, exact = translate(where, _LANGUAGE)
    return [*chunks, *([clause] if clause else [])], exact


def ordered_number(key: str, value: float) -> str:
    """A number of a key as text: texts of one key sort as the numbers do."""
    try:
        number = float(value) + 0.0  # no -0.0
    except OverflowError:
        number = float("inf") if value > 0 else float("-inf")
    (bits,) = struct.unpack(">Q", struct.pack(">d", number))
    return f"{_number_prefix(key)}{bits ^ (2**64 - 1 if bits >> 63 else 2**63):016x}"


def _number_prefix(key: str) -> str:
    return f"{number_of('number', key):016x}:"


def _without_end(ends: Mapping[str, str], operator: str) -> dict[str, str]:
    lower = operator in ("$gt", "$gte")
    return {"lte": ends["lte"]} if lower else {"gte": ends["gte"]}


def _has(number: int) -> Clause:
    return {"term": {"facets": str(number)}}


def _without(clause: Clause) -> Clause:
    return {"bool": {"must_not": [clause]}}


# Searches.


def counting(clauses: Sequence[Clause], forms: Sequence[str]) -> dict[str, Any]:
    """The statistics of the chunks that pass: their number, lengths and languages, and the chunks with each form."""
    aggs: dict[str, Any] = {"length": {"sum": {"field": "length"}}, **_languages()}
    if forms:
        each = {str(at): {"term": {"terms": encoded(form)}} for at, form in enumerate(forms)}
        aggs["forms"] = {"filters": {"filters": each}}
    return {"size": 0, "track_total_hits": True, "query": {"bool": {"filter": list(clauses)}}, "aggs": aggs}


def speaking(clauses: Sequence[Clause]) -> Search:
    """The languages of the chunks that pass; the server keeps the answer until the index changes."""
    query = {"bool": {"filter": list(clauses)}}
    return Search({"size": 0, "track_total_hits": False, "query": query, "aggs": _languages()})


def naming(parents: Sequence[str]) -> Search:
    """The given parents that chunks name, as buckets of the aggregation `parents`."""
    query = {"bool": {"filter": [{"term": {"kind": "c"}}, {"terms": {"parent": list(parents)}}]}}
    aggs = {"parents": {"terms": {"field": "parent", "size": len(parents)}}}
    return Search({"size": 0, "track_total_hits": False, "query": query, "aggs": aggs})


def _languages() -> dict[str, Any]:
    return {"languages": {"terms": {"field": "languages", "size": 100}}}


def languages_told(aggregations: Mapping[str, Any]) -> str:
    """The tags of the languages in the answer to `counting` or `speaking`."""
    return "".join(sorted(chr(int(one["key"])) for one in aggregations["languages"]["buckets"]))


def by_engine(asked: Keywords) -> list[Clause]:
    """The clauses that rank by the index's own statistics."""
    return [
        {"term": {"words": {"value": word, "boost": count}}}
        for forms, count in asked.terms.items()
        for word in dict.fromkeys(map(_word, forms))
    ]


def by_weights(formula: Formula, curve: Curve, terms: Sequence[Weighted], mean: float) -> list[Clause]:
    """The clauses that rank by exact scores, less what absent terms add: each scores one form by its frequency."""
    told = {**curve._asdict(), "b": formula.b, "mean": mean, "absent": formula.absent()}
    return [
        {
            "script_score": {
                "query": {"term": {"terms": encoded(form)}},
                "script": {"source": PARTS, "params": {**told, "weight": weight}},
            }
        }
        for forms, weight in terms
        for form in forms
    ]


def having(forms: Sequence[str]) -> Clause:
    """A chunk has one of the terms."""
    return {"terms": {"terms": [encoded(form) for form in forms]}}


def words(should: Sequence[Clause], clauses: Sequence[Clause], size: int, after: Any = None, least: int = 1) -> Search:
    """A keyword search; equal scores by id. With `least=0` also those of the chunks that pass which no clause finds."""
    query = {"bool": {"should": list(should), "minimum_should_match": least, "filter": list(clauses)}}
    order = [{"_score": "desc"}, {"key": "asc"}]
    return Search(_page(query, size, SCORED, order, after), ranked=True)


def listing(clauses: Sequence[Clause], size: int, fields: Sequence[str], after: Any = None) -> Search:
    """The chunks that pass, by id."""
    return Search(_page({"bool": {"filter": list(clauses)}}, size, fields, [{"key": "asc"}], after))


def compared(vector: Vector, source: str, clauses: Sequence[Clause], size: int, after: Any) -> Search:
    """The nearest chunks by comparing all vectors; `source` is the script, whose score is the cosine plus 1."""
    query = {"bool": {"filter": [*clauses, {"exists": {"field": "vector"}}]}}
    script = {"source": source, "params": {"vector": vector.tolist()}}
    order = [{"_score": "desc"}, {"key": "asc"}]
    return Search(_page({"script_score": {"query": query, "script": script}}, size, CHUNK, order, after))


def _page(query: Clause, size: int, fields: Sequence[str], order: list[Any], after: Any) -> dict[str, Any]:
    asked = {"query": query, "size": size, "_source": list(fields), "sort": order, "track_total_hits": False}
    return asked if after is None else {**asked, "search_after": after}
