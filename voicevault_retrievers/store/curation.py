"""The curation of a knowledge base: synonyms, pinned and blocked documents, as its owner writes them in YAML.

```yaml
synonyms:                                        # lines in the format of Solr and Lucene
  - car, automobile
  - KESt => Kapitalertragsteuer
pinned:                                          # first in the result of these questions, in this order
  - queries: [reset password, password reset]    # whole questions; case, endings and stopwords do not count
    documents: [handbook.pdf]                    # files, of each of which the best chunk is pinned
    chunks: [handbook.pdf#12]                    # chunks, by id
blocked:                                         # never found; with `queries`, not for these questions
  - documents: [old.pdf]
  - queries: [price]
    chunks: [draft.md#3]
```
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from voicevault_retrievers._support import yaml_texts
from voicevault_retrievers._support.frozen import FrozenDict
from voicevault_retrievers.core.types import Query, Variant
from voicevault_retrievers.errors import ConfigError, unknown
from voicevault_retrievers.query.synonyms import SynonymExpansion, read_line

_SECTIONS = ("synonyms", "pinned", "blocked")
_KEYS = ("queries", "documents", "chunks")


@dataclass(frozen=True)
class CurationRule:
    """Documents, by file, and chunks, by id, that are pinned or blocked for some questions; for all without any.

    The documents of a rule are pinned before its chunks.
    """

    queries: tuple[str, ...] = ()
    documents: tuple[str, ...] = ()
    chunks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Curation:
    """Synonyms by phrase, and the rules of what is pinned and what is blocked; `text` is the YAML they were read from.

    What is both pinned and blocked is not found.
    """

    synonyms: Mapping[str, tuple[str, ...]] = field(default_factory=FrozenDict)
    pinned: tuple[CurationRule, ...] = ()
    blocked: tuple[CurationRule, ...] = ()
    text: str = field(default="", compare=False, repr=False)

    @classmethod
    def from_file(cls, path: str | Path, origin: str | None = None) -> Curation:
        """The curation in a YAML file; ConfigError, naming the file and the entry, for one that cannot be read.

        `origin` names the file in errors; the default is its path.
        """
        named = str(path) if origin is None else origin
        try:
            text = Path(path).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            said = error.strerror if isinstance(error, OSError) else error
            raise ConfigError(f"the curation in {named} cannot be read: {said}") from error
        return cls.from_text(text, named)

    @classmethod
    def from_text(cls, text: str, origin: str = "curation") -> Curation:
        """The curation in a YAML text; `origin` names the text in errors."""
        sections = _mapping(yaml_texts.loaded(text, origin), origin, "key", _SECTIONS)
        synonyms: dict[str, tuple[str, ...]] = {}
        for number, line in enumerate(_listed(sections.get("synonyms"), f"{origin}: synonyms"), 1):
            where = f"{origin}: synonyms, entry {number}"
            if not isinstance(line, str):
                raise ConfigError(f"{where}: a line of synonyms is a text such as `car, automobile`, not {line!r}")
            for phrase, others in read_line(line, where):
                synonyms[phrase] = (*synonyms.get(phrase, ()), *others)
        if synonyms:
            _checked(synonyms, origin)
        rules = {
            name: tuple(
                _rule(one, f"{origin}: {name}, entry {number}", asked=name == "pinned")
                for number, one in enumerate(_listed(sections.get(name), f"{origin}: {name}"), 1)
            )
            for name in ("pinned", "blocked")
        }
        return cls(FrozenDict(synonyms), **rules, text=text)

    def wordings(self, query: Query) -> tuple[Variant, ...]:
        """The wordings with synonyms in place of a query's words, one for each of a phrase's synonyms."""
        known = len(query.variants)
        return () if self._expansion is None else self._expansion.rewrite(query).variants[known:]

    @cached_property
    def _expansion(self) -> SynonymExpansion | None:
        if not self.synonyms:
            return None
        most = max(map(len, self.synonyms.values()))
        return SynonymExpansion(self.synonyms, size=1 + most)


def _rule(data: Any, where: str, *, asked: bool) -> CurationRule:
    entry = _mapping(data, where, "key", _KEYS)
    texts = {key: tuple(_texts(entry.get(key), f"{where}: {key}")) for key in _KEYS}
    rule = CurationRule(**texts)
    if not rule.documents and not rule.chunks:
        raise ConfigError(f"{where}: name documents, chunks or both")
    if "queries" in entry and not rule.queries:
        raise ConfigError(f"{where}: queries is empty; what is meant for all questions has no queries")
    if asked and not rule.queries:
        raise ConfigError(f"{where}: give the queries for which these are pinned")
    return rule


def _mapping(data: Any, where: str, kind: str, known: tuple[str, ...]) -> Mapping[str, Any]:
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where}: expected a mapping with {', '.join(known)}, not {data!r}")
    for key in data:
        if key not in known:
            raise ConfigError(f"{where}: {unknown(kind, key, known)}")
    return data


def _listed(data: Any, where: str) -> list[Any]:
    if data is not None and not isinstance(data, list):
        raise ConfigError(f"{where} is a list, not {data!r}")
    return data or []


def _texts(data: Any, where: str) -> list[str]:
    found = _listed(data, where)
    for one in found:
        if not isinstance(one, str) or not one.strip():
            raise ConfigError(f"{where} is a list of texts, and {one!r} is none: write it in quotes")
    return found


def _checked(synonyms: Mapping[str, tuple[str, ...]], origin: str) -> None:
    try:
        SynonymExpansion(synonyms)
    except ConfigError as error:
        raise ConfigError(f"{origin}: synonyms: {error}") from error
