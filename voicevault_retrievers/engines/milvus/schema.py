"""The schema of an engine's Milvus collections, and chunks as their rows.

Expressions contain no user text, only numbers and digests. A sparse vector has one dimension for each term of a chunk,
which encodes the term, its quantised frequency, and the chunk's quantised length. A query that weighs these dimensions
by upper bounds of BM25, or by estimates, gets bounds or estimates of the score, for any formula and mean length.

`words` are the terms of a chunk as words that Milvus' BM25 function counts, by statistics of its own.
"""

from __future__ import annotations

import json
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from voicevault_retrievers.core.types import Chunk
from voicevault_retrievers.engines.keywords import Weighted
from voicevault_retrievers.engines.milvus.facets import (
    CAPACITY,
    bits,
    key_of,
    of_metadata,
    ordered_values,
    tag,
    term_number,
)
from voicevault_retrievers.engines.server import Record
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.lexical.formulas import Formula, Lucene
from voicevault_retrievers.store import codec
from voicevault_retrievers.text.analyzed_texts import languages_of, tags_of
from voicevault_retrievers.text.languages import untagged

RECIPE = "voicevault.recipe"
"""The property of a collection that holds its recipe; so does its description, which Milvus Lite does not keep."""

SIDE = "__side"
"""The suffix of the name of the collection for parents and version."""

BM25 = Lucene()
"""The formula of Milvus' BM25 function, without the factor k1 + 1 of its scores."""

MOST_WORDS = 8000
"""The most words of a chunk, of 7 letters each: Milvus' strings hold 65,535 bytes."""

METRICS = {"sparse": "IP", "bm25": "BM25", "vector": "COSINE"}
"""How the vectors of each field are compared."""

NO_TERM = "none"
"""The word of a chunk without terms."""

_CODED = "vv_x"
_LONGEST = 240


def checked_name(name: str) -> str:
    """A collection name that Milvus accepts; other names are encoded in hexadecimal digits.

    Raises ConfigError for a name that is too long, or that ends like the name of a side collection.
    """
    if name.endswith(SIDE):
        raise ConfigError(f"the collection {name!r} would be what Milvus keeps beside another: end its name otherwise")
    plain = name.isascii() and name.isidentifier() and not name.startswith(_CODED)
    found = name if plain else _CODED + name.encode("utf-8", "surrogatepass").hex()
    if len(found) > _LONGEST:
        raise ConfigError(f"Milvus has no collections of so long a name as {name[:40]!r}...: shorten it")
    return found


def fields_of(milvus: Any, dimension: int | None, recipe: str) -> Any:
    """The schema of a collection of chunks."""
    of = milvus.DataType
    schema = milvus.MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False, description=recipe)
    schema.add_field("pk", of.VARCHAR, is_primary=True, max_length=32)
    schema.add_field("id", of.VARCHAR, max_length=8192)
    schema.add_field("digest", of.VARCHAR, max_length=32)
    schema.add_field("parent", of.VARCHAR, max_length=32)
    schema.add_field("pieces", of.ARRAY, element_type=of.VARCHAR, max_capacity=4096, max_length=65_535)
    for name in ("facets", "terms", "counts"):
        schema.add_field(name, of.ARRAY, element_type=of.INT64, max_capacity=4096)
    schema.add_field("ordered", of.JSON)
    schema.add_field("length", of.INT64)
    schema.add_field("sparse", of.SPARSE_FLOAT_VECTOR)
    plain = {"tokenizer": "standard"}
    schema.add_field("words", of.VARCHAR, max_length=65_535, enable_analyzer=True, analyzer_params=plain)
    schema.add_field("bm25", of.SPARSE_FLOAT_VECTOR)
    schema.add_function(milvus.Function("bm25", milvus.FunctionType.BM25, ["words"], ["bm25"]))
    if dimension is not None:
        schema.add_field("vector", of.FLOAT_VECTOR, dim=dimension)
    return schema


def side_fields_of(milvus: Any) -> Any:
    """The schema of the side collection, which is not searched: parents, and the version."""
    of = milvus.DataType
    schema = milvus.MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("pk", of.VARCHAR, is_primary=True, max_length=32)
    schema.add_field("pieces", of.ARRAY, element_type=of.VARCHAR, max_capacity=4096, max_length=65_535)
    schema.add_field("vector", of.FLOAT_VECTOR, dim=2)  # Milvus requires a vector field
    return schema


def indexes_of(milvus: Any, dimension: int | None, index: str, *, columns: bool) -> Any:
    """The indexes of a collection of chunks; `columns` adds those of arrays, which Milvus Lite does not use."""
    params = milvus.MilvusClient.prepare_index_params()
    params.add_index("sparse", index_type="SPARSE_INVERTED_INDEX", metric_type=METRICS["sparse"])
    constants = {"bm25_k1": BM25.k1, "bm25_b": BM25.b}
    params.add_index("bm25", index_type="SPARSE_INVERTED_INDEX", metric_type=METRICS["bm25"], params=constants)
    if dimension is not None:
        params.add_index("vector", index_type=index, metric_type=METRICS["vector"])
    for name in ("facets", "terms", "parent") if columns else ():
        params.add_index(name, index_type="INVERTED")
    return params


def side_indexes_of(milvus: Any) -> Any:
    """The index of the side collection."""
    params = milvus.MilvusClient.prepare_index_params()
    params.add_index("vector", index_type="FLAT", metric_type="COSINE")
    return params


Row: TypeAlias = Mapping[str, Any]

PIECE = 16_000
"""The most characters of a chunk in one string: Milvus' strings hold 65,535 bytes."""

PRESENT = 0
"""The dimension that every chunk has, since Milvus does not store empty sparse vectors; 1 to 31 are languages'."""

NOT_SEARCHED: Row = {"vector": [1.0, 0.0]}
"""The fields of a parent's row: each row of Milvus needs a vector."""

_LENGTHS = sorted({1, *(-(-int(1000 * 2 ** (step / 4)) // 1000) for step in range(84))})
_COUNTS = [1, 2, 3, 4, 5, 6, 8, 11, 16, 23, 32, 64, 128, 1024]
_MOST = 1 << 21
_DIMENSIONS = 2**32 - 2


def row(record: Record) -> dict[str, Any]:
    """The row of a chunk. Raises ConfigError for more different terms than a Milvus array holds."""
    chunk, length = record.chunk, record.length
    if len(record.terms) > CAPACITY:
        raise ConfigError(
            f"chunk {chunk.id!r} has {len(record.terms)} different terms, and Milvus holds {CAPACITY}: split it"
        )
    terms = {term_number(term): count for term, count in record.terms.items()}
    languages = tags_of(languages_of(record.terms))
    dimensions = [_dimension(term, length, count) for term, count in terms.items()]
    own = {
        "pk": key_of(chunk.id),
        "id": _json(chunk.id),
        "digest": record.digest,
        "parent": key_of(chunk.parent_id) if chunk.parent_id is not None else "",
        "pieces": pieces(chunk),
        "facets": [*of_metadata(chunk.metadata), *bits(length), *map(tag, languages)],
        "ordered": ordered_values(chunk.metadata),
        "terms": list(terms),
        "counts": list(terms.values()),
        "length": length,
        "sparse": dict.fromkeys([PRESENT, *map(ord, languages), *dimensions], 1.0),
        "words": words(record.terms),
    }
    return own if record.vector is None else {**own, "vector": record.vector}


def words(counts: Mapping[str, int]) -> str:
    """The words of a chunk, each as often as its term; more than `MOST_WORDS` are fewer in proportion."""
    share = min(1.0, (MOST_WORDS - len(counts)) / max(sum(counts.values()), 1))
    return " ".join(word(term) for term, n in counts.items() for _ in range(max(round(n * share), 1))) or NO_TERM


def word(term: str) -> str:
    """A term without its language, as 7 letters: more words than Milvus tells apart, as it keeps 32 bits of each."""
    number = term_number(untagged(term))
    return "".join(chr(97 + number // 26**place % 26) for place in range(7))


def parent_row(parent: Chunk) -> dict[str, Any]:
    """The row of a parent."""
    return {"pk": key_of(parent.id), "pieces": pieces(parent), **NOT_SEARCHED}


def pieces(chunk: Chunk) -> list[str]:
    """A chunk as strings within Milvus' limit."""
    line = codec.encode(chunk).decode()
    text = _json(json.loads(line))
    return [text[start : start + PIECE] for start in range(0, len(text), PIECE)]


def chunk_of(found: Row, name: str) -> Chunk:
    """The chunk of a row, in the collection of this name."""
    return codec.decode("".join(found["pieces"]).encode(), name)


def id_of(found: Row) -> str:
    """The id of a row."""
    text: str = json.loads(found["id"])
    return text


def counts_of(found: Row, numbers: Mapping[int, str]) -> dict[str, int]:
    """The frequencies, in a row, of the terms with these numbers."""
    held = zip(found["terms"], found["counts"], strict=True)
    return {numbers[term]: count for term, count in held if term in numbers}


def bounds(formula: Formula, terms: Iterable[Weighted], mean: float, longest: int) -> dict[int, float]:
    """A sparse query whose product with a chunk bounds its terms' part of the score, without `absent`, from above."""
    return _asked(formula, terms, mean, longest, upper=True)


def estimates(formula: Formula, terms: Iterable[Weighted], mean: float, longest: int) -> dict[int, float]:
    """A sparse query whose product with a chunk estimates its terms' part of the score, without `absent`."""
    return _asked(formula, terms, mean, longest, upper=False)


def matching(forms: Iterable[str], longest: int) -> dict[int, float]:
    """A sparse query that finds every chunk with one of the forms."""
    return {
        _dimension(term_number(form), length, count): 1.0
        for form in forms
        for length in _LENGTHS
        for count in _COUNTS
        if length <= longest and count < _next(_LENGTHS, length)
    }


def having_tag(character: str) -> dict[int, float]:
    """A sparse query that finds every chunk with a term that begins with this control character."""
    return {ord(character): 1.0}


def _asked(formula: Formula, terms: Iterable[Weighted], mean: float, longest: int, *, upper: bool) -> dict[int, float]:
    absent = formula.absent()
    asked: dict[int, float] = {}
    cells = [
        (length, count, float(formula.tf(often, formula.norm(long, mean))) - absent)
        for length in _LENGTHS
        for count in _COUNTS
        if length <= longest and count < _next(_LENGTHS, length)
        for long, often in (_corner(length, count, upper),)
    ]
    for forms, weight in terms:
        for number in map(term_number, forms):
            for length, count, tf in cells:
                at = _dimension(number, length, count)
                asked[at] = asked.get(at, 0.0) + weight * tf
    return asked


def _corner(length: int, count: int, upper: bool) -> tuple[float, float]:
    """The length and frequency that a cell is scored by: the highest-scoring ones for a bound, or its middle."""
    most = _next(_COUNTS, count) - 1
    if upper:
        return length, most
    return (length * (_next(_LENGTHS, length) - 1)) ** 0.5, (count * min(most, 2 * count)) ** 0.5


def _next(steps: Sequence[int], value: int) -> int:
    at = bisect_right(steps, value)
    return steps[at] if at < len(steps) else _MOST


def _dimension(term: int, length: int, count: int) -> int:
    cell = bisect_right(_LENGTHS, length) * 64 + bisect_right(_COUNTS, count)
    return zlib.crc32(b"%x:%x" % (term, cell)) % (_DIMENSIONS - 32) + 32


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate needs an escape
        return json.dumps(value)
    return text
