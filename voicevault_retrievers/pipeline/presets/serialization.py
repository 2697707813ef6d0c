"""A preset as plain data for a YAML file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass, replace
from datetime import date
from inspect import Parameter, signature
from typing import Any

from voicevault_retrievers._support.hosts import mask_credentials
from voicevault_retrievers.answers import ContextBuilder
from voicevault_retrievers.answers.flare import Flare
from voicevault_retrievers.core.channel import Channel, Rewriter, Stage
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.fusion import METHODS, Method
from voicevault_retrievers.lexical import BM25, Formula
from voicevault_retrievers.lexical.formulas import FORMULAS
from voicevault_retrievers.models.language import ServedModel
from voicevault_retrievers.pipeline.presets.preset import AUTO, DEFAULT_MODEL, VERSION, Preset
from voicevault_retrievers.pipeline.presets.query_sections import EXPANSION_OPTIONS, EXPANSIONS, PresetModelRewriter
from voicevault_retrievers.pipeline.presets.sections import KINDS, MODEL_OPTIONS, SERVED
from voicevault_retrievers.pipeline.presets.stages import STAGE_CLASSES, STAGE_OPTIONS, Awaiting
from voicevault_retrievers.query import ModelRouter, RuleRouter, Together
from voicevault_retrievers.query.routing import RULES
from voicevault_retrievers.rerank import CalibratedRelevance, CrossEncoderRerank, GroupBy, LLMRerank
from voicevault_retrievers.rerank.calibration import Threshold, any_hit
from voicevault_retrievers.rerank.likeness import Comparing, Shingles
from voicevault_retrievers.rerank.scorers import backend_of
from voicevault_retrievers.text import Analyzer

_BM25_OPTIONS = ("formula", "statistics", "exclude_nonpositive", "operators", "fuzzy", "plain_words", "timeout")


def preset_of_parts(
    preset: Preset, channels: Mapping[str, Channel], stages: Iterable[Stage], k: int, group_by: GroupBy | None
) -> Preset:
    """A preset with the current options of its channels, with further stages, and with another k and grouping."""
    options = {name: {**preset.channels[name], **_options_of(channels.get(name))} for name in preset.channels}
    staged = preset.with_stages([*preset.stages, *stages])
    return replace(staged, channels=options, k=k, group_by=group_by or preset.group_by)


def _options_of(channel: Channel | None) -> dict[str, Any]:
    return _differing(channel, _BM25_OPTIONS) if isinstance(channel, BM25) else {}


def preset_to_data(preset: Preset) -> dict[str, Any]:
    """Return the plain data of a preset, ready for YAML, of which `Preset.of` makes an equal preset.

    Raises ConfigError for a part that YAML cannot express, such as a function, a custom stage, or a store.
    """
    if preset.parents is not None or preset.graph is not None:
        raise ConfigError("a file names the stores of parents and of a graph by their address: leave out the open ones")
    data = {
        "version": VERSION,
        "name": preset.name,
        "k": preset.k,
        "timeout": preset.timeout,
        "on_error": preset.on_error,
        "llm": None if preset.llm is None else _served(preset.llm),
        "channels": {name: _channel(preset, name) for name in preset.channels},
        "route": _route(preset.route),
        "expansion": _expansion(preset.expansion),
        "fusion": {**_method(preset.method), **({"weights": dict(preset.weights)} if preset.weights else {})},
        "stages": [_stage(one) for one in preset.stages],
        "flare": _flare(preset.flare),
        "access": preset.access,
        "confidence": _confidence(preset),
        "group_by": None if preset.group_by is None else asdict(preset.group_by),
        "context": _differing(preset.context, [one.name for one in fields(ContextBuilder)]),
    }
    _refuse_passwords(data)
    return {name: value for name, value in data.items() if value not in (None, [], {})}


def _refuse_passwords(data: Any) -> None:
    """Raise ConfigError for an address with a user or password, without repeating it."""
    if isinstance(data, str) and mask_credentials(data) != data:
        raise ConfigError(
            f"{mask_credentials(data)} stands in a file with its password alone: write it there by hand, as ${{NAME}}"
        )
    for part in data.values() if isinstance(data, Mapping) else data if isinstance(data, list) else ():
        _refuse_passwords(part)


def _channel(preset: Preset, name: str) -> dict[str, Any]:
    if name not in KINDS:
        raise ConfigError(f"a preset's file has the channels {', '.join(KINDS)}, and {name!r} is none of these")
    options = dict(preset.channels[name])
    formula = options.pop("formula", None)
    if formula is not None:
        named = next(known for known, kind in FORMULAS.items() if kind is type(formula))
        options = {"formula": named, **_differing(formula, signature(type(formula)).parameters), **options}
    if name == "dense":
        said = {"model": preset.model, "backend": preset.backend}
        default = {"model": DEFAULT_MODEL, "backend": AUTO}
        options |= {key: value for key, value in said.items() if value != default[key]}
    options = {key: _plain(f"{key} of {name}", value) for key, value in options.items() if value is not None}
    return {**options, "depth": preset.depths[name]}


def _method(method: Method) -> dict[str, Any]:
    named = next((name for name, kind in METHODS.items() if kind is type(method)), None)
    if named is None:
        raise _unsaid("the fusion method", method)
    return {"method": named, **_differing(method, signature(type(method)).parameters)}


def _route(router: Rewriter | None) -> Any:
    if router is None:
        return None
    if isinstance(router, PresetModelRewriter):
        given = dict(router.options)
        return {"method": "model", **given.pop("routes", {}), **given}
    if isinstance(router, RuleRouter) and router.rules == RULES:
        own: dict[str, Any] = {"method": "rules"}
    elif isinstance(router, ModelRouter):
        apart = ("model", "prompt", "routes", "simple_fallback")
        own = {"method": "model", **_whole("the router", router, ("timeout",), apart), **_prompted(router)}
    else:
        raise _unsaid("the router", router)
    routes = {route.value: list(on) for route, on in router.routes.channels_of.items()} if router.routes else {}
    return {**own, **routes, **({"simple_fallback": True} if router.simple_fallback else {})}


def _expansion(rewriter: Rewriter | None) -> Any:
    if rewriter is None:
        return None
    if isinstance(rewriter, Together):
        return [_expansion(one) for one in rewriter.rewriters]
    if isinstance(rewriter, PresetModelRewriter):
        return {"method": rewriter.name, **rewriter.options}
    named = next((name for name, kind in EXPANSIONS.items() if kind is type(rewriter)), None)
    if named is None:
        raise _unsaid("the expansion", rewriter)
    asking = _prompted(rewriter) if hasattr(rewriter, "model") else {}
    apart = [name for name in ("model", "prompt") if asking]
    if getattr(rewriter, "analyzer", None) == Analyzer():  # the default
        apart.append("analyzer")
    options = [name for name in EXPANSION_OPTIONS[named] if name not in ("file", "prompt", *MODEL_OPTIONS)]
    return {"method": named, **_whole("the expansion", rewriter, options, apart), **asking}


def _prompted(rewriter: Any) -> dict[str, Any]:
    """The data of a rewriter's model, and of its prompt where that is not the default."""
    own = {} if rewriter.prompt == type(rewriter).PROMPT else {"prompt": rewriter.prompt}
    return {**_served(rewriter.model), **own}


def _stage(stage: Stage) -> Any:
    if isinstance(stage, Awaiting):
        return {stage.name: dict(stage.options)} if stage.options else stage.name
    named = next((name for name, kind in STAGE_CLASSES.items() if kind is type(stage)), None)
    if named is None:
        raise _unsaid("a stage", stage)
    special: dict[str, Any] = {}
    if isinstance(stage, CrossEncoderRerank):
        special = _scorer(stage)
    elif isinstance(stage, LLMRerank):
        special = _served(stage.model)
    elif isinstance(stage, Comparing):
        special = _by(stage)
    elif isinstance(stage, CalibratedRelevance):
        return {named: asdict(stage.calibration)}
    apart = ("scorer", "model", "backend", "by", *MODEL_OPTIONS)
    plain = [name for name in STAGE_OPTIONS[named] if name not in apart]
    options = {**special, **_whole("a stage", stage, plain, apart)}
    return {named: options} if options else named


def _scorer(stage: CrossEncoderRerank) -> dict[str, Any]:
    if isinstance(stage.scorer, str):
        return {"model": stage.scorer}
    backend = backend_of(stage.scorer)
    if backend is None:
        raise _unsaid("a scorer", stage.scorer)
    return {"model": stage.scorer.name, "backend": backend}


def _by(stage: Comparing) -> dict[str, Any]:
    if stage.likeness is None:
        return {"by": "vectors"}
    if not isinstance(stage.likeness, Shingles) or stage.likeness.size != Shingles().size:
        raise _unsaid("by", stage.likeness)
    return {}


def _flare(flare: Mapping[str, Any] | Flare) -> Any:
    if isinstance(flare, Flare):
        raise _unsaid("FLARE", flare)
    return dict(flare)


def _confidence(preset: Preset) -> Any:
    if preset.confidence is any_hit:
        return None
    if not isinstance(preset.confidence, Threshold):
        raise _unsaid("confidence", preset.confidence)
    return {"least": preset.confidence.least}


def _served(model: object) -> dict[str, Any]:
    """A language model in the form of a section."""
    named = next((name for name, kind in SERVED.items() if kind is type(model)), None)
    if named is None or not isinstance(model, ServedModel):
        raise _unsaid("a language model", model)
    options = _whole("a language model", model, ("base_url",), ("model", "request"))
    return {named: model.model, **options, **({"request": model.request} if model.request else {})}


def _whole(what: str, part: Any, names: Sequence[str], apart: Sequence[str] = ()) -> dict[str, Any]:
    """`_differing` for a part whose other options, except `apart`, have defaults; ConfigError where one has not."""
    for name, option in signature(type(part)).parameters.items():
        if name not in (*names, *apart):
            value = getattr(part, name, getattr(part, f"_{name}", option.default))
            if option.default is Parameter.empty or value != option.default:
                raise _unsaid(what, part)
    return _differing(part, names)


def _differing(part: Any, names: Iterable[str]) -> dict[str, Any]:
    """The options of a part that differ from its class's defaults."""
    parameters = signature(type(part)).parameters
    found = {}
    for name in names:
        value, default = getattr(part, name), parameters[name].default
        if default is Parameter.empty or value != default:
            found[name] = value if isinstance(value, Formula) else _plain(name, value)
    return found


def _plain(name: str, value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str | date):
        return value
    if isinstance(value, Mapping):
        return {key: _plain(f"{name}.{key}", one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(name, one) for one in value]
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise _unsaid(name, value)


def _unsaid(what: str, part: object) -> ConfigError:
    return ConfigError(f"a preset's file cannot say {what} {part!r}: it has names and numbers, and no Python objects")
