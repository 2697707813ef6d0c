"""Presets in YAML files: the shipped ones, and your own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from voicevault_retrievers._support import yaml_texts
from voicevault_retrievers._support.extras import require
from voicevault_retrievers.errors import ConfigError, unknown
from voicevault_retrievers.pipeline.presets.preset import Preset
from voicevault_retrievers.pipeline.presets.serialization import preset_to_data
from voicevault_retrievers.pipeline.samples import shipped
from voicevault_retrievers.structure.graph import GraphStore
from voicevault_retrievers.structure.parents import Parents

DEFAULT = "default"
"""The name of `default_preset`."""


def load_preset(
    name: str | Path, *, llm: object = None, parents: Parents | None = None, graph: GraphStore | None = None
) -> Preset:
    """Return a shipped preset by its name, or your own by the path of its YAML file.

    For `llm`, `parents` and `graph` see `Preset.given`.

    Raises ConfigError for a name or file that does not exist, for an unknown key (the error names the nearest), and for
    a `${NAME}` that the environment does not have; MissingExtraError without a YAML reader (extra `cli`).
    """
    return Preset.of(preset_data(name)).given(llm=llm, parents=parents, graph=graph)


def default_preset(*, llm: object = None) -> Preset:
    """The preset of a search that names none: keywords and vectors under the default fusion, without any stages."""
    return replace(Preset.plain(("bm25", "dense")), name=DEFAULT).given(llm=llm)


def preset_data(name: str | Path) -> dict[str, Any]:
    """The data of which `load_preset` makes the preset: the parsed YAML, with each `${NAME}` unreplaced.

    Raises ConfigError for a name or file that does not exist, or that is no mapping.
    """
    if not isinstance(name, str | Path):
        raise ConfigError(f"a preset is a Preset, its name, or the path of its file, not {name!r}")
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        path = shipped("presets") / f"{name}.yaml"
        if not path.is_file():
            raise unknown("preset", str(name), preset_names())
    if not path.is_file():
        raise ConfigError(f"there is no preset file {path}")
    data = yaml_texts.read(path)
    if not isinstance(data, Mapping):
        raise ConfigError(f"{path} holds a {type(data).__name__}, not a mapping of options")
    return {"name": path.stem, **data}


def save_preset(preset: Preset | Mapping[str, Any], path: str | Path) -> None:
    """Write a preset, or a preset's data, to a YAML file that `load_preset` reads as an equal preset.

    Raises ConfigError for anything that is not a preset, and for a part that YAML cannot express, see `preset_to_data`.
    """
    file = preset_file(path)
    data = preset_to_data(preset) if isinstance(preset, Preset) else dict(preset)
    Preset.of(data)
    text = require("yaml", extra="cli").safe_dump(data, sort_keys=False, allow_unicode=True)
    file.write_text(text, encoding="utf-8")


def preset_file(path: str | Path) -> Path:
    """The path of a preset's file; ConfigError where `load_preset` would take it for a shipped preset's name."""
    file = Path(path)
    if file.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"a preset's file ends in .yaml or .yml, not as {file.name!r} does")
    return file


def preset_names() -> list[str]:
    """The names of the shipped presets."""
    return sorted(path.stem for path in shipped("presets").glob("*.yaml"))
