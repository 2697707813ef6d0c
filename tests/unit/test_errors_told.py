"""What may be told of an error."""

from __future__ import annotations

import pytest

from voicevault_retrievers.errors import ConfigError, SearchError, StageError, is_setup_error, safe_message, told


class TheirsError(ConfigError):
    """A subclass that adds nothing counts as what it is of; one that adds counts as what it adds."""

    def __str__(self) -> str:
        return "the text of a document"


def test_the_text_of_an_error_of_others_is_not_told() -> None:
    assert told(OSError("the text of a document")) == "OSError"
    assert told(TheirsError("x")) == "TheirsError"
    assert told(ConfigError("k is a number")) == "ConfigError: k is a number"


@pytest.mark.parametrize("quoted", ["{error}", "{error!r}"])
def test_where_ours_quotes_theirs_its_class_stands(quoted: str) -> None:
    cause = OSError("the text of a document")
    with pytest.raises(SearchError) as caught:
        raise SearchError(f"it failed ({quoted.format(error=cause)})") from cause
    assert safe_message(caught.value) == "it failed (OSError)"


def test_errors_that_led_to_each_other_are_read_once() -> None:
    one, other = SearchError("one: other"), OSError("other")
    one.__context__, other.__context__ = other, one
    assert safe_message(one) == "one: OSError"
    assert not is_setup_error(one)
    first, second = RuntimeError("first"), RuntimeError("second")
    first.__cause__, second.__cause__ = second, first
    assert not is_setup_error(first)


def test_a_stages_error_is_of_the_class_that_it_raised() -> None:
    error = StageError.of("masking", KeyError("the text of a document"))
    assert isinstance(error, KeyError)
    assert told(error).startswith("StageError: masking raised KeyError")
    assert "document" not in repr(error) + str(error)
    with pytest.raises(KeyError):
        raise error
