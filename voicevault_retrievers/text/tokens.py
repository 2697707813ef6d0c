"""Token counts of language models."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

TokenCounter: TypeAlias = Callable[[str], int]

BYTES_PER_TOKEN = 4


def estimate_tokens(text: str) -> int:
    """An estimate of a text's tokens without a tokenizer: its UTF-8 bytes divided by four, rounded up.

    Use a model's own counter where the budget is tight: the estimate is about right for English, and a little low for
    code.
    """
    return -(-len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN)
