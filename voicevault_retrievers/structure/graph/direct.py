"""The direct answer of a graph: what a reference is, and what is around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from voicevault_retrievers.core.execution.steps import Steps
from voicevault_retrievers.core.filters import compile_filter
from voicevault_retrievers.core.types import Chunk, Query, is_named
from voicevault_retrievers.structure.graph.starts import starts
from voicevault_retrievers.structure.graph.walk import Reached, Walk
from voicevault_retrievers.text.references.reference import Reference

NEIGHBOURS = 10


def direct(walk: Walk, query: Query, references: Sequence[Reference]) -> Steps[dict[str, Any] | None]:
    """The answer for the first of the references that some chunk is, or defines; None where none does."""
    passes = compile_filter(query.where)
    for reference in references:
        begun = yield from starts(walk, [reference])
        reached = (yield from walk.from_(begun)) if begun else {}
        held = yield from walk.looked_up(reached)
        order = sorted((one for one in held if passes(held[one].metadata)), key=lambda one: (-reached[one].score, one))
        own = next((one for one in order if is_named(reached[one].path)), None)
        if own is not None:
            return _answer(reference, held[own], [(one, reached[one]) for one in order if one != own])
    return None


def _answer(reference: Reference, chunk: Chunk, around: Sequence[tuple[str, Reached]]) -> dict[str, Any]:
    return {
        "reference": reference.text,
        "key": reference.key,
        "chunk_id": chunk.id,
        "text": chunk.text,
        "metadata": dict(chunk.metadata),
        "neighbours": [
            {"chunk_id": one, "score": reached.score, "path": list(reached.path)}
            for one, reached in around[:NEIGHBOURS]
        ],
    }
