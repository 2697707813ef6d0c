"""`voicevault kb curation`: what the owner of a knowledge base has pinned and blocked, and its synonyms."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from voicevault_retrievers.cli import options
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.store import Curation, CurationRule, KnowledgeBase, manifest
from voicevault_retrievers.store.live_curation import install, uninstall
from voicevault_retrievers.store.names import existing
from voicevault_retrievers.store.writer import reporting

JSON_VERSION = 1


@click.command(
    epilog=options.examples(
        "voicevault kb curation plant",
        "voicevault kb curation plant --set curation.yaml",
        "voicevault kb curation plant --remove",
    )
)
@click.argument("name", shell_complete=options.known_bases)
@click.option(
    "--set",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A YAML file with synonyms, pinned and blocked documents: it is checked, and replaces what is there.",
)
@click.option("--remove", is_flag=True, help="Remove the curation: nothing is pinned or blocked any more.")
@click.option("--json", "as_json", is_flag=True, help=f"Machine-readable output (version {JSON_VERSION}).")
@options.root
@options.reporting
def curation(name: str, file: Path | None, remove: bool, as_json: bool, root: Path | None) -> None:
    """Show or set what is pinned and blocked in a knowledge base, and its synonyms.

    Searches that are under way go on; the next ones follow the new curation. Names what the base does not have.
    """
    if file is not None and remove:
        raise ConfigError("give either --set FILE or --remove")
    folder = existing(name, root)
    if file is not None or remove:
        manifest.read(folder)  # raises for a folder that is not a knowledge base
    with reporting(folder, "changed"):
        if file is not None:
            install(folder, Curation.from_file(file).text)
        if remove:
            click.echo(f"{name}: {'removed' if uninstall(folder) else 'there is no curation'}", err=True)
            return
    base = KnowledgeBase.open(name, root=root)
    present, lost = base.curation, base.unresolved_curation()
    if as_json:
        data = None if present is None else {"synonyms": present.synonyms, **_rules(present)}
        click.echo(options.as_json({"version": JSON_VERSION, "curation": data, "unresolved": lost}))
        return
    for line in [f"{name}: there is no curation"] if present is None else _lines(name, present):
        click.echo(options.said(line))
    for line in lost:
        click.echo(options.said(line), err=True)


def _rules(present: Curation) -> dict[str, list[dict[str, tuple[str, ...]]]]:
    return {"pinned": list(map(asdict, present.pinned)), "blocked": list(map(asdict, present.blocked))}


def _lines(name: str, present: Curation) -> list[str]:
    count = f"{len(present.synonyms)} synonyms, {len(present.pinned)} pinned, {len(present.blocked)} blocked"
    synonyms = [f"{phrase} => {', '.join(others)}" for phrase, others in present.synonyms.items()]
    pinned = [f"pinned: {_said(rule)}" for rule in present.pinned]
    return [f"{name}: {count}", *synonyms, *pinned, *(f"blocked: {_said(rule)}" for rule in present.blocked)]


def _said(rule: CurationRule) -> str:
    what = ", ".join((*rule.documents, *rule.chunks))
    return f"{what} for {', '.join(map(repr, rule.queries))}" if rule.queries else what
