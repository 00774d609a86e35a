"""Clusters from components: parts of clusters become one, overlapping Gaussians stay apart."""

from collections.abc import Callable

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from globular import InfiniteGaussianMixture
from globular.algorithms.infinite import clusters
from globular.algorithms.infinite.clusters import Part, are_gaussians, has_valley, merged_clusters
from globular.algorithms.seeding.common import evenly_spread_rows
from globular.model.gaussian import isotropic_mixture
from globular.model.statistics import F64
from globular.passes.cpu import CpuShard

Noise = Callable[[np.random.Generator, tuple[int, int]], F64]
SHAPES: dict[str, Noise] = {
    "t": lambda rng, shape: rng.standard_t(4, size=shape) / np.sqrt(2),
    "uniform": lambda rng, shape: rng.uniform(-np.sqrt(3), np.sqrt(3), size=shape),
    "gamma": lambda rng, shape: (rng.gamma(1.5, size=shape) - 1.5) / np.sqrt(1.5),
}


def halves(gap: float, n: int = 4000) -> tuple[F64, F64]:
    """Rows of two normal clusters this far apart, and their true responsibilities."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(n, 3))
    rows[: n // 2, 0] += gap
    odds = np.exp(gap * rows[:, 0] - 0.5 * gap**2)
    return rows, np.column_stack([odds / (1 + odds), 1 / (1 + odds)])


@pytest.mark.parametrize("shape", SHAPES)
def test_clusters_of_odd_shape_are_found_whole(shape: str) -> None:
    """A small twin of the measured cases: five clusters in the plane, far apart."""
    rng = np.random.default_rng(0)
    truth = rng.integers(5, size=6000)
    centers = 9.0 * np.array([[0, 0], [1, 0], [0, 1], [1, 1], [2, 2]])
    rows = centers[truth] + SHAPES[shape](rng, (6000, 2))
    model = InfiniteGaussianMixture(random_state=0).fit(rows)
    assert model.n_components_ > 5  # so that there is something to merge
    assert model.n_clusters_ == 5
    assert adjusted_rand_score(truth, model.labels_) > 0.95
    assert adjusted_rand_score(truth, model.labels_) > adjusted_rand_score(truth, model.component_labels_)


def test_labels_follow_from_components() -> None:
    rng = np.random.default_rng(1)
    rows = np.concatenate([rng.uniform(-2, 2, size=(1500, 2)), rng.normal(size=(500, 2)) + 9])
    model = InfiniteGaussianMixture(random_state=0).fit(rows)
    np.testing.assert_array_equal(model.labels_, model.predict(rows))
    np.testing.assert_array_equal(model.component_labels_, model.predict_components(rows))
    np.testing.assert_array_equal(model.labels_, model.clusters_[model.component_labels_])
    np.testing.assert_array_equal(np.unique(model.clusters_), np.arange(model.n_clusters_))
    assert model.n_clusters_ == 2


def test_gaussians_that_overlap_stay_apart() -> None:
    """At two and a half deviations there is no valley, and the moments say that both are Gaussians."""
    rows, shares = halves(2.5)
    weights = np.ones(len(rows))
    one, other = (Part.of(rows, shares[:, i]) for i in range(2))
    assert are_gaussians([one, other])
    assert not has_valley(rows, one, other, one.with_(other, rows))
    np.testing.assert_array_equal(merged_clusters(rows, weights, shares), [0, 1])


def test_a_valley_keeps_odd_clusters_apart() -> None:
    """Two uniform clusters side by side: odd, but with a valley as soon as there is a gap."""
    rng = np.random.default_rng(0)
    for gap, n_clusters in ((0.0, 1), (1.0, 2)):
        rows = rng.uniform(size=(4000, 2))
        right = rows[:, 0] > 0.5
        rows[right, 0] += 0.5 * gap
        middle = 0.5 + 0.25 * gap
        share = 1 / (1 + np.exp(-(rows[:, 0] - middle) * 12))  # unsure near the cut
        found = merged_clusters(rows, np.ones(4000), np.column_stack([share, 1 - share]))
        assert found.max() + 1 == n_clusters


def test_a_component_that_no_row_of_the_sample_is_of_is_a_cluster_of_its_own() -> None:
    rows, shares = halves(6.0, 400)
    empty = np.column_stack([shares, np.zeros(len(rows))])
    np.testing.assert_array_equal(merged_clusters(rows, np.ones(len(rows)), empty), [0, 1, 2])


def test_a_weight_of_two_is_two_rows() -> None:
    rows, shares = halves(1.0, 600)
    weights = np.random.default_rng(0).integers(1, 4, size=600)
    many = np.repeat(np.arange(600), weights)
    a = merged_clusters(rows, weights.astype(np.float64), shares)
    np.testing.assert_array_equal(a, merged_clusters(rows[many], np.ones(len(many)), shares[many]))


def test_a_few_far_rows_are_no_cluster() -> None:
    """A component of fewer rows than a cluster must hold belongs to the one that they would be of next."""
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(size=(500, 2)), rng.normal(size=(500, 2)) + 20, rng.normal(size=(10, 2)) + 30])
    shares = np.full((1010, 3), 1e-6)
    shares[:500, 0] = shares[500:1000, 1] = shares[1000:, 2] = 1.0
    shares[1000:, 1] = 1e-4
    shares /= shares.sum(axis=1, keepdims=True)
    np.testing.assert_array_equal(merged_clusters(rows, np.ones(1010), shares, smallest=5.0), [0, 1, 2])
    np.testing.assert_array_equal(merged_clusters(rows, np.ones(1010), shares, smallest=12.0), [0, 1, 1])


@pytest.mark.parametrize("period", [4, 5])
def test_rows_that_come_in_turn_are_sampled_in_all_their_phases(period: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clusters that are fitted by two components each, a left and a right half, are merged whatever the order."""
    n = 2000 * period
    monkeypatch.setattr(clusters, "_MOST_SAMPLED", 2000)  # so that rows at even distances would all be of one cluster
    monkeypatch.setattr(clusters, "_FEWEST_ROWS", 2000)
    drawn = evenly_spread_rows(n, 2000, np.random.default_rng(0))
    assert (np.bincount(drawn % period) > 300).all() and (np.diff(drawn) > 0).all()
    np.testing.assert_array_equal(evenly_spread_rows(7, 9, np.random.default_rng(0)), np.arange(7))
    rng = np.random.default_rng(0)
    centers = 9.0 * np.column_stack([np.arange(period), np.arange(period) % 2])
    rows = centers[np.arange(n) % period] + SHAPES["uniform"](rng, (n, 2))
    halves = np.repeat(centers, 2, axis=0) + np.tile([[-0.87, 0.0], [0.87, 0.0]], (period, 1))
    mixture = isotropic_mixture(halves, 0.6, "diag")
    for order in (np.arange(n), rng.permutation(n)):
        found = clusters.clusters_of(CpuShard(rows[order]), mixture)
        np.testing.assert_array_equal(found, np.repeat(np.arange(period), 2))
