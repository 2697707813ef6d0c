"""`voicevault search --interactive`: a session that reads queries and settings line by line."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import click
from rich.console import Console

from voicevault_retrievers._support.characters import without_controls
from voicevault_retrievers.cli import options, render
from voicevault_retrievers.cli.search_options import SearchOptions
from voicevault_retrievers.core.types import Query
from voicevault_retrievers.engines.engine import Engine
from voicevault_retrievers.errors import ConfigError, RetrievalError, unknown
from voicevault_retrievers.pipeline.batch import answer
from voicevault_retrievers.pipeline.presets.files import DEFAULT
from voicevault_retrievers.pipeline.query_file import FileQuery
from voicevault_retrievers.store import Bases

HELP = """\
A line is a query; one that begins with a colon is a setting, shown where nothing follows it:
  :k N          how many results; :k preset for the preset's number
  :preset NAME  a preset, or a YAML file; :preset default for the default
  :where JSON   a filter, such as {"source_file": "a.pdf"}; :where none for none
  :explain      say why each result is there, or no more; :explain on, :explain off
  :json         print results as JSON, or no more; :json on, :json off
  :help         this
  :quit         end, as Ctrl-D does; Ctrl-C ends the running query alone
"""


class InteractiveSession:
    """Reads lines and answers each. Models stay loaded between queries."""

    def __init__(self, asking: SearchOptions, base: Bases | Engine, *, explain: bool, as_json: bool) -> None:
        self.asking = asking
        self._base = base
        self._pipeline = asking.over(base)
        self.explain = explain
        self.as_json = as_json
        self.console: Console = render.output()
        self._settings: dict[str, Callable[[str], str]] = {
            "explain": self._explain,
            "help": lambda _: HELP.rstrip(),
            "json": self._json,
            "k": self._k,
            "preset": self._preset,
            "where": self._where,
        }

    def run(self) -> None:
        """Run until the input ends, or `:quit`. Errors are printed and the session goes on."""
        with suppress(ImportError):
            import readline  # noqa: F401 - gives `input` a history and line editing
        self._tell(f"{', '.join(self.asking.shown)}: ask, or :help. Ctrl-D ends.")
        while (line := self._line()) not in (None, ":quit", ":q"):
            try:
                self._answer(line or "")
            except KeyboardInterrupt:
                self._tell("query aborted")

    def _line(self) -> str | None:
        """The next line; empty where Ctrl-C aborted it, None at the end of input."""
        try:
            return input("voicevault> ").strip()
        except KeyboardInterrupt:
            self.console.print()
            return ""
        except EOFError:
            self.console.print()
            return None

    def _answer(self, line: str) -> None:
        if not line.startswith(":"):
            self._search(line)
            return
        try:
            self._tell(self._set(line[1:]))
        except (RetrievalError, OSError) as error:
            self._tell(f"error: {options.said(error)}")

    def _search(self, line: str) -> None:
        if not line:
            return
        result, error = answer(self._pipeline.search, self.asking.narrowed(FileQuery(Query(line))), None)
        if error is None:
            render.put(result, self.asking.shown, explain=self.explain, as_json=self.as_json)
        else:
            self._tell(f"failed: {error}")

    def _tell(self, said: str) -> None:
        self.console.print(without_controls(said), highlight=False, markup=False)

    def _set(self, line: str) -> str:
        name, _, value = line.partition(" ")
        if name not in self._settings:
            raise unknown("setting", name, (*self._settings, "quit"))
        return self._settings[name](value.strip())

    def _k(self, value: str) -> str:
        if value:
            if value != "preset" and not value.isdecimal():
                raise ConfigError(f":k takes a number of results, or preset, not {value!r}")
            self.asking = replace(self.asking, top_k=None if value == "preset" else int(value))
        return f"k is {self._pipeline.k if self.asking.top_k is None else self.asking.top_k}"

    def _preset(self, value: str) -> str:
        if value:
            other = replace(self.asking, preset=None if value == DEFAULT else value)
            self.asking, self._pipeline = other, other.over(self._base)
        return f"preset is {self.asking.preset or DEFAULT}"

    def _where(self, value: str) -> str:
        if value:
            try:
                where = None if value == "none" else options.JsonFilter().convert(value, None, None)
            except click.BadParameter as error:
                raise ConfigError(f":where {error.message}") from error
            self.asking = replace(self.asking, where=where)
        where = self.asking.where
        return f"where is {json.dumps(where, ensure_ascii=False) if where else 'none'}"

    def _explain(self, value: str) -> str:
        self.explain = _switched(self.explain, value)
        return f"explain is {'on' if self.explain else 'off'}"

    def _json(self, value: str) -> str:
        self.as_json = _switched(self.as_json, value)
        return f"json is {'on' if self.as_json else 'off'}"


def _switched(present: bool, value: str) -> bool:
    if value not in ("", "on", "off"):
        raise ConfigError(f"that is on or off, not {value!r}")
    return value == "on" if value else not present
