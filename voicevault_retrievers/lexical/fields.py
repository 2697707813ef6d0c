"""BM25F: keyword search in chunks of several fields, with a weight per field, such as a higher one for titles.

Zaragoza et al. (2004), "Microsoft Cambridge at TREC-13: Web and HARD tracks"; Robertson, Zaragoza (2009), "The
Probabilistic Relevance Framework: BM25 and Beyond", section 3.6. A term's contribution to a chunk's score, higher is
better:

    f~ = sum over fields of weight * f / (1 - b + b * L / avgL),    idf * f~ / (k1 + f~)

b, the length L and its mean avgL are those of the field. idf is Lucene's, over the chunks that contain the term in any
field. The frequencies are added before the saturation by k1, so that a term in two fields does not count as two terms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

import numpy as np

from voicevault_retrievers._support.checks import number
from voicevault_retrievers.core.filters import both
from voicevault_retrievers.core.leaf import LeafChannel, Match, best_of_wordings
from voicevault_retrievers.core.rows import Rows, best
from voicevault_retrievers.core.selection import Ordinals, Selection
from voicevault_retrievers.core.types import Chunk, Query, Variant, as_query
from voicevault_retrievers.errors import ConfigError, unknown
from voicevault_retrievers.lexical import builder
from voicevault_retrievers.lexical.analysis import AnyAnalyzer, analyse, weighed_terms
from voicevault_retrievers.lexical.formulas import Floats, Lucene
from voicevault_retrievers.lexical.postings import Postings, Unsigned
from voicevault_retrievers.lexical.segment import IndexSegment
from voicevault_retrievers.lexical.statistics import Statistics, counting_of, statistics_of
from voicevault_retrievers.text import Analyzer, QueryTerm, untagged
from voicevault_retrievers.text.analyzed_texts import tags_of

TEXT = "text"
FIELDS = {"title": 3.0, TEXT: 1.0}
"""The default fields of `from_chunks`. The title's weight did best on the training queries of SciFact."""

B = 0.75


@dataclass(frozen=True, eq=False)
class Field:
    """A field's postings, its weight, and its length normalisation b, in [0, 1]."""

    name: str
    postings: Postings
    weight: float = 1.0
    b: float = B

    def __post_init__(self) -> None:
        if not number(f"the weight of field {self.name!r}", self.weight):
            raise ConfigError(f"the weight of field {self.name!r} is 0: leave the field out")
        Lucene(b=self.b)


@dataclass(frozen=True)
class FieldScore:
    """A term's contribution to a chunk's score in one field: the field's share of `count * idf * f~ / (k1 + f~)`.

    `count` is the term's frequency in the query, `frequency` that in the field, `document_frequency` the number of
    chunks with the term in any field; `norm` is the field's length norm.
    """

    term: str
    field: str
    count: float
    frequency: int
    document_frequency: int
    idf: float
    norm: float
    contribution: float


class _Part(NamedTuple):
    """A term in one field: the chunks that contain it, its frequencies, their length norms, and their parts of `f~`."""

    field: str
    ordinals: Ordinals
    frequencies: Unsigned
    norms: Floats
    pseudo: Floats


class _Term(NamedTuple):
    """A term of a query: the chunks that contain it in any field, and their `f~`.

    `times` is the term's frequency in the query, `frequency` the number of counted chunks that contain it.
    """

    asked: QueryTerm
    times: float
    frequency: int
    idf: float
    ordinals: Ordinals
    pseudo: Floats
    parts: Sequence[_Part]


class BM25F(LeafChannel):
    """BM25F over chunks held in memory. A chunk is found when it shares a term with the query, in any field.

    Scores are above 0, unbounded, higher is better. The postings of all fields cover the same rows. With `statistics`
    "filtered", document frequencies and lengths count only chunks that pass `Query.where`; they always count only
    chunks that pass `Query.require`.
    """

    def __init__(
        self,
        rows: Rows,
        fields: Iterable[Field],
        analyzer: AnyAnalyzer | None = None,
        *,
        k1: float = 1.2,
        statistics: Statistics | None = None,
        timeout: float | None = None,
        name: str = "bm25f",
    ) -> None:
        super().__init__(name, "keyword", timeout=timeout)
        self.rows = rows
        self.fields = tuple(fields)
        self.analyzer = Analyzer() if analyzer is None else analyzer
        self.formula = Lucene(k1)
        self.statistics = statistics_of(statistics, engine=False)
        self._segments = [IndexSegment(rows, field.postings) for field in self.fields]

    @classmethod
    def from_chunks(
        cls,
        chunks: Iterable[Chunk],
        fields: Mapping[str, float] | None = None,
        analyzer: AnyAnalyzer | None = None,
        *,
        b: float | Mapping[str, float] = B,
        **options: Any,
    ) -> BM25F:
        """BM25F over the fields with these weights; `FIELDS` where none are given.

        "text" is a chunk's text. Any other field is a key of its metadata: a string or a list of strings, empty where
        it is missing. `b` is a number for all fields, or a mapping; `options` are those of the constructor.
        """
        rows = Rows.searched(chunks)
        weights = FIELDS if fields is None else fields
        bs = dict(b) if isinstance(b, Mapping) else dict.fromkeys(weights, b)
        strange = next((name for name in bs if name not in weights), None)
        if strange is not None:
            raise unknown("field", strange, weights)
        chosen = Analyzer() if analyzer is None else analyzer
        made = [
            Field(name, builder.build(analyse(chosen, [_text(chunk, name) for chunk in rows.chunks])), weight, b_field)
            for name, weight in weights.items()
            for b_field in [bs.get(name, B)]
        ]
        return cls(rows, made, chosen, **options)

    local = computes = True

    def find(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        return [self._find(query, wording, k) for wording in wordings]

    def scan(self, query: Query, found: Sequence[tuple[Variant, Sequence[Match]]] = ()) -> FieldScan:
        return FieldScan(self, query)

    def explain(self, query: str | Query, chunk_id: str) -> list[FieldScore]:
        """The contributions to a chunk's score for the query's own text, by term and field; they add up to the score.

        Empty where a search would not find the chunk.
        """
        query = as_query(query)
        places = self.rows.places([chunk_id], both(query.require, query.where))
        return [
            part
            for at in places.values()
            for term in self._look(query, query.original)
            for part in self._told(term, at)
        ]

    def _find(self, query: Query, wording: Variant, k: int) -> list[Match]:
        terms = self._look(query, wording)
        scores = self._scores(terms)
        passing = self.rows.selection(both(query.require, query.where))
        having = Selection.union(len(self.rows), [term.ordinals for term in terms])
        top = best(scores, (having if passing is None else having & passing).ordinals.astype(np.intp), k)
        matched = [Selection(len(self.rows), term.ordinals).has(top.astype(np.uint32)).tolist() for term in terms]
        return [
            Match(
                self.rows.chunks[at],
                score,
                tuple(t.asked.word for t, has in zip(terms, matched, strict=True) if has[i]),
            )
            for i, (at, score) in enumerate(zip(top.tolist(), scores[top].tolist(), strict=True))
        ]

    def _look(self, query: Query, wording: Variant) -> list[_Term]:
        """The distinct terms of a wording that some counted chunk contains, in order."""
        return [term for term in self._terms(query, wording) if term.frequency]

    def _terms(self, query: Query, wording: Variant) -> list[_Term]:
        """All distinct terms of a wording, in order."""
        counting = counting_of(query.where, query.require, self.statistics == "filtered")
        chosen = self.rows.selection(counting)
        means = [_mean(field.postings, chosen) for field in self.fields]
        languages = reduce(or_, (segment.languages(chosen) for segment in self._segments), 0)
        asked, counts = weighed_terms(self.analyzer, wording, tags_of(languages))
        distinct = {term.forms: term for term in reversed(asked)}
        return [self._term(distinct[forms], count, chosen, means) for forms, count in counts.items()]

    def _term(self, asked: QueryTerm, count: float, chosen: Selection | None, means: Sequence[float]) -> _Term:
        parts = [
            _part(field, number, mean)
            for field, mean in zip(self.fields, means, strict=True)
            for number, documents in field.postings.look(asked.forms)
            if documents
        ]
        having = np.concatenate([np.empty(0, np.uint32), *(part.ordinals for part in parts)])
        ordinals, places = np.unique(having, return_inverse=True)
        weights = np.concatenate([np.empty(0), *(part.pseudo for part in parts)])
        pseudo = np.bincount(places, weights, len(ordinals)).astype(np.float64)
        frequency = len(ordinals) if chosen is None else int(chosen.has(ordinals).sum())
        total = len(self.rows) if chosen is None else chosen.count
        return _Term(asked, count, frequency, self.formula.idf(frequency, total), ordinals, pseudo, parts)

    def _scores(self, terms: Iterable[_Term]) -> Floats:
        """The score of each row; 0 where it contains none of the terms."""
        scores = np.zeros(len(self.rows))
        for term in terms:
            scores[term.ordinals] += term.times * term.idf * (term.pseudo / (self.formula.k1 + term.pseudo))
        return scores

    def _told(self, term: _Term, at: int) -> Iterator[FieldScore]:
        """A term's contributions to a row's score, by field."""
        pseudo = float(term.pseudo[term.ordinals == at].sum())
        for field, ordinals, frequencies, norms, parts in term.parts:
            for f, norm, part in zip(*(of[ordinals == at].tolist() for of in (frequencies, norms, parts)), strict=True):
                yield FieldScore(
                    untagged(term.asked.forms[0]),
                    field,
                    term.times,
                    f,
                    term.frequency,
                    term.idf,
                    norm,
                    term.times * term.idf * (part / (self.formula.k1 + pseudo)),
                )

    def __repr__(self) -> str:
        weights = {field.name: field.weight for field in self.fields}
        bs = {field.name: field.b for field in self.fields}
        return f"BM25F({weights}, k1={self.formula.k1:g}, b={bs}, analyzer={self.analyzer!r}, chunks={len(self.rows)})"


class FieldScan:
    """The exact score of any chunk by BM25F."""

    local = True

    def __init__(self, channel: BM25F, query: Query) -> None:
        self._channel = channel
        self._passing = both(query.require, query.where)
        self._terms = [(w.weight, channel._terms(query, w)) for w in channel._wordings(query)]

    @property
    def coverage(self) -> float | None:
        """The share of the first wording's distinct terms that some counted chunk contains; None for no terms."""
        terms = self._terms[0][1] if self._terms else []
        return sum(term.frequency > 0 for term in terms) / len(terms) if terms else None

    def scores(self, ids: Sequence[str]) -> Mapping[str, float]:
        """Each chunk's best score over all wordings, 0 where no term matches; none for a chunk that no search could
        find.
        """
        places = self._channel.rows.places(ids, self._passing)
        found = [(weight, self._channel._scores(t for t in terms if t.frequency)) for weight, terms in self._terms]
        return best_of_wordings(
            [(weight, {one: float(scores[at]) for one, at in places.items()}) for weight, scores in found]
        )


def _part(field: Field, number: int, mean_length: float) -> _Part:
    ordinals, frequencies = field.postings.find(number)
    norms = Lucene(b=field.b).norm(field.postings.lengths[ordinals], mean_length)
    return _Part(field.name, ordinals, frequencies, norms, field.weight * (frequencies / norms))


def _mean(postings: Postings, chosen: Selection | None) -> float:
    """The mean length of a field over the chosen rows (None for all)."""
    if chosen is None:
        return postings.total_length / max(1, len(postings))
    return int(postings.lengths[chosen.ordinals].sum(dtype=np.int64)) / max(1, chosen.count)


def _text(chunk: Chunk, name: str) -> str:
    value = chunk.text if name == TEXT else chunk.metadata.get(name)
    values = [] if value is None else value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(one, str) for one in values):
        raise ConfigError(f"chunk {chunk.id!r}: field {name!r} is a string or a list of strings, not {value!r}")
    return "\n".join(values)
