"""Yinyang k-means equals Lloyd's algorithm at every iteration, with fewer distances."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from globular import KMeans
from globular.algorithms.kmeans.lloyd import KMeansOptions, exact_kmeans
from globular.algorithms.kmeans.yinyang import default_groups, yinyang
from globular.backends.cpu import CpuShard
from globular.model.statistics import HardStatistics
from globular.seam.passes import Assign, SumByLabel
from makers import SHARD_FORMS, Rows, blobs, in_form, weights_for


def check_equal(
    matrix: Any, start: Rows, *, weights: Rows | None = None, unit: bool = False, n_groups: int | None = None
) -> tuple[int, int]:
    """Run both side by side; labels and centres must agree at every step. Returns the distances of each."""
    options = KMeansOptions(max_iter=60, unit_centers=unit)
    exact, bounded = (CpuShard(matrix, weights, unit_rows=unit) for _ in range(2))
    totals = [0, 0]

    def assign(centers: Rows, shifts: Rows | None) -> HardStatistics:
        found = exact.run(Assign(centers, want="labels"))
        all_sums = exact.run(SumByLabel(len(centers)))  # not by what moved: every bit counts where rows tie
        n_distances = exact.n_rows * len(centers)
        return HardStatistics(all_sums.sums, all_sums.counts, found.objective, found.n_changed, n_distances)

    steps = zip(exact_kmeans(exact, start, options, assign), yinyang(bounded, start, options, n_groups), strict=True)
    for expected, found in steps:
        np.testing.assert_array_equal(bounded.labels, exact.labels)
        assert found.model.tobytes() == expected.model.tobytes()  # the same sums over the same labels
        assert found.objective == pytest.approx(expected.objective, rel=1e-13)
        assert (found.n_changed, found.stopped) == (expected.n_changed, expected.stopped)
        totals[0] += expected.n_distances
        totals[1] += found.n_distances
    return totals[0], totals[1]


@pytest.mark.parametrize("unit", [False, True], ids=["euclidean", "cosine"])
@pytest.mark.parametrize("weighted", [False, True], ids=["equal", "weighted"])
@pytest.mark.parametrize("form", SHARD_FORMS)
def test_every_step_equals_lloyd(form: str, weighted: bool, unit: bool) -> None:
    matrix = in_form(blobs(n=200, C=12, D=4), form)
    start = CpuShard(matrix, unit_rows=unit).take(np.arange(0, 200, 9))
    check_equal(matrix, start, weights=weights_for(200) if weighted else None, unit=unit, n_groups=4)


@given(
    st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(1, 4), st.integers(1, 8), st.booleans(), st.booleans()
)
@settings(max_examples=60, deadline=None)
def test_every_step_equals_lloyd_on_rows_with_duplicates(
    seed: int, n: int, D: int, n_groups: int, unit: bool, noisy: bool
) -> None:
    random = np.random.default_rng(seed)
    X = random.integers(-2, 3, size=(n, D)) + noisy * random.normal(size=(n, D))
    X = X.astype(random.choice([np.float32, np.float64]))
    start = CpuShard(X, unit_rows=unit).take(random.integers(n, size=random.integers(1, n + 1)))
    check_equal(X, start, unit=unit, n_groups=n_groups)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_empty_clusters_that_move_across_the_data(dtype: type) -> None:
    X = blobs(n=300, C=10, D=3).astype(dtype)
    start = np.concatenate([X[:10].astype(np.float64), np.full((15, 3), 1e4)])
    check_equal(X, start, n_groups=5)


@pytest.mark.parametrize(("dtype", "scale"), [(np.float32, 1e30), (np.float32, 1e-30), (np.float64, 1e100)])
def test_any_scale(dtype: type, scale: float) -> None:
    X = (scale * blobs(n=200, C=8, D=3)).astype(dtype)
    check_equal(X, X[:25].astype(np.float64), n_groups=5)


def test_far_from_the_origin() -> None:
    X = blobs(n=300, C=10, D=3) + 1e8
    check_equal(X, X[:30], n_groups=6)


def test_fewer_distances() -> None:
    X = blobs(n=2000, C=40, D=8, spread=0.5)
    plain, bounded = check_equal(X, X[:100], n_groups=10)
    assert bounded < 0.5 * plain


@pytest.mark.realdata
def test_every_step_equals_lloyd_on_real_rows_full_of_duplicates(real_data: Any) -> None:
    X = np.ascontiguousarray(real_data("skin")["X"][::60])
    check_equal(X, np.unique(X, axis=0)[:: max(1, len(X) // 100)].astype(np.float64))


@pytest.mark.realdata
def test_every_step_equals_lloyd_on_values_up_to_7e8(real_data: Any) -> None:
    X = np.ascontiguousarray(real_data("kddcup99_10pct")["X"][::150])
    assert np.abs(X).max() > 1e6
    plain, bounded = check_equal(X, np.unique(X, axis=0)[::40].astype(np.float64))
    assert bounded < plain


def test_default_number_of_groups() -> None:
    assert default_groups(5, 100) == 1
    assert default_groups(1000, 4000) == 100
    assert default_groups(1000, 40) == 10
    assert default_groups(1000, 2) == 1


def test_the_face_gives_the_same_model() -> None:
    X = blobs(n=500, C=20, D=5)
    for metric in ("euclidean", "cosine"):
        one = KMeans(30, algorithm="lloyd", metric=metric, random_state=3).fit(X)
        two = KMeans(30, algorithm="yinyang", metric=metric, random_state=3).fit(X)
        np.testing.assert_array_equal(one.labels_, two.labels_)
        np.testing.assert_allclose(one.cluster_centers_, two.cluster_centers_, rtol=1e-12, atol=1e-14)
        assert one.n_iter_ == two.n_iter_
        assert max(one.n_distances_, two.n_distances_) < (one.n_iter_ + 1) * 500 * 30
        assert one.inertia_ == pytest.approx(two.inertia_, rel=1e-12)
