"""British and American spellings of English words."""

from __future__ import annotations

import re

_NEVER_Z = "".join(
    f"(?<!{stem})"
    for stem in "adv rev dev superv telev prec prom comprom surpr exerc otherw likew expert franch enterpr conc prem "
    "parad merchand treat disgu cru bru no po ra ad".split()
)

_BRITISH = tuple(
    (re.compile(pattern), british)
    for pattern, british in (
        (
            r"^((?:mis|dis)?(?:arm|behavi|col|endeav|fav|flav|harb|hon|hum|lab|neighb|od|rum|savi|splend|tum|vap|vig))or"
            r"(?=$|s$|ed$|ing$|al$|able$|ful$|ite$|less$|hood$|ly$)",
            r"\1our",
        ),
        (r"(?<=[a-z]{3})(?<!res)(?<!caps)(?<!downs)iz(?=e$|ed$|es$|er$|ers$|ing$|ation|able)", "is"),
        (r"(?<=[a-z]{3})yz(?=e$|ed$|er$|ers$|ing$)", "ys"),
        (r"^(cent|fib|lit|theat|calib|(?:kilo|centi|milli)?met|lust|spect)er(?=s?$)", r"\1re"),
        (r"^(catal|dial|anal)og(?=s?$)", r"\1ogue"),
        (r"^(def|off|pret)ense(?=s?$)", r"\1ence"),
        (r"((?:trav|canc|mod|lab|lev|fu|sign|tunn|chann|pan|tot|quarr)[aeiu])l(?=(?:ed|ing|ers?)$)", r"\1ll"),
        (r"^sulf(?=[aiou])", "sulph"),
        (r"^aluminum", "aluminium"),
        (r"^gray(?=$|s$|ish$)", "grey"),
        (r"^(an|leuk|isch)em(?=i)", r"\1aem"),
        (r"^(p)ed(?=iatr)", r"\1aed"),
        (r"^(an)es(?=th)", r"\1aes"),
        (r"^hem(?=o[^r]|at)", "haem"),
        (r"^est(?=rogen)", "oest"),
        (r"^edema", "oedema"),
        (r"^tire(?=s?$)", "tyre"),
    )
)

_RULES = tuple(
    (re.compile(pattern), american)
    for pattern, american in (
        (r"(?<=[a-z]{2})our(?=$|s$|ed$|ing$|al|able|ful|ist|ite|less|hood|ly$)", "or"),
        (rf"(?<=[a-z]{{3}}){_NEVER_Z}is(?=e$|ed$|es$|er$|ers$|ing$|ation|able)", "iz"),
        (r"(?<=[a-z]{3})ys(?=e$|ed$|er$|ers$|ing$)", "yz"),
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


def regional(word: str) -> list[str]:
    """Its American and its British spelling, where it has one; only spellings that lead back to the word."""
    found = (american(word), british(word))
    return [other for other in found if other != word and word in (american(other), british(other))]


def british(word: str) -> str:
    """The British spelling of a word in lower case, and of what has none the word itself; see `american`."""
    for pattern, replacement in _BRITISH:
        word = pattern.sub(replacement, word)
    return word
