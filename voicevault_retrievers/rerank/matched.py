"""Whether anything relevant was found, by the words alone: for languages that no cross-encoder here reads."""

from __future__ import annotations

from dataclasses import replace

from voicevault_retrievers.core.channel import Channel, Stage
from voicevault_retrievers.core.types import Failure, Query, Ranking, Vote
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.lexical.bm25 import KeywordScan
from voicevault_retrievers.rerank.calibration import Calibration

MATCHED = Calibration(21.7582, -6.8034)
"""Of the share of a question that a chunk matches, on questions in six languages: see the benchmark
`abstention_languages`. Collections differ: fit your own with `fit_calibration`."""
LEAST = 0.27
"""The probability under which "nothing relevant" was right most often there."""
SPOKEN = 0.4
"""Where some chunk has a lower share of a question's words, it is taken for one in another language."""


class MatchedShare(Stage):
    """Votes with the share of a question that each hit matches, in [0, 1]; the order stays as it was.

    The share is the hit's BM25 score by the highest that a chunk could have for the question: words that are rare in
    the collection weigh more. `words` is a `BM25` channel. Under `Pipeline(confidence=Threshold(MATCHED, LEAST,
    "matched"))` the best share says whether anything relevant was found. Where the collection has fewer than two
    fifths of the question's words, as of a question in another language, shares say nothing: there is no vote, and a
    note. Raises ConfigError for a channel that does not say how high a score can be.
    """

    refills = False

    def __init__(self, words: Channel, *, name: str = "matched") -> None:
        super().__init__()
        self.words = words
        self.name = name

    def refine(self, query: Query, ranking: Ranking) -> Ranking:
        """The same hits, each with a vote more."""
        scan = self.words.scan(query)
        if not isinstance(scan, KeywordScan):
            raise ConfigError(f"{self.name} goes by the scores of a BM25 channel, not by {self.words!r}")
        if scan.highest <= 0 or (scan.coverage or 0.0) < SPOKEN:
            said = "the collection has too few of the question's words: what hits match of it says nothing"
            return ranking.failing(Failure(self.name, "OtherWords", said, degrades=False))
        scores = scan.scores(ranking.ids)
        shares = {one: min(max(scores.get(one, 0.0) / scan.highest, 0.0), 1.0) for one in ranking.ids}
        ranks = {one: rank for rank, one in enumerate(sorted(shares, key=lambda one: (-shares[one], one)), 1)}
        hits = (hit.voted(Vote(self.name, ranks[hit.id], shares[hit.id])) for hit in ranking)
        return replace(ranking, hits=tuple(hits))

    def __repr__(self) -> str:
        return f"MatchedShare({self.words!r}, name={self.name!r})"
