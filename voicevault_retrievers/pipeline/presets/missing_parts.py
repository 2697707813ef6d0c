"""Substitutes for parts of a preset that a base was indexed without; a search that uses one is degraded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

from voicevault_retrievers.answers.flare import Flare
from voicevault_retrievers.core.channel import Channel, Over, Stage, Through
from voicevault_retrievers.core.execution.plan import Call, Plan, value_of
from voicevault_retrievers.core.types import ChannelKind, Failure, Query, Ranking, Result
from voicevault_retrievers.errors import ConfigError, NotIndexedError
from voicevault_retrievers.models.generation import CallableTextModel
from voicevault_retrievers.pipeline.presets.sections import KINDS, channel_of


class NotOpenChannel(Channel):
    """A placeholder for a channel of a knowledge base that is not open; it cannot be searched."""

    kind: ChannelKind = "hybrid"

    def __init__(self, name: str) -> None:
        self.name = name

    def plan(self, query: Query, k: int) -> Plan[Ranking]:
        raise NotImplementedError


class AbsentChannel(Channel):
    """A channel that raises NotIndexedError in each search; a fusion notes the error and goes on without it."""

    def __init__(self, name: str, error: NotIndexedError) -> None:
        self.name = name
        self.kind = KINDS[name]
        self.why = str(error)

    def plan(self, query: Query, k: int) -> Plan[Ranking]:
        (outcome,) = yield (
            Call(self.name, partial(_refused, self.why), inline=True, kind="channel", texts=(query.text,)),
        )
        found: Ranking = value_of(outcome)
        return found

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class NotedChannel(Through, Over):
    """A channel that adds a note to each ranking."""

    def __init__(self, below: Channel, note: Failure) -> None:
        super().__init__(below)
        self.note = note

    def plan(self, query: Query, k: int) -> Plan[Ranking]:
        ranking = yield from self.below.plan(query, k)
        return ranking.failing(self.note)

    def __repr__(self) -> str:
        return repr(self.below)


class AbsentStage(Stage):
    """A stage that keeps a ranking and adds a NotIndexedError to its errors."""

    def __init__(self, name: str, error: NotIndexedError) -> None:
        super().__init__()
        self.name = name
        self.why = str(error)

    def refine(self, query: Query, ranking: Ranking) -> Ranking:
        """Raise NotIndexedError."""
        _refused(self.why)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class AbsentFlare(Flare):
    """FLARE without a language model: it answers nothing and adds a note to the result of an analytical question."""

    def __init__(self) -> None:
        super().__init__(CallableTextModel(str))

    def extended(self, result: Result) -> Result:
        """The result with the note."""
        said = "no language model is given, so that none answers: name one in the preset, or give llm="
        note = Failure("flare", "no model", said, degrades=False)
        return replace(result, ranking=result.ranking.failing(note))

    async def aextended(self, result: Result) -> Result:
        """`extended`."""
        return self.extended(result)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def channel_if_there(base: Any, name: str, options: Mapping[str, Any]) -> Channel:
    """A base's channel; an AbsentChannel where it was indexed without; a noted channel where its funnel is left out.

    The funnel is left out where the base cannot have one and `on_loss` is "full". Raises ConfigError as `channel_of`.
    """
    try:
        channel: Channel = channel_of(base, name, options)
    except NotIndexedError as error:
        return AbsentChannel(name, error)
    except ConfigError as error:
        if (options.get("funnel") or {}).get("on_loss") != "full":
            raise
        bare = channel_if_there(base, name, {key: value for key, value in options.items() if key != "funnel"})
        why = "there is none here" if isinstance(error.__cause__, TypeError) else str(error)
        return NotedChannel(bare, Failure(name, "funnel", f"{why}: all dimensions were compared", degrades=False))
    return channel


def channels_there(base: Any, wanted: Mapping[str, Mapping[str, Any]]) -> dict[str, Channel]:
    """Channels of a base by name, with the options of each; see `channel_if_there`."""
    return {name: channel_if_there(base, name, options) for name, options in wanted.items()}


def _refused(why: str) -> NoReturn:
    raise NotIndexedError(why)
