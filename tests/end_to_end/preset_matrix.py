"""How each shipped preset behaves over a base that has all, that lacks one part, and that is empty.

    python -m tests.end_to_end.preset_matrix        writes preset_matrix.md

Each search is asked in the core, through LangChain, through LlamaIndex and on the command line, all of the same preset
file and the same base. The preset file is the shipped preset with a cross-encoder whose weights are installed.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import yaml
from click.testing import CliRunner

from tests.docs.shared_runs import runs, shared, unhurried
from tests.helpers import HashEmbedder
from tests.model_server import Handler, listed, model_server, refused_url, tokens_in
from voicevault_retrievers import Analyzer, Bases, Chunk, KnowledgeBase, Query
from voicevault_retrievers.cli.commands import voicevault
from voicevault_retrievers.core.types import Result
from voicevault_retrievers.errors import RetrievalError
from voicevault_retrievers.models import weights
from voicevault_retrievers.models.language import OllamaModel
from voicevault_retrievers.pipeline.presets import load_preset, preset_data, preset_names
from voicevault_retrievers.rerank import scorers
from voicevault_retrievers.store import embedding
from voicevault_retrievers.store.questions import question_index

TABLE = Path(__file__).with_suffix(".md")
HEAD = """# How each preset behaves where something is missing

Written by `python -m tests.end_to_end.preset_matrix`; `test_preset_matrix.py` fails where it is not as the program
writes it. Each search is asked in the core, through LangChain (LC), through LlamaIndex (LI) and on the command line
(CLI), of the shipped preset with the cross-encoder `accurate`, over twelve chunks. A note is an entry of
`result.errors` that does not degrade; under "degraded" are those that do, or the error that is raised where the set-up
is wrong. Warnings are those of the logger `voicevault_retrievers`.
"""
WAYS = ("core", "LC", "LI", "CLI")

TOPICS = {"cheating": 420, "theft": 379, "forgery": 465}
TEXTS = (
    "Section {number} IPC: what {topic} is and how long the prison for it lasts.",
    "Whoever commits {topic} is punished under section {number} IPC.",
    "A court tries {topic} under section {number} IPC where it was committed.",
    "The police write down each case of {topic} as section {number} IPC says.",
)
QUESTIONS = {
    "simple": "Section 420 IPC",
    "standard": "Who is punished for cheating?",
    "complex": "Compare cheating with theft under section 420 IPC",
    "analytical": "Analyse the law on cheating under section 420 IPC",
}
PERMITTED = {"source_file": {"$in": ["cheating.txt", "theft.txt"]}}
"""Of `casefile`, which is asked under rights."""
BASES: dict[str, frozenset[str]] = {
    "whole": frozenset(),
    **{f"no-{part}": frozenset([part]) for part in
       ("vectors", "questions", "references", "parents", "dates", "chunk_index")},
    "empty": frozenset(["chunks"]),
}  # fmt: skip
"""What the bases lack."""
MODEL = "llama"


@dataclass(frozen=True)
class Case:
    """A search: a preset, what is missing, the base, the question, and what stands for the preset's models.

    `llm` is the language model's place: "served", "unreachable", or "" where none is named. `reranker` is the
    cross-encoder's name.
    """

    preset: str
    missing: str
    base: str
    question: str
    llm: str = ""
    reranker: str = "accurate"


class Seen(NamedTuple):
    """What came of a search, asked in one way.

    `refused` is the class and the text of the error that was raised; on the command line what was printed.
    """

    hits: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    degraded: tuple[str, ...] = ()
    warnings: int = 0
    refused: str = ""
    exit_code: int | None = None

    @property
    def error(self) -> str:
        """The class of the error that was raised."""
        return self.refused.partition(":")[0]


class Row(NamedTuple):
    """What came of a search in each of the `WAYS`."""

    case: Case
    seen: tuple[Seen, ...]


LACKS: dict[str, tuple[str, ...]] = {
    "voicevault": ("vectors",),
    "legal": ("vectors", "questions", "references", "parents"),
    "pdf-chat": ("vectors", "chunk_index"),
    "newsroom": ("vectors", "dates"),
    "casefile": ("vectors", "parents"),
}
"""What of a base a preset uses, beside its chunks."""
UNREACHABLE, UNKNOWN, EXTRA = "hub with the reranker", "reranker of that name", "reranker's extra"
RERANKED = ("voicevault", "legal", "newsroom")
NO_MODEL, NO_SERVER = "language model", "its server"
ASKING = ("legal", "casefile")
"""Those that ask a language model."""


def cases() -> Iterator[Case]:
    for preset in preset_names():
        questions = list(QUESTIONS) if preset == "legal" else ["standard"]
        llm = "served" if preset in ASKING else ""
        for question in questions:
            yield Case(preset, "nothing", "whole", question, llm)
            for part in LACKS[preset]:
                yield Case(preset, part, f"no-{part}", question, llm)
            if preset in RERANKED:
                yield Case(preset, UNREACHABLE, "whole", question, llm, "multilingual")
                yield Case(preset, UNKNOWN, "whole", question, llm, "owner/none")
                yield Case(preset, EXTRA, "whole", question, llm, "multilingual")
            if preset == "casefile" or question == "analytical":
                yield Case(preset, NO_MODEL, "whole", question)
                yield Case(preset, NO_SERVER, "whole", question, "unreachable")
            yield Case(preset, "chunks", "empty", question, llm)
            yield Case(preset, "base", "absent", question, llm)


def measured(folder: Path) -> list[Row]:
    """All searches, over bases that are made in a folder."""
    with _patched(), model_server(_reply) as server:
        _make_bases(folder)
        urls = {"served": server.url, "unreachable": refused_url()}
        return [_row(case, folder, urls) for case in cases()]


def table(rows: Iterable[Row]) -> str:
    """The rows as Markdown."""
    columns = ("missing", "question", f"hits ({', '.join(WAYS)})", "ids", "notes", "degraded", "warnings", "exit code")
    lines = [HEAD]
    preset = None
    for row in rows:
        if row.case.preset != preset:
            preset = row.case.preset
            lines += [f"\n## {preset}\n", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
        lines.append(f"| {' | '.join(_cells(row))} |")
    return "\n".join(lines) + "\n"


def _cells(row: Row) -> Iterator[str]:
    yield row.case.missing
    yield row.case.question
    yield ", ".join("refused" if one.refused else str(len(one.hits)) for one in row.seen)
    yield "equal" if len({one.hits for one in row.seen}) == 1 else "**differ**"
    yield _same([", ".join(one.notes) for one in row.seen])
    yield _same([row.seen[0].error if one.refused else ", ".join(one.degraded) for one in row.seen])
    yield ", ".join(str(one.warnings) for one in row.seen)
    yield str(row.seen[-1].exit_code)


def _same(values: list[str]) -> str:
    """What all ways say, or what each says."""
    if len(set(values)) == 1:
        return values[0] or "-"
    return "; ".join(f"**{way}**: {value or '-'}" for way, value in zip(WAYS, values, strict=True))


def _make_bases(folder: Path) -> None:
    for name, without in BASES.items():
        embedder = None if "vectors" in without else HashEmbedder(96)
        plain = Analyzer(language=None)  # as pdf-chat wants it
        with KnowledgeBase.create(name, root=folder, analyzer=plain, embedder=embedder) as base:
            if "chunks" in without:
                continue
            parents = [Chunk(f"p-{topic}", f"All of the chapter on {topic}.") for topic in TOPICS]
            base.add(_chunks(without), parents=[] if "parents" in without else parents)
            if "questions" not in without:
                question_index(base).update(lambda chunk: [f"Who is punished for what {chunk.id} says?"])


def _chunks(without: frozenset[str]) -> Iterator[Chunk]:
    for topic, number in TOPICS.items():
        for at, text in enumerate(TEXTS):
            told = text if "references" not in without else text.replace("ection {number} IPC", "uch a rule")
            metadata = {"source_file": f"{topic}.txt", "file_id": topic, "page_number": 1 + at // 2}
            if "chunk_index" not in without:
                metadata |= {"chunk_index": at, "chunks_in_file": len(TEXTS)}
            if "dates" not in without:
                metadata |= {"date": f"2024-0{1 + at}-01"}
            parent = None if "parents" in without else f"p-{topic}"
            yield Chunk(f"{topic}-{at}", told.format(topic=topic, number=number), parent, metadata)


def _row(case: Case, folder: Path, urls: Mapping[str, str]) -> Row:
    data = preset_data(case.preset)
    for stage in data.get("stages", []):
        if "rerank" in stage:
            stage["rerank"]["model"] = case.reranker
    if not case.llm:
        data.pop("llm", None)
    file = folder / "preset.yaml"
    file.write_text(yaml.safe_dump(data), encoding="utf-8")
    search = _Search(case, file, folder, urls.get(case.llm))
    with pytest.MonkeyPatch.context() as patch:
        if case.missing == EXTRA:
            patch.setattr(weights, "installed", lambda backend: backend == "onnx")
        if case.reranker != "accurate":
            patch.setattr(scorers, "_SHARED", {})
        ways = (search.core, search.langchain, search.llama_index, search.command)
        return Row(case, tuple(_seen(way) for way in ways))


def _seen(way: Callable[[], Seen | Result]) -> Seen:
    with _warnings() as warnings:
        try:
            found = way()
        except RetrievalError as error:
            return Seen(refused=f"{type(error).__name__}: {error}", warnings=len(warnings))
    if isinstance(found, Seen):
        return found._replace(warnings=len(warnings))
    notes, degraded = (
        tuple(f"{one.stage}: {one.kind}" for one in found.errors if one.degrades is degrades)
        for degrades in (False, True)
    )
    return Seen(found.ranking.ids, notes, degraded, len(warnings))


@dataclass(frozen=True)
class _Search:
    """One search in each of its ways."""

    case: Case
    file: Path
    root: Path
    url: str | None

    @property
    def text(self) -> str:
        return QUESTIONS[self.case.question]

    @property
    def require(self) -> dict[str, Any] | None:
        return PERMITTED if self.case.preset == "casefile" else None

    @property
    def llm(self) -> dict[str, Any]:
        return {} if self.url is None else {"llm": OllamaModel(MODEL, base_url=self.url)}

    def core(self) -> Result:
        bases = Bases([self.case.base], root=self.root)
        return load_preset(self.file, **self.llm).over(bases).search(Query(self.text, require=self.require))

    def langchain(self) -> Result:
        from voicevault_retrievers.langchain import HybridRetriever

        retriever = HybridRetriever(kb_names=[self.root / self.case.base], preset=load_preset(self.file, **self.llm))
        result = retriever.search(self.text, require=self.require)
        with _unheard():
            documents = retriever.invoke(self.text, require=self.require)
        assert [document.id for document in documents] == list(result.ranking.ids)
        return result

    def llama_index(self) -> Result:
        from voicevault_retrievers.llama_index import HybridRetriever

        retriever = HybridRetriever([self.root / self.case.base], preset=load_preset(self.file, **self.llm))
        retriever = retriever.with_options(require=self.require)
        result = retriever.search(self.text)
        with _unheard():
            nodes = retriever.retrieve(self.text)
        assert [node.node_id for node in nodes] == list(result.ranking.ids)
        return result

    def command(self) -> Seen:
        words = ["search", self.text, "--kb", self.case.base, "--preset", str(self.file), "--root", str(self.root)]
        if self.require is not None:
            words += ["--require", json.dumps(self.require)]
        if self.url is not None:
            words += ["--ollama", MODEL, "--base-url", self.url]
        shown = CliRunner().invoke(voicevault, words)
        if shown.exit_code:
            return Seen(refused=" ".join(shown.output.replace("│", " ").split()), exit_code=shown.exit_code)
        with _unheard():
            told = json.loads(CliRunner().invoke(voicevault, [*words, "--json"]).stdout)
        entries: dict[str, list[str]] = {"note": [], "degraded": []}
        for line in shown.stdout.splitlines():
            label, _, failure = line.partition(" ")
            if label in entries:
                entries[label].append(": ".join(failure.split(": ")[:2]))
        printed, given = (
            entries["note"] + entries["degraded"],
            [": ".join(one.split(": ")[:2]) for one in told["errors"]],
        )
        assert sorted(printed) == sorted(given), (printed, told["errors"])
        assert told["degraded"] is bool(entries["degraded"])
        ids = tuple(hit["id"] for hit in told["hits"])
        return Seen(ids, tuple(entries["note"]), tuple(entries["degraded"]), exit_code=shown.exit_code)


def _reply(handler: Handler) -> None:
    """Picks passages where it is asked for JSON, else answers with a word that it is not sure of."""
    picks = "JSON" in handler.asked["messages"][-1]["content"]
    text = '{"passages": [2, 1]}' if picks else "Cheating is punished by prison."
    handler.write(tokens_in(text, prison=0.1), listed)


class _Kept(logging.Handler):
    """Keeps warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@contextmanager
def _warnings() -> Iterator[list[logging.LogRecord]]:
    logger, kept = logging.getLogger("voicevault_retrievers"), _Kept()
    logger.addHandler(kept)
    try:
        yield kept.records
    finally:
        logger.removeHandler(kept)


@contextmanager
def _unheard() -> Iterator[None]:
    """A search that was counted is asked again."""
    logger = logging.getLogger("voicevault_retrievers")
    before = logger.handlers
    logger.handlers = []
    try:
        yield
    finally:
        logger.handlers = before


@contextmanager
def _patched() -> Iterator[None]:
    """Nothing is late, the bases' embedder is had by name, and models are had of packages alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "openvino", None)
        for replacement in (*shared(runs()), *unhurried()):
            patch.setattr(*replacement)
        patch.setattr(embedding, "make", lambda entry, kb: HashEmbedder(96))
        patch.setattr(weights, "installed", lambda backend: backend != "openvino")
        for name in ("torch", "sentence_transformers"):
            patch.setitem(sys.modules, name, SimpleNamespace(nn=SimpleNamespace(Identity=object)))
        patch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=_unreachable))
        yield


def _unreachable(*_: object, **__: object) -> str:
    raise OSError("offline")


def main() -> None:
    with TemporaryDirectory() as folder:
        TABLE.write_text(table(measured(Path(folder))), encoding="utf-8")


if __name__ == "__main__":
    main()
