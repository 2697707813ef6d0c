"""Query expansion by rules, without a model, and several expansions as one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import chain

from voicevault_retrievers._support.checks import whole
from voicevault_retrievers.core.channel import Channel, Rewriter
from voicevault_retrievers.core.execution.plan import Plan, value_of
from voicevault_retrievers.core.types import Failure, Query, Variant
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.query.corpus import added
from voicevault_retrievers.query.phrases import Phrases, extended, key
from voicevault_retrievers.query.related_words import RELATED, SPELLINGS, regional
from voicevault_retrievers.query.synonyms import read_line
from voicevault_retrievers.text.languages import stems
from voicevault_retrievers.text.stopwords import STOPWORDS

_LEAD = re.compile(
    r"^(?:please\s+)?(?:(?:can|could|would)\s+you\s+)?(?:(?:tell|show|give)\s+me\s+(?:about\s+)?)?"
    r"(?:(?:what|which|who|whom|whose|when|where|why|how)(?:\s+(?:much|many|long|often|far))?\s+)?"
    r"(?:(?:is|are|was|were|do|does|did|can|could|should|would|must|may|will|has|have|had)\s+)?"
    r"(?:(?:i|we|you|one|there|it)\s+)?",
    re.IGNORECASE,
)
_GERMAN_LEAD = re.compile(
    r"^(?:bitte\s+)?(?:(?:können|könnten|kannst|könntest)\s+(?:sie|du)\s+)?(?:(?:mir|uns)\s+)?"
    r"(?:was|wer|wen|wem|wessen|wann|wo|woher|wohin|wodurch|womit|warum|weshalb|wieso|wie|welche[rsnm]?)\b\s*"
    r"(?:(?:viele?|lange|oft|weit|hoch|groß)\s+)?"
    r"(?:(?:ist|sind|war|waren|wird|werden|wurde|wurden|kann|kannst|können|konnte|soll|sollte|muss|müssen|darf|hat|"
    r"habe|haben|hatte|hatten|gibt)\s+)?(?:(?:ich|du|er|sie|wir|man|es)\s+)?",
    re.IGNORECASE,
)
SHARE = 0.3
"""The weight of a related word, relative to a word of the question."""

WITHOUT_STOPWORDS = frozenset({"semantic", "question", "graph", "hybrid"})
"""The kinds of channels for which a question without some of its stopwords is a different query."""

_HYPHENATED = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)+")
_THOUSANDS = re.compile(r"(?<![\w.,'])\d{1,3}(?:[.,']\d{3})+(?![.,']?\w)")
_SEPARATED = re.compile(
    r"(?:bitte\s+)?(?:(?:wie|wann|wo|warum|weshalb|wieso|wer|was|womit)\s+)?(?P<verb>[^\W\d_]{4,})\s.*\s"
    r"(?P<particle>ab|an|auf|aus|bei|ein|fest|her|hin|los|mit|nach|um|vor|weg|weiter|zu|zurück|zusammen)\s*[?!.]*\s*$",
    re.IGNORECASE,
)
"""A German question that ends in a verb's separated prefix: "Wie setze ich die Pumpe zurück?"."""
_WORD = re.compile(r"[\w][\w'.+#/-]*", re.UNICODE)
FUNCTION_WORDS = frozenset(
    "a about an and any are as at be been before between by can could did do does for from had has have how i if in "
    "into is it its may me must my of on or our please should some than that the their them then there these they "
    "this those to under was we were what when where which who whom whose why will with would you your".split()
)


class RuleExpansion(Rewriter):
    """Adds wordings until a query has `size`, including the original, which is always first.

    Wordings that differ are added in this order. For keyword channels: the question with other spellings of its words
    ("e-mail", "email"), and with related words ("reset", "restart"; "how long", "duration"), each weighted by `SHARE`.
    For the other channels: the question without its interrogative lead ("how do I reset the pump?" becomes "reset the
    pump"), and its content words alone. The rules cover English and German.
    """

    name = "expansion"

    def __init__(self, size: int = 3) -> None:
        super().__init__()
        self.size = whole("size", size)

    def rewrite(self, query: Query) -> Query:
        words = [spellings(query.text), related(query.text)]
        wordings = [extended(query, found) for found in words if found]
        shorter = (statement(query.text), keywords(query.text))
        wordings += [Variant(text, channels=WITHOUT_STOPWORDS) for text in shorter if text]
        expanded = added(query, wordings)
        return replace(expanded, variants=expanded.variants[: max(self.size - 1, len(query.variants))])

    def __repr__(self) -> str:
        return f"RuleExpansion({self.size})"


class Together(Rewriter):
    """Runs several expansions of one query concurrently, and adds all their variants, in order.

    Where an expansion fails, the variants of the others are kept, with the failure.
    """

    name = "expansion"
    blocking = True

    def __init__(self, rewriters: Iterable[Rewriter]) -> None:
        super().__init__()
        self.rewriters = tuple(rewriters)
        for rewriter in self.rewriters:
            if not isinstance(rewriter, Rewriter):
                raise ConfigError(f"expansions are rewriters such as RuleExpansion(3), not {rewriter!r}")

    def rewrite(self, query: Query) -> Query:
        return _joined(query, [rewriter.rewrite(query) for rewriter in self.rewriters])

    def plan(self, query: Query) -> Plan[tuple[Query, tuple[Failure, ...]]]:
        outcomes = yield tuple(rewriter.plan(query) for rewriter in self.rewriters)
        rewritten, failures = zip(*map(value_of, outcomes), strict=True) if outcomes else ((), ())
        return _joined(query, rewritten), tuple(chain.from_iterable(failures))

    def reads_history(self) -> bool:
        return any(rewriter.reads_history() for rewriter in self.rewriters)

    def over(self, channel: Channel) -> Together:
        return Together(rewriter.over(channel) for rewriter in self.rewriters)

    def __repr__(self) -> str:
        return f"Together({list(self.rewriters)!r})"


def _joined(query: Query, rewritten: Sequence[Query]) -> Query:
    variants = (variant for each in rewritten for variant in each.variants)
    return replace(query, variants=tuple(dict.fromkeys((*query.variants, *variants))))


def statement(question: str) -> str:
    """The question without its interrogative lead and its question mark."""
    bare = question.strip().rstrip("?").strip()
    return (_GERMAN_LEAD if _GERMAN_LEAD.match(bare) else _LEAD).sub("", bare).strip()


def keywords(question: str) -> str:
    """The content words of a question, in order."""
    words = _WORD.findall(statement(question))
    german = STOPWORDS["de"] if _GERMAN_LEAD.match(question.strip()) else frozenset()
    return " ".join(word.rstrip(".") for word in words if word.casefold() not in FUNCTION_WORDS | german)


def spellings(question: str) -> dict[str, float]:
    """Other spellings of a question's words, with their weights."""
    languages = spoken(question)
    found = _others(SPELLINGS, question)
    split = _SEPARATED.match(question) if "de" in languages else None
    if split:
        found[split["particle"].casefold() + split["verb"].casefold()] = 1.0
    found |= {re.sub(r"\D", "", number): 1.0 for number in _THOUSANDS.findall(question)}
    for word in _WORD.findall(question):
        plain = word.casefold()
        written = [plain.replace("-", "")] if _HYPHENATED.fullmatch(plain) else []
        if "en" in languages and plain not in FUNCTION_WORDS and word[1:] == word[1:].lower():
            written += regional(plain)
        found |= dict.fromkeys(written, 1.0)
    return found


def related(question: str) -> dict[str, float]:
    """Words related to those of a question, with their weights."""
    found = _others(RELATED, question)
    return {other: SHARE * count for other, count in found.items()}


def spoken(question: str) -> tuple[str, ...]:
    """The languages with rules that a question may be in; all of them where no word indicates one."""
    words = {word.casefold() for word in _WORD.findall(question)}
    counts = {language: len(words & STOPWORDS[language]) for language in ("en", "de")}
    return tuple(language for language, count in counts.items() if count == max(counts.values()))


def _others(lists: Mapping[str, str], question: str) -> dict[str, float]:
    """The list's alternatives to phrases of a question, if new to it. An alternative's words share the weight 1."""
    found: dict[str, float] = {}
    for language in spoken(question):
        fold = partial(stems, language)
        own = set(fold(key(question)))
        for _, others in _listed(lists[language], language).find(question):
            new = (other for other in others if not own.issuperset(fold(key(other))))
            found |= {other: 1.0 / len(key(other)) for other in new}
    return found


@cache
def _listed(lines: str, language: str) -> Phrases[tuple[str, ...]]:
    """The phrases of a list, which are found by stem."""
    entries: dict[str, tuple[str, ...]] = {}
    for line in lines.split("\n"):
        for phrase, others in read_line(line, language) if line.strip() else ():
            entries[phrase] = (*entries.get(phrase, ()), *others)
    return Phrases(entries, partial(stems, language))
