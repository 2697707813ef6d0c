"""Deep copies of plain data."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from voicevault_retrievers._support.duplicates import duplicate

ITSELF: list[Any] = [1]
ITSELF.append({"again": ITSELF})


class Own(dict[str, Any]):
    """A dict of another kind."""


def containers(value: Any) -> list[Any]:
    """All that can change in a value."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    own = [value] if isinstance(value, dict | list | set) else []
    return [*own, *(found for one in inner for found in containers(one))]


@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, 2.5, True, None, "b", {"c": [[]]}], "d": {}},
        {"a": (1, [2]), "b": {"c": {3}}, ("k", 1): Own(x=[1])},
        [],
        "a",
        None,
    ],
)
def test_it_is_a_deep_copy(value: Any) -> None:
    made = duplicate(value)
    assert made == copy.deepcopy(value)
    assert repr(made) == repr(value)
    assert type(made) is type(value)
    assert not {*map(id, containers(made))} & {*map(id, containers(value))}


def test_what_a_tuple_or_another_kind_of_dict_holds_is_copied() -> None:
    given: dict[str, Any] = {"a": (1, [2]), "own": Own(x=[3]), "array": np.zeros(2)}
    made = duplicate(given)
    made["a"][1].append(0)
    made["own"]["x"].append(0)
    made["array"][0] = 1
    assert (given["a"], given["own"], given["array"].tolist()) == ((1, [2]), {"x": [3]}, [0, 0])
    assert type(made["own"]) is Own


def test_a_value_that_holds_itself() -> None:
    made = duplicate({"a": ITSELF})["a"]
    assert made is not ITSELF
    assert made[1]["again"] is made


def test_what_cannot_be_copied_raises_as_deepcopy_does() -> None:
    with pytest.raises(TypeError):
        duplicate({"a": [1, (one for one in ())]})
