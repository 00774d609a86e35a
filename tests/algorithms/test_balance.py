"""Clusters of limited size: limits hold, and the error is that of the best assignment, nearly."""

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from globular.algorithms.kmeans import balance
from globular.algorithms.kmeans.balance import Assignment
from globular.passes.cpu import CpuShard
from makers import blobs, lattice


def best_error(rows: np.ndarray, centers: np.ndarray, most: int) -> float:
    """The least error: every cluster is as many places as it may have rows."""
    costs = np.repeat(cdist(rows, centers, "sqeuclidean"), most, axis=1)
    return float(costs[linear_sum_assignment(costs)].sum())


@pytest.mark.parametrize("remembered", [2, 3, 16])
@pytest.mark.parametrize("most", [15, 17, 30])
def test_the_error_is_nearly_the_least(most: int, remembered: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balance, "REMEMBERED", remembered)
    rows = blobs(n=300, C=6, D=3)
    found = Assignment(CpuShard(rows), rows[:20].copy(), np.ones(300))
    assert found.sizes.max() > most
    found.limit(most)
    assert found.sizes.max() <= most
    np.testing.assert_allclose(found.own, np.square(rows - found.centers[found.labels]).sum(axis=1))
    assert found.error <= 1.02 * best_error(rows, found.centers, most)


def test_rows_that_are_all_alike_are_shared_out() -> None:
    rows = np.zeros((120, 2))
    centers = np.vstack([np.zeros((3, 2)), np.arange(18.0).reshape(9, 2)])
    found = Assignment(CpuShard(rows), centers, np.ones(120))
    found.limit(10)
    assert found.sizes.tolist() == [10.0] * 12
    grid = lattice(n=200, side=4)
    found = Assignment(CpuShard(grid), np.unique(grid, axis=0)[:10].copy(), np.ones(200))
    found.limit(20)
    assert found.sizes.tolist() == [20.0] * 10 and found.error <= 1.02 * best_error(grid, found.centers, 20)


def test_what_the_auction_leaves_finds_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balance, "ROUNDS", 0)
    rows = blobs(n=300, C=6, D=3)
    weights = np.random.default_rng(0).uniform(0.5, 2.0, size=300)
    found = Assignment(CpuShard(rows, weights), rows[:20].copy(), weights)
    found.limit(20.0)
    assert found.sizes.max() <= 20.0 * (1 + 1e-12)
    with pytest.raises(ValueError, match=r"max_size: row \d+ finds no cluster with room"):
        Assignment(CpuShard(rows[:5]), rows[:2].copy(), np.full(5, 2.0)).limit(5.0)


def test_small_clusters_are_dissolved_the_smallest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balance, "REMEMBERED", 2)  # so that some rows have to ask all centres
    rows = blobs(n=300, C=6, D=3)
    found = Assignment(CpuShard(rows), rows[:40].copy(), np.ones(300))
    kept = found.dissolve(12)
    alive, labels = np.ones(40, dtype=bool), cdist(rows, rows[:40]).argmin(axis=1)
    while True:
        sizes = np.where(alive, np.bincount(labels, minlength=40), 10**6)
        if sizes.min() >= 12:
            break
        alive[sizes.argmin()] = False
        labels = np.where(alive, cdist(rows, rows[:40]), np.inf).argmin(axis=1)
    np.testing.assert_array_equal(kept, np.flatnonzero(alive))
    np.testing.assert_array_equal(found.labels, labels)
    assert 1 < len(kept) < 40
    assert len(Assignment(CpuShard(rows), rows[:40].copy(), np.ones(300)).dissolve(10**6)) == 1
