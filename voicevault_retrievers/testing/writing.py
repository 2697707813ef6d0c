"""Tests of writing: added chunks are stored once and unchanged, deleted chunks are gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from voicevault_retrievers.core.types import Chunk, Query
from voicevault_retrievers.engines import writing
from voicevault_retrievers.engines.engine import BATCH
from voicevault_retrievers.engines.server import WriteCounts
from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.testing.clients import Collections
from voicevault_retrievers.testing.corpora import WordEmbedder, chunks_of, described, vectors_of
from voicevault_retrievers.testing.expect import equal, held, refused, that
from voicevault_retrievers.testing.suite import AUTO, Suite

SMALL = 40
"""The size of a batch where the size does not matter."""

ODD = [
    Chunk(
        "plain",
        "a pump",
        "parent",
        {"page": 1, "flag": True, "none": None, "list": [1, "a", None, [2.5]], "in": {"a": {"b": []}}},
    ),
    Chunk(
        "a'b\"c\\d%s{}`$",
        "'; DROP TABLE chunks; -- pump",
        None,
        {"k'\"\\": "v'\"\\", "float": 1.0, "int": 1, "true": True},
    ),
    Chunk(
        "emoji 😀 größe 数 ", "😀 pump größe 数据 é é", "p 😀", {"größe": "😀", "数": -3, "big": 2**70, "tiny": 5e-324}
    ),
    Chunk("nul", "before\0after pump", None, {"text": "a\0b", "lines": "a\r\nb\tc\u2028"}),
    Chunk("i" * 1024, "", None, {"": "no key", " ": "blank"}),
    Chunk("blank", " \n ", "plain", {}),
    Chunk("headed", "its default value", None, {}, header="😀 größe\0 > 'pump'"),
]


class FailsOnce(WordEmbedder):
    """An embedder that fails when it is first asked for a given text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.failed = False

    def embed_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        if self.text in texts and not self.failed:
            self.failed = True
            raise RuntimeError("the embedder fails once")
        return super().embed_documents(texts)


class WritingSuite(Suite):
    """Tests of adding, replacing, listing and deleting."""

    def test_chunks_come_back_as_they_were_given(self, collections: Collections) -> None:
        client = collections(embedder=WordEmbedder(), analyzer=AUTO)
        chunks = [*ODD, *described(self.values)]
        equal(client.upsert(chunks), WriteCounts(added=len(chunks)), "written")
        held(client.get(chunk.id for chunk in chunks), chunks, client.name)
        held(
            {hit.id: hit.chunk for hit in client.bm25("pump", 100)},
            [c for c in chunks if "pump" in c.indexed_text],
            client.name,
        )
        near = {hit.id: hit.chunk for hit in client.dense("pump", 100)}
        held(near, [chunk for chunk in chunks if chunk.id in near], client.name)
        held({chunk.id: chunk for chunk in client.engine}, chunks, client.name)

    @pytest.mark.parametrize("where", ["id", "text", "parent", "value", "key"])
    def test_half_a_surrogate_pair_is_kept_or_refused(self, collections: Collections, where: str) -> None:
        half = "half \ud800 pump"
        chunk = {
            "id": Chunk(half, "pump"),
            "text": Chunk("half", half),
            "parent": Chunk("half", "pump", half),
            "value": Chunk("half", "pump", None, {"v": half}),
            "key": Chunk("half", "pump", None, {half: 1}),
        }[where]
        client = collections(embedder=WordEmbedder(), analyzer=AUTO)
        others = chunks_of("en", 3)
        try:
            client.upsert([*others, chunk])
        except ConfigError:
            equal(client.count(), 0, "chunks written of what was refused")
            client.upsert(others)
            held(
                {hit.id: hit.chunk for hit in client.engine.bm25().search("pump \ud800", 9)},
                [c for c in others if "pump" in c.text],
                client.name,
            )
        else:
            held(client.get([chunk.id]), [chunk], client.name)
            that(chunk.id in client.bm25("pump", 9).ids, "it is kept and its words do not find it")

    def test_what_is_there_is_left_alone(self, collections: Collections) -> None:
        embedder = WordEmbedder()
        client = collections(embedder=embedder, analyzer=AUTO)
        chunks = chunks_of("en", 30)
        equal(client.upsert(chunks), WriteCounts(added=30), "written at first")
        embedder.asked.clear()
        equal(client.upsert(chunks), WriteCounts(unchanged=30), "written again")
        changed = replace(chunks[7], text="an entirely other buoy")
        equal(
            client.upsert([*chunks[:7], changed, *chunks[8:], Chunk("new", "a new buoy")]),
            WriteCounts(1, 1, 29),
            "with changes",
        )
        equal(sorted(embedder.asked), ["a new buoy", "an entirely other buoy"], "texts that the embedder was asked for")
        equal(client.count(), 31, "count")

    @pytest.mark.parametrize(
        "changed",
        [
            {"text": "zebra"},
            {"metadata": {"page": 9}},
            {"metadata": {"page": True}},
            {"metadata": {}},
            {"metadata": {"other": 1}},
            {"parent_id": "p"},
        ],
        ids=["text", "value", "type", "no key", "another key", "parent"],
    )
    def test_a_change_of_any_part_replaces(self, collections: Collections, changed: dict[str, Any]) -> None:
        client = collections(embedder=WordEmbedder(), analyzer=AUTO)
        before = Chunk("one", "pump", None, {"page": 1})
        client.upsert([before])
        after = replace(before, **changed)
        equal(client.upsert([after]), WriteCounts(replaced=1), "written")
        held(client.get(["one"]), [after], client.name)
        equal(client.count(), 1, "count")
        where = {"page": {"$exists": True}}
        expected = ("one",) if "page" in after.metadata else ()
        found = (
            client.bm25(Query("pump zebra", where=where), 5).ids,
            client.dense(Query(after.text, where=where), 5).ids,
        )
        equal(found, (expected, expected), f"found by {where!r}")

    def test_replaced_chunks_are_found_by_their_new_words_and_vectors_only(self, collections: Collections) -> None:
        client = collections(embedder=WordEmbedder(), analyzer=AUTO)
        chunks = chunks_of("en", 40)
        client.upsert([*chunks, Chunk("one", "giraffe giraffe", None, {"kind": "old"})])
        client.upsert([Chunk("one", "zebra zebra", None, {"kind": "new"})])
        equal(client.bm25("giraffe", 9).ids, (), "found by the old word")
        equal(client.bm25("zebra", 9).ids, ("one",), "found by the new word")
        equal(client.dense("zebra zebra", 1).ids, ("one",), "nearest to the new text")
        that((client.dense("giraffe giraffe", 50).ids or ("",))[0] != "one", "nearest to the old text")
        new = client.engine.vectors(["one"])["one"]
        expected = WordEmbedder().embed_queries(["zebra zebra"])[0]
        that(np.allclose(new, expected, atol=1e-6), f"vector {new} of the replaced chunk, expected {expected}")
        equal(client.delete(where={"kind": "old"}), 0, "chunks that pass a filter on the old metadata")

    def test_given_vectors_take_the_place_of_those_that_chunks_have(self, collections: Collections) -> None:
        client = collections(embedder=WordEmbedder(), analyzer=AUTO)
        chunks = [Chunk("one", "zebra zebra"), Chunk("two", "giraffe giraffe")]
        written = client.upsert(chunks)
        equal((written.added, written.unchanged), (2, 0), "written without vectors: added, unchanged")
        turned = WordEmbedder().embed_queries(["giraffe giraffe", "zebra zebra"])
        written = client.upsert(chunks, turned)
        equal((written.replaced, written.unchanged), (2, 0), "written with other vectors: replaced, unchanged")
        equal(client.dense("zebra zebra", 1).ids, ("two",), "nearest to the text whose vector was given")
        equal(client.bm25("zebra", 9).ids, ("one",), "found by its word")
        for again in (client.upsert(chunks, turned), client.upsert(chunks)):
            equal((again.replaced, again.unchanged), (0, 2), "written again: replaced, unchanged")

    def test_deleted_chunks_are_gone_everywhere(self, collections: Collections) -> None:
        client = collections(embedder=WordEmbedder(), analyzer=AUTO)
        chunks = chunks_of("en", 40)
        client.upsert(chunks)
        gone, kept = [chunk.id for chunk in chunks[::3]], [c for at, c in enumerate(chunks) if at % 3]
        equal(client.delete([*gone, gone[0], "nobody"]), len(gone), "deleted")
        equal(client.delete(gone), 0, "deleted again")
        equal(client.count(), len(kept), "count")
        equal(client.ids(), [chunk.id for chunk in kept], "listed")
        equal(client.get(gone), {}, "got")
        equal(client.engine.vectors(gone), {}, "vectors")
        for name, found in (("bm25", client.bm25("pump valves harbour", 99)), ("dense", client.dense("pump", 99))):
            that(not set(found.ids) & set(gone), f"{name} found deleted chunks")
        equal(set(client.engine.bm25().scan(Query("pump")).scores(gone)), set(), "scores of deleted chunks")
        equal(client.upsert(chunks), WriteCounts(added=len(gone), unchanged=len(kept)), "put in again")

    def test_delete_by_a_filter(self, collections: Collections) -> None:
        client = collections(embedder=WordEmbedder(), analyzer=AUTO)
        chunks = chunks_of("en", 40)
        client.upsert(chunks)
        equal(
            client.delete(where={"even": True, "page": {"$lt": 4}}),
            sum(c.metadata["even"] and c.metadata["page"] < 4 for c in chunks),
            "deleted",
        )
        equal(client.ids(), [c.id for c in chunks if not (c.metadata["even"] and c.metadata["page"] < 4)], "left")

    def test_delete_asks_to_be_told_what(self, collections: Collections) -> None:
        client = collections(embedder=WordEmbedder(), analyzer=AUTO)
        client.upsert(chunks_of("en", 5))
        wrong: list[tuple[Any, dict[str, Any]]] = [
            ((), {}), ((["a"],), {"where": {"a": 1}}), ((), {"where": {}}), (("en-00001",), {}), ((), {"where": "x"}),
            ((), {"where": [{"page": 1}]}), ((), {"where": {"page": {"$near": 1}}}),
        ]  # fmt: skip
        for arguments, options in wrong:
            with pytest.raises(ConfigError):
                client.delete(*arguments, **options)
        equal(client.count(), 5, "count")

    def test_what_does_not_fit_is_refused_before_anything_is_written(self, collections: Collections) -> None:
        client = collections(embedder=WordEmbedder(), analyzer=AUTO)
        chunks = chunks_of("en", 4)
        client.upsert(chunks)
        more = chunks_of("en", BATCH + 3, seed=1)
        rows = vectors_of(WordEmbedder(), more)
        for name, broken in (("NaN", np.nan), ("infinity", np.inf), ("length", 3.0)):
            wrong = rows.copy()
            wrong[-1, 0] = broken
            with pytest.raises(ConfigError):
                refused(client.upsert(more, wrong), f"vectors of a wrong {name}")
        for chunk in (more[0], Chunk("nan", "a", None, {"v": float("nan")}), Chunk("i" * 1025, "a"), "text"):
            with pytest.raises(ConfigError):
                client.upsert([*more, chunk])  # type: ignore[list-item]  # what is refused
        for vectors in (rows[:-1], rows[:, :-1]):
            with pytest.raises(ConfigError):
                client.upsert(more, vectors)
        with pytest.raises(ConfigError):
            client.engine.dense().search("pump", -1)
        held({chunk.id: chunk for chunk in client.engine}, chunks, client.name)

    def test_batches_pages_and_vectors(self, collections: Collections) -> None:
        embedder = WordEmbedder()
        client = collections(embedder=embedder, analyzer=AUTO)
        count = 2 * BATCH + 7
        chunks = chunks_of("en", count)
        rows = vectors_of(embedder, chunks)
        told: list[tuple[int, int]] = []
        written = client.upsert(chunks, rows, progress=lambda done, total: told.append((done, total)))
        equal(written, WriteCounts(added=count), "written")
        equal(told, [(BATCH, count), (2 * BATCH, count), (count, count)], "progress")
        equal(embedder.asked, [], "texts embedded though vectors were given")
        equal(client.count(), count, "count")
        for wrong in (0, -1, True, 1.5):
            with pytest.raises(ConfigError):
                refused(list(client.engine.stored(wrong)), f"stored({wrong!r})")  # type: ignore[arg-type]  # refused
        for size in (100, BATCH, count, 5 * BATCH):
            entries = list(client.engine.stored(size))
            equal(sorted(e.id for e in entries), [c.id for c in chunks], f"ids in pages of {size}")
            equal({e.digest for e in entries}, {client.engine.digest(c) for c in chunks}, f"digests in pages of {size}")
        stored = client.engine.vectors(c.id for c in chunks)
        equal(sorted(stored), [c.id for c in chunks], "ids of vectors")
        off = max(float(np.abs(stored[c.id] - row).max()) for c, row in zip(chunks, rows, strict=True))
        that(off < 1e-6, f"vectors came back changed by up to {off}")
        held({chunk.id: chunk for chunk in client.engine}, chunks, client.name)

    def test_what_was_broken_off_goes_on(self, collections: Collections, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(writing, "BATCH", SMALL)
        chunks = chunks_of("en", 2 * SMALL)
        chunks[SMALL + 5] = replace(chunks[SMALL + 5], text="a broken text")
        embedder = FailsOnce("a broken text")
        client = collections(embedder=embedder, analyzer=AUTO)
        with pytest.raises(RuntimeError, match="fails once"):
            client.upsert(chunks)
        equal(client.ids(), [chunk.id for chunk in chunks[:SMALL]], "written before it broke off")
        equal(client.upsert(chunks), WriteCounts(added=SMALL, unchanged=SMALL), "written by the same call again")
        held({chunk.id: chunk for chunk in client.engine}, chunks, client.name)

    def test_parents_are_kept_and_not_searched(self, collections: Collections) -> None:
        client = collections(embedder=WordEmbedder(), analyzer=AUTO)
        parents = [
            Chunk("p1", "giraffe parent", None, {"title": "One"}),
            Chunk("p'2", "giraffe 😀", None, {"list": [1]}),
        ]
        chunks = [Chunk(f"c{at}", "pump", parents[at % 2].id) for at in range(4)]
        client.upsert(chunks, parents=parents)
        held(client.parents(["p1", "p'2", "nobody"]), parents, client.name)
        held(client.engine.fetch(["p1", "p'2"]), parents, client.name)
        equal(client.get(["p1", "p'2"]), {}, "parents got as chunks")
        equal(client.count(), 4, "count")
        equal(client.ids(), ["c0", "c1", "c2", "c3"], "listed")
        equal(client.bm25("giraffe", 9).ids, (), "found by a parent's word")
        that(set(client.dense("giraffe parent", 9).ids) <= {"c0", "c1", "c2", "c3"}, "a parent was found by its vector")
        equal(client.delete(["c0", "p1"]), 1, "deleted")
        held(client.parents(["p1", "p'2"]), parents, client.name)
        equal(client.delete(["c2"]), 1, "deleted")
        held(client.parents(["p1", "p'2"]), parents[1:], client.name)
        client.delete(where={"$not": {"none": 1}})
        equal((client.count(), client.parents(["p1", "p'2"])), (0, {}), "left after all is deleted")

    def test_chunks_of_the_type_parent_are_kept_as_parents(self, collections: Collections) -> None:
        """Such chunks are stored like given parents, with any vector; a chunk that was searched no longer is."""
        client = collections(embedder=WordEmbedder(), analyzer=AUTO)
        parent = Chunk("p", "giraffe parent", None, {"chunk_type": "parent", "title": "One"})
        types: list[dict[str, Any]] = [{"chunk_type": "child"}, {"chunk_type": "standalone"}, {}]
        chunks = [Chunk(f"c{at}", "pump", "p", types[at]) for at in range(3)]
        client.upsert([replace(parent, metadata={"chunk_type": "child"})])
        equal(client.upsert([parent, *chunks]), WriteCounts(added=3), "written")
        equal(client.ids(), ["c0", "c1", "c2"], "listed")
        equal(client.bm25("giraffe", 9).ids, (), "found by a parent's word")
        that(set(client.dense("giraffe parent", 9).ids) <= {"c0", "c1", "c2"}, "a parent was found by its vector")
        equal(client.engine.vectors(["p"]), {}, "a parent's vector")
        held(client.parents(["p"]), [parent], client.name)
        other = replace(parent, id="q")
        for vectors in (vectors_of(WordEmbedder(), [other, *chunks]), vectors_of(WordEmbedder(), chunks)):
            equal(client.upsert([other, *chunks], vectors), WriteCounts(unchanged=3), "written with vectors")
        held(client.parents(["p", "q"]), [parent, other], client.name)
        equal(client.delete(["c0", "c1", "c2"]), 3, "deleted")
        equal(client.parents(["p"]), {}, "a parent whose last chunk was deleted")

    def test_parents_are_replaced_and_come_with_their_batch(
        self, collections: Collections, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(writing, "BATCH", SMALL)
        client = collections(embedder=WordEmbedder(), analyzer=AUTO)
        chunks = [replace(chunk, parent_id=f"p{at // 13}") for at, chunk in enumerate(chunks_of("en", 2 * SMALL + 10))]
        parents = [Chunk(f"p{at}", f"parent {at}") for at in range(7)]
        client.upsert(chunks, parents=parents)
        held(client.parents(p.id for p in parents), parents, client.name)
        changed = [replace(parent, text=f"{parent.text} changed") for parent in parents]
        equal(client.upsert(chunks, parents=changed), WriteCounts(unchanged=len(chunks)), "written")
        held(client.parents(p.id for p in parents), changed, client.name)

    @pytest.mark.parametrize("above", ["another", None])
    def test_a_parent_goes_when_its_last_chunk_is_given_another(
        self, collections: Collections, above: str | None
    ) -> None:
        client = collections(embedder=WordEmbedder(), analyzer=AUTO)
        old, new = Chunk("old", "a parent"), [Chunk("another", "another parent")] if above else []
        chunks = [Chunk(f"c{at}", "pump", "old") for at in range(2)]
        client.upsert(chunks, parents=[old])
        changed = [replace(chunk, parent_id=above) for chunk in chunks]
        client.upsert(changed[:1], parents=new)
        held(client.parents(["old", "another"]), [old, *new], client.name)
        client.upsert(changed[1:])
        held(client.parents(["old", "another"]), new, client.name)
        held(client.get(["c0", "c1"]), changed, client.name)
        client.upsert(chunks[:1], parents=[old])
        held(client.parents(["old", "another"]), [old, *new], client.name)

    def test_a_parent_that_no_chunk_has_named_stays(self, collections: Collections) -> None:
        client = collections(embedder=WordEmbedder(), analyzer=AUTO)
        lone, own = Chunk("lone", "a parent put in alone"), Chunk("own", "a parent of chunks")
        client.upsert([], parents=[lone])
        chunks = [*(Chunk(f"c{at}", "pump", "own", {"at": at}) for at in range(4)), Chunk("bare", "pump")]
        client.upsert(chunks, parents=[own])
        held(client.parents(["lone", "own"]), [lone, own], client.name)
        client.delete(["c0", "bare", "lone"])
        client.delete(where={"at": 1})
        client.upsert([replace(chunks[2], parent_id=None)])
        held(client.parents(["lone", "own"]), [lone, own], client.name)
        client.delete(["c2", "c3"])
        held(client.parents(["lone", "own"]), [lone], client.name)
        client.upsert([Chunk("late", "pump", "lone")])
        client.delete(["late"])
        equal(client.parents(["lone"]), {}, "a parent whose only chunk was deleted")

    def test_a_chunk_and_a_parent_may_have_one_id(self, collections: Collections) -> None:
        client = collections(embedder=WordEmbedder(), analyzer=AUTO)
        chunk, parent = Chunk("same", "pump", "same"), Chunk("same", "giraffe")
        client.upsert([chunk], parents=[parent])
        held(client.get(["same"]), [chunk], client.name)
        held(client.parents(["same"]), [parent], client.name)
        equal(list(chain(client.bm25("giraffe", 5).ids, client.bm25("pump", 5).ids)), ["same"], "found")

    def test_a_vector_of_zeros_is_refused(self, collections: Collections) -> None:
        client = collections(embedder=WordEmbedder(), analyzer=AUTO)
        chunks = chunks_of("en", 30)
        rows = vectors_of(WordEmbedder(), chunks)
        rows[4] = 0
        with pytest.raises(ConfigError, match=f"vector 4 of chunk '{chunks[4].id}' has length 0"):
            client.upsert(chunks, rows)
        equal(client.count(), 0, "count")
