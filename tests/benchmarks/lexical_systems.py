"""The systems that the lexical benchmark compares, each in its best setting, as one shape.

All answer prepared queries with the ids and scores of the best 20. Each has k1 = 1.5 and b = 0.75 but tantivy, whose
k1 is 1.2 and cannot be set. tantivy searches one segment without positions, is not asked to count all matches, and
its query objects are made beforehand; its analyzer is its own `en_stem` less the stopwords, which the others drop too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import bm25s  # type: ignore[import-untyped]  # it has no types
import numpy as np
import rank_bm25
import Stemmer
import tantivy

from tests.benchmarks.lexical_corpora import Collection, chunks_of
from voicevault_retrievers.core.rows import Rows
from voicevault_retrievers.lexical import LexicalIndex, Lucene
from voicevault_retrievers.text import Analyzer
from voicevault_retrievers.text.analyzed_texts import Analyzed

K = 20
ENGLISH = Analyzer("en")
THREADS = 2
BACKENDS = ("numpy", "numba")
PACKAGES = ("voicevault-retrievers", "numpy", "numba", "PyStemmer", "bm25s", "rank-bm25", "tantivy")
RANK_BM25_DOCUMENTS = 100_000
RANK_BM25_QUERIES = 50

Ways = tuple[Callable[[Sequence[Any]], object], ...]


class System(NamedTuple):
    """`search` takes one of `queries`, each of `ways` several at once; `scores` reads what `search` gave.

    Where there are no `ways`, several are asked one after the other.
    """

    name: str
    queries: Sequence[Any]
    search: Callable[[Any], Any]
    ways: Ways
    scores: Callable[[Any], Sequence[float]]


@contextmanager
def systems(collection: Collection) -> Iterator[list[System]]:
    """Every system with its index of a collection; rank-bm25 up to 100,000 documents, and asked 50 queries."""
    with TemporaryDirectory() as folder, ThreadPoolExecutor(THREADS) as pool:
        yield [
            *_rank_bm25(collection),
            *_bm25s(collection),
            _tantivy(collection, Path(folder), pool),
            *_ours(collection),
        ]


def analysed(collection: Collection) -> Analyzed:
    """The documents as the project reads English."""
    return ENGLISH.analyse(collection.texts) if collection.analyzed is None else collection.analyzed


def terms_of(collection: Collection) -> list[list[str]]:
    """The queries as the project reads English."""
    return [(ENGLISH if collection.analyzed is None else str.split)(query) for query in collection.queries]


def index_bm25s(collection: Collection, *, numba: bool) -> Any:
    """The index of bm25s; with `numba`, its compiled sorting."""
    index = bm25s.BM25(backend="numba" if numba else "numpy")
    if numba:
        index.activate_numba_csc()
    given = collection.analyzed
    index.index(_tokenize(collection.texts, ids=True) if given is None else _documents(given), show_progress=False)
    return index


def index_tantivy(collection: Collection, folder: Path, threads: int) -> Any:
    """The index of tantivy, committed to a folder and merged."""
    schema = tantivy.SchemaBuilder()
    schema.add_text_field("body", tokenizer_name="chosen", index_option="freq").add_unsigned_field("id", fast=True)
    index = tantivy.Index(schema.build(), path=str(folder))
    index.register_tokenizer("chosen", reader_of_tantivy(collection))
    writer = index.writer(1_000_000_000, threads)
    for at, text in enumerate(collection.texts):
        document = tantivy.Document()
        document.add_text("body", text)
        document.add_unsigned("id", at)
        writer.add_document(document)
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    return index


def reader_of_tantivy(collection: Collection) -> Any:
    """The analyzer of tantivy for a collection."""
    if collection.analyzed is not None:
        return tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.whitespace()).build()
    of = tantivy.Filter
    builder = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
    for step in (of.remove_long(40), of.lowercase(), of.stopword("english"), of.stemmer("english")):
        builder = builder.filter(step)
    return builder.build()


def _ours(collection: Collection) -> Iterator[System]:
    rows, documents, formula = Rows.of(chunks_of(collection)), analysed(collection), Lucene()
    for backend in BACKENDS:
        index = LexicalIndex.build(rows, documents, backend=backend)
        yield System(
            f"ours {backend}",
            terms_of(collection),
            partial(_search, index, formula),
            (partial(_search_many, index, formula),),
            lambda found: [hit.score for hit in found],
        )


def _search(index: LexicalIndex, formula: Lucene, terms: Sequence[str]) -> object:
    return index.search(terms, K, formula)


def _search_many(index: LexicalIndex, formula: Lucene, queries: Sequence[Sequence[str]]) -> object:
    return index.search_many(queries, K, formula)


def _tokenize(texts: Sequence[str], *, ids: bool) -> Any:
    stemmer = Stemmer.Stemmer("english")
    return bm25s.tokenize(texts, stopwords="en", stemmer=stemmer, return_ids=ids, show_progress=False)


def _documents(analyzed: Analyzed) -> list[list[str]]:
    return [analyzed.document(at) for at in range(len(analyzed))]


def _rank_bm25(collection: Collection) -> Iterator[System]:
    if len(collection.texts) <= RANK_BM25_DOCUMENTS:
        ranker = rank_bm25.BM25Okapi(_documents(analysed(collection)))

        def search(terms: list[str]) -> tuple[Any, Any]:
            scores = ranker.get_scores(terms)
            top = np.argsort(scores)[::-1][:K]
            return top, scores[top]

        yield System("rank-bm25", terms_of(collection)[:RANK_BM25_QUERIES], search, (), _second)


def _bm25s(collection: Collection) -> Iterator[System]:
    """Both backends over the same arrays."""
    plain, compiled = index_bm25s(collection, numba=False), bm25s.BM25(backend="numba")
    for part in ("scores", "vocab_dict", "unique_token_ids_set", "nonoccurrence_array"):
        setattr(compiled, part, getattr(plain, part))
    queries = terms_of(collection) if collection.analyzed is not None else _tokenize(collection.queries, ids=False)
    for name, index in (("bm25s", plain), ("bm25s+numba", compiled)):
        ways = tuple(partial(index.retrieve, k=K, show_progress=False, n_threads=threads) for threads in (0, THREADS))
        yield System(name, queries, partial(_retrieve, index), ways, lambda found: found.scores[0])


def _retrieve(index: Any, terms: list[str]) -> Any:
    return index.retrieve([terms], k=K, show_progress=False)


def _tantivy(collection: Collection, folder: Path, pool: ThreadPoolExecutor) -> System:
    index, reader = index_tantivy(collection, folder, threads=1), reader_of_tantivy(collection)
    searcher = index.searcher()

    def prepared(text: str) -> Any:
        terms = (tantivy.Query.term_query(index.schema, "body", term, "freq") for term in reader.analyze(text))
        return tantivy.Query.boolean_query([(tantivy.Occur.Should, term) for term in terms])

    def search(query: Any) -> tuple[Any, Any]:
        hits = searcher.search(query, K, count=False).hits
        return searcher.fast_field_values("id", [address for _, address in hits]), [score for score, _ in hits]

    def each(queries: Sequence[Any]) -> object:
        return [search(query) for query in queries]

    def both(queries: Sequence[Any]) -> object:
        return list(pool.map(each, [queries[at :: 4 * THREADS] for at in range(4 * THREADS)]))

    return System("tantivy", [prepared(text) for text in collection.queries], search, (each, both), _second)


def _second(found: tuple[Any, Any]) -> Any:
    return found[1]
