"""Which hits of different channels are the same document, where their ids do not say it."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from itertools import chain
from typing import Any

from voicevault_retrievers.core.types import Hit, Ranking, ranked


@dataclass(frozen=True)
class Identified:
    """Rankings by channel in which each document has one id; see `identified`.

    `own` are, for each channel, by the id of a document the one that the channel knows it by, where that is another.
    `apart` counts the documents whose text another channel found too and whose metadata contradicts. `failed` are the
    errors of channels that are left out, for a hit of theirs cannot be read.
    """

    rankings: Mapping[str, Ranking]
    own: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    apart: int = 0
    failed: Mapping[str, Exception] = field(default_factory=dict)


def identified(rankings: Mapping[str, Ranking]) -> Identified:
    """Rankings in which a document that channels without a common id found has one id, and one chunk.

    Channels that share an id, or one of which holds what the other found, are left as they are: their ids tell
    documents apart. Between others, two hits are the
    same document where their texts are equal and no metadata key that both have has different values. The chunk is that
    of a knowledge base, else that of the first channel by name; no metadata is mixed. Each document of a channel stays
    a document of its own. Texts that are empty say nothing.
    """
    groups = _groups(rankings)
    if len(groups) < 2:
        return Identified(rankings)
    if failed := _unread(rankings):
        return replace(identified({name: one for name, one in rankings.items() if name not in failed}), failed=failed)
    groups.sort(key=lambda names: (not any(hit.chunk.kb for name in names for hit in rankings[name]), names))
    known: dict[str, list[Hit]] = {}
    same: dict[str, Hit] = {}
    apart = 0
    for names in groups:
        taken: set[str] = set()
        fresh: list[Hit] = []
        for hit in _hits(rankings[name] for name in names):
            alike = [one for one in known.get(hit.chunk.text, ()) if one.id not in taken]
            found = next((one for one in alike if _agree(one.chunk.metadata, hit.chunk.metadata)), None)
            if found is None:
                apart += bool(alike)
                fresh.append(hit)
            else:
                taken.add(found.id)
                same[hit.id] = found
        for hit in fresh:
            known.setdefault(hit.chunk.text, []).append(hit)
    own = {name: {same[each].id: each for each in rankings[name].ids if each in same} for name in rankings}
    return Identified({name: _renamed(ranking, same) for name, ranking in rankings.items()}, own, apart)


def _unread(rankings: Mapping[str, Ranking]) -> dict[str, Exception]:
    """The error of each channel of whose hits one cannot be read."""
    found: dict[str, Exception] = {}
    for name, ranking in rankings.items():
        try:
            tuple(ranking.hits)
        except Exception as error:  # noqa: BLE001 - whatever a store raises
            found[name] = error
    return found


def _groups(rankings: Mapping[str, Ranking]) -> list[list[str]]:
    """The names of channels that found something, those that share ids together."""
    groups: list[tuple[list[str], set[str]]] = []
    for name in sorted(rankings):
        names, ids = [name], set(rankings[name].ids)
        if not ids:
            continue
        for group in [group for group in groups if _share(rankings, names, ids, *group)]:
            groups.remove(group)
            ids |= group[1]
            names = [*group[0], *names]
        groups.append((names, ids))
    return [sorted(names) for names, _ in groups]


def _share(
    rankings: Mapping[str, Ranking], names: Sequence[str], ids: Collection[str], others: Sequence[str], found: set[str]
) -> bool:
    """Whether channels know the same ids: where their lists have none in common, one may hold the other's first."""
    if not found.isdisjoint(ids):
        return True
    return any(
        _holds(rankings[one], rankings[other].ids[0]) or _holds(rankings[other], rankings[one].ids[0])
        for one in names
        for other in others
    )


def _holds(ranking: Ranking, chunk_id: str) -> bool:
    return ranking.scan is not None and ranking.scan.local and bool(ranking.scan.scores([chunk_id]))


def _hits(rankings: Iterable[Ranking]) -> list[Hit]:
    """The hits whose chunk has a text, each chunk once, in the order of their ranks."""
    found: dict[str, Hit] = {}
    for hit in chain.from_iterable(rankings):
        if hit.chunk.text:
            found.setdefault(hit.id, hit)
    return list(found.values())


def _agree(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether no key that has a value in both has different ones; None is no value."""
    return all(
        _comparable(one[key]) == _comparable(other[key])
        for key in one.keys() & other.keys()
        if one[key] is not None and other[key] is not None
    )


def _comparable(value: Any) -> Any:
    """A number as it is; else the value as stores that keep JSON have it: a tuple is a list, a date its ISO text."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if number else json.dumps(value, sort_keys=True, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    return value.isoformat() if isinstance(value, date) else str(value)


def _renamed(ranking: Ranking, same: Mapping[str, Hit]) -> Ranking:
    """A ranking whose hits have the chunks of the documents that they are; equal scores go by the new ids."""
    if same.keys().isdisjoint(ranking.ids):
        return ranking
    return replace(ranking, hits=ranked(_as(hit, same[hit.id]) if hit.id in same else hit for hit in ranking))


def _as(hit: Hit, other: Hit) -> Hit:
    """A hit as another one's document, with what rights permit that by."""
    return replace(hit, chunk=other.chunk, granted_by=other.granted_by)
