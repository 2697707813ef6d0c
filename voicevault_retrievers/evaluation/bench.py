"""The quality of any settings of a pipeline on judged questions, with every search made once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers.core.channel import Stage
from voicevault_retrievers.core.pages import page_of
from voicevault_retrievers.core.types import Ranking
from voicevault_retrievers.errors import ConfigError, MissingExtraError, RerankerNotAvailableError, SearchError
from voicevault_retrievers.evaluation.judgements import Judged, Unit, names_of
from voicevault_retrievers.evaluation.metrics import ndcg
from voicevault_retrievers.evaluation.run_cache import RememberedBase, RememberedRewriter, read_once
from voicevault_retrievers.evaluation.settings import Settings
from voicevault_retrievers.rerank import CrossEncoderRerank

Progress: TypeAlias = Callable[[int, int], None]


class Bench:
    """Measures nDCG@k of each question under any settings of a preset, as its pipeline ranks; caches every search.

    `missing` says why the default's reranker is not available; settings are then measured without it. `found` are the
    ids of the questions with anything relevant among the k hits so far; `paged` says whether any hit had a page.
    """

    def __init__(
        self, default: Settings, base: Any, questions: Sequence[Judged], place: Unit, k: int, progress: Progress | None
    ) -> None:
        self.base = RememberedBase(base)
        self.questions = questions
        self.place = place
        self.k = k
        self.progress = progress
        self.total = 1
        self.found: set[str] = set()
        self.example = ""
        self.paged = False
        expansion = default.recipe.expansion
        self._expansion = None if expansion is None else RememberedRewriter(expansion)
        self._rerankers, self.missing = _rerankers(default.recipe.stages)
        self._values: dict[tuple[str, ...], NDArray[np.float64]] = {}

    def of(self, settings: Settings) -> NDArray[np.float64]:
        """The nDCG@k of each question, in [0, 1], in the questions' order."""
        key = tuple(settings.said.values())
        if key not in self._values:
            recipe = cast(Any, settings.recipe)
            stages = tuple(stage for stage in map(self._stage, recipe.stages) if stage is not None)
            pipeline = (
                replace(recipe, stages=stages, expansion=self._expansion, access="optional")
                .over(self.base)
                .within(None)
            )
            self._values[key] = np.array(
                [self._value(pipeline.search(one.text, self.k).ranking, one) for one in self.questions]
            )
            if self.progress is not None:
                self.progress(min(len(self._values), self.total), self.total)
        return self._values[key]

    def check(self) -> None:
        """Raise ConfigError where no search found anything relevant."""
        if not self.found:
            named = next(name for name, grade in self.questions[0].grades.items() if grade > 0)
            found = f"what was found is named as {self.example!r}" if self.example else "nothing at all was found"
            raise ConfigError(
                f"none of the relevant places that the judgements name, such as {named!r}, is among the first {self.k} "
                f"hits of any question; {found}: are the judgements of this knowledge base?"
            )

    def _stage(self, stage: Stage) -> Stage | None:
        return self._rerankers[repr(stage)] if isinstance(stage, CrossEncoderRerank) else stage

    def _value(self, ranking: Ranking, question: Judged) -> float:
        for failure in ranking.errors:
            if failure.degrades:
                raise failure.error or SearchError(f"what fails cannot be tuned: {failure}")
        places = names_of(ranking, self.place)
        self.example = self.example or next(iter(places), "")
        self.paged = self.paged or any(page_of(hit.chunk.metadata) is not None for hit in ranking)
        if any(question.grades.get(name, 0) > 0 for name in places):
            self.found.add(question.id)
        return ndcg(places, question.grades, self.k)


def _rerankers(stages: Sequence[Stage]) -> tuple[dict[str, Stage | None], str]:
    """Rerankers that score every pair once, None for one that is not available; and why it is not."""
    found, missing = dict[str, Stage | None](), ""
    for stage in stages:
        if isinstance(stage, CrossEncoderRerank):
            try:
                twin = read_once(stage)
                twin.warm_up()
            except (RerankerNotAvailableError, MissingExtraError) as error:
                found[repr(stage)], missing = None, str(error)
            else:
                found[repr(stage)] = twin
    return found, missing
