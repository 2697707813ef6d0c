"""The preset `newsroom`: an index for each tenant, rebuilt when its news has changed, the newer news first."""

# ruff: noqa: T201 - a program prints

from __future__ import annotations

import argparse
import re
import sys
from datetime import date, datetime
from pathlib import Path

from voicevault_retrievers import Chunk, Pipeline, Query, TenantIndex, shipped
from voicevault_retrievers.dense import load_embedder
from voicevault_retrievers.pipeline.presets import Preset, preset_data
from voicevault_retrievers.rerank import PROFILES

sys.path.append(str(Path(__file__).parents[2]))
from shown import found

LOG = shipped("sample") / "documents" / "incident-log.txt"
QUESTION = "What was wrong with buoy B4?"
TODAY = date(2024, 12, 31)
LATEST = Chunk(
    "INC-2024-020",
    "T4 was held for two hours because no wave data came from buoy B4. A seal slept on its lid.",
    None,
    {"source_file": LOG.name, "section": "T4", "date": "2024-12-30"},
)


class Desk:
    """The news of one tenant: the incidents of the turbines, or of all other places."""

    def __init__(self, turbines: bool) -> None:
        entries = re.split(r"\n\n(?=INC-)", LOG.read_text(encoding="utf-8"))[1:]
        every = [_incident(entry) for entry in entries]
        self.news = [one for one in every if bool(re.fullmatch(r"T\d", one.metadata["section"])) == turbines]

    def __call__(self) -> list[Chunk]:
        return self.news


def _incident(entry: str) -> Chunk:
    """One entry as a chunk with its date and its place."""
    first, text = entry.strip().split("\n", 1)
    number, when, place = first.split(" | ")
    day = datetime.strptime(when.split(",")[0], "%d %B %Y").date().isoformat()
    return Chunk(number, text, None, {"source_file": LOG.name, "section": place, "date": day})


def pipeline_over(tenant: TenantIndex, profile: str) -> Pipeline:
    """The preset with a profile of the reranker; `accurate` is the one in the extra `offline`."""
    data = preset_data("newsroom")
    data["stages"][0]["rerank"]["model"] = profile
    return Preset.of(data).over(tenant)


def rebuild(tenant: TenantIndex) -> None:
    """Bring an index up to date where its source is another than what it holds."""
    if not tenant.needs_rebuild():
        print(f"{tenant.tenant}: up to date")
        return
    changes = tenant.rebuild().changes
    print(f"{tenant.tenant}: rebuilt, {changes.added} added, {changes.removed} removed")


def ask(tenant: TenantIndex, question: str, profile: str, k: int) -> None:
    """Ask one tenant on a fixed day, and print each hit with its date and what its score is made of."""
    print(f"\n{tenant.tenant}, Q: {question}")
    for rank, hit in enumerate(pipeline_over(tenant, profile).search(Query(question, reference_date=TODAY), k).hits, 1):
        told, recency = hit.chunk.metadata, hit.vote("recency")
        parts = " + ".join(f"{part.contribution:.3f} {part.stage}" for part in recency.parts) if recency else ""
        print(f"   {rank}. {hit.id}, {told['date']}, {told['section']}: {hit.score:.3f} = {parts}, {found(hit)}")


def main() -> None:
    """Make the indexes of two tenants, ask both the same, change the news of one, and ask it again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question", nargs="?", default=QUESTION)
    parser.add_argument("--profile", default="accurate", choices=list(PROFILES), help="the reranker  [accurate]")
    parser.add_argument("--root", type=Path, help="where the tenants' indexes are  [~/.voicevault/kbs]")
    parser.add_argument("--top-k", type=int, default=3, help="how many results  [3; the preset has 10]")
    args = parser.parse_args()

    print(f"reranker: {args.profile}, {PROFILES[args.profile]}")
    embedder, desks = load_embedder(), {"turbines": Desk(turbines=True), "site": Desk(turbines=False)}
    turbines, site = (TenantIndex(name, root=args.root, embedder=embedder, source=desks[name]) for name in desks)
    for tenant in (turbines, site):
        rebuild(tenant)
        ask(tenant, args.question, args.profile, args.top_k)

    print(f"\nNews of the turbines: {LATEST.text}")
    desks["turbines"].news.append(LATEST)
    rebuild(turbines)
    ask(turbines, args.question, args.profile, args.top_k)


if __name__ == "__main__":
    main()
