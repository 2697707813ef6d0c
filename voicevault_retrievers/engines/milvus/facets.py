"""The numbers that a Milvus expression asks for beside `engines.facets`: of terms, lengths and languages."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from voicevault_retrievers.engines import facets
from voicevault_retrievers.engines.facets import number_of

CAPACITY = 4096
"""The most values in a Milvus array."""

CROWDED = 0
"""The facet of a chunk whose metadata has more values than an array holds, instead of metadata facets."""

_BEGINNING = 24


def key_of(text: str) -> str:
    """The primary key of an id: 32 hexadecimal digits."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


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


def of_metadata(metadata: Mapping[str, Any]) -> list[int]:
    """The facets of metadata, or `CROWDED`."""
    found = facets.of_metadata(metadata)
    return found if len(found) <= CAPACITY - 128 else [CROWDED]


def ordered_values(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The strings and numbers of metadata, in the form that Milvus' comparisons use, which pass at least as much."""
    found: dict[str, Any] = {}
    for key, value in metadata.items():
        if isinstance(value, str):
            found[ordered_key(key, True)] = ordered_text(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[ordered_key(key, False)] = float(max(-1e300, min(1e300, value)))
    return found
