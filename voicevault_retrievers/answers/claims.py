"""Verification of an answer against the collection: for each sentence, the best supporting chunk and its score."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from voicevault_retrievers._support.checks import seconds_or_none, whole
from voicevault_retrievers.answers.citations import Marker, ResolvedAnswer, resolve_citations
from voicevault_retrievers.answers.flare.drafts import sentences
from voicevault_retrievers.answers.searching import SentenceSearch, check_search, sentence_search
from voicevault_retrievers.core.execution.driver import aexecute, execute
from voicevault_retrievers.core.execution.plan import Call, Plan
from voicevault_retrievers.core.protocols import Scorer
from voicevault_retrievers.core.types import Chunk, Citation, Failure, Hit, Query, Ranking
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.query.follow_up import content_words
from voicevault_retrievers.rerank import CrossEncoderRerank
from voicevault_retrievers.rerank.calibration import Threshold

STAGE = "claims"
MAX_CHARS = 2000
TIMEOUT = 30.0


@dataclass(frozen=True)
class Claim:
    """A sentence of an answer: `answer[start:end] == text`, its source markers included.

    `best` is the chunk that supports it best, with the chunk's context, and `score` the scorer's logit, unbounded,
    higher is better. `cited_score` is the score of the best block that the sentence cites, None where it cites none.
    `supported` is None without a threshold, and where nothing could be scored: `errors` then give the reason.
    """

    text: str
    start: int
    end: int
    best: Hit | None = None
    score: float | None = None
    supported: bool | None = None
    cited_score: float | None = None
    markers: tuple[Marker, ...] = ()
    errors: tuple[Failure, ...] = ()

    @property
    def statement(self) -> str:
        """The text without its source markers."""
        return _stated(self.text, [(one.start - self.start, one.end - self.start) for one in self.markers])


class _Scored(NamedTuple):
    hit: Hit
    score: float


def check_claims(
    answer: str | ResolvedAnswer,
    search: Any,
    *,
    scorer: Scorer | str | CrossEncoderRerank | None = None,
    threshold: Threshold | None = None,
    citations: Sequence[Citation] = (),
    numbered: bool = False,
    hits: Iterable[Hit] = (),
    top_k: int = 5,
    timeout: float | None = TIMEOUT,
) -> tuple[Claim, ...]:
    """The factual sentences of an answer, in order, each with the chunk that supports it best.

    `search` has `hybrid_search(query, top_k)`, such as a retriever, a pipeline or a knowledge base, or is a channel, or
    a function, sync or async, of a text and `top_k` that returns a Ranking or hits. `scorer`, by default a
    cross-encoder, scores the `top_k` chunks found for a sentence. `citations` are those of the answer's context, and
    `numbered` says whether its markers are numbers; or pass the result of `resolve_citations` as `answer`. The blocks
    that a sentence cites are scored first, and where one of these supports it, nothing is searched. `hits` are those of
    the context, to return a cited block as its hit; what was found under access rights is checked under them.

    A claim is supported where the calibrated probability of its best score is at least that of the `threshold`.
    Headings, questions, reasoning and sentences without content words are left out. Searches run concurrently.
    `timeout` is in seconds, for each search, and for all scoring together; None waits. Failures are in the claims'
    `errors`.
    """
    checking = _Checking(search, scorer, threshold, {hit.id: hit for hit in hits}, top_k, timeout)
    return execute(checking.plan(_resolved(answer, citations, numbered)))


async def acheck_claims(
    answer: str | ResolvedAnswer,
    search: Any,
    *,
    scorer: Scorer | str | CrossEncoderRerank | None = None,
    threshold: Threshold | None = None,
    citations: Sequence[Citation] = (),
    numbered: bool = False,
    hits: Iterable[Hit] = (),
    top_k: int = 5,
    timeout: float | None = TIMEOUT,
) -> tuple[Claim, ...]:
    """`check_claims` on the running event loop; the same claims."""
    checking = _Checking(search, scorer, threshold, {hit.id: hit for hit in hits}, top_k, timeout)
    return await aexecute(checking.plan(_resolved(answer, citations, numbered)))


@dataclass(frozen=True)
class _Checking:
    search: Any
    scorer: Scorer | str | CrossEncoderRerank | None
    threshold: Threshold | None
    hits: Mapping[str, Hit]
    top_k: int
    timeout: float | None

    def __post_init__(self) -> None:
        check_search(self.search)
        whole("top_k", self.top_k)
        seconds_or_none("timeout", self.timeout)
        if self.threshold is not None and not isinstance(self.threshold, Threshold):
            raise ConfigError(f"threshold is a Threshold with a calibration, not {self.threshold!r}")

    def plan(self, resolved: ResolvedAnswer) -> Plan[tuple[Claim, ...]]:
        claims = list(_claims(resolved))
        if not claims:
            return ()
        rerank, searching = self._rerank(), sentence_search(self.search, Query(""), self.hits.values(), self.top_k)
        cited = yield tuple(self._read(rerank, claim, self._cited(claim)) for claim in claims)
        open_ = [at for at, found in enumerate(cited) if not self._supports(_best(found))]
        found = yield tuple(self._searched(rerank, searching, claims[at]) for at in open_)
        others = dict(zip(open_, found, strict=True))
        return tuple(self._checked(claim, cited[at], others.get(at)) for at, claim in enumerate(claims))

    def _rerank(self) -> CrossEncoderRerank:
        """The reranker whose logits are the scores."""
        if isinstance(self.scorer, CrossEncoderRerank):
            return self.scorer
        options: dict[str, Any] = {"depth": 100, "max_chars": MAX_CHARS, "blend": 1.0, "timeout": self.timeout}
        return CrossEncoderRerank(**options) if self.scorer is None else CrossEncoderRerank(self.scorer, **options)

    def _cited(self, claim: Claim) -> list[Hit]:
        cited = {one.chunk_id: one for marker in claim.markers for one in marker.citations}
        return [Hit(_chunk(one)) for one in cited.values()]

    def _read(self, rerank: CrossEncoderRerank, claim: Claim, hits: Sequence[Hit]) -> Plan[Any]:
        """The hits with the scorer's votes, best first."""
        plain = [Hit(hit.chunk, votes=hit.votes, context=hit.context) for hit in hits]
        ranking = yield from rerank.plan(Query(claim.statement), Ranking(tuple(plain)))
        return _Read(rerank.name, ranking)

    def _searched(self, rerank: CrossEncoderRerank, searching: SentenceSearch, claim: Claim) -> Plan[Any]:
        run, arun = searching
        call = Call(
            STAGE,
            partial(run, claim.statement),
            None if arun is None else partial(arun, claim.statement),
            timeout=self.timeout,
            texts=(claim.statement,),
            k=self.top_k,
        )
        (outcome,) = yield (call,)
        if isinstance(outcome, Exception):
            return _Read(rerank.name, Ranking((), (Failure.of(STAGE, outcome),)))
        read = yield from self._read(rerank, claim, outcome.hits)
        return _Read(rerank.name, read.ranking.failing(*outcome.errors))

    def _supports(self, best: _Scored | None) -> bool | None:
        if self.threshold is None or best is None:
            return None
        return self.threshold.calibration.probability(best.score) >= self.threshold.least

    def _checked(self, claim: Claim, cited: Any, found: Any) -> Claim:
        own, other = _best(cited), _best(found)
        best = own if other is None or (own is not None and own.score >= other.score) else other
        failed = (Failure.of(STAGE, one) for one in (cited, found) if isinstance(one, Exception))
        noted = (failure for one in (cited, found) if isinstance(one, _Read) for failure in one.ranking.errors)
        return Claim(
            claim.text,
            claim.start,
            claim.end,
            best=None if best is None else self._given(best.hit) if best is own else best.hit,
            score=None if best is None else best.score,
            supported=self._supports(best),
            cited_score=None if own is None else own.score,
            markers=claim.markers,
            errors=tuple(dict.fromkeys((*failed, *noted))),
        )

    def _given(self, cited: Hit) -> Hit:
        """The hit of a cited block, with the vote of its scoring."""
        hit = self.hits.get(cited.id)
        return cited if hit is None else hit.voted(cited.votes[-1])


class _Read(NamedTuple):
    """Scored hits, and the stage whose votes have the scores."""

    stage: str
    ranking: Ranking


def _best(read: Any) -> _Scored | None:
    """The hit with the highest score, the first of equal ones; None where no hit was scored."""
    if not isinstance(read, _Read):
        return None
    votes = ((hit, hit.vote(read.stage)) for hit in read.ranking.hits)
    scored = [_Scored(hit, vote.score) for hit, vote in votes if vote is not None and vote.score is not None]
    return max(scored, key=lambda one: one.score, default=None)


def _resolved(answer: str | ResolvedAnswer, citations: Sequence[Citation], numbered: bool) -> ResolvedAnswer:
    if isinstance(answer, ResolvedAnswer):
        return answer
    if not isinstance(answer, str):
        raise ConfigError(f"an answer is a text, or what resolve_citations made, not a {type(answer).__name__}")
    return resolve_citations(answer, citations, numbered=numbered)


def _claims(resolved: ResolvedAnswer) -> Iterator[Claim]:
    thoughts = _THOUGHTS.match(resolved.answer)
    skip = thoughts.end() if thoughts else 0
    for begin, end in sentences(resolved.answer[skip:]):
        raw = resolved.answer[skip + begin : skip + end]
        start = skip + begin + len(raw) - len(raw.lstrip())
        text = raw.strip()
        markers = tuple(one for one in resolved.markers if start <= one.start and one.end <= start + len(text))
        claim = Claim(text, start, start + len(text), markers=markers)
        if _says(claim):
            yield claim


def _says(claim: Claim) -> bool:
    statement = claim.statement
    if _HEADING.match(claim.text) or statement.rstrip("\"'”’»)*_").endswith(("?", "？", "؟")):
        return False
    return any(word.casefold() not in _FILLERS for word in content_words(statement))


def _stated(text: str, markers: Iterable[tuple[int, int]]) -> str:
    """A sentence without its markers and list bullets."""
    kept = list(text)
    for start, end in markers:
        kept[start:end] = " " * (end - start)
    bare = _MARKER.sub(" ", "".join(kept))
    return re.sub(r"\s+([.,;:!?])", r"\1", " ".join(_BULLET.sub("", bare).split())).strip()


def _chunk(cited: Citation) -> Chunk:
    known = {"source_file": cited.source_file, "page_number": cited.page_number, "section": cited.section}
    metadata = {name: value for name, value in known.items() if value is not None}
    return Chunk(cited.chunk_id, cited.text, metadata=metadata, kb=cited.kb)


_THOUGHTS = re.compile(r"\A\s*<(think(?:ing)?)>.*?(?:</\1>|\Z)", re.IGNORECASE | re.DOTALL)
_MARKER = re.compile(r"\[\s*(?:source\s*:[^\[\]\n]*|\d[\d\s,;\u2010-\u2014-]*)\]", re.IGNORECASE)
_HEADING = re.compile(r"#{1,6}\s|\*\*[^*\n]+\*\*:?\Z|(?:```|---|===)")
_BULLET = re.compile(r"\A\s*(?:[-*•]|\d{1,3}[.)])\s+")
_FILLERS = frozenset("yes no okay ok sure thanks thank ja nein danke source sources answer quelle quellen".split())
