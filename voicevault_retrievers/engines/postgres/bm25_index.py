"""The BM25 index of the extension pg_textsearch over the terms of this package's analyzer.

The terms of a chunk are one text of plain words, which PostgreSQL's parser neither splits, folds nor drops, whatever
the language. They are in a table of their own: it is the last that a write fills, because pg_textsearch holds a lock on
its index from the first row to the end of the transaction, which no statement may wait behind.

The table has a copy of each chunk's metadata, for filters: the scan of the index reads these rows anyway, and looking
up a candidate's chunk takes about as long as ranking it. A chunk that others change keeps its old copy and loses its
digest (`tables.TABLES`), so that a filter looks up the chunks without a digest too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from voicevault_retrievers._support.extras import require
from voicevault_retrievers.core.execution.steps import Steps
from voicevault_retrievers.engines.encoding import encoded, escaped
from voicevault_retrievers.engines.keywords import Keywords, Words
from voicevault_retrievers.engines.postgres import copies, index_scores
from voicevault_retrievers.engines.postgres.asking import CopiedRows, SqlStatement
from voicevault_retrievers.engines.postgres.conditions import Where
from voicevault_retrievers.engines.postgres.statements import Ranked, known, population
from voicevault_retrievers.engines.postgres.tables import Tables
from voicevault_retrievers.engines.postgres.texts import term_key
from voicevault_retrievers.engines.recipe import Recipe
from voicevault_retrievers.lexical.formulas import Lucene

OPTION = "bm25_index"
"""The option of a recipe that has [k1, b] of the index; absent where the collection has none."""

LONGEST_TEXT = 400_000
"""The most characters of the words of one row: PostgreSQL's parsed texts have at most a mebibyte."""

SPARE = 10
"""The number of chunks beyond k that are ranked, so that ties at the boundary are in the order of ids."""

FILTERED_DEPTH = 2000
"""The number of candidates that a filter is first applied to."""

DEEPEST = 25_000
"""The most candidates that are ranked; beyond, exact search takes no longer."""

FEW = 300
"""The most chunks that pass a filter and are scored one by one."""

MOST_SCORED = 500
"""The most given chunks that the index scores, one by one."""

THERE = """
SELECT
    (SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
        WHERE e.extname = 'pg_textsearch'),
    current_setting('pg_textsearch.default_limit', true) IS NOT NULL
        AND (SELECT rolsuper FROM pg_roles WHERE rolname = current_user),
    to_regclass({bm25_name}) IS NOT NULL,
    CASE WHEN to_regclass({chunks_name}) IS NOT NULL THEN row_security_active(to_regclass({chunks_name})::oid)
        ELSE false END
"""

TABLES = """
CREATE TABLE {words} (chunk bigint NOT NULL, terms text NOT NULL, metadata jsonb NOT NULL);
CREATE INDEX {words_index} ON {words} (chunk);
CREATE INDEX ON {chunks} (ordinal) WHERE digest = '';
CREATE FUNCTION {forgotten}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $body$
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        DELETE FROM {words};
    ELSE
        DELETE FROM {words} w USING gone WHERE w.chunk = gone.ordinal;
    END IF;
    RETURN NULL;
END
$body$;
CREATE TRIGGER words_deleted AFTER DELETE ON {chunks} REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION {forgotten}();
CREATE TRIGGER words_truncated AFTER TRUNCATE ON {chunks} FOR EACH STATEMENT EXECUTE FUNCTION {forgotten}();
CREATE FUNCTION {by_words}(query text, depth integer) RETURNS TABLE (chunk bigint, score float8, metadata jsonb)
LANGUAGE plpgsql STABLE ROWS 1000 SET search_path = pg_catalog, {textsearch}, pg_temp
SET enable_indexscan = on SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
AS $body$ BEGIN RETURN QUERY EXECUTE format({ranking}, query, depth); END $body$
"""

_RANKING = (
    "SELECT w.chunk, -{textsearch}.bm25_get_current_score(), w.metadata FROM {words} w "
    "ORDER BY w.terms OPERATOR({textsearch}.<@>) {textsearch}.to_bm25query(%L, {bm25_name}) LIMIT %s"
)
"""The score that the index scan has computed, without a second computation; the extension finds it in its schema."""

_INDEX = """
CREATE INDEX {bm25_index} ON {words} USING bm25 (terms) WITH (text_config = 'pg_catalog.simple', k1 = {k1}, b = {b})
"""

_SPILL = """
SELECT CASE WHEN (SELECT rolsuper FROM pg_roles WHERE rolname = current_user)
    THEN {textsearch}.bm25_spill_index({bm25_name}) END
"""

POLICIES = """
ALTER TABLE {words} ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS access ON {words};
CREATE POLICY access ON {words} FOR SELECT USING (EXISTS (SELECT FROM {chunks} c WHERE c.ordinal = chunk))
"""

GRANTS = "GRANT SELECT ON {words} TO {role}; GRANT EXECUTE ON FUNCTION {by_words}(text, integer) TO {role}"

_ASKED = """
asked AS (
    SELECT DISTINCT * FROM unnest(%(terms)s::text[], %(numbers)s::integer[]) AS a (term, number)
),
candidates AS MATERIALIZED ({candidates}),
first AS (
    SELECT chunk, max(score) / %(scale)s::float8 AS score FROM candidates WHERE score > 0 GROUP BY chunk
    ORDER BY score DESC FETCH FIRST (%(k)s) ROWS WITH TIES
),
best AS MATERIALIZED (
    SELECT * FROM first
    WHERE EXISTS (SELECT FROM asked a JOIN {postings} p ON p.term = a.term AND p.chunk = first.chunk)
)
"""

_ALL = "SELECT * FROM {by_words}(%(words)s::text, %(depth)s::integer)"

_RANKED = """
SELECT r.chunk, r.score FROM (
    SELECT c.chunk, c.score FROM {by_words}(%(words)s::text, %(depth)s::integer) c
    WHERE {passing} OR c.chunk IN (SELECT t.ordinal FROM {chunks} t WHERE t.digest = '')
) AS r
CROSS JOIN LATERAL (SELECT FROM {chunks} c WHERE c.ordinal = r.chunk AND {passing} OFFSET 0) AS passes
LIMIT %(k)s::bigint + 2
"""
"""The copied metadata choose the candidates that are looked up, the chunks' own decide. `OFFSET 0` keeps the join a
look-up per candidate, best first, which ends when enough have passed.
"""

_FREQUENCIES = """
SELECT either.total::float8, either.length::float8,
    -(w.word OPERATOR({textsearch}.<@>) {textsearch}.to_bm25query(w.word, {bm25_name}))
FROM unnest(%(forms)s::text[]) WITH ORDINALITY AS w (word, place) CROSS JOIN ({population}) AS either ORDER BY w.place
"""

_COMPLETE = """
WITH listed AS MATERIALIZED (
    SELECT count(*) AS all, count(DISTINCT chunk) AS chunks FROM {by_words}(%(words)s::text, %(depth)s::integer)
    WHERE score > 0
)
SELECT CASE
    WHEN EXISTS (
        SELECT FROM unnest(%(terms)s::text[]) AS a (term)
        CROSS JOIN LATERAL (SELECT FROM {postings} p WHERE p.term = a.term OFFSET %(depth)s::integer) AS beyond
    ) THEN false
    WHEN (SELECT listed.all FROM listed) < %(depth)s::integer THEN (SELECT listed.chunks FROM listed)
        >= (SELECT count(DISTINCT p.chunk) FROM {postings} p WHERE p.term = ANY (%(terms)s::text[]))
    ELSE false
END
"""
"""A term of more chunks than the depth answers without a second ranking."""

_PASSING = """
WITH few AS MATERIALIZED (SELECT c.ordinal FROM {chunks} c WHERE {passing} LIMIT %(depth)s::integer + 1)
SELECT w.chunk, {score} AS score FROM few JOIN {words} w ON w.chunk = few.ordinal
WHERE (SELECT count(*) FROM few) <= %(depth)s::integer
    AND EXISTS (SELECT FROM asked a JOIN {postings} p ON p.term = a.term AND p.chunk = few.ordinal)
"""
"""Scoring a text takes several times as long as finding out that it has no term."""

_SCORE = "-(w.terms OPERATOR({textsearch}.<@>) {textsearch}.to_bm25query(%(words)s::text, {bm25_name}))"

_SCORES = """
SELECT c.id, coalesce((SELECT max({score}) FROM {words} w WHERE w.chunk = c.ordinal), 0) / %(scale)s::float8, {known}
FROM {chunks} c WHERE c.id = ANY (%(ids)s::text[]) AND {passing}
"""


@dataclass(frozen=True)
class TextSearch:
    """What a database has of pg_textsearch, and a collection of its index.

    `schema` is the extension's, None where it is not installed; `creatable` means that this user can install it.
    `restricted` means that row-level security applies to this user.
    """

    schema: str | None = None
    creatable: bool = False
    indexed: bool = False
    restricted: bool = False


def detecting(tables: Tables) -> Steps[TextSearch]:
    """What the database has."""
    (row,) = yield SqlStatement(tables.sql(THERE))
    return TextSearch(*row)


def option(recipe: Recipe | None) -> Lucene | None:
    """The formula of a collection's index; None where it has none."""
    constants = None if recipe is None else recipe.options.get(OPTION)
    return None if constants is None else Lucene(*constants)


def with_option(recipe: Recipe, formula: Lucene) -> Recipe:
    """A recipe of a collection with an index that scores by the formula."""
    return replace(recipe, options={**recipe.options, OPTION: [formula.k1, formula.b]})


def word_rows(terms: Mapping[str, int], words: dict[str, str]) -> Iterator[str]:
    """The texts of a chunk's words: one, or several where it is too long. `words` remembers encoded terms."""
    row: list[str] = []
    size = 0
    for term, count in terms.items():
        word = words.get(term) or words.setdefault(term, encoded(term))
        row += [word] * count
        size += len(word) + 1
        if size > LONGEST_TEXT:
            yield " ".join(row)
            row, size = [], 0
    if row:
        yield " ".join(row)


def creating(tables: Tables) -> SqlStatement:
    """The statement that creates the table of the words, its triggers, and the function that ranks."""
    sql: Any = require("psycopg.sql", extra="postgres")
    ranking = sql.Literal(tables.sql(_RANKING).as_string())
    return SqlStatement(tables.sql(TABLES, ranking=ranking))


def copying(tables: Tables, rows: Iterable[tuple[int, str, bytes | None]]) -> CopiedRows:
    """The rows of words, given as (ordinal, text, metadata), the metadata as of `copies.jsonb`."""
    data = copies.copied((copies.long(ordinal), text.encode(), metadata) for ordinal, text, metadata in rows)
    return CopiedRows(tables.sql("COPY {words} (chunk, terms, metadata) FROM STDIN (FORMAT BINARY)"), data)


def enabling(tables: Tables, roles: Iterable[str]) -> Steps[None]:
    """As `tables.enabling`, for the words."""
    sql: Any = require("psycopg.sql", extra="postgres")
    yield SqlStatement(tables.sql(POLICIES))
    for role in roles:
        yield SqlStatement(tables.sql(GRANTS, role=sql.Identifier(role)))


def indexing(tables: Tables, formula: Lucene) -> Steps[None]:
    """Create the index, where there is none."""
    found = yield from detecting(tables)
    if not found.indexed:
        sql: Any = require("psycopg.sql", extra="postgres")
        yield SqlStatement(tables.sql(_INDEX, k1=sql.Literal(float(formula.k1)), b=sql.Literal(float(formula.b))))


def spilling(tables: Tables) -> SqlStatement:
    """Move what was added from the index's memory to its segments, where this user may: only superusers can."""
    return SqlStatement(tables.sql(_SPILL))


def several_forms(asked: Keywords) -> list[str]:
    """The forms of those terms of a query that have several, as in a collection of several languages."""
    return [form for forms in asked.terms if len(forms) > 1 for form in forms]


def frequencies(tables: Tables, forms: list[str]) -> SqlStatement:
    """The totals of chunks and lengths, and the score of each form in a text of the form alone."""
    return SqlStatement(
        tables.sql(_FREQUENCIES, population=population(tables)), {"forms": [encoded(form) for form in forms]}
    )


def weights(asked: Keywords, forms: list[str], rows: Sequence[tuple[float, float, float]]) -> dict[str, float]:
    """The weight of each form relative to its own idf, from rows of `frequencies` in the order of the forms.

    The index weighs each form by its own frequency, which is low for a word in a rare language. Chunks with any form of
    a term count as those that have the term, as in exact statistics.
    """
    counts: dict[str, float] = {}
    for form, (total, length, score) in zip(forms, rows, strict=True):
        norm = 1 - asked.formula.b + asked.formula.b * total / max(length, 1)
        idf = score * (1 + asked.formula.k1 * norm) / _factor(asked)
        counts[form] = max((total + 1) * math.exp(-idf) - 0.5, 0.0) if score > 0 else 0.0
    relative = {}
    for terms in asked.terms:
        n = sum(counts.get(form, 0.0) for form in terms)
        for form in terms:
            own = _idf(counts[form], rows[0][0]) if counts.get(form) else 0.0
            relative[form] = _idf(n, rows[0][0]) / own if own > 0 else 1.0
    return relative


def _idf(n: float, total: float) -> float:
    return math.log((total + 1) / (n + 0.5)) if n + 0.5 < total + 1 else 0.0


def ranked(tables: Tables, asked: Keywords, words: Words, depth: int, *, guarded: bool) -> Ranked:
    """The ranking by the index of the best `depth` chunks, of which those that pass the filters are kept.

    `guarded` means that it is not wanted where row-level security applies, as it counts chunks that are not seen.
    """
    return _ranked(tables, asked, words, depth, _RANKED if asked.passing else _ALL, guarded)


def ranked_few(tables: Tables, asked: Keywords, words: Words, *, guarded: bool) -> Ranked:
    """The ranking of all chunks that pass the filters; empty where they are more than `FEW`."""
    return _ranked(tables, asked, words, FEW, _PASSING, guarded)


def complete(tables: Tables, asked: Keywords, words: Words, depth: int) -> SqlStatement:
    """Whether the ranking of the best `depth` chunks has all that have a term, by the postings too."""
    terms = [term_key(form) for form in asked.forms]
    return SqlStatement(tables.sql(_COMPLETE), {"words": words.text, "depth": depth, "terms": terms})


def _ranked(tables: Tables, asked: Keywords, words: Words, depth: int, text: str, guarded: bool) -> Ranked:
    where = Where.of(asked.passing, "w")
    candidates = tables.sql(text, passing=_sql(where.text), score=tables.sql(_SCORE))
    forms = asked.forms
    parameters = {
        **where.parameters,
        "words": words.text,
        "depth": depth,
        "scale": scale(asked, words),
        "terms": [term_key(form) for form in forms],
        "numbers": list(range(len(forms))),
    }
    return Ranked(tables.sql(_ASKED, candidates=candidates), parameters, _known(tables, guarded))


def given(tables: Tables, asked: Keywords, words: Words, ids: Sequence[str], *, guarded: bool) -> SqlStatement:
    """What `index_scores.scores` computes the scores of the given chunks from, those that exist and pass."""
    score, known = tables.sql(_SCORE), _known(tables, guarded)
    return index_scores.statement(tables, asked, words, ids, score=score, known=known)


def scores(tables: Tables, asked: Keywords, words: Words, ids: Sequence[str], *, guarded: bool) -> SqlStatement:
    """The ids and scores, by the operator, of the given chunks that exist and pass."""
    where = Where.of(asked.passing, "w")
    text = tables.sql(_SCORES, score=tables.sql(_SCORE), passing=_sql(where.text), known=_known(tables, guarded))
    own = {"words": words.text, "scale": scale(asked, words), "ids": [escaped(one) for one in ids]}
    return SqlStatement(text, {**tables.known, **where.parameters, **own})


def _known(tables: Tables, guarded: bool) -> Any:
    if not guarded:
        return known(tables)
    return tables.sql("({known}) AND NOT row_security_active({chunks_name})", known=known(tables))


def scale(asked: Keywords, words: Words) -> float:
    """What the extension's scores are divided by, for a query in which each word is repeated."""
    return _factor(asked) * words.repeats


def _factor(asked: Keywords) -> float:
    """The extension's scores have the constant factor k1 + 1, which `Lucene` leaves out."""
    return float(asked.formula.k1) + 1


def _sql(text: str) -> Any:
    return require("psycopg.sql", extra="postgres").SQL(text)
