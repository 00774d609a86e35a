"""Every estimator, on every form of rows: no strange error, and nothing that brute force contradicts.

`make test` tries a few cases of each; `make attack MINUTES=60` goes on with new ones until the time is up.
"""

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.exceptions import ConvergenceWarning

import globular
from attack.cases import Case, cases, exactly
from attack.counting import attack
from makers import FORMS

from attack.oracle import (  # isort: skip
    are_nearest, directions, log_densities, rounding_of_distances, squared_distances, which_are_nearest,
    worst_condition,
)  # fmt: skip

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
DENSE = tuple(form for form in FORMS if not form.startswith("csr"))
KMEANS = (
    {"algorithm": "auto"}, {"algorithm": "lloyd"}, {"algorithm": "probing"}, {"algorithm": "auto", "quality": "best"},
    {"algorithm": "auto", "metric": "cosine"}, {"algorithm": "lloyd", "metric": "cosine"},
)  # fmt: skip
MIXTURES = tuple(
    (name, {"covariance_type": kind})
    for name, kinds in {
        "GaussianMixture": ("full", "tied", "diag", "spherical", "tied_spherical"),
        "VariationalGaussianMixture": ("diag", "spherical", "tied_spherical", "full", "tied"),
        "ChunkyGaussianMixture": ("full", "diag"),
        "InfiniteGaussianMixture": ("full", "diag"),
    }.items()
    for kind in kinds
)

LOW_RANK = ("means_", "weights_", "loadings_", "noise_variances_")


def fit(name: str, case: Case, options: dict[str, Any], n_threads: int = 1) -> Any:
    """The estimator, fitted to the case."""
    how_many = {} if name.startswith("Infinite") else {_number_of(name): case.n_clusters}
    model = getattr(globular, name)(**how_many, **options, random_state=case.seed, n_threads=n_threads)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(case.rows(), sample_weight=case.sample_weight())


def _number_of(name: str) -> str:
    return "n_clusters" if name.endswith("KMeans") else "n_components"


def seen(model: Any, X: Any) -> Any:
    """Rows as the model sees them."""
    rows = exactly(X)
    return directions(rows) if getattr(model, "metric", "euclidean") == "cosine" else rows


def same_bits(one: Any, other: Any, names: tuple[str, ...]) -> None:
    """Two fits have the same attributes, to the last bit."""
    for name in names:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


def check_centers(model: Any, case: Case) -> None:
    """Finite centres, predictions that are the nearest ones, distances as they are."""
    X, centers = case.rows(), np.asarray(model.cluster_centers_, np.float64)
    rows = seen(model, X)
    assert centers.shape == (case.n_clusters, case.D)
    assert np.isfinite(centers).all()
    predicted = model.predict(X)
    assert are_nearest(rows, centers, predicted)
    cosine = getattr(model, "metric", "") == "cosine"  # one less the cosine, which of a row of zeros is zero
    squares, rounding = squared_distances(rows, centers), rounding_of_distances(rows, centers)
    distances = 1.0 - rows @ centers.T if cosine else np.sqrt(squares)
    assert np.all(np.abs(model.transform(X) - distances) <= 1e-6 + 1e-4 * distances + np.sqrt(rounding))
    assert model.labels_.min() >= 0 and model.labels_.max() < case.n_clusters
    several, apart = model.nearest_centers(X, min(3, case.n_clusters))
    assert are_nearest(rows, centers, several[:, 0]) and np.all(np.diff(apart, axis=1) >= 0.0)
    others = np.ones((case.n, case.n_clusters), dtype=bool)
    np.put_along_axis(others, several, False, axis=1)
    lowest = np.where(others, (1.0 + 1e-5) * squares + rounding, np.inf).min(axis=1)
    assert np.all(np.take_along_axis(squares - rounding, several, axis=1).max(axis=1) <= lowest)


def check_inertia(model: Any, case: Case) -> None:
    """`labels_` are those of `predict`, or as many of them as the model says; and `inertia_` is theirs."""
    rows, centers = seen(model, case.rows()), np.asarray(model.cluster_centers_, np.float64)
    right = which_are_nearest(rows, centers, model.labels_)
    assert right.mean() > (0.9 if model.label_recall_ < 1.0 else 1.0 - 1e-9)
    weights = np.ones(case.n) if case.sample_weight() is None else case.sample_weight()
    distances = squared_distances(rows, centers)[np.arange(case.n), model.labels_]
    slack = 1e-12 * weights.sum() * (np.abs(rows).max() ** 2) * case.D
    np.testing.assert_allclose(model.inertia_, (weights * distances).sum(), rtol=1e-4, atol=slack)


@pytest.mark.parametrize("options", KMEANS, ids=lambda options: "-".join(options.values()))
@attack
@given(case=cases())
def test_kmeans(options: dict[str, Any], case: Case) -> None:
    model = fit("KMeans", case, options)
    check_centers(model, case)
    check_inertia(model, case)
    same_bits(model, fit("KMeans", case, options, n_threads=3), ("cluster_centers_", "labels_", "inertia_", "n_iter_"))


@attack
@given(case=cases())
def test_exact_iterations_never_rise(case: Case) -> None:
    model = fit("KMeans", case, {"algorithm": "lloyd", "tol": 0.0})
    objectives = np.array([record.objective for record in model.history_])
    assert np.isfinite(objectives).all()
    weights = case.sample_weight()
    total = case.n if weights is None else weights.sum()
    rounding = 1e-24 * total * np.square(seen(model, case.rows())).sum(axis=1).max()  # of the means of equal rows
    assert np.all(np.diff(objectives) <= 1e-6 * np.abs(objectives[:-1]) + rounding)


@attack
@given(case=cases(), n_candidates=st.integers(1, 4))
def test_variational_kmeans(case: Case, n_candidates: int) -> None:
    options = {"n_candidates": min(n_candidates, case.n_clusters)}
    model = fit("VariationalKMeans", case, options)
    check_centers(model, case)
    same_bits(model, fit("VariationalKMeans", case, options, n_threads=3), ("cluster_centers_", "labels_"))


@pytest.mark.parametrize("search", ["auto", "exact", "yinyang", "cells"])
@attack
@given(case=cases(), batch_size=st.integers(1, 400))
def test_nested_mini_batches(search: str, case: Case, batch_size: int) -> None:
    options = {"search": search, "batch_size": batch_size}
    model = fit("NestedMiniBatchKMeans", case, options)
    check_centers(model, case)
    same_bits(model, fit("NestedMiniBatchKMeans", case, options, n_threads=3), ("cluster_centers_", "labels_"))


def check_mixture(model: Any, case: Case) -> None:
    """Finite parameters, responsibilities that are shares, densities as brute force has them."""
    X, n_components = case.rows(), len(model.means_)
    rows, infinite = exactly(X), type(model).__name__.startswith("Infinite")
    for parameters in (model.means_, model.weights_, model.covariances_):
        assert np.isfinite(parameters).all()
    shares = model.predict_proba(X)
    assert np.isfinite(shares).all() and np.all(shares >= 0.0)
    for total in (np.sum(model.weights_), *shares.sum(axis=1)):
        # of an infinite mixture the components that it has not seen have the rest
        assert 0.0 <= total <= 1.0 + 1e-4 if infinite else abs(total - 1.0) < 1e-4
    labels = model.predict(X)
    if infinite:  # clusters, which may be of several components
        labels, clusters = model.predict_components(X), labels
        np.testing.assert_array_equal(clusters, model.clusters_[labels])
    best = shares[np.arange(len(rows)), labels]
    assert np.all(best >= shares.max(axis=1) - 1e-4)
    if not infinite and worst_condition(model, n_components, case.D) < 1e6:
        expected = np.logaddexp.reduce(log_densities(rows, model), axis=1)
        np.testing.assert_allclose(model.score_samples(X), expected, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize(("name", "options"), MIXTURES, ids=lambda value: value if isinstance(value, str) else "")
@attack
@given(case=cases(DENSE, max_rows=200, max_clusters=8))
def test_mixtures(name: str, options: dict[str, Any], case: Case) -> None:
    model = fit(name, case, options)
    check_mixture(model, case)
    same_bits(model, fit(name, case, options, n_threads=3), ("means_", "weights_", "covariances_"))


def check_low_rank(model: Any, case: Case) -> None:
    """The mixture of whole matrices is sound, and says the same."""
    full = model.to_full()
    check_mixture(full, case)
    shares = model.predict_proba(case.rows())
    assert np.all(shares[np.arange(case.n), model.predict(case.rows())] >= shares.max(axis=1) - 1e-4)
    assert np.isfinite(model.reconstruct(case.rows())).all() and np.isfinite(model.transform(case.rows())).all()
    if worst_condition(full, case.n_clusters, case.D) < 1e6:
        wanted = full.score_samples(case.rows())
        slack = 1e-2 + rounding_of_coordinates(full, case)
        np.testing.assert_allclose(model.score_samples(case.rows()), wanted, rtol=1e-3, atol=slack)


def rounding_of_coordinates(full: Any, case: Case) -> float:
    """What float32 rows lose of a squared distance when they are turned into other coordinates."""
    unit = np.finfo(np.float32).eps * np.linalg.norm(exactly(case.rows()), axis=1).max()
    return float(unit**2 / np.linalg.eigvalsh(full.covariances_).min()) if case.form == "float32" else 0.0


@pytest.mark.parametrize("noise", ["diag", "tied_spherical"])
@attack
@given(case=cases(DENSE, max_rows=200, max_clusters=8), n_candidates=st.integers(1, 8))
def test_low_rank(noise: str, case: Case, n_candidates: int) -> None:
    options = {"n_factors": min(2, case.D), "noise": noise, "n_candidates": n_candidates}
    model = fit("LowRankGaussianMixture", case, options)
    check_low_rank(model, case)
    same_bits(model, fit("LowRankGaussianMixture", case, options, n_threads=3), LOW_RANK)
