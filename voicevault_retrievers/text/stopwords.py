"""Words too common to tell documents apart. The English list is that of Lucene's EnglishAnalyzer."""

from __future__ import annotations

STOPWORDS: dict[str, frozenset[str]] = {
    "en": frozenset(
        "a an and are as at be but by for if in into is it no not of on or such that the their then there these they "
        "this to was will with".split()
    ),
    "de": frozenset(
        "aber als am an auch auf aus bei bin bis bist da das dass dem den der des die du durch ein eine einem einen "
        "einer eines er es für hat ich ihr im in ist ja mit nach nicht noch nun nur ob oder sich sie sind so über um "
        "und uns unter vom von vor war was wie wir wird zu zum zur".split()
    ),
}
