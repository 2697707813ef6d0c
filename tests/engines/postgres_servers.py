"""What tests of PostgreSQL put into it, and what has to hold of it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from tests.helpers import HashEmbedder
from voicevault_retrievers.core.types import Chunk


class Hashed(HashEmbedder):
    """Takes halves of surrogate pairs, too."""

    def embed_documents(self, texts: Any) -> Any:
        return super().embed_documents([ascii(text) for text in texts])


EMBEDDER = Hashed(16)
TEXTS = [
    "The pump of the turbine has a valve.", "A valve, a valve and another valve.", "Oil for the pump; no oil, no pump.",
    "Die Pumpe der Turbine hat ein Ventil.", "Ventile und Pumpen sind aus Stahl.", "L'huile de la pompe est noire.",
    "La pompe de la turbine a une vanne.", "Турбина и насос стоят рядом.", "مضخة التوربين لها صمام",
    "涡轮机的泵有一个阀门。",
    "タービンのポンプ", "pump\0valve \ud800oil", "x" * 5000 + " pump", "", "the of and", "1024 kW at 50 Hz, ISO-9001",
    "pump pump pump pump oil",
]  # fmt: skip
QUERIES = [
    "pump valve", "Ventil der Pumpe", "pompe vanne huile", "насос", "صمام", "阀门 ポンプ", "the", "oil oil pump",
    "x" * 5000, "ISO-9001 kW", "",
]  # fmt: skip


def grown(size: int = 120) -> list[Chunk]:
    rng = np.random.default_rng(5)
    words = " ".join(TEXTS).split()
    made = [" ".join(rng.choice(words, rng.integers(1, 30))) for _ in range(size)]
    return [
        Chunk(f"d{n:03}", text, metadata={"owner": "ab"[n % 2], "page": n, "groups": [n % 3, "x"]})
        for n, text in enumerate([*TEXTS, *made])
    ]


def check_statistics(engine: Any) -> None:
    """Totals and postings are those of the chunks."""
    psycopg: Any = import_module("psycopg")
    name = {
        each: psycopg.sql.Identifier(engine.schema, f"{engine.tables.prefix}_{each}")
        for each in ("chunks", "postings", "totals")
    }
    with psycopg.connect(engine._dsn) as connection:

        def ask(text: str) -> Any:
            return connection.execute(psycopg.sql.SQL(text).format(**name)).fetchall()

        assert ask("SELECT sum(chunks), sum(length) FROM {totals}") == ask("SELECT count(*), sum(length) FROM {chunks}")
        assert ask("SELECT chunk, sum(frequency) FROM {postings} GROUP BY chunk ORDER BY 1") == ask(
            "SELECT ordinal, length FROM {chunks} WHERE length > 0 ORDER BY 1"
        )
