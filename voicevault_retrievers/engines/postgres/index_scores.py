"""The scores that pg_textsearch's index gives to given chunks, computed from the postings.

Scoring a text by the index's operator takes as long as finding some ten chunks. What it depends on is known: the
index's idf of each term, which the operator tells of a text of that term alone, the frequencies, and the length of the
chunk, which the index keeps in one byte as Lucene does. The operator itself scores the shortest and the longest of the
chunks; where it differs, as where a word is repeated so often that PostgreSQL does not keep all places, it scores all.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from voicevault_retrievers._support.extras import require
from voicevault_retrievers.engines.encoding import encoded, escaped
from voicevault_retrievers.engines.keywords import Keywords, Words
from voicevault_retrievers.engines.postgres.asking import SqlStatement
from voicevault_retrievers.engines.postgres.conditions import Where
from voicevault_retrievers.engines.postgres.statements import population
from voicevault_retrievers.engines.postgres.tables import Tables
from voicevault_retrievers.engines.postgres.texts import term_key

LONGEST = 10_000
"""The most terms of a chunk: the words of a longer one may be in several rows of the index (`bm25_index.word_rows`)."""

FREE = 24
"""The lengths that a byte has room for beside those with four significant bits, which are counted from here."""

SAME = 1e-6
"""The relative difference of scores that are the same: the index computes in float32."""

_HELD = """
WITH asked AS MATERIALIZED (
    SELECT * FROM unnest(%(terms)s::text[], %(numbers)s::integer[]) AS a (term, number)
),
held AS MATERIALIZED (
    SELECT c.id, c.ordinal, found.*, count(found.length) OVER () AS all,
        row_number() OVER (ORDER BY found.length) AS place
    FROM {chunks} c CROSS JOIN LATERAL (
        SELECT array_agg(a.number) AS numbers, array_agg(p.frequency) AS counts, max(p.length) AS length
        FROM asked a CROSS JOIN LATERAL (
            SELECT frequency, length FROM {postings} WHERE term = a.term AND chunk = c.ordinal OFFSET 0
        ) AS p
    ) AS found
    WHERE c.id = ANY (%(ids)s::text[]) AND {passing}
)
SELECT NULL, ARRAY[]::integer[], ARRAY[]::integer[], NULL, either.length::float8 / nullif(either.total, 0), ARRAY(
    SELECT -(w.word OPERATOR({textsearch}.<@>) {textsearch}.to_bm25query(w.word, {bm25_name}))
    FROM unnest(%(forms)s::text[]) WITH ORDINALITY AS w (word, place) ORDER BY w.place
), {known} FROM ({population}) AS either
UNION ALL
SELECT id, numbers, counts, length, CASE WHEN place IN (1, held.all) THEN (
    SELECT max({score}) FROM {words} w WHERE w.chunk = held.ordinal
) END, NULL, {known} FROM held
"""


def statement(
    tables: Tables, asked: Keywords, words: Words, ids: Sequence[str], *, score: Any, known: Any
) -> SqlStatement:
    """What `scores` computes from: `score` is the operator's of a row of words, `known` that of `Ranked`."""
    where, forms = Where.of(asked.passing, "w"), asked.forms
    parts = {"passing": require("psycopg.sql", extra="postgres").SQL(where.text), "population": population(tables)}
    own = {
        "words": words.text,
        "ids": [escaped(one) for one in ids],
        "forms": [encoded(form) for form in forms],
        "terms": [term_key(form) for form in forms],
        "numbers": list(range(len(forms))),
    }
    text = tables.sql(_HELD, **parts, score=score, known=known)
    return SqlStatement(text, {**tables.known, **where.parameters, **own})


def scores(asked: Keywords, words: Words, rows: Sequence[Sequence[Any]]) -> dict[str, float] | None:
    """The index's scores of the chunks in the rows of `statement`, by escaped id; None where it computes otherwise."""
    (_, _, _, _, mean, alone, _), *held = rows
    if not mean or any(length is not None and length > LONGEST for _, _, _, length, *_ in held):
        return None
    k1, b, often = asked.formula.k1, asked.formula.b, Counter(words.text.split())
    forms = zip(asked.forms, alone, strict=True)
    weights = [often[encoded(form)] * score * (1 + k1 * (1 - b + b / mean)) for form, score in forms]
    found: dict[str, float] = {}
    for one, numbers, counts, length, told, *_ in held:
        norm = k1 * (1 - b + b * rounded(length or 0) / mean)
        parts = zip(numbers or (), counts or (), strict=True)
        found[one] = sum(weights[number] * count / (count + norm) for number, count in parts)
        if told is not None and not math.isclose(found[one], told, rel_tol=SAME):
            return None
    return found


def rounded(length: int) -> int:
    """The length that Lucene's `SmallFloat.intToByte4` keeps: exact up to 39, beyond with four significant bits."""
    beyond = max(length - FREE, 0)
    return length - beyond % (1 << max(beyond.bit_length() - 4, 0))
