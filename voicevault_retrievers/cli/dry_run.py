"""Dry runs: what a search would ask, without loading a model or reaching a server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from voicevault_retrievers._support.characters import without_controls
from voicevault_retrievers.cli import options
from voicevault_retrievers.cli.search_options import SearchOptions
from voicevault_retrievers.core.channel import Channel, Rewriter, Then
from voicevault_retrievers.core.execution.plan import Plan
from voicevault_retrievers.core.types import Query, Ranking
from voicevault_retrievers.engines.addresses import is_address
from voicevault_retrievers.engines.engine import Engine
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.fusion.fuse import Fused, checked_weights
from voicevault_retrievers.pipeline.pipeline import Pipeline
from voicevault_retrievers.pipeline.presets import Preset
from voicevault_retrievers.pipeline.presets.missing_parts import AbsentChannel, AbsentFlare, channel_if_there
from voicevault_retrievers.pipeline.query_file import FileQuery
from voicevault_retrievers.query import RuleRouter
from voicevault_retrievers.store import Bases, KnowledgeBase
from voicevault_retrievers.store.names import locate, vacant
from voicevault_retrievers.store.questions import has_questions

JSON_VERSION = 1


class Unasked(Channel):
    """A placeholder for a channel that would load a model or reach a server."""

    kind = "hybrid"

    def __init__(self, name: str) -> None:
        self.name = name

    def plan(self, query: Query, k: int) -> Plan[Ranking]:
        """Raise ConfigError: a dry run searches nothing."""
        raise ConfigError("a dry run searches nothing")


def rehearse(asking: SearchOptions, asked: Sequence[FileQuery], *, as_json: bool) -> None:
    """Print the route, channels, depths, models and filter of each query; without queries, what all queries share.

    Exits with 2 for an invalid query; raises ConfigError for a wrong preset, base or filter.
    """
    preset = asking.loaded()
    with asking.opened() as base:
        held = _held(asking)
        missing = list(_missing(base, preset, held))
        pipeline = preset.build({name: Unasked(name) for name in preset.channels}, base=base)
        told = {
            "version": JSON_VERSION,
            "preset": preset.name,
            "kbs": asking.shown,
            "notes": [str(note) for note in getattr(base, "notes", ())],
            "missing": missing,
        }
        queries = [_checked(pipeline, asking.narrowed(one), held) for one in asked or [FileQuery(Query(""))]]
    _print({**told, "queries": queries}, as_json=as_json)
    if any("error" in one for one in queries):
        raise click.exceptions.Exit(2)


def _held(asking: SearchOptions) -> list[KnowledgeBase]:
    """The existing knowledge bases; none for an engine."""
    folders = [locate(name, asking.root) for name in asking.kbs if not is_address(name)]
    return [KnowledgeBase.open(folder) for folder in folders if not vacant(folder)]


def _missing(base: Bases | Engine, preset: Preset, held: Sequence[KnowledgeBase]) -> Iterator[str]:
    """Yield why channels of the preset would not be searched.

    Makes only channels that neither load a model nor reach a server, or that would be refused.
    """
    for name, given in preset.channels.items():
        free = name == "bm25" or (name == "dense" and isinstance(base, Engine))
        absent = "store" not in given and getattr(base, name, None) is None
        bare = name == "dense" and any(map(len, held)) and not any(one.manifest.embedder for one in held)
        bare |= name == "questions" and len(held) == 1 and not has_questions(held[0])
        if free or absent or bare:
            made = channel_if_there(base, name, given)
            if isinstance(made, AbsentChannel):
                yield f"{name}: {made.why}"


def _checked(pipeline: Pipeline, asked: FileQuery, held: Sequence[KnowledgeBase]) -> dict[str, Any]:
    """The plan of a query, or its error."""
    try:
        if asked.error is not None:
            raise asked.error
        return {"query": asked.query.text, "id": asked.id, **_told(pipeline, asked, held)}
    except ConfigError as error:
        return {"query": asked.query.text, "id": asked.id, "error": str(error)}


def _told(pipeline: Pipeline, asked: FileQuery, held: Sequence[KnowledgeBase]) -> dict[str, Any]:
    fused, routers, stages = _parts(pipeline.channel)
    query, rule = pipeline.admitted(asked.query), None
    for router in routers:
        if isinstance(router, RuleRouter):
            rule = "given" if query.route else router.explain(query.text).rule
            query = router.rewrite(query)
    weights = {**fused.weights, **checked_weights(query.weights or {}, fused.weights)}
    searched = {name: depth for name, depth in fused.depths.items() if weights[name] > 0}
    return {
        "k": pipeline.k if asked.k is None else asked.k,
        "route": query.route.value if query.route else None,
        "rule": rule,
        "channels": searched,
        "stages": [_stage(stage) for stage in stages],
        "models": _models(searched, stages, pipeline, held),
        "where": query.where,
        "require": query.require,
    }


def _parts(channel: Any) -> tuple[Fused, list[Rewriter], list[Any]]:
    """The fusion of a preset's pipeline, the rewriters before it, and the stages after it."""
    rewriters: list[Rewriter] = []
    stages: list[Any] = []
    while not isinstance(channel, Fused):
        if isinstance(channel, Then):
            stages.insert(0, channel.stage)
        else:
            rewriters.append(channel.rewriter)
        channel = channel.below
    return channel, rewriters, stages


def _stage(stage: Any) -> dict[str, Any]:
    depth = getattr(stage, "depth", None)
    return {"name": stage.name, **({} if depth is None else {"depth": depth})}


def _models(
    searched: Mapping[str, int], stages: Sequence[Any], pipeline: Pipeline, held: Sequence[KnowledgeBase]
) -> dict[str, str]:
    """The models that would be used, by purpose."""
    found: dict[str, str] = {}
    if {"dense", "questions"} & set(searched):
        entries = {entry.model or entry.fingerprint: None for one in held if (entry := one.manifest.embedder)}
        found["embedder"] = ", ".join(entries) if held else "what the collection was made with"
    for stage in stages:
        if model := getattr(stage, "scorer_name", None) or getattr(getattr(stage, "model", None), "model", None):
            found[stage.name] = str(model)
    if pipeline.flare is not None and not isinstance(pipeline.flare, AbsentFlare):
        found["flare"] = repr(pipeline.flare.writer)
    return {name: model for name, model in found.items() if model}


def _print(told: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        click.echo(options.as_json(told))
        return
    click.echo(f"preset {told['preset']} over {', '.join(told['kbs'])}")
    for note in told["notes"]:
        click.echo(f"note: {without_controls(note)}")
    for reason in told["missing"]:
        click.echo(f"missing: {options.said(reason)}")
    for one in told["queries"]:
        click.echo(without_controls("\n".join(("", *_lines(one)))))


def _lines(one: Mapping[str, Any]) -> Iterator[str]:
    yield one["query"] or "any query"
    if "error" in one:
        yield f"  wrong: {one['error']}"
        return
    yield f"  route:    {one['route'] or 'none'}" + (f" ({one['rule']})" if one["rule"] else "")
    yield "  channels: " + ", ".join(f"{name} (depth {depth})" for name, depth in one["channels"].items())
    stages = (stage["name"] + (f" (depth {stage['depth']})" if "depth" in stage else "") for stage in one["stages"])
    yield f"  stages:   {', '.join(stages) or 'none'}"
    yield "  models:   " + (", ".join(f"{model} ({what})" for what, model in one["models"].items()) or "none")
    yield f"  filter:   {json.dumps(one['where'], ensure_ascii=False, default=str) if one['where'] else 'none'}"
    if one["require"] is not None:
        yield f"  require:  {json.dumps(one['require'], ensure_ascii=False, default=str)}"
    yield f"  results:  {one['k']}"
