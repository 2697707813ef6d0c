"""Reranking by age, which favours recent hits."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta, timezone
from functools import partial
from numbers import Real
from typing import Any

from voicevault_retrievers._support.checks import number, whole_or_none
from voicevault_retrievers.core.channel import Stage
from voicevault_retrievers.core.types import Failure, Hit, Query, Ranking
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.fusion.fuse import DEPTH
from voicevault_retrievers.rerank.weighted import Signal, summed

_DAY = 86_400.0
_ISO = re.compile(
    r"(\d{4})(-?)(\d\d)\2(\d\d)"
    r"(?:[T ](\d\d)(?::?(\d\d)(?::?(\d\d)(?:[.,](\d+))?)?)? ?(Z|[+-]\d\d(?::?\d\d)?)?)?",
    re.ASCII | re.IGNORECASE,
)


NOW = partial(datetime.now, timezone.utc)
"""The clock of a `RecencyRerank`."""


class RecencyRerank(Stage):
    """Orders hits, or the first `depth`, by scaled score + `weight * 0.5 ** (age_days / half_life_days)`.

    Scaled scores are the candidates' scores scaled from their lowest and highest to [0, 1]; 1 where all are equal.
    Where no hit has a score, 1 / rank is scaled. Hits beyond `depth`, and hits without a score while others have one,
    follow unscored in their order.

    The age is that of `metadata[date_key]`, or of the first of several keys with a date, measured from the query's
    `reference_date`, else from this stage's, else from now. A date is a datetime, a date, ISO 8601 text or seconds
    since 1970; without a time zone it is UTC. A future date has age 0. A hit without a readable date gets no addition.
    A note reports unreadable dates, and also that no hit has a date. The stage's vote has a part for the scaled score
    and one for the recency; they add up to the score exactly.
    """

    def __init__(
        self,
        weight: float = 0.1,
        half_life_days: float = 30.0,
        date_key: str | Sequence[str] = "date",
        reference_date: date | datetime | str | None = None,
        *,
        depth: int | None = None,
        name: str = "recency",
        clock: Callable[[], datetime] = NOW,
    ) -> None:
        super().__init__()
        self.weight = number("weight", weight)
        self.half_life_days = float(number("half_life_days", half_life_days))
        if half_life_days == 0:
            raise ConfigError("half_life_days is a number of days above 0, not 0")
        self.date_key = date_key
        self.reference_date = reference_date
        _reference(reference_date)
        self.depth = whole_or_none("depth", depth)
        self.name = name
        self.clock = clock

    def needs(self, k: int) -> int:
        return max(k, self.depth or DEPTH)

    def refine(self, query: Query, ranking: Ranking) -> Ranking:
        head = _candidates(ranking.hits[: self.depth])
        reference = _reference(query.reference_date) or _reference(self.reference_date) or _utc(self.clock())
        unreadable: list[Any] = []
        signals: list[dict[str, Signal]] = []
        for hit, scaled in zip(head, _scaled(head), strict=True):
            own = {"scaled": Signal(hit.score, 1.0, scaled)}
            moment = self._date(hit.chunk.metadata, unreadable)
            if moment is not None:
                decay = 0.5 ** (_age(moment, reference) / self.half_life_days)
                own["recency"] = Signal(decay, self.weight, self.weight * decay)
            signals.append(own)
        return summed(ranking, self.name, signals).failing(*self._notes(unreadable, signals))

    def _date(self, metadata: Mapping[str, Any], unreadable: list[Any]) -> datetime | None:
        for key in self._keys:
            given = metadata.get(key)
            try:
                moment = _moment(given)
            except (TypeError, ValueError, OverflowError, OSError):
                moment = None
                unreadable.append(given)
            if moment is not None:
                return moment
        return None

    @property
    def _keys(self) -> Sequence[str]:
        return (self.date_key,) if isinstance(self.date_key, str) else self.date_key

    def _notes(self, unreadable: Sequence[Any], signals: Sequence[Mapping[str, Signal]]) -> list[Failure]:
        if not unreadable:
            if not signals or any("recency" in own for own in signals):
                return []
            said = f"no hit has a {' or '.join(map(repr, self._keys))}: the order is that of the scores"
            return [Failure(self.name, "NoDates", said, degrades=False)]
        message = (
            f"{len(unreadable)} hits have a {' or '.join(map(repr, self._keys))} that is no date, such as "
            f"{unreadable[0]!r:.60}: they get nothing for it; a date is a datetime, a date, ISO 8601 "
            "text or seconds since 1970"
        )
        return [Failure(self.name, "UnreadableDate", message, degrades=False)]

    def __repr__(self) -> str:
        return (
            f"RecencyRerank({self.weight}, {self.half_life_days}, {self.date_key!r}, {self.reference_date!r}, "
            f"depth={self.depth}, name={self.name!r})"
        )


def _candidates(hits: Sequence[Hit]) -> list[Hit]:
    """The hits that have a score; all hits where none has."""
    return [hit for hit in hits if hit.score is not None] or list(hits)


def _scaled(hits: Sequence[Hit]) -> list[float]:
    scores = [1.0 / rank if hit.score is None else hit.score for rank, hit in enumerate(hits, 1)]
    low, high = min(scores, default=0.0), max(scores, default=0.0)
    return [(score - low) / (high - low) if high > low else 1.0 for score in scores]


def _age(moment: datetime, reference: datetime) -> float:
    """Days from a moment to the reference; 0 for a later moment."""
    return max(0.0, (reference - moment).total_seconds() / _DAY)


def _reference(given: Any) -> datetime | None:
    try:
        return _moment(given)
    except (TypeError, ValueError, OverflowError, OSError) as error:
        raise ConfigError(f"reference_date is a datetime, a date or ISO 8601 text, not {given!r}") from error


def _moment(value: Any) -> datetime | None:
    """An aware datetime for a value; None where the value is missing. ValueError for a value that is no date."""
    if value is None or value == "" or value != value:  # pandas' missing dates are not equal to themselves
        return None
    if isinstance(value, datetime):
        return _utc(value)
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=timezone.utc)
    if isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value):
        return datetime.fromtimestamp(float(value), timezone.utc)
    if isinstance(value, str):
        return _parsed(value.strip())
    raise ValueError(f"{value!r} is no date")


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=timezone.utc) if moment.utcoffset() is None else moment


def _parsed(text: str) -> datetime:
    """Parse ISO 8601 text. `datetime.fromisoformat` supports few forms before Python 3.11."""
    match = _ISO.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no date")
    year, _, month, day, hour, minute, second, fraction, zone = match.groups(default="")
    day_of = datetime(int(year), int(month), int(day), tzinfo=_zone(zone or "Z"))
    micros = int(fraction[:6].ljust(6, "0"))
    return day_of.replace(hour=int(hour or 0), minute=int(minute or 0), second=int(second or 0), microsecond=micros)


def _zone(text: str) -> timezone:
    if text in "Zz":
        return timezone.utc
    offset = timedelta(hours=int(text[1:3]), minutes=int(text[3:].strip(":") or 0))
    return timezone(-offset if text[0] == "-" else offset)
