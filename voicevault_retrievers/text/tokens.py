"""How many tokens a language model will see."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

TokenCounter: TypeAlias = Callable[[str], int]

BYTES_PER_TOKEN = 4


def estimate_tokens(text: str) -> int:
    """About how many tokens a text has, without a tokenizer: its UTF-8 bytes over four, rounded up.

    Give a model's own counter where the budget is tight: English comes out about right, code a little low.
    """
    return -(-len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN)
