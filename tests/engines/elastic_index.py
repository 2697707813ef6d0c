"""An index of the fake search servers: its settings and mapping, and its documents, live and as last refreshed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

LONGEST = 32_766
"""The most bytes of an indexed value of a keyword."""

_FREE = 24
_FREQUENCY = "return query.boost * doc.freq;"
_FIELDS: dict[str, tuple[str, ...]] = {
    "text": ("index", "analyzer", "similarity", "index_options", "norms"),
    "keyword": ("doc_values",),
    "integer": (),
    "binary": (),
    "dense_vector": ("dims", "index", "similarity", "index_options"),
    "knn_vector": ("dimension", "method"),
}


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


class Documents:
    """The documents of an index. A search sees those of the last refresh."""

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
        self.known: dict[tuple[str, str], set[str]] = {}
        self.statistics: tuple[int, int] | None = None

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
        self.known, self.statistics = {}, None

    def having(self, field: str, value: str) -> set[str]:
        if field not in self.fields:
            raise refused(f"No mapping found for [{field}]", "query_shard_exception")
        if self.fields[field].get("index") is False or self.fields[field]["type"] == "binary":
            raise refused(f"Cannot search on field [{field}] since it is not indexed.", "query_shard_exception")
        if not self.known:
            for name, held in self.seen.items():
                for key, told in held.indexed.items():
                    of = getattr(held, key) if key in ("terms", "words") else told if isinstance(told, list) else [told]
                    if key != "vector":
                        for one in of:
                            self.known.setdefault((key, str(one)), set()).add(name)
        return self.known.get((field, value), set())
