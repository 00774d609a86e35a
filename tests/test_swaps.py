"""Swaps repair what seeds got wrong on data that fall into groups, and do no harm to others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from globular import KMeans, datasets
from globular.algorithms.cells import draw_cells, label_by_cells
from globular.algorithms.swaps import swap_seeds
from globular.backends.cpu import CpuShard
from globular.backends.split import SplitShard
from globular.reference import hard


def seeded(shard: Any, n_clusters: int, seed: int = 0) -> Any:
    random = np.random.default_rng(seed)
    centers = shard.take(np.sort(random.choice(shard.n_rows, n_clusters, replace=False)))
    label_by_cells(shard, centers, draw_cells(shard, centers, random))
    return centers, random


def test_every_group_of_a_grid_gets_its_center() -> None:
    grid = datasets.birch_grid(15, 40, random_state=0)
    shard = CpuShard(grid.X)
    centers, random = seeded(shard, 225)
    before = hard.squared_distances(grid.X, centers).min(axis=1).mean()
    swapped = swap_seeds(shard, centers, random)
    after = hard.squared_distances(grid.X, swapped.centers).min(axis=1).mean()
    assert swapped.n_swaps > 10 and after < 0.5 * before
    model = KMeans(225, algorithm="probing", random_state=0).fit(grid.X)
    assert model.inertia_ / len(grid.X) < 2.15  # the true centres leave 2


def test_labels_go_with_the_centers() -> None:
    grid = datasets.birch_grid(10, 30, random_state=1)
    shard = CpuShard(grid.X)
    centers, random = seeded(shard, 100)
    swapped = swap_seeds(shard, centers, random)
    assert swapped.centers.shape == (100, 2) and np.isfinite(swapped.centers).all()
    assert shard.labels.min() >= 0 and shard.labels.max() < 100


def test_they_do_no_harm_where_there_are_no_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    X = np.random.default_rng(0).normal(size=(4000, 20))
    swapped = KMeans(100, algorithm="probing", init="hierarchical", random_state=0).fit(X)
    monkeypatch.setattr("globular.algorithms.swaps.SAFETY", np.inf)
    plain = KMeans(100, algorithm="probing", init="hierarchical", random_state=0).fit(X)
    assert swapped.inertia_ < 1.003 * plain.inertia_


def test_few_clusters_and_constant_data() -> None:
    for X, C in ((np.zeros((50, 2)), 5), (np.random.default_rng(0).normal(size=(30, 2)), 2)):
        shard = CpuShard(X)
        centers, random = seeded(shard, C)
        assert swap_seeds(shard, centers, random).n_swaps == 0


def test_threads_and_splits_change_nothing() -> None:
    X = datasets.birch_grid(12, 50, random_state=2).X
    parts = [CpuShard(X[a:b], first_row=a) for a, b in ((0, 3000), (3000, 3007), (3007, len(X)))]
    results = []
    for shard in (CpuShard(X), CpuShard(X, n_threads=2), SplitShard(parts)):
        centers, random = seeded(shard, 144)
        results.append((swap_seeds(shard, centers, random), shard.labels.copy()))
    for swapped, labels in results[1:]:
        np.testing.assert_allclose(swapped.centers, results[0][0].centers, rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(labels, results[0][1])
        assert swapped.n_swaps == results[0][0].n_swaps


def test_a_given_start_is_not_swapped() -> None:
    X = datasets.birch_grid(10, 30, random_state=3).X
    start = X[:100]
    model = KMeans(100, algorithm="probing", init=start, random_state=0)
    first = next(iter(model.fit_iter(X)))
    assert first.objective <= hard.squared_distances(X, start).min(axis=1).sum() * 1.05
    assert first.objective >= hard.squared_distances(X, start).min(axis=1).sum() * (1 - 1e-9)
