"""Query expansion without a model: further wordings of a question, by rules."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from voicevault_retrievers.channel import Rewriter
from voicevault_retrievers.checks import whole
from voicevault_retrievers.types import Query, Variant

_LEAD = re.compile(
    r"^(?:please\s+)?(?:(?:can|could|would)\s+you\s+)?(?:(?:tell|show|give)\s+me\s+(?:about\s+)?)?"
    r"(?:(?:what|which|who|whom|whose|when|where|why|how)(?:\s+(?:much|many|long|often|far))?\s+)?"
    r"(?:(?:is|are|was|were|do|does|did|can|could|should|would|must|may|will|has|have|had)\s+)?"
    r"(?:(?:i|we|you|one|there|it)\s+)?",
    re.IGNORECASE,
)
_WORD = re.compile(r"[\w][\w'.+#/-]*", re.UNICODE)
_FUNCTION_WORDS = frozenset(
    "a about an and any are as at be been before between by can could did do does for from had has have how i if in "
    "into is it its may me must my of on or our please should some than that the their them then there these they "
    "this those to under was we were what when where which who whom whose why will with would you your".split()
)


class RuleExpansion(Rewriter):
    """Adds wordings until a query has `size`, the original among them and always first.

    They are, in this order, where they differ: the question without its interrogative lead ("how do I reset the
    pump?" becomes "reset the pump"), and its content words alone. English rules; other questions stay as they are.
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


def statement(question: str) -> str:
    """A question without its interrogative lead and its question mark."""
    bare = question.strip().rstrip("?").strip()
    return _LEAD.sub("", bare).strip()


def keywords(question: str) -> str:
    """The content words of a question, in their order."""
    words = _WORD.findall(statement(question))
    return " ".join(word.rstrip(".") for word in words if word.casefold() not in _FUNCTION_WORDS)


_RULES: tuple[Callable[[str], str], ...] = (statement, keywords)
