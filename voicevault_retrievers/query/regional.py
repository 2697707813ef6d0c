"""What British and American spellings of an English word have in common."""

from __future__ import annotations

import re

_RULES = tuple(
    (re.compile(pattern), american)
    for pattern, american in (
        (r"(?<=[a-z]{2})our(?=$|s$|ed$|ing$|al|able|ful|ist|ite|less|hood|ly$)", "or"),
        (r"(?<=[a-z]{3})is(?=e$|ed$|es$|er$|ers$|ing$|ation|able)", "iz"),
        (r"(?<=[a-z]{3})ys(?=e$|ed$|es$|er$|ers$|ing$)", "yz"),
        (r"(?<=[a-z]{3})re(?=s?$)", "er"),
        (r"(?<=[a-z]{3})ogue(?=s?$)", "og"),
        (r"(?<=[a-z]{3})ence(?=s?$)", "ense"),
        (r"((?:^|[aeiou])[^aeiou]+[aeiou]+[^aeiou]+[aeiou])ll(?=(?:ed|ing|ers?)$)", r"\1l"),
        (r"aem", "em"),
        (r"aes(?=th)", "es"),
        (r"(?<=ch)aeo|(?<=ch)oeo", "eo"),
        (r"(?<=gyn)aec", "ec"),
        (r"(?<=p)aed", "ed"),
        (r"oed(?=em)", "ed"),
        (r"oes(?=tr|oph)", "es"),
        (r"(?<=f)oet", "et"),
        (r"(?<=rh)oea", "ea"),
        (r"sulph", "sulf"),
        (r"aluminium", "aluminum"),
        (r"(?<=progra)mme(?=s?$)", "m"),
        (r"^grey", "gray"),
    )
)


def american(word: str) -> str:
    """The American spelling of a word in lower case; what is no British spelling may come out as no word at all."""
    for pattern, replacement in _RULES:
        word = pattern.sub(replacement, word)
    return word
