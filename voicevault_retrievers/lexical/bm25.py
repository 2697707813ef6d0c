"""The keyword channel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from voicevault_retrievers._support.checks import flag, id_list
from voicevault_retrievers._support.mutex import Mutex
from voicevault_retrievers.core.filters import both
from voicevault_retrievers.core.leaf import LeafChannel, Match, Request, best_of_wordings
from voicevault_retrievers.core.listing import Listing
from voicevault_retrievers.core.rows import Rows
from voicevault_retrievers.core.types import Chunk, Failure, Query, Variant, as_query
from voicevault_retrievers.errors import ConfigError, unknown
from voicevault_retrievers.lexical.analysis import AnyAnalyzer, PlainWords, Tokenizer, analyse, query_terms
from voicevault_retrievers.lexical.expansion_notes import Noted, expansion_notes
from voicevault_retrievers.lexical.formulas import FORMULAS, BM25Plus, Formula, Okapi, RankBM25L
from voicevault_retrievers.lexical.index import LexicalIndex, TermScore
from voicevault_retrievers.lexical.reading import Fuzzy, QueryReader, QueryReading, fuzzy_of
from voicevault_retrievers.lexical.search_result import Scored
from voicevault_retrievers.lexical.statistics import Statistics, counting_of, statistics_of
from voicevault_retrievers.text import Analyzed, Analyzer, untagged

GROWTH = 4
"""The factor by which the search depth grows while too few chunks satisfy a query's operators."""


class Matches(Listing[Match], Noted):
    """The matches of a wording, with the reading of the wording."""

    def __init__(self, reading: QueryReading, found: Listing[Scored], analyzer: AnyAnalyzer) -> None:
        super().__init__(found.ids, found.scores, partial(_match, reading, found))
        self.reading = reading
        self.found = found
        self.analyzer = analyzer

    def notes(self, stage: str, current: Sequence[Match] | None = None) -> Mapping[str, Failure]:
        """The notes on words that stand for other terms of the index; `current` replaces the matches that are read."""
        if not self.reading.expansions:
            return {}
        return expansion_notes(stage, self.reading, self.analyzer, self if current is None else current)


def _match(reading: QueryReading, found: Listing[Scored], at: int) -> Match:
    hit = found[at]
    header = hit.chunk.header
    in_header = reading.words_in(header) if header else ()
    return Match(hit.chunk, hit.score, tuple(reading.word_of[term] for term in hit.terms), header_terms=in_header)


class KeywordScan:
    """The exact score of any chunk, with the terms that a search has already looked up.

    `found` are the matches of each wording; without them, the terms are looked up now.
    """

    local = True

    def __init__(self, channel: BM25, query: Query, found: Sequence[tuple[Variant, Sequence[Match]]] = ()) -> None:
        self._passing = both(query.require, query.where)
        readings = [(wording, matches.reading) for wording, matches in found if isinstance(matches, Matches)]
        index = readings[0][1].index if readings else channel.index
        self._readings = readings or [(one, channel.reading(index, query, one)) for one in channel._wordings(query)]

    @property
    def coverage(self) -> float | None:
        """The share of the first wording's term occurrences whose term is in some chunk; None for no terms."""
        return self._readings[0][1].asked.coverage if self._readings else None

    @property
    def highest(self) -> float:
        """An upper bound of the scores for the first wording; 0 where it has no terms, or the formula no bound."""
        return self._readings[0][1].asked.highest if self._readings else 0.0

    def scores(self, ids: Sequence[str]) -> Mapping[str, float]:
        """Each chunk's best score over all wordings, 0 where no term matches; none for a chunk that no search could
        find.
        """
        return best_of_wordings([(one.weight, reading.scores(ids, self._passing)) for one, reading in self._readings])


@dataclass
class Held:
    """The snapshot that a channel and its copies under other names search (see `Channel.named`)."""

    index: LexicalIndex


class BM25(LeafChannel):
    """BM25 over an index. A chunk is found when it shares a term with the query, whatever its score.

    Scores are 0 or more for most formulas, unbounded, higher is better. `analyzer` must be the one that the index was
    built with. `statistics` "filtered" counts document frequencies and lengths over the chunks that pass `Query.where`;
    they always count only chunks that pass `Query.require`. `exclude_nonpositive` drops matches that score 0 or less.

    With `plain_words`, the first search of an index of stems logs a warning.

    With `operators`, a query may contain `"an exact phrase"`, `+must`, `-not`, `prefix*` and `misspeled~`: see
    `lexical.operators`. The first three narrow the result, like `where`, and not the statistics; those of the query's
    own text also apply to its variants.

    With `fuzzy`, a word that no counted chunk has stands for the terms of the index that are nearest to its term, at
    most `NEAREST`, with the same first letter: at most 1 or 2 edits away, or with "auto" (True) none for terms of up to
    4 letters, 1 for up to 7, and 2 for longer ones. Words with digits, in capitals, within quotes and after `+` stay as
    they are. The terms score as one, `explain` shows each, and a note of the ranking names the words.
    """

    local = computes = True

    def __init__(
        self,
        index: LexicalIndex,
        analyzer: AnyAnalyzer | None = None,
        *,
        formula: Formula | str = "lucene",
        statistics: Statistics | None = None,
        exclude_nonpositive: bool = False,
        operators: bool = False,
        fuzzy: bool | Fuzzy = False,
        plain_words: bool = False,
        timeout: float | None = None,
        name: str = "bm25",
    ) -> None:
        super().__init__(name, "keyword", timeout=timeout)
        self._held = Held(index)
        self._writing = Mutex()
        self.analyzer = Analyzer() if analyzer is None else analyzer
        self.formula = formula_of(formula)
        self.statistics = statistics_of(statistics, engine=False)
        self.exclude_nonpositive = flag("exclude_nonpositive", exclude_nonpositive)
        self.operators = flag("operators", operators)
        self.fuzzy = fuzzy_of(fuzzy)
        self._plain = PlainWords(name) if flag("plain_words", plain_words) else None

    @property
    def plain_words(self) -> bool:
        """Whether a warning is logged where the index was built with a stemming analyzer."""
        return self._plain is not None

    @classmethod
    def from_chunks(
        cls, chunks: Iterable[Chunk], analyzer: AnyAnalyzer | None = None, *, backend: str = "auto", **options: Any
    ) -> BM25:
        """BM25 over chunks held in memory, without parents.

        `backend` is as for `LexicalIndex`, `options` are those of the constructor.
        """
        rows = Rows.searched(chunks)
        chosen = Analyzer() if analyzer is None else analyzer
        analyzed = analyse(chosen, [chunk.indexed_text for chunk in rows.chunks])
        return cls(LexicalIndex.build(rows, analyzed, backend=backend), chosen, **options)

    @classmethod
    def from_rank_bm25(
        cls, ranker: Any, chunks: Sequence[Chunk], tokenizer: Tokenizer | None = None, **options: Any
    ) -> BM25:
        """BM25 over the contents of a rank-bm25 object, with the same scores; `chunks` are its documents, in its order.

        `tokenizer` must be the one that split the documents; the default is the object's own, else `str.split`. Raises
        ConfigError where the numbers of documents differ, or the object is of another class.
        """
        formula = _formula_of_ranker(ranker)
        if len(chunks) != len(ranker.doc_freqs):
            raise ConfigError(
                f"the rank-bm25 object holds {len(ranker.doc_freqs)} documents, given {len(chunks)} chunks"
            )
        rows = Rows.of(chunks)
        counts = {chunk.id: frequencies for chunk, frequencies in zip(chunks, ranker.doc_freqs, strict=True)}
        documents = [[term for term, f in counts[chunk_id].items() for _ in range(f)] for chunk_id in rows.ids]
        chosen = tokenizer or ranker.tokenizer or str.split
        return cls(LexicalIndex.build(rows, documents), chosen, formula=formula, **options)

    @property
    def index(self) -> LexicalIndex:
        """The snapshot that is searched now."""
        return self._held.index

    @property
    def held(self) -> Held:
        """The holder of the snapshot, shared with copies of this channel under other names."""
        return self._held

    def add(self, chunks: Iterable[Chunk]) -> None:
        """Add chunks, which can be found at once. A chunk replaces an earlier chunk of the same id.

        Parents are not added, as they are not searched.
        """
        self.adding(chunks)()

    def adding(self, chunks: Iterable[Chunk]) -> Callable[[], None]:
        """Analyse chunks, and return a function that adds them."""
        given = {chunk.id: chunk for chunk in chunks}
        searched = [chunk for chunk in given.values() if not chunk.is_parent]
        analyzed = self._analyse([chunk.indexed_text for chunk in searched])

        def commit() -> None:
            with self._writing:
                self._held.index = self.index.removed(given, self._analyse).added(searched, analyzed)

        return commit

    def delete(self, ids: Iterable[str]) -> int:
        """Delete chunks, and return how many were in the index. Their terms no longer count in any score."""
        with self._writing:
            before = len(self.index)
            self._held.index = self.index.removed(id_list([ids] if isinstance(ids, str) else ids), self._analyse)
            return before - len(self.index)

    def find(self, query: Query, wordings: Sequence[Variant], k: int) -> Sequence[Sequence[Match]]:
        index = self.index
        return [self._find(index, query, wording, k) for wording in wordings]

    def find_each(self, asked: Sequence[Request]) -> Sequence[Sequence[Sequence[Match]]]:
        return self.index.each(lambda one: self.find(*one), asked)

    def search_many(self, queries: Iterable[str], k: int) -> list[list[tuple[str, float]]]:
        """For each query the ids and scores of its best k chunks; on several cores, without votes."""
        if isinstance(queries, str):
            raise ConfigError(f"queries is a list of strings; a single one goes in a list: [{queries!r}]")
        index, texts = self.index, list(queries)
        # Each query's operators narrow its own search, and its misspelled words have terms of their own.
        alone = [True] * len(texts) if self.operators else self._reader.corrects(index, texts)
        tags = index.tags()
        asked = [
            [term.forms for term in query_terms(self.analyzer, text, tags)]
            for text, apart in zip(texts, alone, strict=True)
            if not apart
        ]
        together = iter(index.search_many(asked, k, self.formula))
        found = (
            self._find(index, Query(text), Variant(text), k).found if apart else next(together)
            for text, apart in zip(texts, alone, strict=True)
        )
        return [[] if hits.scores is None else list(zip(hits.ids, hits.scores.tolist(), strict=True)) for hits in found]

    def notes(self, found: Sequence[Sequence[Match]]) -> Sequence[Failure]:
        told: dict[str, Failure] = {}
        for matches in found:
            for word, note in matches.notes(self.name).items() if isinstance(matches, Noted) else ():
                told.setdefault(word, note)
        return tuple(told.values())

    def scan(self, query: Query, found: Sequence[tuple[Variant, Sequence[Match]]] = ()) -> KeywordScan:
        return KeywordScan(self, query, found)

    def explain(self, query: str | Query, chunk_id: str) -> list[TermScore]:
        """The terms' contributions to a chunk's score for the query's own text; they add up to the score."""
        query, index = as_query(query), self.index
        reading = self.reading(index, query, query.original)
        if reading.demands and not reading.demands.passing(index.segments, [chunk_id]):
            return []
        parts = reading.index.explained(reading.asked, chunk_id, both(query.require, query.where))
        return [replace(part, term=untagged(part.term)) for part in parts]

    def _find(self, index: LexicalIndex, query: Query, wording: Variant, k: int) -> Matches:
        """The matches of a wording. Searches deeper while too few hits satisfy its operators."""
        reading = self.reading(index, query, wording)
        passing, demands = both(query.require, query.where), reading.demands
        search = partial(reading.index.best, reading.asked, passing=passing, positive=self.exclude_nonpositive)
        if demands is None:
            return Matches(reading, search(k), self.analyzer)
        kept: list[int] = []
        seen, depth = 0, k
        while True:
            hits = search(depth, narrow=demands.narrow)
            met = demands.met([hit.chunk for hit in hits[seen:]])
            kept += [at for at, is_met in enumerate(met, seen) if is_met]
            if len(kept) >= k or len(hits) < depth:
                return Matches(reading, hits.at(kept[:k]), self.analyzer)
            seen, depth = depth, GROWTH * depth

    def reading(self, index: LexicalIndex, query: Query, wording: Variant) -> QueryReading:
        """A wording's terms, looked up in an index, with the demands of its own operators and the query's."""
        if self._plain is not None and len(index):
            self._plain.check(self.analyzer)
        counting = counting_of(query.where, query.require, self.statistics == "filtered")
        return self._reader.read(index, query, wording, counting)

    @property
    def _reader(self) -> QueryReader:
        return QueryReader(self.analyzer, self.formula, self.operators, self.fuzzy)

    def _analyse(self, texts: Sequence[str]) -> Analyzed:
        return analyse(self.analyzer, texts)

    def __repr__(self) -> str:
        return f"BM25({self.formula!r}, analyzer={self.analyzer!r}, chunks={len(self.index)})"


def formula_of(formula: Formula | str) -> Formula:
    """A formula by its name in `FORMULAS`, with default constants; a Formula is returned as it is."""
    if isinstance(formula, Formula):
        return formula
    if formula not in FORMULAS:
        raise unknown("BM25 formula", formula, FORMULAS)
    return FORMULAS[formula]()


def _formula_of_ranker(ranker: Any) -> Formula:
    made: dict[str, Callable[[], Formula]] = {
        "BM25Okapi": lambda: Okapi(ranker.k1, ranker.b, ranker.epsilon),
        "BM25L": lambda: RankBM25L(ranker.k1, ranker.b, ranker.delta),
        "BM25Plus": lambda: BM25Plus(ranker.k1, ranker.b, ranker.delta),
    }
    name = type(ranker).__name__
    if name not in made:
        raise unknown("rank-bm25 class", name, made)
    return made[name]()
