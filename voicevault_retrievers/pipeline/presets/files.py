"""Presets as YAML files: the shipped ones, and those of one's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from voicevault_retrievers._support.extras import require
from voicevault_retrievers.errors import ConfigError, unknown
from voicevault_retrievers.pipeline.presets.preset import Preset
from voicevault_retrievers.pipeline.presets.serialization import preset_to_data
from voicevault_retrievers.pipeline.samples import shipped
from voicevault_retrievers.structure.graph import GraphStore
from voicevault_retrievers.structure.parents import Parents


def load_preset(
    name: str | Path, *, llm: object = None, parents: Parents | None = None, graph: GraphStore | None = None
) -> Preset:
    """A shipped preset by its name, or one of your own by the path of its YAML file.

    `llm`, `parents` and `graph` see `Preset.given`.

    Raises ConfigError for a name or a file that is not there, a key that is unknown (and names the nearest), and a
    `${NAME}` that the environment does not have; MissingExtraError without a reader of YAML (extra `cli`).
    """
    return Preset.of(preset_data(name)).given(llm=llm, parents=parents, graph=graph)


def preset_data(name: str | Path) -> dict[str, Any]:
    """What `load_preset` makes the preset of: the YAML as it is, each `${NAME}` as it stands there.

    Raises ConfigError for a name or a file that is not there, or is no mapping.
    """
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        path = shipped("presets") / f"{name}.yaml"
        if not path.is_file():
            raise unknown("preset", str(name), preset_names())
    if not path.is_file():
        raise ConfigError(f"there is no preset file {path}")
    yaml = require("yaml", extra="cli")
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML: {error}") from error
    if not isinstance(data, Mapping):
        raise ConfigError(f"{path} holds a {type(data).__name__}, not a mapping of options")
    return {"name": path.stem, **data}


def save_preset(preset: Preset | Mapping[str, Any], path: str | Path) -> None:
    """Write a preset, or a preset's data, as a YAML file that `load_preset` reads as an equal one.

    Raises ConfigError for what is no preset, and for a part that a file cannot say, see `preset_to_data`.
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
