"""Presets: whole pipelines in YAML.

```yaml
version: 1
name: voicevault                  # any name
k: 5                              # the default number of results
timeout: 30                       # seconds for a whole search; no limit by default
llm: {ollama: "qwen3:8b"}         # for parts that name no language model; or openai, with base_url and request
on_error: skip                    # or raise
channels:                         # any of these; `{}` for the defaults
  bm25: {formula: okapi, k1: 1.5, b: 0.75, statistics: exact, plain_words: false, operators: true, fuzzy: auto,
         depth: 100, timeout: 5}
  dense: {model: all-MiniLM-L6-v2, backend: auto, depth: 100, timeout: 5, funnel: {prefix: 64, candidates: 1000}}
  questions: {by: both, questions: 200, depth: 50, timeout: 5}
  graph: {hops: 2, decay: 0.5, fan_out: 50, depth: 50, timeout: 5, store: "falkor://localhost:6379/statutes"}
# The channels of a route; all for routes not named. Or `route: rules`. With method model a language model routes.
route: {method: rules, simple: [graph], simple_fallback: false}
# Or a list of these. By rules: rules, acronyms, compounds, synonyms, spelling, rm3, follow_up; by a language model:
# model (other wordings), hyde (a hypothetical answer), model_follow_up.
expansion: {method: rules, size: 3}
fusion: {method: rrf, k: 60, depth: 100, weights: {bm25: 1.0, dense: 1.0}}
flare: {enabled: auto, max_retrievals: 5, threshold: 0.4}  # true needs a language model, auto uses one where given
stages:                           # in this order
  - graph_expansion: {seeds: 3, limit: 10, weight: 1.0, hops: 1, pool: 50, store: "falkor://localhost:6379/statutes"}
  - rerank: {model: ms-marco-MiniLM-L-12-v2, backend: auto, depth: 20, timeout: 5}
  - relevance: {slope: 4.0, intercept: -2.5}  # of fused scores, instead of rerank: see evaluation.fit_relevance
  - relevance_threshold: {least: 0.3}
  - weighted: {weights: {fused: 0.4, semantic: 0.3, keyword: 0.2, position: 0.1}, depth: 100, scale_fused: false}
  - recency: {weight: 0.1, half_life_days: 30, date_key: date, reference_date: 2026-01-31, depth: 100}
  - near_duplicates: {threshold: 0.8, by: shingles, timeout: 5}
  - mmr: {lambda_mult: 0.7, by: vectors, depth: 100, timeout: 5}
  - llm_rerank: {depth: 50, top_n: 10, timeout: 3}
  - page_cap: {max_chunks_per_page: 2, max_chunks_per_document: 5}
  - parents: {max_chars: 12000, header_key: header_id, timeout: 5, store: "redis://localhost/0", key: "parent:{id}"}
access: optional                  # or mandatory: a search without access rights (`require`) is refused
confidence: {least: 0.3}  # "none" where the reranker gives no hit this probability; by default where there is no hit
context: {max_tokens: 3000, max_chars: 12000, history_turns: 5, markers: source, reorder: false}
```

The language model of a part is its own (`ollama` or `openai`), else the one given as `load_preset(name, llm=...)`, else
the preset's.

A `store` is the address of a server (see `engines.addresses`). Without one, the graph and the parents are the knowledge
base's, or those given by `load_preset(name, parents=..., graph=...)`. Write passwords as `${NAME}`.

The keys of `fusion` beside `method`, `depth` and `weights` are the method's options: `{method: convex, alpha: 0.5}`.
`${NAME}` in a text is replaced from the environment; alone it may be a number. An unknown key raises an error that
names the nearest key.
"""

from voicevault_retrievers.pipeline.presets.files import (
    load_preset,
    preset_data,
    preset_file,
    preset_names,
    save_preset,
)
from voicevault_retrievers.pipeline.presets.preset import DEFAULT_MODEL, KEYS, VERSION, Base, Preset
from voicevault_retrievers.pipeline.presets.serialization import preset_to_data

__all__ = [
    "DEFAULT_MODEL",
    "KEYS",
    "VERSION",
    "Base",
    "Preset",
    "load_preset",
    "preset_data",
    "preset_file",
    "preset_names",
    "preset_to_data",
    "save_preset",
]
