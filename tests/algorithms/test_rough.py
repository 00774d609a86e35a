"""K-means in plain NumPy, up to rounding: as Lloyd's algorithm where no two centres are equally close."""

from __future__ import annotations

import numpy as np
import pytest

from globular.algorithms.kmeans import rough
from globular.algorithms.kmeans.lloyd import KMeansOptions, lloyd
from globular.algorithms.kmeans.rough import (
    best_of_rough,
    distances_to_closest,
    rough_lloyd,
    rough_seeds,
    variance_within,
)
from globular.algorithms.steps import last_step
from globular.backends.cpu import CpuShard

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(400, 3)) + 20 * RANDOM.integers(0, 6, (400, 1))
WEIGHTS = RANDOM.integers(1, 4, 400).astype(np.float64)


@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("offset", [0.0, 1e8])
def test_steps_are_those_of_lloyd(weights: np.ndarray | None, offset: float) -> None:
    rows = X + offset
    shard = CpuShard(rows) if weights is None else CpuShard(rows, weights)
    exact = last_step(lloyd(shard, rows[:9], KMeansOptions(max_iter=4))).model
    found = rough_lloyd(rows, rows[:9], 4, weights=weights)
    np.testing.assert_allclose(found.centers, exact, rtol=1e-12)
    distances = np.square(rows[:, None] - found.centers).sum(axis=2)
    np.testing.assert_array_equal(found.labels, distances.argmin(axis=1))


def test_weights_are_repetitions() -> None:
    once = rough_lloyd(X, X[:7], 5, weights=WEIGHTS).centers
    repeated = rough_lloyd(np.repeat(X, WEIGHTS.astype(int), axis=0), X[:7], 5).centers
    np.testing.assert_allclose(once, repeated, rtol=1e-12)


def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rough, "SCORES_AT_ONCE", 64)
    monkeypatch.setattr(rough, "SECONDS_PER_PRODUCT", 1.0)
    one, two = (rough_lloyd(X, X[:7], 5, n_threads=n) for n in (1, 2))
    assert one.centers.tobytes() == two.centers.tobytes() and one.labels.tobytes() == two.labels.tobytes()


def test_centers_without_rows_stay_and_equal_rows_are_no_trouble() -> None:
    far = np.concatenate([X[:3], [[1e9, 0.0, 0.0]]])
    assert rough_lloyd(X, far, 3).centers[3].tolist() == [1e9, 0.0, 0.0]
    assert rough_lloyd(X, np.concatenate([far, [[-1e200, 0.0, 0.0]]]), 3).labels.max() == 2
    weights = WEIGHTS.copy()
    weights[0] = 0.0
    alone = np.concatenate([X[:1] + 1e6, X[1:]])
    assert rough_lloyd(alone, alone[:4], 3, weights=weights).centers[0].tolist() == alone[0].tolist()
    assert rough_lloyd(np.ones((5, 2)), np.ones((2, 2)), 3).labels.tolist() == [0] * 5


@pytest.mark.parametrize("single", [False, True])
def test_a_remote_row_does_not_hide_the_others(single: bool) -> None:
    rows = np.concatenate([X, [[1e7, 0.0, 0.0]]])
    found = rough_lloyd(rows, rows[[0, 1, 2, 3, 4, 5, 400]], 3, single=single)
    distances = np.square(rows[:, None] - found.centers).sum(axis=2)
    np.testing.assert_array_equal(found.labels, distances.argmin(axis=1))


def test_single_precision_is_allowed_up_to_a_remote_row() -> None:
    for distance, dtype in [(0.9 * rough.REMOTE, np.float32), (1.1 * rough.REMOTE, np.float64)]:
        rows = np.tile([[-1.0], [1.0]], (5000, 1))
        rows[0] = distance  # the typical distance from the mean is 1
        assert rough._Rows(rows, None, 1, single=True)._scored.dtype == dtype
        assert rough._Rows(rows, None, 1)._scored.dtype == np.float64


@pytest.mark.parametrize("unit", [1e-100, 1e100])
def test_units_do_not_matter(unit: float) -> None:
    np.testing.assert_array_equal(rough_lloyd(unit * X, unit * X[:9], 3).labels, rough_lloyd(X, X[:9], 3).labels)


def test_variance_within_is_that_of_all_rows_where_these_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    d2 = np.square(X[:, None] - X[:9]).sum(axis=2).min(axis=1)
    np.testing.assert_allclose(distances_to_closest(X, X[:9]), d2, atol=1e-12)
    assert variance_within(CpuShard(X), X[:9]) == pytest.approx(d2.mean() / 3, rel=1e-12)
    weighted = variance_within(CpuShard(X, WEIGHTS), X[:9])
    assert weighted == pytest.approx(WEIGHTS @ d2 / (3 * WEIGHTS.sum()), rel=0.1)
    monkeypatch.setattr(rough, "MOST_SAMPLED", 200)
    assert variance_within(CpuShard(X), X[:9]) == pytest.approx(d2.mean() / 3, rel=0.2)


@pytest.mark.parametrize(("offset", "unit"), [(0.0, 1.0), (1e6, 1.0), (0.0, 1e-200)])
def test_seeds_are_rows_one_in_each_group(offset: float, unit: float) -> None:
    rows = unit * (X + offset)
    seeds = rough_seeds(rows, WEIGHTS, 6, np.random.default_rng(1))
    assert (seeds[:, None] == rows).all(axis=2).any(axis=1).all()
    groups = np.rint((seeds / unit - offset).mean(axis=1) / 20)
    assert sorted(groups) == [0, 1, 2, 3, 4, 5]


def test_seeds_have_weight_and_are_repeated_where_rows_are() -> None:
    rows, weights = np.repeat(X[:3], 5, axis=0), np.repeat([1.0, 0.0, 2.0], 5)
    seeds = rough_seeds(rows, weights, 5, np.random.default_rng(0))
    assert len(seeds) == 5 and len(np.unique(seeds, axis=0)) == 2
    assert not (seeds == X[1]).all(axis=1).any()
    assert rough_seeds(np.ones((4, 2)), np.ones(4), 2, np.random.default_rng(0)).tolist() == [[1.0, 1.0]] * 2


def test_the_best_of_some_runs_is_no_worse_than_one() -> None:
    def error(n_runs: int) -> float:
        found = best_of_rough(X, WEIGHTS, 12, n_runs, 5, np.random.default_rng(3))
        np.testing.assert_allclose(found.error, WEIGHTS @ distances_to_closest(X, found.centers), rtol=1e-12)
        return found.error

    assert error(6) <= error(1)
    one, two = (best_of_rough(X, WEIGHTS, 12, 3, 5, np.random.default_rng(3), n).centers for n in (1, 2))
    np.testing.assert_array_equal(one, two)
