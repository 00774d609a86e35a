"""Lloyd's algorithm against scikit-learn, a few lines of NumPy, and what theory says of it."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import KMeans as SklearnKMeans

from globular import KMeans
from globular.algorithms.kmeans.lloyd import KMeansOptions, lloyd
from globular.algorithms.steps import Step
from globular.passes.cpu import CpuShard
from globular.seam.passes import Assign
from makers import Rows, blobs, in_form, weights_for
from reference import assign as reference


def run(
    matrix: Any, start: Rows, weights: Rows | None = None, *, unit: bool = False, max_iter: int = 100, tol: float = 0.0
) -> tuple[CpuShard, list[Step[Rows]]]:
    shard = CpuShard(matrix, weights, unit_rows=unit)
    return shard, list(lloyd(shard, np.asarray(start, dtype=np.float64), KMeansOptions(max_iter, tol, unit)))


def never_rises(objectives: list[float], rounding: float = 0.0) -> bool:
    """Whether each objective is at most the one before, but for rounding (of sums, or of that absolute size)."""
    slack = 1e-12 * max(objectives) + rounding
    return all(later <= earlier + slack for earlier, later in pairwise(objectives))


@pytest.mark.parametrize("tol", [0.0, 1e-4, 1e-2])
@pytest.mark.parametrize(
    ("n", "C", "D", "offset"), [(200, 4, 2, 0), (500, 20, 5, 0), (300, 40, 3, 1e4), (60, 59, 2, 0)]
)
def test_equal_to_scikit_learn_from_the_same_start(n: int, C: int, D: int, offset: float, tol: float) -> None:
    X = blobs(n=n, C=C, D=D, seed=n) + offset
    start = X[np.random.default_rng(1).permutation(n)[:C]]
    theirs = SklearnKMeans(C, init=start, n_init=1, tol=tol, algorithm="lloyd").fit(X)
    ours = KMeans(C, init=start, tol=tol, algorithm="lloyd").fit(X)
    assert ours.n_iter_ == theirs.n_iter_
    np.testing.assert_array_equal(ours.labels_, theirs.labels_)
    assert ours.labels_.dtype == theirs.labels_.dtype
    np.testing.assert_allclose(ours.cluster_centers_, theirs.cluster_centers_, rtol=1e-12, atol=1e-12)
    assert ours.inertia_ == pytest.approx(theirs.inertia_, rel=1e-10)


def test_equal_to_scikit_learn_on_sparse_rows_and_with_weights() -> None:
    X, weights = in_form(blobs(n=300, C=9, D=6), "csr64"), weights_for(300) + 0.01
    start = X[:9].toarray()
    theirs = SklearnKMeans(9, init=start, n_init=1, tol=0).fit(X, sample_weight=weights)
    ours = KMeans(9, init=start, tol=0).fit(X, sample_weight=weights)
    assert ours.n_iter_ == theirs.n_iter_
    np.testing.assert_array_equal(ours.labels_, theirs.labels_)
    np.testing.assert_allclose(ours.cluster_centers_, theirs.cluster_centers_, rtol=1e-11, atol=1e-12)
    assert ours.inertia_ == pytest.approx(theirs.inertia_, rel=1e-11)


@pytest.mark.realdata
def test_equal_to_scikit_learn_on_hipparcos(real_data: Any) -> None:
    X = np.asarray(real_data("hipparcos")["X"][:4000], dtype=np.float64)
    X = X[np.isfinite(X).all(axis=1)]
    start = X[np.random.default_rng(0).permutation(len(X))[:50]]
    theirs = SklearnKMeans(50, init=start, n_init=1, max_iter=40).fit(X)
    ours = KMeans(50, init=start, max_iter=40, algorithm="lloyd").fit(X)
    assert ours.n_iter_ == theirs.n_iter_
    np.testing.assert_array_equal(ours.labels_, theirs.labels_)
    np.testing.assert_allclose(ours.cluster_centers_, theirs.cluster_centers_, rtol=1e-10)


def test_one_iteration_is_a_few_lines_of_numpy() -> None:
    X, weights = blobs(n=200, C=6), weights_for(200)
    centers = X[1:7].copy()
    _, (step,) = run(X, centers, weights, max_iter=1)
    labels = np.array([np.argmin([np.sum((x - m) ** 2) for m in centers]) for x in X])
    means = [np.average(X[labels == c], axis=0, weights=weights[labels == c]) for c in range(6)]
    np.testing.assert_allclose(step.model, means, rtol=1e-12)
    assert step.objective == pytest.approx(np.sum(weights * np.sum((X - centers[labels]) ** 2, axis=1)))
    assert (step.iteration, step.n_distances, step.stopped) == (1, 200 * 6, "max_iter")


@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(1, 4), st.booleans(), st.booleans())
def test_the_objective_never_rises(seed: int, n: int, D: int, unit: bool, weighted: bool) -> None:
    random = np.random.default_rng(seed)
    C = int(random.integers(1, n + 1))
    X = random.integers(-3, 4, size=(n, D)) + random.choice([0.0, 1.0]) * random.normal(size=(n, D))
    X = X.astype(random.choice([np.float32, np.float64]))
    weights = random.integers(0, 4, size=n).astype(np.float64) if weighted else None
    if weights is not None and not weights.any():
        weights[0] = 1.0
    start = reference.as_seen(X, unit_rows=unit)[random.permutation(n)[:C]]
    if unit:
        start[~start.any(axis=1), 0] = 1.0  # a centre has unit length, rows of zeros have not
    shard, steps = run(X, start, weights, unit=unit)
    rounding = 1e-29 * n * (1.0 + np.abs(X).max()) ** 2 * D  # (a few units in the last place)² a row
    assert never_rises([step.objective for step in steps], rounding)
    # copies of one direction differ in the last place; what is left to optimise is then rounding alone
    assert steps[-1].stopped in ("no label changed", "centres moved less than tol") or steps[-1].objective < rounding
    assert all(step.stopped == "" for step in steps[:-1])
    # the end is a fixed point: every row at its closest centre
    closest = reference.squared_distances(reference.as_seen(X, unit_rows=unit), steps[-1].model)
    own = closest[np.arange(n), shard.labels]
    np.testing.assert_allclose(own, closest.min(axis=1), atol=1e-12 * (1 + np.abs(X).max()) ** 2)


@pytest.mark.parametrize("unit", [False, True], ids=["euclidean", "cosine"])
@pytest.mark.parametrize("form", ["float64", "float32", "csr64"])
@pytest.mark.parametrize("weighted", [False, True])
def test_clusters_asked_for_are_clusters_given(form: str, weighted: bool, unit: bool) -> None:
    X = in_form(blobs(n=100, D=4), form)
    weights = weights_for(100) if weighted else None
    start = np.concatenate([reference.as_seen(X)[:3], 1e3 + np.arange(17)[:, None] * np.ones(4)])
    start /= np.linalg.norm(start, axis=1, keepdims=True) if unit else 1.0
    shard, steps = run(X, start, weights, unit=unit)
    filled = shard.labels if weights is None else shard.labels[weights > 0]
    assert set(filled.tolist()) == set(range(20))
    assert never_rises([step.objective for step in steps])


@given(st.integers(0, 2**32 - 1), st.integers(2, 25))
def test_as_many_clusters_as_distinct_rows(seed: int, n_distinct: int) -> None:
    """Whatever the start and the copies of each row, k distinct rows make k clusters, each a place of its own."""
    random = np.random.default_rng(seed)
    places = np.unique(random.normal(size=(n_distinct, 2)), axis=0)
    X = places[np.concatenate([np.arange(len(places)), random.integers(len(places), size=60)])]
    start = places[random.integers(len(places), size=len(places))]
    shard, steps = run(X, start, max_iter=300)
    assert steps[-1].stopped != "max_iter"
    assert len(np.unique(shard.labels)) == len(places)
    assert steps[-1].objective == pytest.approx(0.0, abs=1e-25)


def test_more_clusters_than_distinct_rows_ends_all_the_same() -> None:
    X = np.repeat([[0.0, 0.0], [1.0, 0.5], [3.0, 1.0]], [50, 30, 20], axis=0)
    shard, steps = run(X, np.random.default_rng(0).normal(size=(9, 2)))
    assert steps[-1].stopped != "max_iter"
    assert len(np.unique(shard.labels)) == 3 and np.isfinite(steps[-1].model).all()
    assert steps[-1].objective == pytest.approx(0.0, abs=1e-25)


def test_zero_and_minus_zero_are_one_place() -> None:
    X = np.array([[0.0, 5.0], [-0.0, 5.0]] * 8 + [[1.0, 5.0], [2.0, 5.0]])
    shard, steps = run(X, np.full((6, 2), 50.0), max_iter=50)
    assert steps[-1].stopped != "max_iter"
    assert len(np.unique(shard.labels)) == 3


def test_rows_alike_are_one_cluster() -> None:
    shard, steps = run(np.full((30, 2), 0.1), np.full((4, 2), 0.3))
    assert steps[-1].stopped != "max_iter" and len(np.unique(shard.labels)) == 1
    np.testing.assert_allclose(steps[-1].model[shard.labels[0]], 0.1, rtol=1e-15)


@pytest.mark.parametrize("C", [1, 2, 7])
@pytest.mark.parametrize("D", [1, 3])
def test_as_many_rows_as_clusters(C: int, D: int) -> None:
    X = blobs(n=C, D=D)
    shard, steps = run(X, X[::-1].copy())
    assert sorted(shard.labels.tolist()) == list(range(C))
    assert steps[-1].objective == 0.0


def test_opposite_directions_that_cancel_keep_their_center() -> None:
    X = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0]])
    shard, steps = run(X, [[0.0, 1.0]], unit=True)
    np.testing.assert_array_equal(steps[-1].model, [[0.0, 1.0]])
    assert (shard.labels == 0).all() and steps[-1].stopped


def test_labels_left_by_another_run_do_not_end_this_one() -> None:
    X = blobs(n=200, C=5)
    shard = CpuShard(X)
    shard.run(Assign(X[:5]))
    fresh = [step.stopped for step in lloyd(CpuShard(X), X[:5], KMeansOptions(100))]
    again = [step.stopped for step in lloyd(shard, X[:5], KMeansOptions(100))]
    assert len(fresh) > 2 and again == fresh
