"""The face `VariationalGaussianMixture`, and `GaussianMixture(algorithm="variational")`."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.metrics import adjusted_rand_score

from globular import GaussianMixture, VariationalGaussianMixture
from globular.estimators import mixture
from makers import Rows, blobs

TYPES = ("tied_spherical", "spherical", "diag")
PAPER: dict[str, Any] = {"covariance_type": "tied_spherical", "weights": "equal"}


def grid(n: int = 4000, side: int = 8, seed: int = 0) -> tuple[Rows, np.ndarray]:
    """Round clusters on a grid, and which cluster a row is from."""
    random = np.random.default_rng(seed)
    corners = random.integers(side, size=(n, 2))
    return 8.0 * corners + random.normal(size=(n, 2)), corners @ [side, 1]


def middles(side: int = 8) -> Rows:
    return 8.0 * np.stack(np.meshgrid(np.arange(side), np.arange(side), indexing="ij"), axis=-1).reshape(-1, 2)


def test_bounds_are_lower_bounds_of_the_score() -> None:
    X, _ = grid(n=1000)
    model = VariationalGaussianMixture(64, init=middles() + 1.0, random_state=0, tol=0.0, max_iter=5)
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        scores = [model.score(X) for _ in model.fit_iter(X)]
    assert (np.array(model.lower_bounds_[1:]) <= np.array(scores[:-1]) + 1e-9).all()


@pytest.mark.parametrize("search", ["neighbors", "exhaustive neighbors"])
@pytest.mark.parametrize("covariance_type", TYPES)
def test_clusters_of_a_grid_are_found(covariance_type: str, search: str) -> None:
    X, labels = grid()
    noise = np.random.default_rng(1).normal(size=(64, 2))
    model = VariationalGaussianMixture(
        64, init=middles() + noise, covariance_type=covariance_type, search=search, random_state=0
    )
    found = model.fit_predict(X)
    assert adjusted_rand_score(labels, found) > 0.98
    np.testing.assert_allclose(model.covariances_, 1.0, atol=0.7)  # of some sixty rows each
    assert model.score(X) - model.lower_bound_ < 0.02


@pytest.mark.parametrize("covariance_type", TYPES)
def test_predicting_by_the_graph(covariance_type: str) -> None:
    X = blobs(n=5000, C=60, D=4, seed=2)
    model = VariationalGaussianMixture(300, covariance_type=covariance_type, random_state=0, tol=1e-2).fit(X)
    fresh = X[::2] + 0.05
    exact, quick = model.predict(fresh), model.predict(fresh, exact=False)
    # variances per column of some twenty rows differ wildly, and so do the neighbourhoods they ask for
    assert exact.dtype == quick.dtype and np.mean(exact == quick) >= (0.9 if covariance_type == "diag" else 0.97)
    bounds, scores = model.score_samples(fresh, exact=False), model.score_samples(fresh)
    assert (bounds <= scores + 1e-9).all() and np.mean(scores - bounds) < 0.5
    table = model.predict_proba(fresh, truncated=True, sparse=True)
    assert sparse.issparse(table) and table.format == "csr" and table.shape == (2500, 300)
    assert np.diff(table.indptr).max() <= 5 and table.has_sorted_indices
    np.testing.assert_allclose(table.sum(axis=1), 1.0, rtol=1e-12)
    np.testing.assert_array_equal(table.toarray(), model.predict_proba(fresh, truncated=True))
    np.testing.assert_array_equal(np.asarray(table.argmax(axis=1)).ravel(), quick)
    # the exact posterior, restricted and renormalised
    posterior = np.where(table.toarray() > 0, model.predict_proba(fresh), 0.0)
    np.testing.assert_allclose(posterior / posterior.sum(axis=1, keepdims=True), table.toarray(), rtol=1e-6, atol=1e-9)


def test_exact_probabilities_are_not_sparse() -> None:
    X = blobs(n=100)
    model = VariationalGaussianMixture(5, random_state=0).fit(X)
    with pytest.raises(ValueError, match="truncated=True"):
        model.predict_proba(X, sparse=True)
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1.0)
    for method, options in [("predict", {"exact": False}), ("score_samples", {"exact": False}), ("sample", {})]:
        with pytest.raises(NotFittedError):
            getattr(VariationalGaussianMixture(), method)(*([X] if options else []), **options)


@pytest.mark.parametrize("search", ["neighbors", "exhaustive neighbors"])
@pytest.mark.parametrize("covariance_type", TYPES)
def test_weight_n_is_n_copies(covariance_type: str, search: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = VariationalGaussianMixture._options
    X = blobs(n=200, C=8)
    copies = np.random.default_rng(0).integers(0, 4, size=200)
    monkeypatch.setattr(  # what is drawn at random depends on the number of the row
        VariationalGaussianMixture, "_options", lambda self: replace(options(self), n_random=0)
    )
    model = VariationalGaussianMixture(
        12, init=X[:12], covariance_type=covariance_type, search=search, random_state=0, reg_covar=1e-3,
        prior=None,  # which rows are left out to choose one depends on their numbers, too
    )  # fmt: skip
    weighted = clone(model).fit(X, sample_weight=copies)
    repeated = clone(model).fit(np.repeat(X, copies, axis=0))
    np.testing.assert_allclose(weighted.lower_bounds_, repeated.lower_bounds_, rtol=1e-8)
    np.testing.assert_allclose(weighted.means_, repeated.means_, rtol=1e-6, atol=1e-8)


def test_start_as_array_or_callable() -> None:
    X = blobs(n=100)
    given = VariationalGaussianMixture(4, init=X[:4], max_iter=0).fit(X)
    np.testing.assert_array_equal(given.means_, X[:4])
    assert given.n_iter_ == 0 and given.init_ == "array" and (given.covariances_ > 0).all()
    called = VariationalGaussianMixture(4, init=lambda X, k, random_state: X[:k], max_iter=0).fit(X)
    np.testing.assert_array_equal(called.means_, X[:4])
    with pytest.raises(ValueError, match=r"initial centers \(3, 4\) does not match the number of clusters 4"):
        VariationalGaussianMixture(4, init=X[:3]).fit(X)


def test_facade_keeps_given_parts_of_a_start() -> None:
    X = blobs(n=200, D=3)
    shares = np.random.default_rng(0).dirichlet(np.ones(4))
    options: dict[str, Any] = {"covariance_type": "diag", "algorithm": "variational", "max_iter": 0, "random_state": 0}
    means = GaussianMixture(4, means_init=X[:4], weights_init=shares, **options).fit(X)
    np.testing.assert_array_equal(means.means_, X[:4])
    np.testing.assert_allclose(means.weights_, shares)
    precisions = GaussianMixture(4, precisions_init=np.full((4, 3), 4.0), **options).fit(X)
    np.testing.assert_allclose(precisions.covariances_, 0.25)


def test_auto_takes_it_for_many_components(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixture, "VARIATIONAL_FROM", 20)
    X, _ = grid(n=500)
    for covariance_type, n_components, expected in [
        ("diag", 19, "em"), ("diag", 20, "variational"), ("spherical", 20, "variational"),
        ("tied_spherical", 20, "variational"), ("full", 20, "em"), ("tied", 20, "em"),
    ]:  # fmt: skip
        model = GaussianMixture(n_components, covariance_type=covariance_type, random_state=0, tol=1e-1)
        assert model.fit(X).algorithm_ == expected


def test_facade_warm_start_and_refusal() -> None:
    X, _ = grid(n=500)
    model = GaussianMixture(
        20, covariance_type="diag", algorithm="variational", warm_start=True, random_state=0, reg_covar=1e-3
    )
    first = model.fit(X).lower_bound_
    assert model.fit(X).lower_bound_ >= first - 1e-3
    with pytest.raises(ValueError, match="algorithm='variational' needs covariances without correlations"):
        GaussianMixture(3, algorithm="variational").fit(X)


def test_the_default_is_the_model_that_serves() -> None:
    """Variances of their own and weights: on rows of unequal groups the paper's model is far below."""
    random = np.random.default_rng(0)
    X = np.concatenate([random.normal(size=(2000, 3)) * [0.1, 1.0, 5.0], random.normal(size=(200, 3)) + 30])
    model = VariationalGaussianMixture(4, random_state=0)
    assert (model.covariance_type, model.weights, model.reg_covar) == ("diag", "learned", "auto")
    assert model.fit(X).score(X) > VariationalGaussianMixture(4, random_state=0, **PAPER).fit(X).score(X) + 1.0


@pytest.mark.parametrize("n", [499, 500])
def test_labels_of_many_components_come_by_cells(n: int) -> None:
    X = np.random.default_rng(0).normal(size=(3000, 2))
    model = VariationalGaussianMixture(n, random_state=0, tol=0.5).fit(X)
    np.testing.assert_array_equal(model.labels_, model.predict(X, exact=n < 500))
    facade = GaussianMixture(n, algorithm="variational", covariance_type="diag", random_state=0, tol=0.5)
    assert (facade.fit(X).labels_ == facade.predict(X)).mean() > 0.97


@pytest.mark.parametrize("covariance_type", ["full", "tied"])
def test_matrices_are_probed(covariance_type: str) -> None:
    random = np.random.default_rng(0)
    roots, means = random.normal(size=(30, 4, 4)), 6.0 * random.normal(size=(30, 4))
    labels = random.integers(30, size=4000)
    X = means[labels] + np.einsum("nde,ne->nd", roots[labels if covariance_type == "full" else 0 * labels],
                                  random.normal(size=(4000, 4)))  # fmt: skip
    given = {"covariance_type": covariance_type, "init": means + 0.3, "random_state": 0, "reg_covar": 0.0}
    model = VariationalGaussianMixture(30, **given).fit(X)
    assert model.search_ == "probing" and (np.diff(model.lower_bounds_) >= -1e-9).all()
    exact = GaussianMixture(30, covariance_type=covariance_type, means_init=means + 0.3, reg_covar=0.0).fit(X)
    assert model.score(X) > exact.score(X) - 0.05
    assert model.lower_bound_ <= model.score(X) + 1e-9
    assert np.abs(model.score_samples(X, exact=False) - model.score_samples(X)).mean() < 0.05
    assert (model.predict(X, exact=False) == model.predict(X)).mean() > 0.99
    again = VariationalGaussianMixture(30, n_threads=1, **given).fit(X)
    np.testing.assert_array_equal(again.covariances_, model.covariances_)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_all_matrices_for_candidates_are_exact_em() -> None:
    X = np.random.default_rng(0).normal(size=(300, 3)) @ np.diag([1.0, 2.0, 3.0])
    given: dict[str, Any] = {"covariance_type": "full", "tol": 0.0, "reg_covar": 0.0, "random_state": 0}
    model = VariationalGaussianMixture(4, n_candidates=4, init=X[:4], max_iter=6, **given)
    start = clone(model).set_params(max_iter=0).fit(X)
    exact = GaussianMixture(
        4, weights_init=start.weights_, means_init=start.means_, precisions_init=start.precisions_, max_iter=6, **given
    ).fit(X)
    np.testing.assert_allclose(model.fit(X).lower_bounds_, exact.lower_bounds_, rtol=1e-10)
    np.testing.assert_allclose(model.covariances_, exact.covariances_, rtol=1e-8, atol=1e-8)


def test_matrices_are_not_searched_by_neighborhoods() -> None:
    with pytest.raises(ValueError, match="covariance_type='full' takes search='probing'"):
        VariationalGaussianMixture(4, covariance_type="full", search="neighbors").fit(np.eye(8))
