"""The face `VariationalKMeans`: attributes, forms of input, parameters, running, and scikit-learn's conventions."""

import logging
import re
import tracemalloc

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone

from globular import KMeans, VariationalKMeans, datasets
from globular.estimators import checks
from makers import Rows, blobs


def grid(n: int = 4000, side: int = 8, seed: int = 0) -> Rows:
    """Round clusters on a grid, twice as far apart as they are wide."""
    random = np.random.default_rng(seed)
    return 6.0 * random.integers(side, size=(n, 2)) + random.normal(size=(n, 2))


def test_counts_of_distances_are_those_of_the_neighborhoods() -> None:
    X = np.random.default_rng(0).normal(size=(600, 3))
    options = {"n_candidates": 1, "n_neighbors": 5, "n_random": 1, "max_iter": 4, "tol": 0.0}
    model = VariationalKMeans(300, init="k-means++", random_state=0, **options).fit(X)
    # the random candidate is left out if four draws hit the neighbourhood: (5/300)⁴
    assert model.history_.iterations.column("n_distances").tolist() == [600 * 6] * 4
    assert model.n_distances_ == 600 * 6 * 4 + 600 * 300  # and the last labels


@pytest.mark.parametrize("n_candidates", [1, 3])
def test_quality_is_near_that_of_kmeans(n_candidates: int) -> None:
    X = grid()
    seeds = KMeans(64, algorithm="lloyd", random_state=0).fit(X)
    init = seeds.cluster_centers_ + np.random.default_rng(1).normal(size=(64, 2))
    exact = KMeans(64, init=init, algorithm="lloyd").fit(X)
    model = VariationalKMeans(64, init=init, n_candidates=n_candidates, n_neighbors=5, random_state=0)
    assert model.fit(X).inertia_ <= 1.05 * exact.inertia_
    mine, theirs = (fit.history_.iterations.column("n_distances").mean() for fit in (model, exact))
    assert mine < theirs


@pytest.mark.parametrize("neighborhoods", ["estimated", "exhaustive"])
@pytest.mark.parametrize("n_candidates", [1, 3])
@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_weight_n_is_n_copies(metric: str, n_candidates: int, neighborhoods: str) -> None:
    X = blobs(n=200, C=8)
    copies = np.random.default_rng(0).integers(0, 4, size=200)
    model = VariationalKMeans(
        15, init=X[:15], n_random=0, n_candidates=n_candidates, neighborhoods=neighborhoods, metric=metric,
        n_neighbors=5, tol=0.0, max_iter=5, random_state=0,
    )  # fmt: skip
    weighted = clone(model).fit(X, sample_weight=copies)
    repeated = clone(model).fit(np.repeat(X, copies, axis=0))
    np.testing.assert_allclose(weighted.cluster_centers_, repeated.cluster_centers_, rtol=1e-9, atol=1e-9)
    assert weighted.inertia_ == pytest.approx(repeated.inertia_, rel=1e-9)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_predicting_by_the_graph_finds_the_closest_center_almost_always(metric: str) -> None:
    X = blobs(n=6000, C=100, D=6, seed=1)
    model = VariationalKMeans(400, metric=metric, random_state=0, max_iter=10, tol=1e-2).fit(X)
    fresh = blobs(n=3000, C=100, D=6, seed=1)[::-1] + 0.1
    exact, quick = model.predict(fresh), model.predict(fresh, exact=False)
    assert quick.shape == exact.shape and quick.dtype == exact.dtype
    assert np.mean(exact == quick) >= 0.97
    np.testing.assert_array_equal(quick, model.predict(fresh, exact=False))
    np.testing.assert_array_equal(model.predict(fresh[:1], exact=False).shape, (1,))
    quick_sparse = model.predict(sparse.csr_matrix(fresh), exact=False)
    assert np.mean(quick_sparse == exact) >= 0.97


def test_neighborhoods_wider_than_hierarchical_seeds_know() -> None:
    model = VariationalKMeans(100, init="hierarchical", n_neighbors=40, random_state=0).fit(grid(n=1000))
    assert model.neighbors_.shape == (100, 40)


@pytest.mark.filterwarnings("ignore:Number of distinct clusters")
@pytest.mark.parametrize(
    ("D", "C", "options"),
    [
        (8, 2000, {"n_candidates": 1, "n_neighbors": 5}),
        (40, 300, {"n_candidates": 1, "n_neighbors": 5}),
        (2, 2000, {"n_candidates": 1, "n_neighbors": 10, "init": "random"}),
        (8, 2000, {"n_candidates": 3, "n_neighbors": 10}),
    ],
    ids=["seeds by cells", "wide rows", "random rows", "several candidates"],
)
def test_memory_is_said_beforehand_and_kept(D, C, options, monkeypatch, caplog):
    monkeypatch.setattr(checks, "FIXED_BYTES", 1 << 20)
    X = np.random.default_rng(0).normal(size=(20_000, D)).astype(np.float32)
    model = VariationalKMeans(C, max_iter=4, random_state=0, n_threads=2, **options).fit(X)  # compiled, imported
    with caplog.at_level(logging.INFO, logger="globular"):
        tracemalloc.start()
        try:
            model.fit(X)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    said = re.search(r"the fit, beside X: up to ([\d.]+) MiB", caplog.text)
    assert said is not None
    assert peak <= float(said[1]) * 2**20 < 12 * peak


def test_separate_groups_get_a_center_each_by_swaps() -> None:
    X = datasets.many_blobs(6_000, 200, 16, center_std=8.0, random_state=0).X
    best = KMeans(200, random_state=0).fit(X).inertia_
    assert VariationalKMeans(200, random_state=0).fit(X).inertia_ < 1.1 * best
    assert VariationalKMeans(200, init="random", random_state=0).fit(X).inertia_ > 1.3 * best
