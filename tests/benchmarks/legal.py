"""The preset `legal` whole, channel by channel: what each adds, what the reranker, the router and the parents do.

    python -m tests.benchmarks.legal DATA

The made book of notebooks/data/statutes and DATA/aila2019-statutes, the first 20 hits. ms-marco-MiniLM-L-12-v2 stands
in for the preset's reranker, and questions are made by rules from each section's own words, for neither a larger
cross-encoder nor a language model is asked. Gains are over BM25 and vectors with the same stages, with their 95 %
intervals. What could be set otherwise is chosen on every other question of the book and reported on the rest; the
settings of `graph_expansion` were chosen on all of them. Scores are kept under ~/.cache. Writes results/legal.json.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tests.benchmarks.reranking import scorer
from tests.benchmarks.results import Row, write
from tests.benchmarks.structure import STATUTES, statutes
from voicevault_retrievers import Channel, Chunk, KnowledgeBase, Pipeline, Query, Ranking, Result, question_index
from voicevault_retrievers.core.channel import Stage
from voicevault_retrievers.core.protocols import Scorer
from voicevault_retrievers.core.types import Route
from voicevault_retrievers.dense import load_embedder
from voicevault_retrievers.evaluation import Judged, ndcg, rule_questions
from voicevault_retrievers.evaluation.metrics import recall
from voicevault_retrievers.evaluation.run_cache import RememberedScorer, remembered
from voicevault_retrievers.evaluation.significance import paired
from voicevault_retrievers.pipeline.presets import Preset, preset_data
from voicevault_retrievers.query import RuleRouter
from voicevault_retrievers.rerank import CrossEncoderRerank
from voicevault_retrievers.rerank.cross_encoder import OPTIONS
from voicevault_retrievers.text.tokens import estimate_tokens

BOOK, AILA = "statute book", "aila2019-statutes"
PACKAGES = ("voicevault-retrievers", "numpy", "PyStemmer", "openvino", "onnxruntime")
K = 20
METRICS = ("nDCG@10", "recall@20")
EXPANSION: Mapping[str, Any] = {"graph_expansion": {}}
PLAIN, QUESTIONS, GRAPH, ALL = "bm25 + dense", "+ questions", "+ graph", "+ questions + graph"
SYSTEMS: Mapping[str, Sequence[str]] = {
    **{name: (name,) for name in ("bm25", "dense", "questions", "graph")},
    PLAIN: ("bm25", "dense"),
    QUESTIONS: ("bm25", "dense", "questions"),
    GRAPH: ("bm25", "dense", "graph"),
    ALL: ("bm25", "dense", "questions", "graph"),
}
ROUTES: Mapping[str, Any] = {"method": "rules", "simple": ["graph"], "standard": ["bm25", "dense", "questions"]}
WITH_GRAPH: Mapping[str, Any] = {**ROUTES, "standard": ["bm25", "dense", "questions", "graph"]}
FALLBACK: Mapping[str, Any] = {"simple_fallback": True}
AS_IT_IS = "as the preset is"
NOT_ASKED, ASKED = "standard without the graph", "standard with the graph"
OTHERWISE = "standard without the graph, simple_fallback"

Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Collection:
    """A collection in a knowledge base, and the preset's channels over it, each searched once for a question."""

    name: str
    kb: KnowledgeBase
    channels: Mapping[str, Channel]
    questions: Sequence[Judged]

    @property
    def named(self) -> list[bool]:
        """Of each question, whether it names something that the graph knows."""
        return [bool(self.channels["graph"].search(one.text, 1).hits) for one in self.questions]

    def over(self, preset: Preset) -> Pipeline:
        """The preset's pipeline."""
        return preset.build({name: self.channels[name] for name in preset.channels}, base=self.kb)


class NamedFirst(Stage):
    """What the graph found by its name first, the others behind; no score, for the order has none."""

    name = "named_first"

    def refine(self, query: Query, ranking: Ranking) -> Ranking:
        hits = sorted((replace(hit, score=None) for hit in ranking), key=lambda hit: not hit.by_name)
        return replace(ranking, hits=tuple(hits))


def in_parts(chunks: Sequence[Chunk]) -> tuple[list[Chunk], list[Chunk]]:
    """The sections, and as their parents the Parts of the acts that they stand in, where they name one."""
    own: defaultdict[str, list[Chunk]] = defaultdict(list)
    for chunk in chunks:
        if "part" in chunk.metadata:
            own[f"{chunk.metadata['act']}, Part {chunk.metadata['part']}"].append(chunk)
    part_of = {chunk.id: part for part, of_part in own.items() for chunk in of_part}
    parents = [Chunk(part, "\n\n".join(chunk.text for chunk in of_part)) for part, of_part in own.items()]
    return [replace(chunk, parent_id=part_of.get(chunk.id)) for chunk in chunks], parents


def collection(name: str, folder: Path, root: str) -> Collection:
    """The collection indexed, with at most three questions by rules for each section."""
    chunks, questions = statutes(folder)
    kb = KnowledgeBase.create(folder.name, root=root, embedder=load_embedder())
    sections, parents = in_parts(chunks)
    kb.add(sections, parents=parents)
    by_chunk: defaultdict[str, list[str]] = defaultdict(list)
    for one in rule_questions(kb, 3 * len(kb)):
        for chunk_id in one.grades:
            by_chunk[chunk_id].append(one.text)
    question_index(kb).update(lambda chunk: by_chunk[chunk.id][:3])
    options = Preset.of(preset_data("legal")).channels
    return Collection(name, kb, {one: remembered(getattr(kb, one)(**options[one])) for one in options}, questions)


class Legal:
    """The preset in variants, whose reranker is `reads` and waits for all its scores."""

    def __init__(self, reads: Scorer) -> None:
        self.reads = reads
        self.data = preset_data("legal")
        self.rerank = next(one for one in self.data["stages"] if "rerank" in one)
        self.parents = next(one for one in self.data["stages"] if "parents" in one)

    def __call__(
        self,
        channels: Sequence[str] = (),
        *,
        stages: Sequence[Any] | None = None,
        route: Mapping[str, Any] | None = None,
        weights: Mapping[str, float] | None = None,
        **rerank: Any,
    ) -> Preset:
        """Some of its channels, else all; the routes and weights given, else none; its reranker alone, or other stages.

        `rerank` are options of the reranker, beside those of the preset.
        """
        given = [self.rerank] if stages is None else stages
        preset = Preset.of(
            {
                **self.data,
                "k": K,
                "channels": {name: self.data["channels"][name] for name in channels or self.data["channels"]},
                "route": route,
                "fusion": {**self.data["fusion"], "weights": dict(weights or {})},
                "stages": [one for one in given if not isinstance(one, Stage)],
                "on_error": "raise",
            }
        )
        made = (self._read(one, rerank) for one in preset.stages)
        return preset.with_stages([*made, *(one for one in given if isinstance(one, Stage))])

    def own(self) -> Preset:
        """The preset itself, but that hits are not made parents."""
        stages = [one for one in self.data["stages"] if "parents" not in one]
        return self(stages=stages, route=self.data.get("route"), weights=self.data["fusion"].get("weights"))

    def _read(self, stage: Stage, changed: Mapping[str, Any]) -> Stage:
        if not isinstance(stage, CrossEncoderRerank):
            return stage
        options = {**{name: getattr(stage, name) for name in OPTIONS}, "timeout": None, **changed}
        return CrossEncoderRerank(self.reads, depth=stage.depth, **options)


def scores(pipeline: Pipeline, questions: Sequence[Judged], route: Route | None = None) -> Floats:
    """A row of `METRICS` for each question."""
    rows = []
    for one in questions:
        ids = pipeline.search(Query(one.text, route=route)).ranking.ids
        rows.append([ndcg(ids, one.grades, 10), recall(ids, one.grades, K)])
    return np.array(rows)


def means(system: str, case: str, values: Floats) -> Iterator[Row]:
    """The mean of each metric."""
    for metric, value in zip(METRICS, values.mean(axis=0), strict=True):
        yield Row(system, case, metric, float(value))


def gain(system: str, case: str, before: Floats, after: Floats) -> Iterator[Row]:
    """The mean gain in each metric, and its interval."""
    for at, metric in enumerate(METRICS):
        found = paired(before[:, at], after[:, at])
        yield Row(system, case, f"gain in {metric}", found.difference)
        yield Row(system, case, f"gain in {metric}, lower end", found.low)
        yield Row(system, case, f"gain in {metric}, upper end", found.high)


def by_channel(given: Collection, legal: Legal) -> Iterator[Row]:
    """Each channel alone, the usual two, and what is added to them, under each of the preset's possible stages."""
    stages: dict[str, Sequence[Any]] = {
        "fused": [],
        "reranked": [legal.rerank],
        "neighbours, reranked": [EXPANSION, legal.rerank],
        "reranked, neighbours": [legal.rerank, EXPANSION],
    }
    found: dict[tuple[str, str], Floats] = {}
    for stage, of_stage in stages.items():
        for system, names in SYSTEMS.items():
            values = scores(given.over(legal(names, stages=of_stage)), given.questions)
            found[system, stage] = values
            yield from means(system, f"{given.name}, {stage}", values)
    for stage in ("fused", "reranked"):
        case = f"{given.name}, {stage}"
        for system in (QUESTIONS, GRAPH, ALL):
            yield from gain(system, case, found[PLAIN, stage], found[system, stage])
        yield from gain("questions, beside the graph", case, found[GRAPH, stage], found[ALL, stage])
        yield from gain("the graph, beside questions", case, found[QUESTIONS, stage], found[ALL, stage])
    case = f"{given.name}, all four channels"
    yield from gain("the reranker", case, found[ALL, "fused"], found[ALL, "reranked"])
    yield from gain("neighbours before it", case, found[ALL, "reranked"], found[ALL, "neighbours, reranked"])
    yield from gain("neighbours behind it", case, found[ALL, "reranked"], found[ALL, "reranked, neighbours"])
    before, behind = found[ALL, "neighbours, reranked"], found[ALL, "reranked, neighbours"]
    yield from gain("neighbours behind it, not before", case, before, behind)


def by_route(given: Collection, legal: Legal) -> Iterator[Row]:
    """What the routes do, to questions that name something that the graph knows and to others; how many go where."""
    systems: dict[str, tuple[Preset, Route | None]] = {
        "no routes": (legal(), None),
        AS_IT_IS: (legal.own(), None),
        NOT_ASKED: (legal(route=ROUTES), None),
        OTHERWISE: (legal(route={**ROUTES, **FALLBACK}), None),
        ASKED: (legal(route=WITH_GRAPH), None),
        "all simple": (legal(route=ROUTES), Route.SIMPLE),
        "all simple, simple_fallback": (legal(route={**ROUTES, **FALLBACK}), Route.SIMPLE),
    }
    named = np.array(given.named)
    parts = {"name what the graph knows": named, "name nothing that it knows": ~named}
    for system, (preset, route) in systems.items():
        values = scores(given.over(preset), given.questions, route)
        for part, of_part in parts.items():
            if of_part.any():
                yield from means(system, f"{given.name}, {of_part.sum()} that {part}", values[of_part])
    router = RuleRouter()
    routes = Counter(router.explain(one.text).route.value for one in given.questions)
    for name in (route.value for route in Route):
        yield Row("rules", given.name, f"questions on route {name}", float(routes[name]))


def definitions(given: Collection, legal: Legal) -> Iterator[Row]:
    """What is asked as a definition, which is simple by the rules, of the subject of each section that defines nothing.

    No reranker: what is asked is whether anything is found.
    """
    subjects: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for chunk in given.kb:
        _, _, subject = str(chunk.metadata["title"]).partition(". ")
        if not subject.startswith("Meaning of "):
            subjects[subject][chunk.id] = 1
    asked = [Judged(name, f"What is meant by {name[0].lower()}{name[1:]}?", of) for name, of in subjects.items()]
    router = RuleRouter()
    simple = [one for one in asked if router.explain(one.text).route is Route.SIMPLE]
    case = f"{given.name}, definitions of what is not defined"
    yield Row("rules", case, "questions", float(len(asked)))
    yield Row("rules", case, "questions on route simple", float(len(simple)))
    routes = {"no routes": None, NOT_ASKED: ROUTES, OTHERWISE: {**ROUTES, **FALLBACK}}
    for system, route in routes.items():
        pipeline = given.over(legal(route=route, stages=[]))
        yield Row(system, case, "found nothing", float(sum(not pipeline.search(one.text).hits for one in asked)))
        yield from means(system, case, scores(pipeline, asked))


def contexts(given: Collection, legal: Legal) -> Iterator[Row]:
    """Which part of the judged sections, and of all text, a model reads: of sections alone, of more, of parents."""
    texts = {chunk.id: chunk.text for chunk in given.kb}
    total = sum(map(estimate_tokens, texts.values()))
    ways = {"20 sections": (K, []), "100 sections": (100, []), "20 with their parents": (K, [legal.parents])}
    for system, (k, stages) in ways.items():
        pipeline = given.over(legal(stages=[legal.rerank, *stages]))
        found = [(one, pipeline.search(one.text, k)) for one in given.questions]
        shares = [np.mean([_is_read(texts[wanted], of) for wanted in one.grades]) for one, of in found]
        tokens = [of.context_tokens or 0 for _, of in found]
        yield Row(system, given.name, "judged sections that are read", float(np.mean(shares)))
        yield Row(system, given.name, "part of all text that is read", float(np.mean(tokens)) / total)
        yield Row(system, given.name, "most tokens", float(max(tokens)))


def _is_read(text: str, result: Result) -> bool:
    return any(text in citation.text for citation in result.context.citations)


def settings(legal: Legal) -> dict[str, tuple[Preset, Route | None]]:
    """What could be set otherwise, and the route that all questions take."""
    every: dict[str, Preset] = {
        NOT_ASKED: legal(route=ROUTES),
        AS_IT_IS: legal.own(),
        ASKED: legal(route=WITH_GRAPH),
        "and no reranker": legal(route=WITH_GRAPH, stages=[]),
        **{f"and blend {blend}": legal(route=WITH_GRAPH, blend=blend) for blend in (0.2, 0.4, 0.8, 1.0)},
        "and the graph counts twice": legal(route=WITH_GRAPH, weights={"graph": 2.0}),
        "and questions count half": legal(route=WITH_GRAPH, weights={"questions": 0.5}),
        "and what was found by name first": legal(route=WITH_GRAPH, stages=[legal.rerank, NamedFirst()]),
        "and neighbours before the reranker": legal(route=WITH_GRAPH, stages=[EXPANSION, legal.rerank]),
        "and neighbours behind the reranker": legal(route=WITH_GRAPH, stages=[legal.rerank, EXPANSION]),
        "and neighbours behind it, the graph counts twice": legal(
            route=WITH_GRAPH, stages=[legal.rerank, EXPANSION], weights={"graph": 2.0}
        ),
    }
    alone = (legal(route={**WITH_GRAPH, **FALLBACK}), Route.SIMPLE)
    return {
        **{name: (preset, None) for name, preset in every.items()},
        "the graph alone where it finds anything": alone,
    }


def by_setting(given: Collection, legal: Legal) -> Iterator[Row]:
    """Every setting, on the half of the questions that is for choosing and on the other; of a strange one, on all."""
    halves = {"all": slice(None)}
    if given.name == BOOK:
        halves = {"chosen on": slice(0, None, 2), "other half": slice(1, None, 2)}
    found = {
        system: scores(given.over(preset), given.questions, route)
        for system, (preset, route) in settings(legal).items()
    }
    for half, of_half in halves.items():
        case = f"{given.name}, {half}"
        for system, values in found.items():
            yield from means(system, case, values[of_half])
            if system != NOT_ASKED:
                yield from gain(system, f"{case}, over {NOT_ASKED}", found[NOT_ASKED][of_half], values[of_half])


def main(data: Path) -> None:
    """Measure each collection that is there, and write its rows."""
    legal = Legal(RememberedScorer(scorer()))
    rows: list[Row] = []
    for name, folder in ((BOOK, STATUTES), (AILA, data / AILA)):
        if folder.is_dir():
            with tempfile.TemporaryDirectory() as root:
                given = collection(name, folder, root)
                parts = [by_channel, by_route, contexts, by_setting]
                for part in [*parts, definitions] if name == BOOK else parts:
                    began = len(rows)
                    rows += part(given, legal)
                    sys.stdout.write("".join(f"{row}\n" for row in rows[began:]))
                    sys.stdout.flush()
                given.kb.close()
    write("legal", rows, PACKAGES, merge=not (data / AILA).is_dir())


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path())
