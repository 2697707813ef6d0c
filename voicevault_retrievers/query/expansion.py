"""Query expansion without a model: further wordings of a question, by rules; and several expansions as one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain

from voicevault_retrievers.calls import Plan, value_of
from voicevault_retrievers.channel import Channel, Rewriter
from voicevault_retrievers.checks import whole
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.text.stopwords import STOPWORDS
from voicevault_retrievers.types import Failure, Query, Variant

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
_WORD = re.compile(r"[\w][\w'.+#/-]*", re.UNICODE)
FUNCTION_WORDS = frozenset(
    "a about an and any are as at be been before between by can could did do does for from had has have how i if in "
    "into is it its may me must my of on or our please should some than that the their them then there these they "
    "this those to under was we were what when where which who whom whose why will with would you your".split()
)


class RuleExpansion(Rewriter):
    """Adds wordings until a query has `size`, the original among them and always first.

    They are, in this order, where they differ: the question without its interrogative lead ("how do I reset the
    pump?" becomes "reset the pump"), and its content words alone. English and German rules; other questions stay as
    they are.
    """

    name = "expansion"

    def __init__(self, size: int = 3) -> None:
        super().__init__()
        self.size = whole("size", size)

    def rewrite(self, query: Query) -> Query:
        found = dict.fromkeys([query.text, *(variant.text for variant in query.variants)])
        added = [text for rule in _RULES if (text := rule(query.text)) and text not in found]
        variants = [Variant(text) for text in dict.fromkeys(added)]
        return replace(query, variants=(*query.variants, *variants[: max(0, self.size - len(found))]))

    def __repr__(self) -> str:
        return f"RuleExpansion({self.size})"


class Together(Rewriter):
    """Several expansions of one query, at the same time: it gets the variants that each adds, in their order.

    Where one fails, those of the others stay, and the failure is noted beside what is found.
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

    def over(self, channel: Channel) -> Together:
        return Together(rewriter.over(channel) for rewriter in self.rewriters)

    def __repr__(self) -> str:
        return f"Together({list(self.rewriters)!r})"


def _joined(query: Query, rewritten: Sequence[Query]) -> Query:
    variants = (variant for each in rewritten for variant in each.variants)
    return replace(query, variants=tuple(dict.fromkeys((*query.variants, *variants))))


def statement(question: str) -> str:
    """A question without its interrogative lead and its question mark."""
    bare = question.strip().rstrip("?").strip()
    return (_GERMAN_LEAD if _GERMAN_LEAD.match(bare) else _LEAD).sub("", bare).strip()


def keywords(question: str) -> str:
    """The content words of a question, in their order."""
    words = _WORD.findall(statement(question))
    german = STOPWORDS["de"] if _GERMAN_LEAD.match(question.strip()) else frozenset()
    return " ".join(word.rstrip(".") for word in words if word.casefold() not in FUNCTION_WORDS | german)


_RULES: tuple[Callable[[str], str], ...] = (statement, keywords)
