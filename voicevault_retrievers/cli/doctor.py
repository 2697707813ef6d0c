"""`voicevault doctor`: installed extras and models, the machine's speed, what is broken, and advice."""

from __future__ import annotations

import platform
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from voicevault_retrievers._support.extras import DISTRIBUTION
from voicevault_retrievers.cli import environment, options, speed
from voicevault_retrievers.dense.int8 import PAYS_FROM
from voicevault_retrievers.errors import MissingExtraError, RetrievalError
from voicevault_retrievers.pipeline.presets import DEFAULT_MODEL
from voicevault_retrievers.rerank.scorers import DEFAULT_MODEL as SCORER
from voicevault_retrievers.store import KnowledgeBase, default_root
from voicevault_retrievers.store.language_support import advice

JSON_VERSION = 1
DIMENSION = 384
"""The dimension of the default embedding model."""
DEPTH = 20
"""The number of passages that the preset `voicevault` reranks."""

_OFFLINE = f"pip install '{DISTRIBUTION}[onnx,offline]'"
_MEASURED = {
    "embedding": "texts of 900 characters embedded a second",
    "reranking": "passages of 900 characters reranked a second",
    "keyword_search": f"keyword searches a second over {speed.CHUNKS:,} chunks",
    "disk": "writes to disk a second, each waited for",
}


@click.command(epilog=options.examples("voicevault doctor", "voicevault doctor --no-measure --json"))
@click.option("--no-measure", is_flag=True, help="Do not measure how fast this machine is.")
@click.option("--warm", is_flag=True, help="Make the machine code of searches of the knowledge bases now.")
@click.option("--json", "as_json", is_flag=True, help=f"Machine-readable output (version {JSON_VERSION}).")
@options.root
@options.reporting
def doctor(no_measure: bool, warm: bool, as_json: bool, root: Path | None) -> None:
    """What is installed, how fast this machine is, what is broken, and what to do.

    Exits with 1 where something is broken: a package of a version that is not supported, a damaged knowledge base, a
    model that is here and does not run. What is merely not installed is not.

    With numba (the extra fast) searches run on machine code, which is made beside the first of them and kept. --warm
    makes it beforehand, for a server that is to be at full speed from its first search on.
    """
    folder, models = root or default_root(), environment.models()
    told: dict[str, Any] = {
        "version": JSON_VERSION,
        "package": version(DISTRIBUTION),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": environment.processor(),
        "extras": {one.name: _extra(one) for one in environment.extras()},
        "hub": {"offline": environment.hub_offline(), "cache": str(environment.hub_cache())},
        "models": [asdict(one) for one in models],
        "speed": {} if no_measure else _speed(folder, {one.name for one in models}),
        "root": str(folder),
        "kbs": _bases(folder),
    }
    if warm:
        told["warmed"] = _warmed(folder)
    told |= {"broken": list(broken(told)), "recommended": list(recommended(told))}
    if as_json:
        click.echo(options.as_json(told))
    else:
        _show(told)
    if told["broken"]:
        raise click.exceptions.Exit(1)


def _extra(one: environment.Extra) -> dict[str, Any]:
    found: dict[str, Any] = {"status": one.status, "packages": dict(one.packages)}
    if one.status != "present":
        found |= {"missing": list(one.missing), "conflicts": list(one.conflicts), "install": one.install}
    return found


def _speed(folder: Path, models: Container[str]) -> dict[str, Any]:
    """The rate per second of each measurement; `missing` or `error` where it cannot run. Downloads no model."""

    def local(model: str, work: Callable[[], speed.Measurement]) -> AbstractContextManager[speed.Measurement]:
        if model not in models:
            raise MissingExtraError(f"{model} does not load without the network: {_OFFLINE}")
        return nullcontext(work())

    steps: Mapping[str, Callable[[], AbstractContextManager[speed.Measurement]]] = {
        "embedding": lambda: local(DEFAULT_MODEL, speed.embedding),
        "reranking": lambda: local(SCORER, speed.reranking),
        "keyword_search": lambda: nullcontext(speed.keyword_search()),
        "disk": lambda: speed.flushing(folder),
    }
    found: dict[str, Any] = {}
    for name, made in steps.items():
        with Console(stderr=True).status(f"measuring {name.replace('_', ' ')}"):
            found[name] = _measured(made)
    return found


def _measured(made: Callable[[], AbstractContextManager[speed.Measurement]]) -> dict[str, Any]:
    try:
        with made() as work:
            found: dict[str, Any] = {"per_second": round(speed.rate(work.step), 1)}
            return found | ({"by": by} if (by := work.by()) else {})
    except MissingExtraError as error:
        return {"missing": str(error)}
    except Exception as error:  # noqa: BLE001 - runtimes may raise anything; the other measurements go on
        return {"error": f"{type(error).__name__}: {error}"}


def _bases(root: Path) -> list[dict[str, Any]]:
    try:
        return [_base(folder) for folder in options.bases_in(root)]
    except OSError as error:
        return [{"name": root.name, "error": options.said(error)}]


def _base(folder: Path) -> dict[str, Any]:
    try:
        base = KnowledgeBase.open(folder)
        found, advised = base.stats(), advice(base)
    except (RetrievalError, OSError) as error:
        return {"name": folder.name, "error": options.said(error)}
    kept = ("name", "chunks", "size", "embedder", "dimension", "vectors")
    return {key: getattr(found, key) for key in kept} | {"advice": advised}


def _warmed(root: Path) -> dict[str, str]:
    """For each knowledge base whether its searches' machine code has been compiled, or why not."""
    found: dict[str, str] = {}
    for folder in options.bases_in(root):
        with Console(stderr=True).status(f"making machine code for {folder.name}"):
            try:
                _warm(KnowledgeBase.open(folder))
                found[folder.name] = "ready"
            except (RetrievalError, OSError) as error:
                found[folder.name] = options.said(error)
    return found


def _warm(base: KnowledgeBase) -> None:
    base.bm25().index.warm()
    for part in base.view().parts:
        if part.dense is not None:
            part.dense.warm()


def broken(told: Mapping[str, Any]) -> Iterator[str]:
    """What is broken, one line each."""
    for name, extra in told["extras"].items():
        for conflict in extra.get("conflicts", ()):
            yield f"extra {name}: {conflict}: {extra['install']}"
    for name, found in told["speed"].items():
        if "error" in found:
            yield f"{name.replace('_', ' ')}: {found['error']}"
    for base in told["kbs"]:
        if "error" in base:
            yield f"knowledge base {base['name']}: {base['error']}"


def recommended(told: Mapping[str, Any]) -> Iterator[str]:
    """Recommendations that make better use of this machine, one line each."""
    absent = {name: extra["install"] for name, extra in told["extras"].items() if extra["status"] == "missing"}
    if not any(model["name"] == DEFAULT_MODEL for model in told["models"]):
        yield f"no embedding model loads without the network: {_OFFLINE}"
    elif "openvino" in absent:
        yield f"OpenVINO embeds faster on most processors: {absent['openvino']}"
    if "fast" in absent:
        yield f"numba builds and searches large indexes faster: {absent['fast']}"
    pairs = told["speed"].get("reranking", {}).get("per_second")
    if pairs:
        yield f"reranking takes up to a second at depth {int(pairs)}, and {DEPTH / pairs:.1f} s at depth {DEPTH}"
    yield f"`--vectors int8` pays from {-(-PAYS_FROM // DIMENSION):,} chunks on (of {DIMENSION} dimensions)"
    for base in told["kbs"]:
        if base.get("vectors") == "exact" and base["chunks"] * base["dimension"] >= PAYS_FROM:
            yield f"{base['name']} is that large: index it anew with `--vectors int8`"
        if base.get("advice"):
            yield base["advice"]


def _show(told: Mapping[str, Any]) -> None:
    console = Console(soft_wrap=True, markup=False, highlight=False)
    processor = told["processor"]
    console.print(f"{DISTRIBUTION} {told['package']}, Python {told['python']}, {told['system']}")
    features = "" if processor["features"] is None else f", {', '.join(processor['features']) or 'nothing special'}"
    console.print(f"{processor['name']}, {processor['cores']} cores{features}")
    offline = "set: the hub is never asked" if told["hub"]["offline"] else "not set: others are fetched from the hub"
    sections: Mapping[str, Sequence[str]] = {
        "Extras": [_extra_line(name, extra) for name, extra in told["extras"].items()],
        f"Models that load without the network (HF_HUB_OFFLINE is {offline})": [
            f"{one['name']} ({one['place']}; {', '.join(one['backends'])})" for one in told["models"]
        ],
        "Speed": [_speed_line(name, found) for name, found in told["speed"].items()],
        f"Knowledge bases in {told['root']}": [_base_line(base) for base in told["kbs"]],
        **({"Machine code": [f"{name}: {said}" for name, said in told["warmed"].items()]} if "warmed" in told else {}),
        "Recommended": told["recommended"],
        "Broken": told["broken"],
    }
    for title, lines in sections.items():
        console.print(f"\n{title}", style="bold")
        for line in lines or ["none" if title != "Speed" else "not measured"]:
            console.print(f"  {line}")


def _extra_line(name: str, extra: Mapping[str, Any]) -> str:
    held = ", ".join(f"{package} {found}" for package, found in extra["packages"].items())
    if extra["status"] == "present":
        return f"{name}: {held}"
    lacks = "; ".join(extra["conflicts"]) or f"{', '.join(extra['missing'])} not installed"
    return f"{name}: {extra['status'].upper()}, {lacks}: {extra['install']}"


def _speed_line(name: str, found: Mapping[str, Any]) -> str:
    if "per_second" not in found:
        return " ".join(found.values())
    by = f", by {found['by']}" if "by" in found else ""
    return f"{found['per_second']:,.0f} {_MEASURED[name]}{by}"


def _base_line(base: Mapping[str, Any]) -> str:
    if "error" in base:
        return f"{base['name']}: DAMAGED, {base['error']}"
    return f"{base['name']}: {base['chunks']:,} chunks, {base['size'] / 1e6:.1f} MB"
