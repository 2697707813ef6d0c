"""A cap on the number of chunks of one page."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from voicevault_retrievers._support.checks import key_or_none, whole_or_none
from voicevault_retrievers.core.channel import Stage
from voicevault_retrievers.core.pages import as_key, file_of, page_of
from voicevault_retrievers.core.types import Failure, Hit, Query, Ranking
from voicevault_retrievers.errors import ConfigError


class PageCap(Stage):
    """Drops hits beyond the first `max_chunks_per_page` of their page, and keeps the order.

    The cap is strict. Deeper hits of other pages fill up k; where none are left there are fewer. Hits without a page
    are capped only by `max_chunks_per_document`, which limits the hits of each file. None means no cap; raises
    ConfigError where both are None. `page_key` and `source_key` name the metadata of page and file, as a key or a
    dotted path; by default those of common loaders (see `core.pages`). Where no hit has a page, a note says so.
    """

    name = "page_cap"

    def __init__(
        self,
        max_chunks_per_page: int | None = 2,
        *,
        max_chunks_per_document: int | None = None,
        page_key: str | None = None,
        source_key: str | None = None,
    ) -> None:
        super().__init__()
        self.max_chunks_per_page = whole_or_none("max_chunks_per_page", max_chunks_per_page)
        self.max_chunks_per_document = whole_or_none("max_chunks_per_document", max_chunks_per_document)
        self.page_key = key_or_none("page_key", page_key)
        self.source_key = key_or_none("source_key", source_key)
        if max_chunks_per_page is None and max_chunks_per_document is None:
            raise ConfigError("a cap is for each page, each document or both: give one of them a number")

    def needs(self, k: int) -> int:
        return 3 * k

    def refine(self, query: Query, ranking: Ranking) -> Ranking:
        counts: Counter[tuple[Any, ...]] = Counter()
        capped = replace(ranking, hits=tuple(hit for hit in ranking if self._admit(hit, counts)))
        paged = self.max_chunks_per_page is None or not capped.hits or any(kind == "page" for kind, *_ in counts)
        return capped if paged else capped.failing(self._note())

    def _note(self) -> Failure:
        key = "no page under a key of a known loader" if self.page_key is None else f"no {self.page_key!r}, or no file"
        said = f"the hits have {key}, so no page is capped; page_key= and source_key= name the keys"
        return Failure(self.name, "NoPages", said, degrades=False)

    def _admit(self, hit: Hit, counts: Counter[tuple[Any, ...]]) -> bool:
        caps = self._caps(hit)
        if any(counts[key] >= cap for key, cap in caps.items()):
            return False
        counts.update(caps.keys())
        return True

    def _caps(self, hit: Hit) -> dict[tuple[Any, ...], int]:
        caps: dict[tuple[Any, ...], int] = {}
        metadata = hit.chunk.metadata
        page, file = page_of(metadata, self.page_key, self.source_key), file_of(metadata, self.source_key)
        if self.max_chunks_per_page is not None and page is not None:
            caps[("page", hit.chunk.kb, *map(as_key, page))] = self.max_chunks_per_page
        if self.max_chunks_per_document is not None and file is not None:
            caps["file", hit.chunk.kb, as_key(file)] = self.max_chunks_per_document
        return caps

    def __repr__(self) -> str:
        names = ("max_chunks_per_document", "page_key", "source_key")
        given = (f", {name}={value!r}" for name in names if (value := getattr(self, name)) is not None)
        return f"PageCap({self.max_chunks_per_page}{''.join(given)})"
