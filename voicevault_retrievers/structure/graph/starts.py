"""Where a walk begins: the nodes that the references in a query may mean."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from voicevault_retrievers.core.execution.steps import Steps
from voicevault_retrievers.structure.graph.walk import Reached, StoreCall, Walk
from voicevault_retrievers.text.references.reference import Reference, label, work_of

LIKELY = 0.5
"""What a node gets whose work is perhaps the one that was named: "companies act 2013" for "companies act"."""


def starts(walk: Walk, references: Sequence[Reference]) -> Steps[dict[str, Reached]]:
    """The nodes of references, with what they start with.

    A reference has 1 to give: to what is called so in the work that it names, and in every work where it names none;
    `LIKELY` where one work's words are all among the other's, or the graph's says none. A part, 12(3)(a), gives one
    half to 12, and the rest to its parts alike. Nodes that only chunks which the walk may not see state are none.
    """
    names = {level.name for reference in references for level in reference.levels()}
    if not names:
        return {}
    known: dict[str, Sequence[str]] = yield StoreCall("find", sorted(names))
    if walk.permits is not None:
        edges = yield from walk.edges({key for keys in known.values() for key in keys})
        stated = {node for edge in edges for node in (edge.source, edge.target)}
        known = {name: [key for key in keys if key in stated] for name, keys in known.items()}
    given: defaultdict[str, float] = defaultdict(float)
    for key_of in {reference.key: reference for reference in references}.values():
        levels = key_of.levels()
        for at, level in enumerate(reversed(levels)):
            share = 1.0 if len(levels) == 1 else 0.5 if at == 0 else 0.5 / (len(levels) - 1)
            alike = {key: _alike(key_of.work, work_of(key)) for key in known.get(level.name, ())}
            likely = sorted((-part, key) for key, part in alike.items() if part)[: walk.fan_out]
            for part, key in likely:
                given[key] += share * -part
    return {key: Reached(score, (label(key),)) for key, score in given.items()}


def _alike(asked: str, work: str) -> float:
    if asked in ("", work):
        return 1.0
    one, other = set(asked.split()), set(work.split())
    return LIKELY if one <= other or other <= one else 0.0
