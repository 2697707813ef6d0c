"""The statements that search a collection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from voicevault_retrievers._support.extras import require
from voicevault_retrievers.core.filters import Filter
from voicevault_retrievers.core.types import Vector
from voicevault_retrievers.engines.encoding import escaped
from voicevault_retrievers.engines.keywords import Keywords
from voicevault_retrievers.engines.postgres.asking import SqlStatement
from voicevault_retrievers.engines.postgres.conditions import Where
from voicevault_retrievers.engines.postgres.tables import Tables
from voicevault_retrievers.engines.postgres.texts import term_key
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.lexical.formulas import ATIRE, BM25L, BM25Plus, Formula, Lucene, Okapi, Robertson
from voicevault_retrievers.text.languages import TAGS

_IDF = {
    Lucene.idf: (0.0, 1.0, 0.5, 1.0, 0.5),
    Robertson.idf: (1.0, 0.0, 0.5, 1.0, 0.5),
    ATIRE.idf: (0.0, 0.0, 0.0, 0.0, 0.0),
    Okapi.idf: (0.0, 0.0, 0.5, 1.0, 0.5),
    BM25L.idf: (0.0, 0.0, 1.0, 0.0, 0.5),
    BM25Plus.idf: (0.0, 0.0, 1.0, 0.0, 0.0),
}
"""For each idf, the constants of ln(max(least, one + (N + shift - minus n) / (n + below)))."""

_WEIGHT = (
    "ln(greatest(%(least)s::float8, %(one)s::float8 + (population.total + %(shift)s::float8 - %(minus)s::float8 * {n})"
    " / ({n} + %(below)s::float8)))"
)

_COUNTED = """
    SELECT count(*) AS total, coalesce(sum(c.length), 0) AS length FROM {chunks} c WHERE {counting}
"""
_KEPT = """
    SELECT sum(total) AS total, sum(length) AS length FROM (
        SELECT coalesce(sum(chunks), 0) AS total, coalesce(sum(length), 0) AS length FROM {totals}
        WHERE NOT row_security_active({chunks_name})
        UNION ALL
        SELECT count(*), coalesce(sum(length), 0) FROM {chunks} WHERE row_security_active({chunks_name})
    ) AS either
"""
"""The stored totals count all chunks; for a user who sees only some rows, those rows are counted."""

_FLOOR = """
    SELECT %(epsilon)s::float8 * avg({weight_of_each}) FROM (
        SELECT count(*) AS n FROM {postings} p WHERE {counting_postings} GROUP BY p.term
    ) AS each, population
"""

_MATCHING = """
asked a CROSS JOIN LATERAL (
    SELECT p.chunk, p.frequency, p.length FROM {postings} p WHERE p.term = a.term OFFSET 0
) AS p WHERE {counting_postings}
"""
"""Terms are looked up one by one (LATERAL, OFFSET 0): a join of a table not yet analysed would read all postings."""

_SCORED = """
asked AS (
    SELECT * FROM unnest(%(terms)s::text[], %(numbers)s::integer[], %(places)s::integer[], %(counts)s::float8[])
        AS a (term, number, place, count)
),
matched AS MATERIALIZED (
    SELECT a.place, a.count, p.chunk, p.frequency, p.length FROM {matching}
),
population AS MATERIALIZED ({population}),
weights AS MATERIALIZED (
    SELECT place, count * {floored} AS weight
    FROM (
        SELECT place, count, {weight} AS idf
        FROM (SELECT place, count, count(*) AS n FROM matched GROUP BY place, count) AS held, population
    ) AS weighed
),
scored AS (
    SELECT m.chunk, sum(w.weight * {tf} ORDER BY m.place) AS score
    FROM matched m JOIN weights w USING (place)
        CROSS JOIN (SELECT length::float8 / nullif(total, 0) AS mean FROM population) AS mean
        CROSS JOIN LATERAL (
            SELECT 1 - %(b)s::float8 + %(b)s::float8 * m.length / mean.mean AS norm, m.frequency::float8 AS f
        ) AS of_chunk
    WHERE {passing_matches}
    GROUP BY m.chunk
)
"""

_TF = (
    "((%(alpha)s::float8 * f + %(beta)s::float8 * norm) / (f + %(gamma)s::float8 * norm) + %(add)s::float8"
    " - %(absent)s::float8)"
)

_TOTAL = "score + %(absent)s::float8 * (SELECT sum(weight) FROM weights)"

_BEST = """
best AS MATERIALIZED (
    SELECT chunk, {total} AS score FROM scored WHERE {positive}
    ORDER BY score DESC FETCH FIRST (%(k)s) ROWS WITH TIES
)
"""

_FORMS = """
ARRAY(
    SELECT a.number FROM asked a JOIN {postings} p ON p.term = a.term AND p.chunk = c.ordinal ORDER BY a.number
)
"""

_KNOWN = "(SELECT recipe FROM {collections} WHERE name = %(collection)s) IS NOT DISTINCT FROM %(recipe)s::text"
"""Whether the collection is still the known one: its tables may have been created again for another."""

_FOUND = """
WITH {ranked}
SELECT c.id, c.text, c.header, c.parent_id, c.metadata::text, best.score, {forms}, {known}
FROM best JOIN {chunks} c ON c.ordinal = best.chunk
ORDER BY best.score DESC, c.id LIMIT %(k)s
"""

_SCORES = """
WITH {scored}
SELECT c.id, coalesce({total}, 0), {known} FROM {chunks} c LEFT JOIN scored ON scored.chunk = c.ordinal
WHERE c.id = ANY (%(ids)s::text[]) AND {passing}
"""

_STATISTICS = """
WITH asked AS (
    SELECT DISTINCT * FROM unnest(%(terms)s::text[], %(numbers)s::integer[]) AS a (term, number)
),
population AS MATERIALIZED ({population})
SELECT population.total, population.length, held.number, held.n, {known}
FROM population LEFT JOIN (
    SELECT a.number, count(*) AS n FROM {matching} GROUP BY a.number
) AS held ON true
"""

_HISTOGRAM = """
SELECT n, count(*), {known} FROM (
    SELECT count(*) AS n FROM {postings} p WHERE {counting_postings} GROUP BY p.term
) AS each GROUP BY n
"""

_EXACT = """
SELECT c.ordinal AS chunk, c.id, -(c.embedding {product} %(vector)s::{vector}) AS score
FROM {chunks} c WHERE {passing} ORDER BY score DESC, id LIMIT %(near)s
"""

_NEAR = """
SELECT c.ordinal AS chunk, c.id, -(c.embedding {product} %(vector)s::{vector}) AS score
FROM {chunks} c WHERE {passing} ORDER BY c.embedding {product} %(vector)s::{vector} LIMIT %(near)s
"""

_NEAREST = """
WITH near AS MATERIALIZED ({near})
SELECT c.id, c.text, c.header, c.parent_id, c.metadata::text, near.score, {known}
FROM near JOIN {chunks} c ON c.ordinal = near.chunk ORDER BY near.score DESC, c.id
"""

_VECTORS = """
SELECT id, {vector_send}(embedding::{full_vector}), {known} FROM {chunks} WHERE id = ANY (%(ids)s::text[])
"""

_FUSED = """
WITH {ranked},
near AS MATERIALIZED ({near}),
words AS (
    SELECT best.chunk, best.score, row_number() OVER (ORDER BY best.score DESC, c.id) AS rank
    FROM best JOIN {chunks} c ON c.ordinal = best.chunk ORDER BY best.score DESC, c.id LIMIT %(k)s
),
vectors AS (SELECT chunk, score, row_number() OVER (ORDER BY score DESC, id) AS rank FROM near WHERE score > 0),
fused AS (
    SELECT chunk, words.rank AS word_rank, words.score AS word_score, vectors.rank AS near_rank,
        vectors.score AS near_score,
        coalesce(%(word_weight)s::float8 / (%(rrf)s::float8 + words.rank), 0)
            + coalesce(%(near_weight)s::float8 / (%(rrf)s::float8 + vectors.rank), 0) AS score
    FROM words FULL JOIN vectors USING (chunk)
)
SELECT c.id, c.text, c.header, c.parent_id, c.metadata::text, fused.score, {forms}, word_rank, word_score, near_rank,
    near_score, (SELECT count(*) FROM near), (SELECT count(*) FROM best), {known}
FROM fused JOIN {chunks} c ON c.ordinal = fused.chunk
ORDER BY fused.score DESC, c.id LIMIT %(wanted)s
"""


_LANGUAGES = """
SELECT coalesce(bit_or(c.languages), 0) FROM {chunks} c WHERE {passing}
"""

_ALL_LANGUAGES = """
SELECT coalesce(sum(1::bigint << tag.number), 0)::bigint
FROM unnest(%(numbers)s::integer[], %(firsts)s::text[], %(lasts)s::text[]) AS tag (number, first, last)
WHERE NOT row_security_active({chunks_name})
    AND EXISTS (SELECT FROM {postings} p WHERE p.term >= tag.first AND p.term <= tag.last)
UNION ALL
SELECT coalesce(bit_or(c.languages), 0) FROM {chunks} c WHERE row_security_active({chunks_name})
"""
"""For all chunks, the index of terms answers with one lookup per tag, instead of a scan of the chunks."""


@dataclass(frozen=True)
class Depth:
    """The depth of a fusion: the hits wanted, the depth of each channel, RRF's k, and the weights."""

    wanted: int
    words: int
    near: int
    k: float
    weights: tuple[float, float]


def languages(tables: Tables, counting: Filter | None) -> SqlStatement:
    """The tags of the counted chunks' terms as bits, in one row or two."""
    if counting is not None:
        where = Where.of(counting, "w")
        return SqlStatement(tables.sql(_LANGUAGES, passing=_sql(where.text)), where.parameters)
    tags = [(ord(tag), escaped(tag), escaped(tag) + "\U0010ffff") for tag in TAGS.values()]
    columns = [list(column) for column in zip(*tags, strict=True)]
    return SqlStatement(tables.sql(_ALL_LANGUAGES), dict(zip(("numbers", "firsts", "lasts"), columns, strict=True)))


def nearest(tables: Tables, vector: Vector, k: int, passing: Filter | None, *, exact: bool) -> SqlStatement:
    """The nearest chunks, as rows of id, text, header, parent, metadata and score.

    In this and the other search statements, the last column says whether the collection is the one that `tables` knows.
    """
    where = Where.of(passing, "w")
    near = tables.sql(_EXACT if exact else _NEAR, passing=_sql(where.text))
    text = tables.sql(_NEAREST, near=near, known=tables.sql(_KNOWN))
    return SqlStatement(text, {**tables.known, **where.parameters, "vector": literal(vector), "near": k})


def vectors(tables: Tables, ids: list[str]) -> SqlStatement:
    """The ids and vectors, in the format of vector_send, of the given chunks that exist."""
    text = tables.sql(_VECTORS, known=tables.sql(_KNOWN))
    return SqlStatement(text, {**tables.known, "ids": [escaped(one) for one in ids]})


@dataclass(frozen=True, eq=False)
class Ranked:
    """The expressions of a WITH clause that rank chunks by keywords, and their parameters.

    `asked` has the forms of the query with their numbers, `best` the best `k` chunks (a parameter; ties included) with
    their scores, higher is better. `known` is the condition under which the ranking is the wanted one.
    """

    text: Any
    parameters: Mapping[str, Any]
    known: Any = None


def counted(tables: Tables, asked: Keywords) -> Ranked:
    """The ranking by BM25 over the postings, with exact statistics."""
    scored, parameters = _scored(tables, asked)
    return Ranked(tables.sql("{scored}, {best}", scored=scored, best=_best(tables, asked)), parameters)


def keywords(tables: Tables, ranked: Ranked, k: int) -> SqlStatement:
    """The best chunks by keywords: rows of id, text, header, parent, metadata, score and the numbers of their forms."""
    text = tables.sql(_FOUND, ranked=ranked.text, forms=tables.sql(_FORMS), known=_known(tables, ranked))
    return SqlStatement(text, {**tables.known, **ranked.parameters, "k": k})


def keyword_scores(tables: Tables, asked: Keywords, ids: list[str]) -> SqlStatement:
    """The ids and scores of the given chunks that exist and pass."""
    only = _sql("m.chunk IN (SELECT ordinal FROM {chunks} WHERE id = ANY (%(ids)s::text[]))", tables)
    scored, parameters = _scored(tables, asked, only)
    passing = Where.of(asked.passing, "p")
    parts = {"scored": scored, "total": _sql(_TOTAL), "passing": _sql(passing.text), "known": tables.sql(_KNOWN)}
    given = {**tables.known, **parameters, **passing.parameters, "ids": [escaped(one) for one in ids]}
    return SqlStatement(tables.sql(_SCORES, **parts), given)


def statistics(tables: Tables, asked: Keywords) -> SqlStatement:
    """The number of counted chunks, the sum of their lengths, and the document frequency of each form by its number."""
    postings, population, parameters = _counting(tables, asked)
    matching = tables.sql(_MATCHING, counting_postings=postings)
    text = tables.sql(_STATISTICS, population=population, matching=matching, known=tables.sql(_KNOWN))
    return SqlStatement(text, {**tables.known, **parameters, **_terms(asked)})


def histogram(tables: Tables, asked: Keywords) -> SqlStatement:
    """For each document frequency n, the number of terms that n counted chunks have."""
    postings, _, parameters = _counting(tables, asked)
    text = tables.sql(_HISTOGRAM, counting_postings=postings, known=tables.sql(_KNOWN))
    return SqlStatement(text, {**tables.known, **parameters})


def fused(
    tables: Tables, asked: Keywords, ranked: Ranked, vector: Vector, depth: Depth, *, exact: bool
) -> SqlStatement:
    """The best of both channels by RRF.

    Rows as of `keywords`, rank and score in each channel, and the numbers of near and of ranked chunks.
    """
    where = Where.of(asked.passing, "v")
    near = tables.sql(_EXACT if exact else _NEAR, passing=_sql(where.text))
    forms, known = tables.sql(_FORMS), _known(tables, ranked)
    text = tables.sql(_FUSED, ranked=ranked.text, near=near, forms=forms, known=known)
    own = {"vector": literal(vector), "near": depth.near, "k": depth.words, "wanted": depth.wanted, "rrf": depth.k}
    weights = dict(zip(("word_weight", "near_weight"), depth.weights, strict=True))
    return SqlStatement(text, {**tables.known, **ranked.parameters, **where.parameters, **own, **weights})


def literal(vector: Vector) -> str:
    """A vector in pgvector's syntax, with every float32 exact."""
    return f"[{','.join(map(repr, vector.tolist()))}]"


def population(tables: Tables) -> Any:
    """The statement that counts all chunks that the user sees: `total` and their `length`."""
    return tables.sql(_KEPT)


def known(tables: Tables) -> Any:
    """The condition that the collection is still the known one."""
    return tables.sql(_KNOWN)


def _known(tables: Tables, ranked: Ranked) -> Any:
    return known(tables) if ranked.known is None else ranked.known


def _best(tables: Tables, asked: Keywords) -> Any:
    positive = _sql(f"{_TOTAL} > 0" if asked.positive else "true")
    return tables.sql(_BEST, total=_sql(_TOTAL), positive=positive)


def _scored(tables: Tables, asked: Keywords, only: Any = None) -> tuple[Any, dict[str, Any]]:
    postings, population, counting = _counting(tables, asked)
    passing = Where.of(None if asked.filtered else asked.where, "w")
    matches = [] if only is None else [only]
    if passing.text != "true":
        own = "EXISTS (SELECT FROM {chunks} c WHERE c.ordinal = m.chunk AND {clause})"
        matches.append(tables.sql(own, clause=_sql(passing.text)))
    sql: Any = require("psycopg.sql", extra="postgres")
    text = tables.sql(
        _SCORED,
        matching=tables.sql(_MATCHING, counting_postings=postings),
        population=population,
        weight=_sql(_WEIGHT.format(n="n")),
        floored=_floored(tables, asked.formula, postings),
        tf=_sql(_TF),
        passing_matches=sql.SQL(" AND ").join(matches) if matches else _sql("true"),
    )
    return text, {**counting, **passing.parameters, **_terms(asked), **_constants(asked.formula)}


def _counting(tables: Tables, asked: Keywords) -> tuple[Any, Any, dict[str, Any]]:
    """The clause on counted postings, the statement that counts their chunks, and the parameters of both."""
    if not asked.counting:
        return _sql("true"), tables.sql(_KEPT), {}
    counting = Where.of(asked.counting, "c")
    own = "EXISTS (SELECT FROM {chunks} c WHERE c.ordinal = p.chunk AND {clause})"
    postings = tables.sql(own, clause=_sql(counting.text))
    return postings, tables.sql(_COUNTED, counting=_sql(counting.text)), dict(counting.parameters)


def _floored(tables: Tables, formula: Formula, postings: Any) -> Any:
    if type(formula).floor is Formula.floor:
        return _sql("idf")
    weight = _sql(_WEIGHT.format(n="each.n"))
    floor = tables.sql(_FLOOR, weight_of_each=weight, counting_postings=postings)
    return _sql("CASE WHEN idf < 0 THEN coalesce(({floor}), 0) ELSE idf END", tables, floor=floor)


def _terms(asked: Keywords) -> dict[str, Any]:
    numbers = {form: number for number, form in enumerate(asked.forms)}
    rows = [
        (term_key(form), numbers[form], place, float(count))
        for place, (forms, count) in enumerate(asked.terms.items())
        for form in forms
    ]
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], [], []]
    return dict(zip(("terms", "numbers", "places", "counts"), columns, strict=True))


def _constants(formula: Formula) -> dict[str, float]:
    """The constants of a formula. Raises ConfigError for a formula that they cannot express."""
    curve, idf = formula.curve(), _IDF.get(type(formula).idf)
    floors = type(formula).floor in (Formula.floor, Okapi.floor)
    if curve is None or idf is None or not floors or type(formula).norm is not Formula.norm:
        raise ConfigError(
            f"PostgreSQL cannot score by {formula!r}: use one of Lucene() (the default), Robertson, ATIRE, Okapi, "
            "BM25L and BM25Plus, or search the documents in a knowledge base"
        )
    constants = {**dict(zip(("least", "one", "shift", "minus", "below"), idf, strict=True)), **curve._asdict()}
    epsilon = formula.epsilon if isinstance(formula, Okapi) else 0.0
    return {**constants, "b": formula.b, "absent": formula.absent(), "epsilon": epsilon}


def _sql(text: str, tables: Tables | None = None, **parts: Any) -> Any:
    if tables is not None:
        return tables.sql(text, **parts)
    return require("psycopg.sql", extra="postgres").SQL(text)
