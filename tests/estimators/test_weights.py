"""Sample weights of every size: rows of weight 0 are no rows, and the unit of the weights is nobody's business."""

import warnings
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

import globular
from globular.estimators import inputs

from globular import (  # isort: skip
    ChunkyGaussianMixture, GaussianMixture, InfiniteGaussianMixture, InfiniteMultinomialMixture, KMeans,
    NestedMiniBatchKMeans, PoissonMixture, VariationalGaussianMixture, VariationalKMeans, VonMisesFisherMixture,
    seeding,
)  # fmt: skip

CENTROIDS = [
    KMeans(5), KMeans(5, algorithm="lloyd"), KMeans(5, algorithm="probing"),
    KMeans(5, algorithm="probing", metric="cosine"), KMeans(40, init="random"),
    KMeans(40, init="afk-mc2", metric="cosine"), KMeans(40, init="k-means||"), KMeans(40, init="hierarchical"),
    KMeans(520), VariationalKMeans(40, n_candidates=3), NestedMiniBatchKMeans(5, batch_size=100),
    NestedMiniBatchKMeans(5, batch_size=100, metric="cosine"),
    NestedMiniBatchKMeans(40, search="cells", batch_size=200),
]  # fmt: skip
MIXTURES = [
    GaussianMixture(5, algorithm="em"), GaussianMixture(5, algorithm="chunky", covariance_type="tied"),
    GaussianMixture(30, algorithm="variational", covariance_type="diag"),
    GaussianMixture(5, init_params="random", covariance_type="spherical"),
    VariationalGaussianMixture(30, weights="learned"),
    VariationalGaussianMixture(30, search="neighbors", covariance_type="diag"), ChunkyGaussianMixture(5),
    ChunkyGaussianMixture(5, init="greedy", covariance_type="diag"), VonMisesFisherMixture(3), PoissonMixture(5),
]  # fmt: skip
INFINITE = [
    InfiniteGaussianMixture(),
    InfiniteGaussianMixture(accelerate=False, covariance_type="diag"),
    InfiniteGaussianMixture(truncation="fixed"),
    InfiniteMultinomialMixture(),
    InfiniteMultinomialMixture(truncation="fixed", accelerate=False),
]


def name_of(estimator: Any) -> str:
    return " ".join(repr(estimator).split())


def blobs() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(8 * i + 10, 1, size=(120, 3)) for i in range(5)])
    return X, rng.uniform(0.5, 2, len(X))


def fitted(estimator: Any, X: Any, weights: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return clone(estimator).set_params(random_state=0).fit(X, sample_weight=weights)


def parameters(model: Any) -> dict[str, np.ndarray]:
    names = ("cluster_centers_", "inertia_", "counts_", "means_", "weights_", "covariances_", "lower_bound_", "n_iter_")
    return {name: np.asarray(getattr(model, name)) for name in names if hasattr(model, name)}


def with_far_rows(X: Any, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of weight 0 among the others, far away and near; and which rows are the old ones."""
    counts = np.arange(len(X)) + np.arange(len(X)) // 7  # every eighth row is a new one
    everything = np.full((counts[-1] + 4, X.shape[1]), 1e15)
    everything[::16] = 3.0
    everything[counts] = X
    zeros = np.zeros(len(everything))
    zeros[counts] = weights
    return everything, zeros, counts


@pytest.mark.parametrize("estimator", [*CENTROIDS, *MIXTURES, *INFINITE], ids=name_of)
def test_rows_of_weight_zero_are_no_rows(estimator):
    X, weights = blobs()
    everything, zeros, counted = with_far_rows(X, weights)
    alone, together = fitted(estimator, X, weights), fitted(estimator, everything, zeros)
    for name, value in parameters(alone).items():
        assert np.array_equal(getattr(together, name), value), name
    if hasattr(alone, "labels_"):
        assert np.array_equal(together.labels_[counted], alone.labels_)
        others = np.delete(np.arange(len(everything)), counted)
        exact = together.predict(everything[others])
        assert np.mean(together.labels_[others] == exact) > 0.9  # all of them below 500 clusters


@pytest.mark.parametrize("estimator", [KMeans(5), KMeans(520), NestedMiniBatchKMeans(5)], ids=name_of)
def test_sparse_rows_of_weight_zero_are_no_rows(estimator):
    X, weights = blobs()
    everything, zeros, counted = with_far_rows(X, weights)
    alone = fitted(estimator, sparse.csr_matrix(X), weights)
    together = fitted(estimator, sparse.csr_array(everything), zeros)
    assert np.array_equal(together.cluster_centers_, alone.cluster_centers_)
    assert np.array_equal(together.labels_[counted], alone.labels_) and len(together.labels_) == len(everything)


@pytest.mark.parametrize("estimator", [KMeans(5), NestedMiniBatchKMeans(5), InfiniteGaussianMixture()], ids=name_of)
def test_streamed_rows_of_weight_zero_are_no_rows(estimator, tmp_path, monkeypatch):
    X, weights = blobs()
    everything, zeros, counted = with_far_rows(X, weights)
    for name, rows in (("alone", X), ("together", everything)):
        np.save(tmp_path / f"{name}.npy", rows)
    monkeypatch.setattr(inputs, "MEMORY_SHARE", 0.0)
    alone = fitted(estimator, tmp_path / "alone.npy", weights)
    together = fitted(estimator, tmp_path / "together.npy", zeros)
    for name, value in parameters(alone).items():
        assert np.array_equal(getattr(together, name), value), name
    if hasattr(alone, "labels_"):
        assert np.array_equal(together.labels_[counted], alone.labels_) and len(together.labels_) == len(everything)
    everything[counted[70], 1] = np.nan
    np.save(tmp_path / "together.npy", everything)
    with pytest.raises(ValueError, match=f"row {counted[70]};"):
        fitted(estimator, tmp_path / "together.npy", zeros)


def test_seeds_and_numbers_of_clusters_know_no_rows_of_weight_zero():
    X, weights = blobs()
    everything, zeros, counted = with_far_rows(X, weights)
    for seeds in (seeding.random, seeding.kmeans_plus_plus, seeding.afk_mc2, seeding.kmeans_parallel):
        alone = seeds(X, 30, sample_weight=weights, random_state=0)
        assert np.array_equal(seeds(everything, 30, sample_weight=zeros, random_state=0), alone)
    alone = seeding.hierarchical(X, 30, sample_weight=weights, random_state=0)
    together = seeding.hierarchical(everything, 30, sample_weight=zeros, random_state=0)
    assert np.array_equal(together.centers, alone.centers) and np.array_equal(together.labels[counted], alone.labels)
    for model in ("kmeans", "gmm"):
        alone = globular.select(X, range(2, 8), model=model, sample_weight=weights, random_state=0)
        together = globular.select(everything, range(2, 8), model=model, sample_weight=zeros, random_state=0)
        assert repr(together.scores) == repr(alone.scores)  # numbers that are not there are equal, too


@pytest.mark.parametrize("estimator", [*CENTROIDS[:8], *CENTROIDS[9:], *MIXTURES, *INFINITE], ids=name_of)
def test_all_weight_on_one_row(estimator):
    """The others do not count, whatever is asked for: every centre and every mean is that row."""
    X, weights = blobs()
    weights[:] = 0
    weights[17] = 3.0
    model = fitted(estimator, X, weights)
    if isinstance(estimator, InfiniteMultinomialMixture):
        assert np.isfinite(model.means_).all() and model.n_components_ >= 1
        return
    found = model.cluster_centers_ if hasattr(model, "cluster_centers_") else model.means_
    of_directions = getattr(model, "metric", "") == "cosine" or isinstance(model, VonMisesFisherMixture)
    expected = X[17] / (np.linalg.norm(X[17]) if of_directions else 1)
    assert np.allclose(found, expected, rtol=1e-6)
    for value in parameters(model).values():
        assert np.isfinite(value).all()


@pytest.mark.parametrize("estimator", [*CENTROIDS, *MIXTURES], ids=name_of)
def test_the_unit_of_the_weights_does_not_matter(estimator):
    X, weights = blobs()
    weights *= 2  # the largest is between two powers of two, as it would be in another unit
    one = fitted(estimator, X, weights)
    objectives, score = [record.objective for record in one.history_], one.score(X, sample_weight=weights)
    for unit in (2.0**-1000, 2.0**-90, 2.0**90, 2.0**970):
        other = fitted(estimator, X, weights * unit)
        for name, value in parameters(one).items():
            factor = unit if name in ("inertia_", "counts_") else 1.0
            assert np.allclose(getattr(other, name), value * factor, rtol=1e-12, atol=0), (name, unit)
        in_units = np.array([record.objective for record in other.history_]) / unit
        assert np.allclose(in_units, objectives, rtol=1e-12, atol=0), unit
        factor = unit if hasattr(one, "inertia_") else 1.0
        assert np.isclose(other.score(X, sample_weight=weights * unit), score * factor, rtol=1e-12), unit


@pytest.mark.parametrize("unit", [1e-320, 1e306])
def test_weights_beyond_float64_are_refused(unit):
    X, weights = blobs()
    with pytest.raises(ValueError, match="sample_weight adds up to"):
        KMeans(5).fit(X, sample_weight=weights * unit)


def test_partial_fit_keeps_votes_in_the_users_unit():
    X, weights = blobs()
    one, other = NestedMiniBatchKMeans(5, random_state=0), NestedMiniBatchKMeans(5, random_state=0)
    for part in (slice(0, None, 2), slice(1, None, 2)):
        one.partial_fit(X[part], sample_weight=weights[part] * 2)
        other.partial_fit(X[part], sample_weight=weights[part] * 2.0**91)
    assert np.allclose(one.cluster_centers_, other.cluster_centers_, rtol=1e-12)
    assert np.allclose(one.counts_ * 2.0**90, other.counts_, rtol=1e-12)


def test_mixing_weights_of_small_totals_are_learned():
    """A total of 1e-9 once drowned in what keeps weights above zero."""
    X, weights = blobs()
    one, other = (fitted(GaussianMixture(5), X, weights * scale) for scale in (1.0, 1e-12))
    assert np.allclose(one.weights_, other.weights_, rtol=1e-9)


@pytest.mark.parametrize("estimator", INFINITE, ids=name_of)
@pytest.mark.parametrize("unit", [1e15, 1e100])
def test_infinite_mixtures_take_weights_for_numbers_of_rows(estimator, unit):
    X, weights = blobs()
    with pytest.raises(ValueError, match=r"sample_weight adds up to .* numbers of rows"):
        fitted(estimator, X, weights * unit)


def test_labels_of_rows_of_weight_zero_are_exact_where_those_of_others_are():
    X = np.random.default_rng(0).normal(size=(2000, 6))
    weights = (np.arange(2000) % 2).astype(float)
    for model in (KMeans(600, algorithm="lloyd", max_iter=2), KMeans(600, exact_labels=True)):
        found = fitted(model, X, weights)
        np.testing.assert_array_equal(found.labels_, found.predict(X))


def test_sums_of_squares_that_no_float_holds_are_refused():
    X, weights = blobs()
    with pytest.raises(ValueError, match=r"sample_weight times the squares of X overflows"):
        KMeans(5).fit(1e130 * X, sample_weight=1e100 * weights)
    assert np.isfinite(fitted(KMeans(5), 1e130 * X, weights).inertia_)


@pytest.mark.parametrize("estimator", INFINITE, ids=name_of)
def test_hardly_any_row_leaves_the_prior(estimator):
    X, weights = blobs()
    one, other = (fitted(estimator, X, weights * unit) for unit in (1e-30, 1e-200))
    assert np.isfinite(other.lower_bound_)
    np.testing.assert_allclose(other.weights_, one.weights_, rtol=1e-6)


@pytest.mark.parametrize("covariance_type", ["full", "diag"])
def test_as_many_rows_as_can_be_counted_do_not_hang(covariance_type):
    X = np.random.default_rng(0).integers(0, 9, (50, 3))
    model = InfiniteGaussianMixture(covariance_type=covariance_type, max_iter=60)
    found = fitted(model, X, np.full(50, 1.7e14))
    assert np.isfinite(found.lower_bound_) and found.n_components_ > 10  # so many rows speak for every distinct one
