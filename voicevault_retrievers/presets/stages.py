"""The stages of a preset."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from voicevault_retrievers.channel import Stage
from voicevault_retrievers.diversity import MMR, NearDuplicates, PageCap
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.presets.sections import known_backend, made, section
from voicevault_retrievers.rerank import Calibration, CrossEncoderRerank, RecencyRerank, WeightedRerank, load_scorer
from voicevault_retrievers.rerank.cross_encoder import OPTIONS as RERANK_OPTIONS

DEFAULT_RERANKER = "ms-marco-MiniLM-L-12-v2"


def stage(data: Any) -> Stage:
    """A stage of a name alone, or of a name with its options."""
    entry = section("stages", {data: None} if isinstance(data, str) else data, *_STAGES)
    if len(entry) != 1:
        raise ConfigError(f"each of the stages is one name with its options, not {data!r}")
    ((name, options),) = entry.items()
    return _STAGES[name](dict(section(name, options, *_STAGE_OPTIONS[name])))


def _rerank(options: dict[str, Any]) -> Stage:
    model, backend = options.pop("model", DEFAULT_RERANKER), known_backend(options.pop("backend", "auto"))
    if isinstance(options.get("calibration"), Mapping):
        options["calibration"] = made(Calibration, options["calibration"])
    # By name it is looked for at the first search, where a missing model degrades the result and no more.
    return CrossEncoderRerank(model if backend == "auto" else load_scorer(model, backend), **options)


def _page_cap(options: dict[str, Any]) -> Stage:
    return PageCap(**options)


def _mmr(options: dict[str, Any]) -> Stage:
    return MMR(**options)


def _near_duplicates(options: dict[str, Any]) -> Stage:
    return NearDuplicates(**options)


def _recency(options: dict[str, Any]) -> Stage:
    return RecencyRerank(**options)


def _weighted(options: dict[str, Any]) -> Stage:
    return WeightedRerank(**options)


_STAGES: dict[str, Callable[[dict[str, Any]], Stage]] = {
    "mmr": _mmr,
    "near_duplicates": _near_duplicates,
    "page_cap": _page_cap,
    "recency": _recency,
    "rerank": _rerank,
    "weighted": _weighted,
}
_STAGE_OPTIONS = {
    "mmr": ("lambda_mult", "by", "depth", "timeout"),
    "near_duplicates": ("threshold", "by", "timeout"),
    "page_cap": ("max_chunks_per_page", "max_chunks_per_document"),
    "recency": ("weight", "half_life_days", "date_key", "reference_date", "depth"),
    "rerank": ("model", "backend", "depth", *RERANK_OPTIONS),
    "weighted": ("weights", "depth", "scale_fused", "chunk_index_key", "chunks_in_file_key"),
}
