"""Tuning of a pipeline's settings on labelled questions; keeps the default where the labels show no better ones.

Each setting in turn is chosen by the one-standard-error rule: of the values tried, the nearest to the default whose
mean nDCG is within one standard error (of the paired difference) of the best (Breiman, Friedman, Olshen, Stone 1984,
"Classification and regression trees", section 3.4.3). The gain is measured by cross-validation in which every fold
chooses anew, without the questions it is measured on (Varma, Simon 2006, "Bias in error estimation when using
cross-validation for model selection"). The default is kept where a paired randomisation test finds no significant
gain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.evaluation.bench import Bench, Progress
from voicevault_retrievers.evaluation.judgements import Judged, Unit, place_of
from voicevault_retrievers.evaluation.settings import Data, EvaluatedPreset, Settings
from voicevault_retrievers.evaluation.significance import Comparison, paired

S = TypeVar("S")
Axes: TypeAlias = Sequence[tuple[str, Callable[[S], Sequence[S]]]]
"""The settings by name, in the order of choice, with functions that return alternatives, nearest first."""
Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

LEAST = 10
"""The fewest questions that tuning accepts."""
LEVEL = 0.05
FOLDS = 5
REPEATS = 10


@dataclass(frozen=True)
class Tuned:
    """The chosen settings and how far they can be trusted.

    `data` is the preset to use: `choice`, chosen on all questions, or the default where `abstained`. `default` and
    `best` describe both in words, `agreement` is the share of folds that chose the same value of a setting. `mean` is
    the default's nDCG@k, `gain` the gain on questions that did not take part in the choice. `tried` are the values
    tried beside the default's, `left` says why a setting was not tuned. `found` counts the questions with anything
    relevant among the k hits of any search.
    """

    data: Data
    choice: Data
    abstained: bool
    reason: str
    default: Mapping[str, str]
    best: Mapping[str, str]
    agreement: Mapping[str, float]
    mean: float
    gain: Comparison
    tried: Mapping[str, Sequence[str]]
    left: Mapping[str, str]
    questions: int
    found: int
    k: int


def tune(
    data: Data,
    make: Callable[[Data], EvaluatedPreset],
    base: Any,
    questions: Sequence[Judged],
    *,
    place: Unit = place_of,
    k: int = 10,
    seed: int = 0,
    progress: Progress | None = None,
) -> Tuned:
    """Return better settings of the preset `data` over a knowledge base, by nDCG@k, where the questions support them.

    `make` is `Preset.of`. `base` is what the preset searches: a knowledge base, several, or any object with its
    channels. Questions without anything relevant are left out. Equal arguments give equal results. Raises ConfigError
    for fewer than `LEAST` questions, or where no search finds any judged name, and the errors of searches.
    """
    judged = [question for question in questions if any(grade > 0 for grade in question.grades.values())]
    if len(judged) < LEAST:
        raise ConfigError(f"tuning takes at least {LEAST} questions with relevant places, better 40; got {len(judged)}")
    default = Settings(data, make)
    bench = Bench(default, base, judged, place, k, progress)
    mean = float(bench.of(default).mean())
    axes, left = _axes(default, bench)
    tried = _tried(default, axes)
    bench.total = sum(map(len, tried.values())) + 1
    best = chosen(default, axes, bench.of, np.arange(len(judged)))
    bench.check()
    gains, choices = cross_validated(default, axes, bench.of, len(judged), seed)
    gain = paired([0.0] * len(gains), gains.tolist(), seed=seed)
    reason = reason_to_keep(best.said == default.said, gain)
    if progress is not None:
        progress(bench.total, bench.total)
    return Tuned(
        data=data if reason else best.data,
        choice=best.data,
        abstained=bool(reason),
        reason=reason or f"the cross-validated gain is significant: p is below {LEVEL}",
        default=default.said,
        best=best.said,
        agreement={
            name: float(np.mean([one.said[name] == said for one in choices])) for name, said in best.said.items()
        },
        mean=mean,
        gain=gain,
        tried=tried,
        left=left,
        questions=len(judged),
        found=len(bench.found),
        k=k,
    )


def chosen(default: S, axes: Axes[S], values: Callable[[S], Floats], rows: Rows) -> S:
    """The settings that these questions choose, one axis after the other."""
    held = default
    for _, options in axes:
        near = [held, *options(held)]
        held = near[one_standard_error(np.stack([values(settings)[rows] for settings in near]))]
    return held


def one_standard_error(values: Floats) -> int:
    """The first row (values of the same questions) whose mean is within one standard error of the best row's."""
    lost = values[values.mean(axis=1).argmax()] - values
    error = lost.std(axis=1, ddof=1) / np.sqrt(values.shape[1])
    return int((lost.mean(axis=1) <= error).argmax())


def cross_validated(
    default: S, axes: Axes[S], values: Callable[[S], Floats], count: int, seed: int
) -> tuple[Floats, list[S]]:
    """Each question's gain over the default by folds that chose without it, the mean over repeats; and all choices."""
    total, choices = np.zeros(count), list[S]()
    for train, test in folds(count, seed):
        choices.append(chosen(default, axes, values, train))
        total[test] += (values(choices[-1]) - values(default))[test]
    return total / REPEATS, choices


def folds(count: int, seed: int) -> Iterator[tuple[Rows, Rows]]:
    """The indices of training and test questions: `FOLDS` parts of each of `REPEATS` shuffles."""
    rng = np.random.default_rng(seed)
    for _ in range(REPEATS):
        for test in np.array_split(rng.permutation(count), FOLDS):
            yield np.setdiff1d(np.arange(count), test), test


def _axes(default: Settings, bench: Bench) -> tuple[Axes[Settings], dict[str, str]]:
    """The settings to tune, and the reasons why others are not."""
    names = list(default.recipe.depths)
    varied = names[:1] if len(names) == 2 else names  # of two channels, one share determines the other
    axes: Axes[Settings] = [
        ("rerank", Settings.rerankings),
        ("method", Settings.methods),
        ("method", Settings.ks),
        *(("weights", partial(Settings.weightings, name=name)) for name in varied),
        ("depth", Settings.depths),
        ("page_cap", Settings.caps),
    ]
    left: dict[str, str] = {}
    if len(names) == 1:
        left["method"] = left["weights"] = "there is one channel"
    if not default.reranks or bench.missing:
        left["rerank"] = bench.missing or "the preset has no reranker"
    if not bench.paged:
        left["page_cap"] = "no chunk that was found has a page"
    return [(name, options) for name, options in axes if name not in left], left


def _tried(default: Settings, axes: Axes[Settings]) -> dict[str, list[str]]:
    tried: dict[str, list[str]] = {}
    for name, options in axes:
        tried.setdefault(name, []).extend(option.said[name] for option in options(default))
    return tried


def reason_to_keep(same: bool, gain: Comparison) -> str:
    """Why to keep the default, where `same` says that all questions choose it; empty where there is no reason."""
    if same:
        return "nothing that was tried is better than the default by more than one standard error"
    if gain.difference <= 0:
        return "what some questions choose is no better than the default on the others"
    if gain.p >= LEVEL:
        return f"the cross-validated gain may be chance: p is not below {LEVEL}; more questions would tell"
    return ""
