"""A text model that is a script, so that the examples run without a key: no language model has any part in it."""

from __future__ import annotations

import json
import re

from scripted import extract

from voicevault_retrievers import OllamaModel
from voicevault_retrievers.core.protocols import TextModel
from voicevault_retrievers.text import Analyzer

SCRIPTED_PICKS = "scripted (no language model: it picks passages by the words that they share with the question)"
_SOURCE = re.compile(r"^\[(Source: [^\]]*)\]\n((?:(?!\[Source: ).*\n?)*)", re.MULTILINE)
_PASSAGES = re.compile(r'^\{"number": .*\}$', re.MULTILINE)


def text_model(name: str | None, base_url: str | None = None) -> TextModel:
    """A model of a local Ollama by its name; without one, the script."""
    if name is None:
        return ScriptedText()
    return OllamaModel(name) if base_url is None else OllamaModel(name, base_url=base_url)


class ScriptedText:
    """Answers as a language model is asked to: by copying from the sources, or with the numbers of passages.

    Of sources it copies the two sentences that share most with the question, each with the marker of its source. Of
    passages it names those that share most words with it.
    """

    def complete(self, prompt: str) -> str:
        passages = [json.loads(line) for line in _PASSAGES.findall(prompt)]
        if passages:
            words = set(Analyzer()(prompt.partition("\nQuestion: ")[2].splitlines()[0]))
            shared = {one["number"]: len(words & set(Analyzer()(one["text"]))) for one in passages}
            return f"The best are {sorted(shared, key=lambda number: (-shared[number], number))[:10]}."
        sources, _, question = prompt.rpartition("\n\nQuestion: ")
        return extract(question, _SOURCE.findall(sources))
