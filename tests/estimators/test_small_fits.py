"""`KMeans` on rows that are few: searched in one go, and better than the best of several runs of scikit-learn."""

from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn import cluster, datasets

from globular import KMeans
from makers import blobs
from reference import assign as hard


def standardised(X: Any) -> Any:
    return (X - X.mean(axis=0)) / X.std(axis=0)


SETS = {
    "iris, 3": (lambda: datasets.load_iris().data, 3),
    "iris, 8": (lambda: datasets.load_iris().data, 8),
    "wine, 3": (lambda: datasets.load_wine().data, 3),
    "wine, standardised, 10": (lambda: standardised(datasets.load_wine().data), 10),
    "cancer, standardised, 8": (lambda: standardised(datasets.load_breast_cancer().data), 8),
    "digits, 50": (lambda: datasets.load_digits().data, 50),
    "blobs, 2,000": (lambda: datasets.make_blobs(2000, 10, centers=8, cluster_std=2.0, random_state=0)[0], 8),
    "blobs, 5,000": (lambda: datasets.make_blobs(5000, 20, centers=50, cluster_std=2.0, random_state=0)[0], 50),
}


@pytest.mark.parametrize("name", SETS)
def test_a_fit_is_about_the_best_of_ten(name: str) -> None:
    make, C = SETS[name]
    X = make()
    theirs = [cluster.KMeans(C, n_init=1, random_state=seed).fit(X).inertia_ for seed in range(10)]
    ours = [KMeans(C, random_state=seed).fit(X).inertia_ for seed in range(4)]
    assert np.mean(ours) <= 1.005 * min(theirs) and max(ours) <= max(np.mean(theirs), 1.0002 * min(theirs))


def test_the_search_is_a_stage_before_the_iterations() -> None:
    X = blobs(n=600, C=10, D=4)
    model = KMeans(10, random_state=0).fit(X)
    assert [record.stage for record in model.history_] == ["seeds", "part", "iterations"] and model.n_iter_ == 1
    assert model.init_ == "k-means++" and model.subspace_dimension_ == 4
    squared = hard.squared_distances(X, model.cluster_centers_)
    assert (model.labels_ == squared.argmin(axis=1)).all()
    assert model.inertia_ == pytest.approx(squared.min(axis=1).sum())
    settled = KMeans(10, random_state=0, tol=0).fit(X)
    assert settled.n_iter_ >= 1 and settled.inertia_ <= model.inertia_ * (1 + 1e-12)


@pytest.mark.parametrize("init", ["random", "k-means++", "k-means||", "afk-mc2", "hierarchical"])
def test_any_seeds_will_do(init: str) -> None:
    X = blobs(n=900, C=12, D=5)
    best = min(cluster.KMeans(12, n_init=10, random_state=seed).fit(X).inertia_ for seed in range(2))
    model = KMeans(12, init=init, random_state=0).fit(X)
    assert model.init_ == init and model.inertia_ <= 1.01 * best


def test_weights_count_as_copies_and_sparse_rows_as_dense_ones() -> None:
    X, random = blobs(n=400, C=6, D=5), np.random.default_rng(0)
    copies = random.integers(1, 4, len(X))
    weighted = KMeans(6, random_state=0).fit(X, sample_weight=copies)
    repeated = KMeans(6, random_state=0).fit(np.repeat(X, copies, axis=0))
    assert weighted.inertia_ == pytest.approx(repeated.inertia_, rel=1e-3)
    dense, thin = (KMeans(6, random_state=0).fit(rows) for rows in (X, sparse.csr_array(X)))
    assert dense.inertia_ == pytest.approx(thin.inertia_, rel=1e-6)


def test_cosine_centres_have_unit_length() -> None:
    X = blobs(n=500, C=8, D=6)
    model = KMeans(8, metric="cosine", random_state=0).fit(X)
    np.testing.assert_allclose(np.linalg.norm(model.cluster_centers_, axis=1), 1.0)
    once = KMeans(8, metric="cosine", algorithm="lloyd", n_init=5, random_state=0).fit(X)
    assert model.inertia_ <= 1.001 * once.inertia_


@pytest.mark.parametrize("C", [1, 2, 20])
def test_fewer_distinct_rows_than_clusters_and_one_cluster(C: int) -> None:
    X = np.repeat(np.arange(20.0).reshape(10, 2), 3, axis=0)
    model = KMeans(C, random_state=0)
    if C > 10:
        with pytest.warns(Warning, match="distinct clusters"):
            assert model.fit(X).inertia_ == 0.0
    else:
        model.fit(X)
        assert np.isfinite(model.inertia_) and len(set(model.labels_.tolist())) == C


@pytest.mark.parametrize("scale", [1e-100, 1e100])
def test_rows_of_any_size(scale: float) -> None:
    X = blobs(n=300, C=5, D=3)
    plain, scaled = KMeans(5, random_state=0).fit(X), KMeans(5, random_state=0).fit(X * scale)
    assert scaled.inertia_ == pytest.approx(plain.inertia_ * scale**2, rel=1e-6)


def test_max_iter_limits_the_search_too() -> None:
    X = blobs(n=2000, C=40, D=3)
    brief, whole = (KMeans(40, max_iter=n, random_state=0).fit(X) for n in (1, 300))
    # one step of the search, one iteration, and the labels
    assert brief.n_distances_ <= 3 * 2000 * 40 and brief.inertia_ > whole.inertia_
