"""The content of the page as plain data; called in worker threads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from voicevault_retrievers.core.channel import Channel
from voicevault_retrievers.core.types import Chunk, Hit
from voicevault_retrievers.display import Lists, analyzer_of, result_data
from voicevault_retrievers.engines.engine import Engine
from voicevault_retrievers.errors import RetrievalError, unknown
from voicevault_retrievers.inspector.judgments import Judgment, Judgments, qrels_file, queries_file
from voicevault_retrievers.inspector.pages import Pages
from voicevault_retrievers.inspector.registry import Shelf
from voicevault_retrievers.inspector.requests import K, SearchRequest
from voicevault_retrievers.store import KnowledgeBase
from voicevault_retrievers.store.sources import Source
from voicevault_retrievers.structure.questions import QuestionChannel
from voicevault_retrievers.structure.questions.records import source_of

_QUESTION = re.compile(r".+\?[1-9]\d*", re.DOTALL)
"""The id of a question: that of its chunk, `?` and a number."""

_PARTS = {
    "queries": ("queries.jsonl", "application/jsonl", queries_file),
    "qrels": ("qrels.tsv", "text/tab-separated-values; charset=utf-8", qrels_file),
}


class Export(NamedTuple):
    """A file to download: its name, media type and content."""

    name: str
    kind: str
    content: str


class NotFoundError(RetrievalError):
    """A requested chunk does not exist, or no longer."""


@dataclass(frozen=True)
class Inspection:
    """The bases to search, the PDF pages to show and the judgements to store."""

    shelf: Shelf
    pages: Pages
    judgments: Judgments

    def bases(self) -> dict[str, Any]:
        """The bases and presets to choose from, and the initial choice."""
        presets = self.shelf.preset_names
        return {
            "bases": [self.shelf.described(name) for name in self.shelf.names],
            "presets": presets,
            "kb": self.shelf.chosen,
            "preset": presets[0],
            "k": K,
        }

    def search(self, asked: SearchRequest) -> dict[str, Any]:
        """A result as `display.result_data`, with the request, and with page image and judgement for each hit."""
        lists = Lists()
        pipeline = self.shelf.pipeline(asked.kb, asked.preset)
        result = pipeline.search(asked.query, asked.k, observe=lists)
        data = result_data(result, lists=_of_chunks(lists, pipeline.channel), analyzer=analyzer_of(pipeline.channel))
        sources = {name: _sources(self.shelf.base(name)) for name in {self._kb(hit, asked) for hit in result.hits}}
        for hit, shown in zip(result.hits, data["hits"], strict=True):
            shown["kb"] = kb = self._kb(hit, asked)
            own = hit.id.removeprefix(f"{kb}:") if len(asked.kb) > 1 else hit.id
            shown["page_image"] = self.pages.has(hit.chunk, sources[kb])
            shown["judgment"] = self.judgments.grade(asked.query.text, kb, own)
        return {**data, "kb": list(asked.kb), "preset": asked.preset, "k": asked.k}

    def chunk(self, kb: str, chunk_id: str) -> dict[str, Any]:
        """A chunk with its parent."""
        base, chunk = self._found(kb, chunk_id)
        parent = base.parents([chunk.parent_id]).get(chunk.parent_id) if chunk.parent_id else None
        return {
            "id": chunk.id,
            "kb": kb,
            "text": chunk.text,
            "metadata": dict(chunk.metadata),
            "parent": None if parent is None else {"id": parent.id, "text": parent.text},
        }

    def page(self, kb: str, chunk_id: str) -> bytes:
        """The page that a chunk is from, as PNG; errors as of `Pages.png`."""
        base, chunk = self._found(kb, chunk_id)
        return self.pages.png(chunk, _sources(base))

    def judge(self, judgment: Judgment) -> dict[str, Any]:
        """Store a judgement, under the chunk's own id; returns the number of judgements."""
        if judgment.grade is not None:
            own = self._found(judgment.kb, judgment.id)[1].id
        else:  # the chunk may no longer exist
            judged = {one.id for one in self.judgments.of(query=judgment.query, kb=judgment.kb)}
            own = next((one for one in _ids(judgment.kb, judgment.id) if one in judged), judgment.id)
        return {"count": self.judgments.put(replace(judgment, id=own))}

    def judged(self, query: str | None, kb: str | None) -> dict[str, Any]:
        """The judgements, optionally of one query or base."""
        return {"judgments": [asdict(one) for one in self.judgments.of(query=query, kb=kb)]}

    def export(self, kb: str, part: str) -> Export:
        """The judgements of a base as a file for `voicevault tune`: `queries` or `qrels`."""
        if part not in _PARTS:
            raise unknown("part of an export", part, _PARTS)
        name, kind, write = _PARTS[part]
        return Export(name, kind, write(self.judgments.of(kb=kb)))

    def _kb(self, hit: Hit, asked: SearchRequest) -> str:
        """The offered name of a hit's base; a collection's own name may differ."""
        return hit.chunk.kb if hit.chunk.kb in asked.kb else asked.kb[0]

    def _found(self, kb: str, chunk_id: str) -> tuple[KnowledgeBase | Engine, Chunk]:
        """A base and its chunk, by the chunk's own id or by its id among several bases (`base:id`)."""
        base = self.shelf.base(kb)
        ids = _ids(kb, chunk_id)
        found = base.get(ids)
        chunk = next((found[one] for one in ids if one in found), None)
        if chunk is None:
            raise NotFoundError(f"knowledge base {kb!r} has no chunk {chunk_id!r}: was it indexed again since?")
        return base, chunk


def _ids(kb: str, chunk_id: str) -> list[str]:
    """The possible own ids of a chunk: as given, or without the base's name in front."""
    return list(dict.fromkeys([chunk_id, chunk_id.removeprefix(f"{kb}:")]))


def _of_chunks(lists: Sequence[Mapping[str, Any]], channel: Channel) -> list[Mapping[str, Any]]:
    """The lists, with lists of questions converted to lists of the chunks that answer them.

    A question channel queries channels below it, which find questions; its own list is that of the last query.
    """
    leaves = [leaf for leaf in channel.leaves() if isinstance(leaf, QuestionChannel)]
    return [_answering(entry, leaves) for entry in lists]


def _answering(entry: Mapping[str, Any], leaves: Iterable[QuestionChannel]) -> Mapping[str, Any]:
    if not entry["hits"] or not all(_QUESTION.fullmatch(hit["id"]) for hit in entry["hits"]):
        return entry
    best: dict[str, Any] = {}
    for hit in entry["hits"]:
        best.setdefault(source_of(hit["id"]), hit["score"])
    for leaf in leaves:
        known = leaf.chunks.get(best)
        if known:
            found = [(leaf.prefix + one, score) for one, score in best.items() if one in known]
            hits = [{"id": one, "rank": rank, "score": score} for rank, (one, score) in enumerate(found, 1)]
            return {**entry, "kind": "channel", "name": leaf.name, "hits": hits}
    return entry


def _sources(base: KnowledgeBase | Engine) -> Mapping[str, Source]:
    return base.sources if isinstance(base, KnowledgeBase) else {}
