"""Shared parsing of preset sections: known keys, choices by name, `${NAME}`, language models, further channels."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

from voicevault_retrievers._support import yaml_texts
from voicevault_retrievers._support.foreign_options import meant
from voicevault_retrievers.core.protocols import TextModel
from voicevault_retrievers.core.types import ChannelKind
from voicevault_retrievers.errors import ConfigError, NotIndexedError, unknown
from voicevault_retrievers.models.language import OllamaModel, OpenAIModel
from voicevault_retrievers.models.weights import BACKENDS
from voicevault_retrievers.structure.graph import GraphChannel, GraphStore, ReferenceReader


class GivenChannels(NamedTuple):
    """The given channels by name, the options of channels that a base makes, and a graph store."""

    parts: Mapping[str, Any]
    made: Mapping[str, Mapping[str, Any]]
    graph: GraphStore | None


def given_channels(channels: Mapping[str, Any], *, based: bool) -> GivenChannels:
    """Sort given channels into components, options of a base's channels (True for none), and a graph store.

    Raises ConfigError for options of a channel that no base has, and for options without a base (`based` is False).
    """
    graph = channels.get("graph")
    store = graph if isinstance(graph, GraphStore) else None
    options = {name: part for name, part in channels.items() if part is True or isinstance(part, Mapping)}
    for name in options:
        if name not in KINDS:
            raise unknown("channel of a knowledge base", name, KINDS)
        if not based:
            raise ConfigError(f"{name} is made of knowledge bases: give kb_names, or a channel as {name}")
    apart = {*options, *(() if store is None else ("graph",))}
    parts = {name: part for name, part in channels.items() if name not in apart}
    return GivenChannels(parts, {name: {} if part is True else part for name, part in options.items()}, store)


def graph_over(store: GraphStore, base: Any, *, hops: int = 2, **options: Any) -> GraphChannel:
    """The channel over an external graph store; `options` are those of `KnowledgeBase.graph`.

    References in a query are read as the base's own graph reads them, which knows the laws that its chunks declare;
    without a base they are read by rules alone.
    """
    references = getattr(base, "references", None)
    reader = references() if callable(references) else None
    known = reader if isinstance(reader, ReferenceReader) else None
    return GraphChannel(store, reader=known, depth=hops, **options)


T = TypeVar("T")
KINDS: dict[str, ChannelKind] = {"bm25": "keyword", "dense": "semantic", "graph": "graph", "questions": "question"}
"""The channels of a knowledge base."""
STRUCTURAL = ("graph", "questions")
"""Channels that keep this name, whatever channel is given for them."""
_ELSEWHERE = {
    **dict.fromkeys(("similarity_top_k", "top_k", "top_n"), "`k` of the preset"),
    **dict.fromkeys(("filter", "filters", "where"), "`where` of the retriever: a preset has no filter"),
    **dict.fromkeys(("embed_model", "embedding", "embeddings"), "`model` of the channel `dense`"),
    **dict.fromkeys(("c", "rrf_k"), "`fusion: {method: rrf, k: 60}`"),
    "retrievers": "`channels`, by name, such as `{bm25: {}, dense: {}}`",
    "weights": "`fusion: {weights: {bm25: 0.5, dense: 0.5}}`",
}
"""What the words of LangChain and LlamaIndex are in a preset's file."""
_VARIABLE = re.compile(r"\$\{(\w+)\}")


def section(kind: str, data: Any, *known: str) -> Mapping[str, Any]:
    """A mapping, checked to have known keys alone; None is an empty mapping."""
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        raise ConfigError(f"{kind} is a mapping of options, not a {type(data).__name__}")  # which may hold a password
    for key in data:
        if key not in known:
            if said := meant(key, known, _ELSEWHERE):
                raise ConfigError(f"{kind} has no key {key!r}; here it is {said}")
            raise unknown(f"key in {kind}", key, known)
    return data


def listed(data: Any) -> list[Any]:
    """The stages as a list; None is an empty list."""
    if data is not None and not isinstance(data, list):
        raise ConfigError(f"stages is a list, each entry a name with its options, not a {type(data).__name__}")
    return data or []


def known_backend(name: Any) -> str:
    """A backend by name, or "auto"."""
    return choice("backend", name, {backend: backend for backend in ("auto", *BACKENDS)})


def choice(kind: str, name: Any, choices: Mapping[str, T]) -> T:
    """The choice with a name; the error for an unknown name names the nearest."""
    if not isinstance(name, str) or name not in choices:
        raise unknown(kind, name, choices)
    return choices[name]


def made(make: Callable[..., T], options: Mapping[str, Any]) -> T:
    """The result of `make` with these options; ConfigError where it does not take one of them."""
    try:
        return make(**options)
    except TypeError as error:
        raise ConfigError(f"{make.__name__} does not take {sorted(map(str, options))}: {error}") from error


def channel_of(base: Any, name: str, options: Mapping[str, Any]) -> Any:
    """The channel of a base by its name; for a graph with the option `store` the channel over that store.

    Raises NotIndexedError where the base has no such channel, and ConfigError where it does not take the options.
    """
    make = partial(graph_over, base=base) if name == "graph" and "store" in options else getattr(base, name, None)
    if make is None:
        found = f"{name} is made of a knowledge base, which a {type(base).__name__} is not"
        if name in ("graph", "references"):
            raise NotIndexedError(f"{found}: give graph= a graph store, or name its address as `store` in the preset")
        raise NotIndexedError(f"{found}: search a knowledge base")
    try:
        return make(**options)
    except TypeError as error:
        raise ConfigError(f"{name} does not take {sorted(options)}: {error}") from error


def filled(value: Any) -> Any:
    """The value with `${NAME}` in its texts replaced from the environment."""
    if isinstance(value, str):
        text = _VARIABLE.sub(_variable, value)
        whole_value = _VARIABLE.fullmatch(value) is not None
        return _of_variable(value, text) if whole_value else text
    if isinstance(value, Mapping):
        return {key: filled(item) for key, item in value.items()}
    return [filled(item) for item in value] if isinstance(value, list) else value


def _of_variable(name: str, text: str) -> Any:
    """The value of a text that is that of a variable, which errors do not repeat."""
    try:
        return yaml_texts.loaded(text, name)
    except ConfigError:
        raise ConfigError(f"the value of {name} is not YAML, or has a key twice: put a text in quotes") from None


def _variable(match: re.Match[str]) -> str:
    if match[1] not in os.environ:
        raise ConfigError(f"{match[0]} is in the configuration, and the environment has no {match[1]}")
    return os.environ[match[1]]


SERVED: dict[str, Callable[..., OllamaModel | OpenAIModel]] = {"ollama": OllamaModel, "openai": OpenAIModel}
MODEL_OPTIONS = (*SERVED, "base_url", "request")


def text_model(options: dict[str, Any]) -> OllamaModel | OpenAIModel | None:
    """The model that options name, with its options removed from the mapping; None where they name none."""
    named = [kind for kind in SERVED if kind in options]
    given = {key: options.pop(key) for key in ("base_url", "request") if key in options}
    if len(named) > 1 or (given and not named):
        raise ConfigError(f"a language model is named once, by {' or '.join(SERVED)}, not {named or sorted(given)}")
    return SERVED[named[0]](options.pop(named[0]), **given) if named else None


def given_model(name: str, llm: TextModel | None) -> TextModel:
    """The model for a part that names none itself; ConfigError where none is given."""
    if llm is None:
        raise ConfigError(
            f"{name} needs a language model: name one in the preset, as `llm: {{ollama: NAME}}` or "
            "`llm: {openai: NAME}`, or give llm="
        )
    return llm
