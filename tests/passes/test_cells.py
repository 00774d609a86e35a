"""Rows against the centres of cells, one call per thread: what every form of rows comes to, and grouping by label."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

from globular.model.cells import CellLevel, CellTree, CenterCells
from globular.passes.cpu import CpuShard, cells
from globular.passes.cpu import rows as in_memory
from globular.passes.cpu.engine import group as groups
from globular.passes.cpu.engine import score
from globular.passes.cpu.engine.group import SORTED_ALONE, count_labels, group_by
from globular.seam.among import Down, Probe
from globular.seam.passes import Assign
from reference import assign as hard
from reference import probe as probed

FORMS: dict[str, Any] = {
    "float64": np.float64,
    "float32": np.float32,
    "uint8": np.uint8,
    "fortran": np.asfortranarray,
    "csr": sparse.csr_matrix,
    "picked": lambda rows: in_memory.DenseRows(rows[::-1].copy()).picked(np.arange(len(rows))[::-1]),
    "picked uint8": lambda rows: in_memory.DenseRows(rows[::-1].astype(np.uint8)).picked(np.arange(len(rows))[::-1]),
}


def problem(D: int, offset: float = 0.0, *, unit: bool = False) -> tuple[Any, Any, CenterCells]:
    """Rows, whole numbers that are exact in every form, centres, and cells of them."""
    random = np.random.default_rng(D)
    rows = random.integers(0, 200, size=(300, D)).astype(np.float64) + offset
    centers = rows[random.choice(len(rows), 40, replace=False)] + random.normal(size=(40, D))
    if unit:
        centers /= np.linalg.norm(centers, axis=1, keepdims=True)
    cell_of = hard.closest_centers(centers, centers[:6])
    sizes = np.bincount(cell_of, minlength=6)
    starts = np.concatenate([[0], np.cumsum(sizes[sizes > 0])])
    return rows, centers, CenterCells(centers[:6][sizes > 0], np.argsort(cell_of, kind="stable"), starts)


@pytest.fixture(params=[False, True], ids=["large blocks", "small blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with few rows, and as with many: several tasks a cell, several blocks a task."""
    if request.param:
        monkeypatch.setattr(cells, "ROWS_PER_TASK", 20)
        monkeypatch.setattr(in_memory, "ROWS_AT_ONCE", 50)
        monkeypatch.setattr(cells, "CACHED_NUMBERS", 40)
        monkeypatch.setattr(cells, "BLOCK_ROWS", (3, 7))


@pytest.mark.parametrize(("D", "unit"), [(1, False), (8, False), (8, True), (9, False), (9, True)])
@pytest.mark.parametrize("form", FORMS)
def test_probing_equals_its_oracle(form: str, D: int, unit: bool, blocks: None) -> None:
    rows, centers, among = problem(D, unit=unit)
    seen = hard.as_seen(rows, unit_rows=unit)
    weights = np.random.default_rng(1).uniform(size=len(rows))
    before = np.random.default_rng(2).integers(len(centers), size=len(rows)).astype(np.int32)
    labels, best = probed.probing_pass(seen, centers, among, 2, before)
    for n_threads in (1, 3):
        shard = CpuShard(FORMS[form](rows), weights, unit_rows=unit, n_threads=n_threads)
        shard.labels[:] = before
        found = shard.run(Assign(centers, Probe(among, 2)))
        np.testing.assert_array_equal(shard.labels, labels)
        np.testing.assert_allclose(shard.squared_distances, best, atol=1e-9)
        assert found.objective == pytest.approx(float(weights @ best))
        assert found.n_changed == np.count_nonzero(before != shard.labels)


@pytest.mark.parametrize("offset", [0.0, 1e6])
@pytest.mark.parametrize("D", [1, 8, 9])
@pytest.mark.parametrize("form", FORMS)
def test_down_finds_the_closest_child(form: str, D: int, offset: float, blocks: None) -> None:
    if "uint8" in form and offset:
        pytest.skip("too small a type")
    rows, centers, among = problem(D, offset)
    tree = CellTree((CellLevel(among.middles, np.array([0, len(among.middles)])), CellLevel(centers, among.starts)))
    cell_of = hard.closest_centers(rows, among.middles)
    apart = hard.squared_distances(rows, centers)
    inside = np.repeat(np.arange(len(among.middles)), np.diff(among.starts))
    apart[cell_of[:, None] != inside] = np.inf
    for n_threads in (1, 3):
        shard = CpuShard(FORMS[form](rows), n_threads=n_threads)
        before = shard.labels.copy()
        found = shard.run(Assign(centers, Down(tree)))
        np.testing.assert_array_equal(shard.labels, apart.argmin(axis=1))
        np.testing.assert_allclose(shard.squared_distances, apart.min(axis=1), atol=1e-9)
        assert found.n_changed == np.count_nonzero(before != shard.labels)


@pytest.mark.parametrize("D", [8, 9])
@pytest.mark.parametrize("form", ["float32", "csr"])
def test_rows_keep_a_label_that_is_as_close_and_else_get_the_lowest(form, D, monkeypatch):
    monkeypatch.setattr(score, "CENTER_CHUNK", 64)
    rows = problem(D)[0]
    centers = rows[np.random.default_rng(0).integers(len(rows), size=200)]
    shard = CpuShard(FORMS[form](rows))
    product = cells.CellProduct(shard, centers)
    apart = hard.squared_distances(rows, centers)
    lowest, highest = apart.argmin(axis=1), 199 - apart[:, ::-1].argmin(axis=1)
    assert (lowest != highest).any()
    for before, expected in [(np.full(len(rows), -1), lowest), (highest, highest)]:
        best, labels = np.where(before < 0, np.inf, apart.min(axis=1)), before.astype(np.int32)
        product.search_all(best, labels)
        np.testing.assert_array_equal(labels, expected)
        np.testing.assert_allclose(best, apart.min(axis=1), atol=1e-9)


@pytest.mark.parametrize("n", [0, 5, SORTED_ALONE, SORTED_ALONE + 1, 3 * SORTED_ALONE])
@pytest.mark.parametrize("n_groups", [1, 700, 2 * SORTED_ALONE])
def test_groups_are_a_stable_sort_for_any_number_of_threads(n, n_groups, monkeypatch):
    shared, share = [], groups.share_kernel

    def noted(call: Any, queue: Any, n_threads: int, **how: Any) -> None:
        shared.append(n_threads)
        share(call, queue, n_threads, **how)

    monkeypatch.setattr(groups, "share_kernel", noted)
    labels = np.random.default_rng(n).integers(n_groups, size=n).astype(np.int32)
    expected = np.argsort(labels, kind="stable")
    for n_threads in (1, 2, 7):
        starts, order = group_by(labels, n_groups, n_threads)
        np.testing.assert_array_equal(order, expected)
        np.testing.assert_array_equal(np.diff(starts), np.bincount(labels, minlength=n_groups))
    assert (max(shared) > 1) == (n > SORTED_ALONE and 8 * n_groups <= n)


def test_spans_of_a_sort_count_into_lines_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that write to one line of the cache were slower than one thread alone."""
    seen = []

    def count(queue: NDArray[np.int64], labels: NDArray[np.int32], counts: NDArray[np.int32]) -> None:
        seen.append(counts)
        count_labels(queue, labels, counts)

    monkeypatch.setattr(groups, "count_labels", count)
    group_by(np.zeros(2 * SORTED_ALONE, dtype=np.int32), 3, 4)
    assert len(seen[0]) > 1
    assert seen[0].strides[0] >= 3 * seen[0].itemsize + 128
