"""Whether a knowledge base's embedder supports the languages of its documents."""

from __future__ import annotations

from voicevault_retrievers._support.extras import DISTRIBUTION
from voicevault_retrievers.models.weights import SPEAKS, canonical
from voicevault_retrievers.store.knowledge_base import KnowledgeBase
from voicevault_retrievers.text.corpus_languages import languages_of

SAMPLE = 256
"""How many chunks are sampled."""
LEAST = 0.05
"""Smaller shares are ignored: they may be quotations, or names."""
MULTILINGUAL = "use-multilingual-v3"


def unspoken(base: KnowledgeBase) -> dict[str, float]:
    """The languages that the embedder was not trained on, each with its share of the chunks, the largest first.

    Shares are of a sample; those below .05 are left out. Empty where there are no vectors, or where the languages of
    the model are unknown.
    """
    entry = base.manifest.embedder
    spoken = SPEAKS.get(canonical(entry.model)) if entry and entry.model else None
    if spoken is None:
        return {}
    sample = base.bm25().index.sample(SAMPLE)
    found = languages_of([chunk.text for chunk in sample])
    shares = {language: count / len(sample) for language, count in found.most_common() if language not in spoken}
    return {language: share for language, share in shares.items() if share >= LEAST}


def advice(base: KnowledgeBase) -> str | None:
    """The result of `unspoken` and the remedy, in a sentence; None where the embedder supports all languages."""
    entry, shares = base.manifest.embedder, unspoken(base)
    if entry is None or not shares:
        return None
    said = ", ".join(f"{language} {share:.0%}" for language, share in shares.items())
    able = set(shares) <= SPEAKS[MULTILINGUAL]
    remedy = (
        f"index anew with the model {MULTILINGUAL} (pip install '{DISTRIBUTION}[multilingual]')"
        if able
        else "index anew with a model that was trained on them"
    )
    return f"{base.name}: documents are in languages that {entry.model} does not speak ({said}): {remedy}"
