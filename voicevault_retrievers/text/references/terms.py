"""Defined terms: where a text says what one means, and where one is asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator

from voicevault_retrievers.text.references.reference import Reference

_MEANS = (
    r"means|includes|shall\smean|shall\sinclude|has\sthe\s(?:same\s)?meaning|have\sthe\smeaning|refers\sto|is\sdefined"
    r"|are\sdefined|bedeute[tn]|bezeichne[tn]|(?:ist|sind)\sim\sSinne|im\sSinne"
)
_DEFINED = re.compile(
    rf"[\"“„»](?P<term>[^\"“”„»«\n]{{1,80}})[\"”“«],?\s(?:\([^()\n]{{1,60}}\)\s|in\srelation\sto\s[^,\n]{{1,60}},\s)?"
    rf"(?:{_MEANS})\b"
)
_STOP = r"in|under|of|according|for|as|within|here|and|or|mean|means|nach|im|gemäß|ist|by|that|which|is|bedeutet"
_WORDS = rf"(?P<{{}}>(?!(?:{_STOP})\b)[\w\-]{{{{1,40}}}}(?:\s(?!(?:{_STOP})\b)[\w\-]{{{{1,40}}}}){{{{0,3}}}})"
_QUOTED = r"[\"“„»](?P<{}>[^\"“”„»«\n]{{1,80}})[\"”“«]"
_ASKED = re.compile(
    r"(?<!\w)(?i:(?:definition|meaning)\sof|define|(?P<what>what\sdo(?:es)?)|was\s(?:bedeutet|heißt|bedeuten)|"
    r"definition\s(?:von|des|der)|begriff)\s(?i:(?:the|a|an|der|die|das|ein|eine)\s)?(?i:(?:term|word|expression|begriff)"
    rf"\s)?(?:{_QUOTED.format('quoted')}|{_WORDS.format('words')})(?(what)(?=\smean))"
)


def terms(text: str) -> Iterator[Reference]:
    """The terms that a text defines, and those whose definition it names or asks for."""
    for found in _DEFINED.finditer(text):
        number = term(found["term"])
        if number:
            yield Reference("term", number, "", found.start(), found.end(), found.group(), defines=True)
    for found in _ASKED.finditer(text):
        number = term(found["quoted"] or found["words"])
        if number:
            yield Reference("term", number, "", found.start(), found.end(), found.group())


def term(written: str) -> str:
    """A term as its key has it: without case, spaces as one, without colons."""
    return " ".join(written.casefold().replace(":", " ").split()).strip(" ,.;")
