"""Vectors in a file: whatever is computed with them is of rows that were checked, also for several searches at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.helpers import HashEmbedder
from voicevault_retrievers import Chunk, KnowledgeBase
from voicevault_retrievers.dense import passes, rescoring
from voicevault_retrievers.dense.passes import Passes
from voicevault_retrievers.errors import IndexDamagedError
from voicevault_retrievers.pipeline.presets import Preset
from voicevault_retrievers.store import commit, files

CHUNKS = [Chunk(f"c{at:02}", f"pump {at % 7} valve {at}") for at in range(40)]
WEIGHTS = np.random.default_rng(1).standard_normal((3, HashEmbedder().dimension)).astype(np.float32)
USES: dict[str, Callable[[Any], Any]] = {
    "a row": lambda rows: rows[len(CHUNKS) - 2],
    "a row from the end": lambda rows: rows[-2],
    "some rows": lambda rows: rows[[1, 38, 30]],
    "some rows from the end": lambda rows: rows[[1, -2]],
    "a mask": lambda rows: rows[np.arange(len(rows)) > 30],
    "a slice": lambda rows: rows[2:39],
    "a slice from the end": lambda rows: rows[:1:-1],
    "each row": lambda rows: np.stack(list(rows)),
    "on the left": lambda rows: rows @ WEIGHTS[0],
    "on the right": lambda rows: WEIGHTS @ rows.T,
    "matmul": lambda rows: np.matmul(rows, WEIGHTS.T),
    "transposed": lambda rows: rows.T[0],
    "a ufunc": lambda rows: np.multiply(rows, 2),
    "a reduction": lambda rows: np.add.reduce(rows),
    "passes for several": lambda rows: np.stack(Passes().products(WEIGHTS, [rows])[0]),
    "the nearest by numpy": lambda rows: nearest(rows, compiled=False),
    "the nearest by numba": lambda rows: nearest(rows, compiled=True),
}


def nearest(rows: Any, *, compiled: bool) -> NDArray[np.float64]:
    """The best cosines, where bounds exclude no row."""
    with patch.object(rescoring, "BESIDE", SimpleNamespace(ready=lambda *_: compiled)):
        return rescoring.nearest(rows, WEIGHTS[0], np.ones(len(rows), np.float32), 5)[1]


@pytest.fixture
def kb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KnowledgeBase:
    """A base whose chunks are in a segment on disk, in files of several blocks."""
    monkeypatch.setattr(files, "BLOCK", 1024)
    monkeypatch.setattr(files, "SMALL", 0)
    monkeypatch.setattr(commit, "SEAL_AT", 1)
    with KnowledgeBase.create("kb", root=tmp_path, embedder=HashEmbedder()) as made:
        made.add(CHUNKS)
    return KnowledgeBase.open("kb", root=tmp_path, embedder=HashEmbedder())


@pytest.fixture
def file(kb: KnowledgeBase) -> files.BlockFile:
    (entry,) = kb.manifest.segments
    return files.open_folder(kb.path / entry.name, entry.files)["vectors.npy"]


@pytest.mark.parametrize("use", USES.values(), ids=list(USES))
def test_what_is_computed_is_as_of_a_plain_array(file: files.BlockFile, use: Callable[[Any], Any]) -> None:
    found = use(file.rows())
    assert type(found) is np.ndarray
    assert np.array_equal(found, use(file.array()))


@pytest.mark.parametrize("nan", [False, True], ids=["a bit", "NaN"])
@pytest.mark.parametrize("use", USES.values(), ids=list(USES))
def test_nothing_is_computed_of_rows_that_have_changed(kb: KnowledgeBase, use: Callable[[Any], Any], nan: bool) -> None:
    (entry,) = kb.manifest.segments
    path = kb.path / entry.name / "vectors.npy"
    data = bytearray(path.read_bytes())
    at = len(data) - HashEmbedder().dimension * 6  # in the last row but one
    data[at : at + 4] = np.float32(np.nan).tobytes() if nan else bytes([data[at] ^ 1, *data[at + 1 : at + 4]])
    path.write_bytes(data)
    with pytest.raises(IndexDamagedError, match="has changed"):
        use(files.open_folder(kb.path / entry.name, entry.files)["vectors.npy"].rows())


def test_rows_that_reach_over_several_blocks_are_checked_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "BLOCK", 1024)
    monkeypatch.setattr(files, "SMALL", 0)
    folder = files.NewFolder(tmp_path / "wide")
    folder.save("vectors.npy", np.ones((6, 1500), np.float32))
    entries = folder.seal()
    path = tmp_path / "wide" / "vectors.npy"
    data = bytearray(path.read_bytes())
    data[3 * 6000 + 3000] ^= 1  # in the middle of a row
    path.write_bytes(data)
    for take in (lambda rows: rows[[3]], lambda rows: rows[3], lambda rows: rows[2:4]):
        with pytest.raises(IndexDamagedError, match="has changed"):
            take(files.open_folder(tmp_path / "wide", entries)["vectors.npy"].rows())
    assert files.open_folder(tmp_path / "wide", entries)["vectors.npy"].rows()[[1, 5]].all()


def test_damaged_rows_do_not_keep_others_from_machine_code(file: files.BlockFile) -> None:
    """It is made without them."""
    steps: list[Any] = []
    rows = file.rows()
    with patch.object(rescoring, "BESIDE", SimpleNamespace(ready=lambda key, own, after: steps.extend(own))):
        rescoring.nearest(rows, WEIGHTS[0], np.ones(len(rows), np.float32), 5)
    with patch.object(files.CheckedRows, "check_each", lambda self, rows: list(rows) and pytest.fail("read")):
        for step in steps:
            step()
    assert len(steps) == 1


@pytest.mark.usefixtures("unrecorded")
def test_several_queries_of_one_call_share_passes_and_find_what_each_finds(
    kb: KnowledgeBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Preset.of({"version": 1, "channels": {"bm25": {}, "dense": {}}}).over(kb)
    texts = [f"pump {at} valve {at}" for at in range(6)]
    alone = [pipeline.search(text, k=5) for text in texts]
    products, vectors = passes.rescoring.products, []
    monkeypatch.setattr(passes.rescoring, "products", lambda rows, of: vectors.append(of) or products(rows, of))
    together = pipeline.search_many(texts, k=5)
    assert [of.shape for of in vectors] == [(6, HashEmbedder().dimension)]
    assert [one.errors for one in together] == [()] * 6
    assert [one.ranking.ids for one in together] == [one.ranking.ids for one in alone]
