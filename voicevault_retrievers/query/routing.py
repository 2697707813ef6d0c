"""Routing: classifies a query, and selects the channels for each class."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

from voicevault_retrievers._support.checks import flag
from voicevault_retrievers.core.channel import Channel, Rewriter, Rewritten
from voicevault_retrievers.core.execution.plan import Call, Plan, value_of
from voicevault_retrievers.core.protocols import TextModel
from voicevault_retrievers.core.types import Failure, Query, Ranking, Route
from voicevault_retrievers.errors import ConfigError, RetrievalError, StageError, unknown
from voicevault_retrievers.fusion.fuse import Fused
from voicevault_retrievers.models.generation import filled
from voicevault_retrievers.query.model import TIMEOUT, ModelRewriter
from voicevault_retrievers.text.references.rules import RuleReferences

R = TypeVar("R", "RuleRouter", "ModelRouter")

_SHORT = 100
"""The greatest number of characters of a question that may be only a reference or a definition."""


class Routes:
    """The channels that each route searches: `Routes({"simple": ["graph"]})`; a route that is not named searches all.

    `channels` are the channels that routes may turn off: those of the fusion behind a router (`router >> fuse(...)`),
    else all that are named. Channels off a query's route get the weight 0, whatever the query says, and are not
    searched; the others keep their weights. A name that a fusion does not have has no effect there. Raises ConfigError
    for an unknown route, and, where `channels` are given, for a route that has none of them.
    """

    def __init__(
        self, channels_of: Mapping[str, Iterable[str]] | None = None, *, channels: Iterable[str] | None = None
    ) -> None:
        self.channels_of = {_route(name): _names(name, on) for name, on in (channels_of or {}).items()}
        self.channels = tuple(dict.fromkeys(n for on in self.channels_of.values() for n in on))
        if channels is not None:
            self.channels = tuple(channels)
            for route, on in self.channels_of.items():
                if not set(on) & set(self.channels):
                    raise ConfigError(
                        f"route {route.value!r} has none of the channels {', '.join(self.channels)}: {on}"
                    )

    def over(self, channels: Iterable[str]) -> Routes:
        """The same routes for other channels."""
        return Routes({route.value: on for route, on in self.channels_of.items()}, channels=channels)

    def narrowed(self, query: Query) -> Query:
        """The query with a weight of 0 for each channel off its route; unchanged where it has no route."""
        on = self.channels if query.route is None else self.channels_of.get(query.route, self.channels)
        off = dict.fromkeys((name for name in self.channels if name not in on), 0.0)
        return replace(query, weights={**(query.weights or {}), **off}) if off else query

    def __repr__(self) -> str:
        return (
            f"Routes({ {route.value: list(on) for route, on in self.channels_of.items()} }, channels={self.channels})"
        )


class Rule(NamedTuple):
    """A rule that sends a question to a route: `name` describes the rule."""

    route: Route
    name: str
    matches: Callable[[str], object]


class Routed(NamedTuple):
    """The route of a question, and the name of the rule that chose it."""

    route: Route
    rule: str


class RoutedChannel(Rewritten):
    """A channel behind a router.

    A SIMPLE query without hits gets a note. Where all its channels fail, the ranking is empty, with the failure, unless
    the fusion raises errors. With the router's `simple_fallback`, a SIMPLE query without hits is searched again as a
    STANDARD query, with a note.
    """

    rewriter: RuleRouter | ModelRouter

    def plan(self, query: Query, k: int) -> Plan[Ranking]:
        if k == 0:
            return Ranking()
        routed, failures = yield from self.rewriter.plan(query)
        try:
            found = yield from self.below.plan(replace(routed, require=query.require), k)
        except StageError:
            raise
        except Exception as error:  # whatever a channel raised
            below = _fused(self.below)
            if routed.route is not Route.SIMPLE or below is None or below.on_error == "raise":
                raise
            found = Ranking((), (Failure.of(self.rewriter.name, error, "nothing is found on route simple"),))
        if routed.route is not Route.SIMPLE or found.hits:
            return found.failing(*failures)
        if not self.rewriter.simple_fallback:
            return found.failing(*failures, *([] if found.errors else [self._nothing("")]))
        standard = self.rewriter.routes.narrowed(replace(query, route=Route.STANDARD))
        failures = (*failures, *found.errors, self._nothing(": asked as standard"))
        found = yield from self.below.plan(standard, k)
        return found.failing(*failures)

    def _nothing(self, more: str) -> Failure:
        kind = "fallback" if more else "nothing"
        return Failure(self.rewriter.name, kind, f"nothing on route simple{more}", degrades=False)


class RuleRouter(Rewriter):
    """Routes a query by the first matching rule; STANDARD where none matches. A query's own route is kept.

    The rules cover English and German: a task to analyse, evaluate or discuss is ANALYTICAL; a comparison, several
    questions, a question about cause and effect, or a long question of several clauses is COMPLEX; a reference alone
    ("Section 420 IPC") or a definition is SIMPLE. `rules` of your own are tried first. `explain` names the rule. For
    `simple_fallback` see `RoutedChannel`.
    """

    name = "route"

    def __init__(
        self,
        routes: Routes | Mapping[str, Iterable[str]] | None = None,
        rules: Sequence[Rule] = (),
        *,
        simple_fallback: bool = False,
    ) -> None:
        super().__init__()
        self.routes = routes_of(routes)
        self.rules = (*rules, *RULES)
        self.simple_fallback = flag("simple_fallback", simple_fallback)

    def explain(self, question: str) -> Routed:
        """The route of a question without a route of its own, and the rule."""
        found = (Routed(rule.route, rule.name) for rule in self.rules if rule.matches(question.strip()))
        return next(found, Routed(Route.STANDARD, "no rule"))

    def rewrite(self, query: Query) -> Query:
        return self.routes.narrowed(replace(query, route=query.route or self.explain(query.text).route))

    def over(self, channel: Channel) -> RuleRouter:
        return _over(self, channel)

    def __rshift__(self, channel: Channel) -> RoutedChannel:
        return _routed(self, channel)

    def __repr__(self) -> str:
        own = self.rules[: len(self.rules) - len(RULES)]
        falls = ", simple_fallback=True" if self.simple_fallback else ""
        return f"RuleRouter({self.routes!r}{f', {list(own)}' if own else ''}{falls})"


class ModelRouter(ModelRewriter):
    """Routes a query by a language model: to the only route that its answer names. A query's own route is kept.

    Where the model fails, or names no route or several, the query goes to STANDARD, with the failure. For `prompt` and
    `timeout` see `ModelRewriter`, for `simple_fallback` see `RoutedChannel`.
    """

    PROMPT = (
        "Which kind of question is the one below?\n"
        "simple: it names one thing to look up, such as a section of a law, a case or a definition\n"
        "standard: it asks for a fact or an explanation that one passage can give\n"
        "complex: it compares, asks several things, or asks for causes and effects\n"
        "analytical: it asks to analyse, evaluate or discuss\n"
        "Answer with that word alone.\n\nQuestion: {query}"
    )
    instead = "the query is asked on route standard"

    def __init__(
        self,
        model: TextModel,
        routes: Routes | Mapping[str, Iterable[str]] | None = None,
        *,
        prompt: str | None = None,
        timeout: float | None = TIMEOUT,
        simple_fallback: bool = False,
        name: str = "route",
    ) -> None:
        super().__init__(model, prompt=prompt, timeout=timeout, name=name)
        self.routes = routes_of(routes)
        self.simple_fallback = flag("simple_fallback", simple_fallback)

    def asked(self, query: Query) -> str | None:
        return filled(self.prompt, query=query.text) if query.route is None and query.text.strip() else None

    def answered(self, query: Query, answer: str) -> Query:
        named = {route for route in Route if re.search(rf"\b{route.value}\b", answer, re.IGNORECASE)}
        if len(named) != 1:
            raise RetrievalError(f"{self.name}: the model named {len(named)} routes, not one: {answer[:200]!r}")
        return self.routes.narrowed(replace(query, route=named.pop()))

    def plan(self, query: Query) -> Plan[tuple[Query, tuple[Failure, ...]]]:
        routed, failures = yield from super().plan(query)
        if routed.route is None:
            standard = partial(replace, routed, route=Route.STANDARD)
            # A call records the route in the trace.
            (outcome,) = yield (Call(self.name, standard, inline=True, kind="rewriter", texts=(query.text,)),)
            routed = value_of(outcome)
        return self.routes.narrowed(routed), failures

    def over(self, channel: Channel) -> ModelRouter:
        return _over(self, channel)

    def __rshift__(self, channel: Channel) -> RoutedChannel:
        return _routed(self, channel)

    def __repr__(self) -> str:
        return f"ModelRouter({self.model!r}, {self.routes!r}, {self._recipe()})"


def routes_of(given: Routes | Mapping[str, Iterable[str]] | None) -> Routes:
    """Routes from a mapping of routes to channel names; None searches all channels on each route."""
    return given if isinstance(given, Routes) else Routes(given)


def _over(router: R, channel: Channel) -> R:
    """The router for the channels of the first fusion at or below a channel, if any."""
    below = _fused(channel)
    if below is None:
        return router
    twin: Any = copy.copy(router)
    twin.routes = twin.routes.over(below.channels)
    return twin  # type: ignore[no-any-return]


def _fused(channel: Channel) -> Fused | None:
    """The first fusion at or below a channel; None where there is none."""
    while not isinstance(channel, Fused):
        if len(channel.children()) != 1:
            return None
        (channel,) = channel.children().values()
    return channel


def _routed(router: RuleRouter | ModelRouter, channel: Channel) -> RoutedChannel:
    if not isinstance(channel, Channel):
        return NotImplemented
    return RoutedChannel(router.over(channel), channel)


def _route(name: str) -> Route:
    if name not in {route.value for route in Route}:
        raise unknown("route", name, [route.value for route in Route])
    return Route(name)


def _names(route: str, channels: Iterable[str]) -> tuple[str, ...]:
    names = () if isinstance(channels, str) else tuple(channels)
    if not names or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"route {route!r} is a list of channel names, not {channels!r}")
    return names


def _pattern(*alternatives: str) -> Callable[[str], object]:
    return re.compile("|".join(alternatives), re.IGNORECASE).search


def _alone(*alternatives: str) -> Callable[[str], object]:
    """A pattern for short questions only: a long question is no reference, and would cause much backtracking."""
    return partial(_in_short, _pattern(*alternatives))


def _in_short(search: Callable[[str], object], question: str) -> object:
    return len(question) <= _SHORT and search(question)


def _reference_alone(question: str) -> bool:
    """Whether a short question asks for a section or the like, or consists only of references that a graph knows."""
    if len(question) > _SHORT:
        return False
    found = [one for one in _READER.read(question) if one.kind != "term"]
    named = {at for one in found for at in range(one.start, one.end)}
    rest = (letter for at, letter in enumerate(question) if at not in named)
    return (bool(found) and not any(map(str.isalnum, rest))) or bool(_ASKED.search(question))


def _several(question: str) -> bool:
    return len(re.findall(r"[?？]+", question)) > 1


def _clauses(question: str) -> bool:
    """At least 25 words in at least three clauses."""
    return len(question.split()) >= 25 and len(_CLAUSE.findall(question)) >= 2


_CLAUSE = re.compile(
    r"[,;:]|\b(?:and|but|while|whereas|although|because|if|when|unless|which|who"
    r"|und|aber|während|obwohl|weil|wenn|falls|sofern|sondern|denn)\b",
    re.IGNORECASE,
)
_LEAD = (
    r"^(?:(?:what|where|show|see|find|tell\s+me)\s+(?:is|are|me|does|do)?\s*(?:the\s+(?:rule|text|wording)\s+(?:in|of)\s+)?|was\s+(?:ist|steht\s+in|sagt|regelt)\s+"
    r"|zeige?\s+(?:mir\s+)?|siehe\s+)?(?:the\s+|der\s+|die\s+|das\s+)?"
)
_KINDS = (
    r"sections?|sec\.?|ss?\.|articles?|art\.?|rules?|clauses?|chapters?|regulations?|paragraphs?|para\.?|schedules?|orders?"
    r"|directives?|artikel|paragra(?:f|ph)en?|absatz|abs\.|kapitel|abschnitt|ziffer|anhang|verordnung|richtlinie|§+"
)
_NUMBER = r"\(?(?:\d[\w./-]*|(?:[ivxlcdm]+|[a-z])(?!\w))\)?(?:\s*\([\w.]+\))*"
_NAMED = rf"(?:{_KINDS})(?![^\W\d_])\s*{_NUMBER}"
# An atomic group, (?=(?P<more>...))(?P=more), prevents backtracking into a part that has matched.
_REFERENCE = (
    rf"{_LEAD}{_NAMED}(?:(?=(?P<more>(?:\s+|,\s*)(?:{_NAMED}|(?-i:[A-Z][\w.-]*)|\d{{4}}"
    r"|of|the|and|in|der|des|dem|im)(?!\w)))(?P=more))*"
    r"\s*(?:say|state|mean|require|provide|regulate|sagen|regeln)?(?:\s+for)?\s*[?.]*$"
)
_READER = RuleReferences()
_ASKED = re.compile(_REFERENCE, re.IGNORECASE)
_DEFINITION = (
    r"^(?:the\s+|die\s+)?(?:definition|meaning|bedeutung)\s+(?:of|von|des|der)\s+(?:\S+\s+){0,5}\S+\s*$"
    r"|^(?:define|definiere)\s+(?:\S+\s+){0,5}\S+\s*$"
    r"|^what\s+(?:does\s+(?:\S+\s+){1,5}mean\s*\?*|is\s+meant\s+by\s+(?:\S+\s+){0,5}\S+\s*|is\s+the\s+(?:definition|meaning)\s+of\s+"
    r"(?:\S+\s+){0,5}\S+\s*)$"
    r"|^was\s+(?:bedeutet|heißt|versteht\s+man\s+unter)\s+(?:\S+\s+){0,5}\S+\s*$"
)

RULES: tuple[Rule, ...] = (
    Rule(
        Route.ANALYTICAL,
        "analyse, evaluate or discuss",
        _pattern(
            r"\b(?:analy[sz]e|evaluate|assess|critique|critically|discuss|appraise|argue|weigh\s+up)\b",
            r"\b(?:implications?|pros\s+and\s+cons|strengths?\s+and\s+weaknesses)\b",
            r"\b(?:analysiere|analysieren\s+sie|bewerte|bewerten\s+sie|beurteile|beurteilen\s+sie|erörter[en]|diskutier[en]"
            r"|würdige|vor-?\s+und\s+nachteile|stärken\s+und\s+schwächen)\b",
        ),
    ),
    Rule(
        Route.COMPLEX,
        "a comparison",
        _pattern(
            r"\b(?:compar(?:e[ds]?|ing|isons?)|versus|vs\.?|differences?\s+between|differ(?:s|\s+from)?|similarit(?:y|ies))\b",
            r"\b(?:vergleich\w*|verglichen|unterschied\w*|unterscheide\w*|gegenüber|gemeinsamkeiten)\b",
        ),
    ),
    Rule(Route.COMPLEX, "several questions", _several),
    Rule(
        Route.COMPLEX,
        "cause and effect",
        _pattern(
            r"\bwhy\b|\b(?:causes?|caused|reasons?|effects?|impacts?|consequences?|influences?)\b(?:\s+\w+)?\s+"
            r"(?:by|for|of|on|behind|does|did|do)\b|\b(?:affects?|leads?\s+to|led\s+to|results?\s+in|what\s+causes)\b",
            r"\b(?:warum|weshalb|wieso|ursachen?|auswirkung(?:en)?|folgen\s+(?:von|der|des|hat)|führt\s+(?:\w+\s+){0,12}zu"
            r"|beeinflusst|wirkt\s+sich)\b",
        ),
    ),
    Rule(Route.COMPLEX, "a long question of several clauses", _clauses),
    Rule(Route.SIMPLE, "a reference alone", _reference_alone),
    Rule(Route.SIMPLE, "a definition", _alone(_DEFINITION)),
)
"""The built-in rules in order: the first match decides."""
