"""Facets: the numbers and digests that a Milvus expression asks for, so that expressions contain no user text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any

CAPACITY = 4096
"""The most values in a Milvus array."""

CROWDED = 0
"""The facet of a chunk whose metadata has more values than an array holds, instead of metadata facets."""

_RESERVED = 1024
_BEGINNING = 24


def key_of(text: str) -> str:
    """The primary key of an id: 32 hexadecimal digits."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def number_of(*parts: str) -> int:
    """A number of 63 bits for some strings; numbers below `_RESERVED` are left for other facets."""
    told = "\0".join(f"{len(part)}:{part}" for part in parts).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(told, digest_size=8).digest(), "big") % (2**63 - _RESERVED) + _RESERVED


def facet(key: str, value: Any) -> int:
    """The facet that a key has a value, or has it in its list."""
    return number_of("is", key, *_told(value))


def kind(key: str, value: Any) -> int:
    """The facet that a key's value is comparable with this one."""
    return number_of("kind", key, _told(value)[0])


def present(key: str) -> int:
    """The facet that a key has a value."""
    return number_of("has", key)


def bit(number: int) -> int:
    """The facet that a chunk's length in terms has this bit set."""
    return 1 + number


def tag(character: str) -> int:
    """The facet that a chunk has a term that begins with this control character."""
    return 512 + ord(character)


def ordered_key(key: str, text: bool) -> str:
    """The key under which the JSON of ordered values holds a key's value."""
    return f"{'s' if text else 'n'}{number_of('order', key):x}"


def ordered_text(value: str) -> str:
    """The beginning of a string in hexadecimal digits, which sort as the strings do."""
    return value[:_BEGINNING].encode("utf-8", "surrogatepass").hex()


def term_number(term: str) -> int:
    """The number of a term in the array of a chunk's terms."""
    return number_of("term", term)


def bits(length: int) -> list[int]:
    """The facets of a length in terms."""
    return [bit(number) for number in range(length.bit_length()) if length >> number & 1]


def tags(terms: Iterable[str]) -> list[int]:
    """The facets of terms that begin with a control character."""
    return [tag(one) for one in sorted({term[0] for term in terms if "\x01" <= term[:1] < " "})]


def of_metadata(metadata: Mapping[str, Any]) -> list[int]:
    """The facets of metadata."""
    found: dict[int, None] = {}
    for key, value in metadata.items():
        if value is None:
            continue
        found[present(key)] = None
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, str | bool | int | float):
                found[facet(key, one)] = None
                found[kind(key, one)] = None
        if isinstance(value, list):  # `$ne` compares a list with values of every kind
            found.update({kind(key, sample): None for sample in ("", 0, True)})
    return list(found) if len(found) <= CAPACITY - 128 else [CROWDED]


def ordered_values(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The strings and numbers of metadata, in the form that Milvus' comparisons use, which pass at least as much."""
    found: dict[str, Any] = {}
    for key, value in metadata.items():
        if isinstance(value, str):
            found[ordered_key(key, True)] = ordered_text(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[ordered_key(key, False)] = float(max(-1e300, min(1e300, value)))
    return found


def _told(value: Any) -> tuple[str, str]:
    if isinstance(value, str):
        return "text", value
    if isinstance(value, bool):
        return "flag", str(value)
    whole = isinstance(value, int) or value.is_integer()
    return "number", str(int(value)) if whole else repr(value)
