"""Matches hits of different channels that are the same document under different ids."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from voicevault_retrievers.core.filters import plain
from voicevault_retrievers.core.types import Hit, Ranking, ranked


@dataclass(frozen=True)
class Identified:
    """Rankings by channel in which each document has one id; see `identified`.

    `own` maps, for each channel, the id of a document to the channel's own id, where the two differ. `apart` counts the
    documents whose text another channel found too, with conflicting metadata. `failed` holds the errors of channels
    that are left out because one of their hits cannot be read.
    """

    rankings: Mapping[str, Ranking]
    own: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    apart: int = 0
    failed: Mapping[str, Exception] = field(default_factory=dict)


def identified(rankings: Mapping[str, Ranking]) -> Identified:
    """Give each document that channels without a common id found one id and one chunk.

    Channels of one engine's collection, or that share an id, or one of which holds a hit of the other, stay as they
    are: their ids distinguish documents. Between other channels, two hits are the same document where their texts are
    equal and no metadata key that both have has different values. The chunk is a knowledge base's, else that of the
    first channel by name; metadata is not merged. Different documents of one channel stay different. Empty texts never
    match.
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
    """The errors of the channels that have a hit which cannot be read."""
    found: dict[str, Exception] = {}
    for name, ranking in rankings.items():
        try:
            tuple(ranking.hits)
        except Exception as error:  # noqa: BLE001 - a store may raise anything
            found[name] = error
    return found


def _groups(rankings: Mapping[str, Ranking]) -> list[list[str]]:
    """The names of the channels that found something, grouped by shared ids."""
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
    """Whether channels use the same ids: they search one source, or their lists share an id, or one channel holds the
    other's first hit.
    """
    if not found.isdisjoint(ids) or not _sources(rankings, names).isdisjoint(_sources(rankings, others)):
        return True
    return any(
        _holds(rankings[one], rankings[other].ids[0]) or _holds(rankings[other], rankings[one].ids[0])
        for one in names
        for other in others
    )


def _sources(rankings: Mapping[str, Ranking], names: Iterable[str]) -> set[int]:
    """What the scans of channels name as their source, such as an engine's collection, by its address in memory."""
    sources = (getattr(rankings[name].scan, "source", None) for name in names)
    return {id(source) for source in sources if source is not None}


def _holds(ranking: Ranking, chunk_id: str) -> bool:
    return ranking.scan is not None and ranking.scan.local and bool(ranking.scan.scores([chunk_id]))


def _hits(rankings: Iterable[Ranking]) -> list[Hit]:
    """The hits with a text, each chunk once, in the order of the rankings."""
    found: dict[str, Hit] = {}
    for hit in chain.from_iterable(rankings):
        if hit.chunk.text:
            found.setdefault(hit.id, hit)
    return list(found.values())


def _agree(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether all keys with a value in both have equal values; None is no value."""
    return all(
        _comparable(one[key]) == _comparable(other[key])
        for key in one.keys() & other.keys()
        if one[key] is not None and other[key] is not None
    )


def _comparable(value: Any) -> Any:
    """A value in the form that equal values share, as `plain` and JSON have it; NaN equals NaN, and True is not 1."""
    value = plain(value)
    if isinstance(value, bool) or (isinstance(value, float) and math.isnan(value)):
        return (str(value),)
    if isinstance(value, Mapping):
        return {str(key): _comparable(one) for key, one in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(_comparable, value), key=repr)
    if isinstance(value, list | tuple):
        return [_comparable(one) for one in value]
    return value if value is None or isinstance(value, int | float | str) else str(value)


def _renamed(ranking: Ranking, same: Mapping[str, Hit]) -> Ranking:
    """A ranking whose hits take over the chunks of their documents; ties are ordered by the new ids."""
    if same.keys().isdisjoint(ranking.ids):
        return ranking
    return replace(ranking, hits=ranked(_as(hit, same[hit.id]) if hit.id in same else hit for hit in ranking))


def _as(hit: Hit, other: Hit) -> Hit:
    """A hit with the chunk and the access metadata of another hit."""
    return replace(hit, chunk=other.chunk, granted_by=other.granted_by)
