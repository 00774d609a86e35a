"""Limits on the sizes of clusters: they hold, and the rows within them cost the least, or nearly."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from globular import KMeans
from globular.algorithms.kmeans import limits
from globular.algorithms.kmeans.limits import keep_limits
from globular.passes.cpu import CpuShard
from globular.passes.cpu import transport as kernels
from globular.seam.answers import Nearest
from globular.seam.center_passes import Transport
from globular.seam.passes import Assign
from globular.seam.shard import answer
from makers import blobs, lattice, weights_for
from reference import assign
from reference.transport import least_cost
from split import SplitShard

X = blobs(n=600, C=6, D=3)


def transported(costs: np.ndarray, m: int, least: int, most: int, prices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    near = np.argsort(costs, axis=1, kind="stable")[:, :m].astype(np.int32)
    chosen = np.ascontiguousarray(np.take_along_axis(costs, near, axis=1))
    found = CpuShard(X[: costs.shape[1]]).run(Transport(near, chosen, prices, least, most))
    assert (near == found.labels[:, None]).any(axis=1).all()
    return found.labels, found.prices


@pytest.mark.parametrize(("least", "most"), [(0, 30), (0, 36), (25, 300), (25, 40), (30, 30)])
@pytest.mark.parametrize("priced", [False, True])
@pytest.mark.parametrize("kept", [1, 64])
def test_rows_cost_the_least_that_limits_allow(
    least: int, most: int, priced: bool, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "KEPT", (kept, kept))
    costs = assign.squared_distances(X[:300], X[:10])
    prices = np.random.default_rng(0).normal(size=10) if priced else np.zeros(10)  # any prices will do to begin with
    labels, prices = transported(costs, 10, least, most, prices)
    sizes = np.bincount(labels, minlength=10)
    assert least <= sizes.min() and sizes.max() <= most
    assert costs[np.arange(300), labels].sum() == pytest.approx(least_cost(costs, least, min(most, 300))[0])
    reduced = costs + prices  # the proof: no row would be better off elsewhere
    assert (reduced[np.arange(300), labels] <= reduced.min(axis=1) + 1e-9).all()
    assert (prices[sizes < most] <= 1e-9).all() and (prices[sizes > least] >= -1e-9).all()


def test_among_a_few_choices_rows_cost_the_least_of_these() -> None:
    costs = assign.squared_distances(X[:300], X[:20])
    order = np.argsort(costs, axis=1, kind="stable")
    few = costs.copy()
    np.put_along_axis(few, order[:, 8:], np.inf, axis=1)
    labels, _ = transported(costs, 8, 8, 20, np.zeros(20))
    assert costs[np.arange(300), labels].sum() == pytest.approx(least_cost(few, 8, 20)[0])


@pytest.mark.parametrize("limit", [(0, 20), (20, 600), (15, 25), (20, 20)])
@pytest.mark.parametrize("choices", [1, 3, 30])
def test_limits_hold_where_choices_are_few(limit: tuple[int, int], choices: int, monkeypatch) -> None:
    monkeypatch.setattr(limits, "CHOICES", (choices, choices))
    shard, centers = CpuShard(X), X[:30].astype(np.float64)
    found = keep_limits(shard, centers, *limit, unit=False)
    sizes = np.bincount(shard.labels, minlength=30)
    assert limit[0] <= sizes.min() and sizes.max() <= limit[1]
    means = np.stack([X[shard.labels == c].mean(axis=0) for c in range(30)])
    np.testing.assert_allclose(found.centers, means)
    assert found.error == pytest.approx(np.square(X - means[shard.labels]).sum())
    best = least_cost(assign.squared_distances(X, centers), limit[0], min(limit[1], 60))[0]
    assert found.error <= (1.01 if choices == 30 else 1.6) * best  # the centres have moved since


@pytest.mark.parametrize("unit", [False, True])
def test_centres_move_to_groups_that_have_too_few(unit: bool) -> None:
    rng = np.random.default_rng(0)
    groups = 20.0 * rng.normal(size=(30, 16))
    rows = groups[np.repeat(np.arange(30), 100)] + rng.normal(size=(3000, 16))
    if unit:
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    shares = np.concatenate([np.full(15, 1), np.full(15, 3)])  # centres of each group; two would do
    first = np.concatenate([rows[100 * g : 100 * g + n] for g, n in enumerate(shares)])
    shard = CpuShard(rows, unit_rows=unit)
    found = keep_limits(shard, first, 0, 60, unit=unit)
    assert np.bincount(shard.labels).max() <= 60
    at_home = np.square(rows - np.repeat([rows[100 * g : 100 * g + 100].mean(axis=0) for g in range(30)], 100, axis=0))
    assert found.error < at_home.sum()  # no row has to go to another group


def test_limits_hold_when_time_is_up_after_one_round_of_each_kind(watch: Any) -> None:
    rounds, shard = watch(limits, "_choices"), CpuShard(X)
    keep_limits(shard, X[:30].astype(np.float64), 0, 21, unit=False, seconds_left=0.0)
    assert len(rounds) == 2 and np.bincount(shard.labels).max() <= 21


def test_no_cluster_runs_empty() -> None:
    rng = np.random.default_rng(0)
    rows = (2.0 * rng.normal(size=(60, 50))[rng.integers(60, size=4000)] + rng.normal(size=(4000, 50))).astype(
        np.float32
    )
    for seed in range(3):
        assert KMeans(100, max_cluster_size=48, random_state=seed).fit(rows).cluster_sizes_.min() > 0


def test_limits_hold_where_clusters_have_few_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "MOST_EDGES", 2)
    sizes = KMeans(30, min_cluster_size=18, max_cluster_size=21, random_state=0).fit(X).cluster_sizes_
    assert sizes.min() >= 18 and sizes.max() <= 21


def test_equal_rows_are_shared_out() -> None:
    for rows in (np.zeros((120, 2)), lattice(n=120, side=3)):
        model = KMeans(12, max_cluster_size=10, init=rows[:12], random_state=0).fit(rows)
        assert model.cluster_sizes_.tolist() == [10] * 12


def test_rows_in_parts_and_threads_and_forms_get_the_same_labels() -> None:
    model = KMeans(40, max_cluster_size=18, min_cluster_size=10, random_state=0)
    one = model.fit(X).labels_.copy()
    assert (model.set_params(n_threads=1).fit(X).labels_ == one).all()
    assert (model.fit(sparse.csr_array(X)).cluster_sizes_ <= 18).all()
    whole, parts = CpuShard(X), SplitShard([CpuShard(X[:250]), CpuShard(X[250:])])
    centers = X[:40].astype(np.float64)
    for shard in (whole, parts):
        shard.run(Assign(centers, want="labels"))
        keep_limits(shard, centers, 10, 18, unit=False)
    np.testing.assert_array_equal(parts.labels, whole.labels)


def test_streamed_rows_get_the_same_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "rows.npy", X)
    model = KMeans(40, max_cluster_size=18, min_cluster_size=10, random_state=0)
    whole = model.fit(X).labels_.copy()
    monkeypatch.setattr("globular.estimators.inputs.MEMORY_SHARE", 0.0)
    monkeypatch.setattr("globular.passes.many.PART_BYTES", 100 * 3 * 8)
    np.testing.assert_array_equal(model.fit(tmp_path / "rows.npy").labels_, whole)


def test_weights_say_what_rows_cost_and_not_how_many_they_are() -> None:
    weights = weights_for(600)
    model = KMeans(20, max_cluster_size=40, random_state=0).fit(X, sample_weight=weights)
    counted = np.bincount(model.labels_[weights > 0], minlength=20)  # rows of weight 0 are no rows
    assert counted.max() <= 40
    means = [np.average(X[model.labels_ == c], axis=0, weights=weights[model.labels_ == c]) for c in range(20)]
    np.testing.assert_allclose(model.cluster_centers_, means, rtol=1e-6)
    assert model.inertia_ == pytest.approx(weights @ np.square(X - np.stack(means)[model.labels_]).sum(axis=1))
    doubled = KMeans(20, max_cluster_size=40, random_state=0).fit(X, sample_weight=2 * weights)
    np.testing.assert_array_equal(doubled.labels_, model.labels_)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_a_fit_within_limits_costs_little_and_predict_knows_none(dtype: str, metric: str) -> None:
    rows = np.tile(X, (5, 1)).astype(dtype) + np.random.default_rng(0).normal(size=(3000, 3)).astype(dtype)
    free = KMeans(30, metric=metric, random_state=0).fit(rows)
    model = KMeans(30, metric=metric, max_cluster_size=130, random_state=0).fit(rows)
    assert free.cluster_sizes_.max() > 130 >= model.cluster_sizes_.max()
    assert model.inertia_ <= 1.05 * free.inertia_ and model.cluster_centers_.dtype == dtype
    labels = model.predict(rows)
    np.testing.assert_array_equal(labels, model.nearest_centers(rows)[0][:, 0])
    assert (labels != model.labels_).any()
    if metric == "cosine":
        np.testing.assert_allclose(np.linalg.norm(model.cluster_centers_, axis=1), 1.0, rtol=1e-5)


def test_many_clusters_keep_limits_by_a_graph_of_the_centers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EXACT_UP_TO", 300)
    rows = np.random.default_rng(0).normal(size=(8000, 4)).astype(np.float32)
    free = KMeans(400, random_state=0).fit(rows)
    model = KMeans(400, min_cluster_size=12, max_cluster_size=24, random_state=0).fit(rows)
    assert model.cluster_sizes_.min() >= 12 and model.cluster_sizes_.max() <= 24
    assert model.inertia_ <= 1.1 * free.inertia_  # sizes without limits: 2 to 45


def test_a_graph_names_the_centers_that_a_row_looks_at() -> None:
    shard, centers = CpuShard(X), X[:30].astype(np.float64)
    shard.run(Assign(centers, want="labels"))
    graph = np.argsort(assign.squared_distances(centers, centers), axis=1)[:, :7].astype(np.int32)
    found = answer(shard, Nearest(centers, 4, graph), "nearest")
    squares = np.take_along_axis(assign.squared_distances(X, centers), graph[shard.labels], axis=1)
    np.testing.assert_allclose(found["square"], np.sort(squares, axis=1)[:, :4], atol=1e-9)


def test_limits_that_cannot_hold_are_refused() -> None:
    for limit, message in (
        (
            {"max_cluster_size": 29},
            "max_cluster_size=29: 20 clusters of that size do not hold 600 rows; take at least 30",
        ),
        ({"min_cluster_size": 31}, "min_cluster_size=31: 20 clusters need more than 600 rows; take at most 30"),
        ({"min_cluster_size": 9, "max_cluster_size": 8}, "min_cluster_size=9 is more than max_cluster_size=8"),
        ({"max_cluster_size": 0}, "max_cluster_size"),
        ({"min_cluster_size": 1.5}, "min_cluster_size"),
    ):
        with pytest.raises(ValueError, match=message):
            KMeans(20, **limit).fit(X)
