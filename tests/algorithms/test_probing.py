"""Probing: cells of centres, the probing pass against its oracle, and k-means by probing."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from globular import KMeans
from globular.algorithms.kmeans.cells import draw_cells, graph_by_cells, label_by_cells
from globular.algorithms.kmeans.probing import (
    MORE_LOOKS,
    Labelling,
    ProbingOptions,
    find_labels,
    label_recall,
    label_rows,
    probing_kmeans,
)
from globular.model.cells import CenterCells
from globular.passes.cpu import CpuShard
from globular.seam.among import Probe
from globular.seam.passes import Assign
from reference import assign as hard
from reference import probe as probed


def blobs(n: int = 600, D: int = 5, n_blobs: int = 40, seed: int = 0, dtype: Any = np.float64) -> Any:
    random = np.random.default_rng(seed)
    middles = 5 * random.normal(size=(n_blobs, D))
    return (middles[random.integers(n_blobs, size=n)] + random.normal(size=(n, D))).astype(dtype)


@pytest.fixture(params=["cells", "cells of cells"])
def depth(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """As with few centres, and as with very many."""
    if request.param == "cells of cells":
        monkeypatch.setattr("globular.algorithms.kmeans.cells.CELLS_OF_CELLS_FROM", 30)
    return str(request.param)


def start(shard: CpuShard, n_clusters: int, seed: int = 0) -> Any:
    """Random rows as centres, rows labelled by cells."""
    random = np.random.default_rng(seed)
    centers = shard.take(np.sort(random.choice(shard.n_rows, n_clusters, replace=False)))
    label_by_cells(shard, centers, draw_cells(shard, centers, random))
    return centers, random


def test_cells_partition_the_centers(depth: str) -> None:
    centers = blobs(200)
    cells = draw_cells(CpuShard(centers), centers, np.random.default_rng(0))
    assert sorted(cells.order.tolist()) == list(range(200))
    assert (np.diff(cells.starts) > 0).all() and len(cells.middles) == len(cells.starts) - 1


def test_labels_by_cells_are_the_closest_of_the_closest_cell() -> None:
    X = blobs()
    shard = CpuShard(X)
    centers = X[:50]
    cells = draw_cells(shard, centers, np.random.default_rng(1))
    label_by_cells(shard, centers, cells)
    cell_of = hard.squared_distances(X, cells.middles).argmin(axis=1)
    distances = hard.squared_distances(X, centers)
    for i in range(len(X)):
        members = cells.order[cells.starts[cell_of[i]] : cells.starts[cell_of[i] + 1]]
        assert shard.labels[i] == members[distances[i, members].argmin()]


def test_the_graph_by_cells_is_exact_where_all_cells_are_adjacent() -> None:
    centers = blobs(40)  # six cells: all adjacent
    shard = CpuShard(centers)
    graph = graph_by_cells(shard, centers, draw_cells(shard, centers, np.random.default_rng(0)), 5)
    np.testing.assert_array_equal(graph, hard.squared_distances(centers, centers).argsort(axis=1)[:, :5])


@pytest.mark.parametrize("n_probes", [1, 3, 100])
@pytest.mark.parametrize("form", ["float64", "float32", "uint8", "csr", "unit", "weighted"])
def test_the_pass_equals_its_oracle(form: str, n_probes: int, depth: str) -> None:
    X: Any = blobs()
    weights = np.random.default_rng(1).random(len(X)) if form == "weighted" else None
    if form in ("float32", "uint8"):
        X = np.clip(10 * X + 128, 0, 255).astype(form)
    given_rows = sparse.csr_matrix(X) if form == "csr" else X
    shard = CpuShard(given_rows, weights, unit_rows=form == "unit")
    rows = hard.as_seen(X, unit_rows=form == "unit")
    centers, random = start(shard, 60)
    cells = draw_cells(shard, centers, random)
    expected, best = probed.probing_pass(rows, centers, cells, n_probes, shard.labels)
    statistics = shard.run(Assign(centers, Probe(cells, n_probes)))
    assert (cells.above is None) is (depth == "cells")
    visits, n_distances = probed.visited_cells(rows, cells, n_probes)
    sizes = np.diff(cells.starts)
    assert statistics.n_distances == n_distances + len(rows) + sum(sizes[visited].sum() for visited in visits)
    total = best.sum() if weights is None else weights @ best
    np.testing.assert_allclose(statistics.objective, total, rtol=1e-9)
    # equally close centres may go either way
    own = hard.squared_distances(rows, centers)[np.arange(len(rows)), shard.labels]
    np.testing.assert_allclose(own, best, rtol=1e-9, atol=1e-9)
    if form in ("float64", "csr", "weighted"):
        np.testing.assert_array_equal(shard.labels, expected)
    shares = np.ones(len(X)) if weights is None else weights
    np.testing.assert_allclose(statistics.counts, np.bincount(shard.labels, shares, minlength=60), rtol=1e-12)
    sums = np.zeros_like(centers)
    np.add.at(sums, shard.labels, shares[:, None] * rows)
    np.testing.assert_allclose(statistics.sums, sums, rtol=1e-9, atol=1e-9)


def test_probing_all_cells_is_exact() -> None:
    X = blobs(2000)
    shard, exact = CpuShard(X), CpuShard(X)
    centers, random = start(shard, 100)
    shard.run(Assign(centers, Probe(draw_cells(shard, centers, random), 1000)))
    exact.run(Assign(centers, want="labels"))
    np.testing.assert_array_equal(shard.labels, exact.labels)
    assert label_recall(shard, centers, random) == 1.0


def test_a_cell_may_hold_more_centers_than_a_chunk() -> None:
    """Clumped centres end in one cell; scratch memory must be as wide as the widest one."""
    random = np.random.default_rng(0)
    centers = np.concatenate([random.normal(size=(5000, 3)), 1e6 + random.normal(size=(3, 3))])
    X = random.normal(size=(300, 3))
    shard, exact = CpuShard(X), CpuShard(X)
    label_by_cells(shard, centers, draw_cells(shard, centers, random))
    cells = CenterCells(np.array([[0.0] * 3, [1e6] * 3]), np.arange(5003), np.array([0, 5000, 5003]))
    shard.run(Assign(centers, Probe(cells, 1)))
    exact.run(Assign(centers, want="labels"))
    np.testing.assert_array_equal(shard.labels, exact.labels)


@pytest.mark.parametrize(("offset", "unit"), [(1e8, 1.0), (0.0, 1e-100), (0.0, 1e100)])
def test_cells_do_not_depend_on_where_centers_lie_nor_on_their_unit(offset: float, unit: float) -> None:
    X = blobs(700, seed=3)
    here, there = (draw_cells(CpuShard(X), centers, np.random.default_rng(0)) for centers in (X, unit * (X + offset)))
    np.testing.assert_array_equal(here.order, there.order)
    np.testing.assert_array_equal(here.starts, there.starts)
    np.testing.assert_allclose(there.middles / unit - offset, here.middles, atol=1e-5)


def test_a_remote_center_does_not_hide_the_others() -> None:
    X = np.concatenate([blobs(700), [[1e7, *[0.0] * (blobs(1).shape[1] - 1)]]])
    cells = draw_cells(CpuShard(X), X, np.random.default_rng(0))
    cell_of = np.empty(len(X), dtype=np.intp)
    cell_of[cells.order] = np.repeat(np.arange(len(cells.starts) - 1), np.diff(cells.starts))
    own = np.square(X - cells.middles[cell_of]).sum(axis=1)
    closest = np.square(X[:, None] - cells.middles).sum(axis=2).min(axis=1)
    assert np.mean(own <= closest * (1 + 1e-6)) > 0.9  # cells that are too large are halved


def test_equal_centers_are_in_small_cells_too() -> None:
    cells = draw_cells(CpuShard(np.ones((5, 2))), np.ones((400, 2)), np.random.default_rng(0))
    assert sorted(cells.order) == list(range(400)) and np.diff(cells.starts).max() <= 80
    np.testing.assert_array_equal(cells.middles, 1.0)


def test_recall_counts_rows_with_a_wrong_label() -> None:
    X = blobs(500)
    shard = CpuShard(X)
    shard.run(Assign(X[:20], want="labels"))
    shard.labels[:250] = (shard.labels[:250] + 1) % 20
    assert label_recall(shard, X[:20], np.random.default_rng(0)) == pytest.approx(0.5)


@pytest.mark.parametrize("share", [1e-4, 1e-9])
def test_recall_is_exact_beside_a_remote_row(share: float) -> None:
    """The smallest distance is this share of the range: products in single, or in double, precision would not tell."""
    X = np.concatenate([blobs(500), np.zeros((1, blobs(1).shape[1]))])
    centers = X[:20].copy()
    shard = CpuShard(X[:500])
    shard.run(Assign(centers, want="labels"))
    distances = np.linalg.norm(X[:500] - centers[shard.labels], axis=1)
    X[500, 0] = distances[distances > 0].min() / share
    shard = CpuShard(X)
    shard.run(Assign(centers, want="labels"))
    assert label_recall(shard, centers, np.random.default_rng(0)) == 1.0
    shard.labels[:250] = (shard.labels[:250] + 1) % 20
    assert label_recall(shard, centers, np.random.default_rng(0)) == pytest.approx(251 / 501)


def test_last_labels_belong_to_the_centers_and_to_no_seed() -> None:
    X = np.random.default_rng(0).normal(size=(3000, 6))
    found = []
    for _ in range(2):
        shard = CpuShard(X)
        found.append((label_rows(shard, X[:300], 3, labelled=False), shard.labels.copy()))
    np.testing.assert_array_equal(found[0][1], found[1][1])
    assert found[0][0] == found[1][0] and 0.9 < found[0][0].recall <= 1.0
    exact = CpuShard(X).run(Assign(X[:300], want="labels"))
    assert exact.objective <= found[0][0].objective < 1.05 * exact.objective
    assert found[0][0].n_distances < exact.n_distances == 3000 * 300


def test_last_labels_look_on_while_that_is_cheap() -> None:
    X = np.random.default_rng(0).normal(size=(6000, 16))

    def labelled(n_before: int) -> Labelling:
        shard = CpuShard(X)
        find_labels(shard, X[:600], np.random.default_rng(1), n_probes=2)
        return label_rows(shard, X[:600], 1, n_before=n_before)

    once, some, enough = labelled(0), labelled(3_000_000), labelled(10**9)
    assert 0.9 < once.recall < some.recall < 0.99 <= enough.recall
    assert once.n_distances < some.n_distances < once.n_distances + MORE_LOOKS * 3_000_000 < enough.n_distances
    assert once.objective > some.objective > enough.objective


@given(st.integers(0, 2**32 - 1), st.integers(2, 80), st.integers(1, 4), st.sampled_from([np.float32, np.float64]))
def test_the_objective_never_rises(seed: int, n: int, n_probes: int, dtype: Any) -> None:
    random = np.random.default_rng(seed)
    X = np.round(random.normal(size=(n, 2)), 1).astype(dtype)  # duplicates and ties
    shard = CpuShard(X)
    centers, random = start(shard, int(random.integers(1, n)), seed)
    options = ProbingOptions(n_probes=n_probes, max_iter=15, min_gain=0)
    objectives = [step.objective for step in probing_kmeans(shard, centers, options, random)]
    assert all(b <= a * (1 + 1e-12) + 1e-12 for a, b in pairwise(objectives))


def test_kmeans_probes_many_clusters_and_comes_close_to_lloyd() -> None:
    X = blobs(6000, n_blobs=300, dtype=np.float32)
    probing = KMeans(600, random_state=0).fit(X)
    exact = KMeans(600, algorithm="lloyd", random_state=0, max_iter=25).fit(X)
    assert probing.algorithm_ == "probing" and exact.algorithm_ == "lloyd"
    assert -probing.score(X) < 1.05 * exact.inertia_
    assert probing.label_recall_ > 0.9 and exact.label_recall_ == 1.0
    assert len(np.unique(probing.labels_)) == 600


@pytest.mark.parametrize("quality", ["fast", "balanced", "best"])
def test_quality_costs_distances_and_pays(quality: str) -> None:
    X = blobs(4000, n_blobs=300)
    fast = KMeans(500, quality="fast", random_state=0).fit(X)
    model = KMeans(500, quality=quality, random_state=0).fit(X)
    assert model.n_distances_ >= fast.n_distances_
    assert -model.score(X) <= -fast.score(X) * (1 + 1e-9)


def test_inexact_prediction_finds_most_of_the_closest_centers() -> None:
    X = blobs(5000, n_blobs=200)
    model = KMeans(800, random_state=0).fit(X)
    assert (model.predict(X, exact=False) == model.predict(X)).mean() > 0.97
