"""The face `VariationalGaussianMixture`, and `GaussianMixture(algorithm="variational")`."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.metrics import adjusted_rand_score
from sklearn.utils.estimator_checks import parametrize_with_checks

import globular
from globular import GaussianMixture, VariationalGaussianMixture
from globular.algorithms.seeding.named import STARTS
from globular.data.open import as_source
from globular.estimators import inputs, mixture
from globular.model.covariances import FAMILIES
from globular.model.history import Record
from makers import Rows, blobs, in_form, weights_for

TYPES = ("tied_spherical", "spherical", "diag")
PAPER: dict[str, Any] = {"covariance_type": "tied_spherical", "weights": "equal"}
OTHER_DRAWS = "repeated rows are other rows to random candidates; without them weights equal repetitions, see below"


def grid(n: int = 4000, side: int = 8, seed: int = 0) -> tuple[Rows, np.ndarray]:
    """Round clusters on a grid, and which cluster a row is from."""
    random = np.random.default_rng(seed)
    corners = random.integers(side, size=(n, 2))
    return 8.0 * corners + random.normal(size=(n, 2)), corners @ [side, 1]


def middles(side: int = 8) -> Rows:
    return 8.0 * np.stack(np.meshgrid(np.arange(side), np.arange(side), indexing="ij"), axis=-1).reshape(-1, 2)


# ---------------------------------------------------------------- the model


@pytest.mark.parametrize("weights", ["equal", "learned"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("covariance_type", TYPES)
def test_attributes(covariance_type: str, dtype: type, weights: str) -> None:
    X, w = blobs(n=600, C=10, D=3).astype(dtype), weights_for(600)
    model = VariationalGaussianMixture(40, covariance_type=covariance_type, weights=weights, random_state=0)
    assert model.fit(X, sample_weight=w) is model
    assert model.means_.shape == (40, 3) and model.weights_.shape == (40,)
    for array in (model.covariances_, model.precisions_, model.precisions_cholesky_):
        assert array.shape == FAMILIES[covariance_type].shape(40, 3) and array.dtype == dtype
    assert model.neighbors_.shape == (40, 5)
    np.testing.assert_array_equal(model.neighbors_[:, 0], np.arange(40))
    assert model.converged_ and model.stopped_ and model.init_ in STARTS
    assert len(model.history_.iterations) == model.n_iter_ == len(model.lower_bounds_)
    np.testing.assert_allclose(model.history_.iterations.column("objective") / w.sum(), model.lower_bounds_)
    assert (np.diff(model.lower_bounds_) >= -1e-9).all() and model.lower_bound_ == model.lower_bounds_[-1]
    assert model.n_distances_ == sum(record.n_distances for record in model.history_)
    assert model.history_.iterations.column("n_distances").sum() < (model.n_iter_ + 1) * 600 * (5 * 5 + 1)
    if weights == "equal":
        np.testing.assert_array_equal(model.weights_, dtype(1 / 40))
    else:
        assert model.weights_.sum() == pytest.approx(1.0) and np.ptp(model.weights_) > 0


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


@pytest.mark.parametrize("weights", ["equal", "learned"])
@pytest.mark.parametrize("covariance_type", TYPES)
def test_whole_neighborhoods_are_exact_em(covariance_type: str, weights: str) -> None:
    X = blobs(n=300, D=3)
    options: dict[str, Any] = {"covariance_type": covariance_type, "reg_covar": 0.0, "tol": 0.0, "max_iter": 10}
    model = VariationalGaussianMixture(
        6, init=X[:6], n_candidates=6, n_neighbors=6, weights=weights, random_state=0, **options
    )
    with pytest.warns(ConvergenceWarning):
        begun = clone(model).set_params(max_iter=1).fit(X)  # to know the start
    with pytest.warns(ConvergenceWarning):
        model.fit(X)
    start = clone(model).set_params(max_iter=0).fit(X)
    np.testing.assert_array_equal(start.means_, X[:6])
    given = {"means_init": X[:6], "precisions_init": start.precisions_}
    given |= {"weights_init": "equal" if weights == "equal" else np.full(6, 1 / 6)}
    with pytest.warns(ConvergenceWarning):
        exact = GaussianMixture(6, algorithm="em", **options, **given).fit(X)
    np.testing.assert_allclose(model.lower_bounds_, exact.lower_bounds_, rtol=1e-9)
    np.testing.assert_allclose(model.means_, exact.means_, rtol=1e-6, atol=1e-9)
    assert begun.lower_bound_ == model.lower_bounds_[0]


def test_samples_and_criteria() -> None:
    X, _ = grid(n=2000)
    model = VariationalGaussianMixture(64, init=middles(), random_state=0, **PAPER).fit(X)
    drawn, labels = model.sample(500)
    assert drawn.shape == (500, 2) and np.mean(model.predict(drawn) == labels) > 0.98
    penalty = model.aic(X) + 2 * len(X) * model.score(X)
    assert penalty == pytest.approx(2 * (64 * 2 + 1))  # means and one variance
    assert model.bic(X) > model.aic(X)


# ---------------------------------------------------------------- predicting


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


# ---------------------------------------------------------------- input


@pytest.mark.parametrize("form", ["float32", "uint8", "int64", "fortran", "strided", "readonly"])
def test_every_form_of_input_gives_the_model_of_its_float64_rows(form: str) -> None:
    matrix = in_form(blobs(n=300, C=8), form)
    rows = np.asarray(matrix, dtype=np.float64)
    options = {"n_components": 12, "init": rows[:12], "random_state": 0}
    ours, wide = VariationalGaussianMixture(**options).fit(matrix), VariationalGaussianMixture(**options).fit(rows)
    np.testing.assert_allclose(ours.lower_bounds_, wide.lower_bounds_, rtol=1e-6)
    np.testing.assert_allclose(ours.means_, wide.means_, rtol=1e-5, atol=1e-5)


def test_files_and_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, weights = blobs(n=300, C=8), weights_for(300)
    np.save(tmp_path / "rows.npy", X)
    model = VariationalGaussianMixture(15, random_state=0).fit(X, sample_weight=weights)
    monkeypatch.setattr(inputs, "MEMORY_SHARE", 0.0)
    monkeypatch.setattr("globular.passes.many.PART_BYTES", 64 * 32)
    source = as_source(tmp_path / "rows.npy")
    streamed = VariationalGaussianMixture(15, random_state=0).fit(source, sample_weight=weights)
    np.testing.assert_allclose(streamed.lower_bounds_, model.lower_bounds_, rtol=1e-9)
    np.testing.assert_array_equal(streamed.predict(source), model.predict(X))
    truncated = {"truncated": True, "sparse": True}
    difference = streamed.predict_proba(source, **truncated) - streamed.predict_proba(X, **truncated)
    assert abs(difference).max() < 1e-9


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
        12, init=X[:12], covariance_type=covariance_type, search=search, random_state=0, reg_covar=1e-3
    )
    weighted = clone(model).fit(X, sample_weight=copies)
    repeated = clone(model).fit(np.repeat(X, copies, axis=0))
    np.testing.assert_allclose(weighted.lower_bounds_, repeated.lower_bounds_, rtol=1e-8)
    np.testing.assert_allclose(weighted.means_, repeated.means_, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("covariance_type", TYPES)
@pytest.mark.parametrize(
    "rows",
    [
        np.array([[1.0, 2.0]]),
        np.full((7, 2), 1e8),
        np.repeat([[0.0, 0.0], [1.0, 1.0]], 6, axis=0),
        np.column_stack([np.arange(9.0), np.ones(9)]),
        np.arange(10.0)[:, None] * [1.0, 1.0] + 1e8,
    ],
    ids=["one row", "constant", "two distinct rows", "constant column", "line far away"],
)
def test_degenerate_data_are_fitted(rows: Rows, covariance_type: str) -> None:
    for n_components in {1, min(5, len(rows)), len(rows)}:
        model = VariationalGaussianMixture(n_components, covariance_type=covariance_type, random_state=0, tol=1e-2)
        model.fit(rows)
        for values in (model.weights_, model.means_, model.covariances_, model.precisions_, model.score_samples(rows)):
            assert np.isfinite(values).all()
        np.testing.assert_allclose(model.predict_proba(rows, truncated=True).sum(axis=1), 1.0)


# ---------------------------------------------------------------- running


@pytest.mark.parametrize("init", STARTS)
def test_every_seeding_on_little_data(init: str) -> None:
    X = blobs(n=40, D=3)
    for n_components in (1, 3, 40):
        model = VariationalGaussianMixture(n_components, init=init, random_state=0, tol=1e-2).fit(X)
        assert model.means_.shape == (n_components, 3) and np.isfinite(model.lower_bound_)


def test_start_as_array_or_callable() -> None:
    X = blobs(n=100)
    given = VariationalGaussianMixture(4, init=X[:4], max_iter=0).fit(X)
    np.testing.assert_array_equal(given.means_, X[:4])
    assert given.n_iter_ == 0 and given.init_ == "array" and (given.covariances_ > 0).all()
    called = VariationalGaussianMixture(4, init=lambda X, k, random_state: X[:k], max_iter=0).fit(X)
    np.testing.assert_array_equal(called.means_, X[:4])
    with pytest.raises(ValueError, match=r"initial centers \(3, 4\) does not match the number of clusters 4"):
        VariationalGaussianMixture(4, init=X[:3]).fit(X)


def test_warm_start_goes_on() -> None:
    X, _ = grid()
    model = VariationalGaussianMixture(64, init="random", random_state=0, tol=0.0, max_iter=5, warm_start=True)
    with pytest.warns(ConvergenceWarning):
        first = model.fit(X).lower_bound_
    means = model.means_
    with pytest.warns(ConvergenceWarning):
        model.fit(X)
    assert model.init_ == "warm start" and model.lower_bound_ > first
    assert (model.means_ != means).any()
    with pytest.raises(ValueError, match="warm_start"):
        model.set_params(n_components=3).fit(X)


def test_loop_over_fit_iter_may_be_left() -> None:
    X, _ = grid(n=1000)
    model = VariationalGaussianMixture(64, random_state=0, tol=0.0)
    for record in model.fit_iter(X):
        assert isinstance(record, Record) and record.iteration == model.n_iter_
        if record.iteration == 2:
            break
    assert len(model.lower_bounds_) == 2 and model.predict(X).shape == (1000,)


def test_best_of_several_runs_is_kept() -> None:
    X, _ = grid(n=1000, side=5)
    options: dict[str, Any] = {"n_components": 25, "init": "random", "random_state": 0, "tol": 1e-2}
    single = VariationalGaussianMixture(**options).fit(X)
    model = VariationalGaussianMixture(n_init=4, **options).fit(X)
    assert model.lower_bound_ >= single.lower_bound_ and model.n_distances_ > single.n_distances_


def test_same_seed_same_result_for_any_number_of_threads() -> None:
    X, _ = grid(n=12_000, side=12)
    fits = [VariationalGaussianMixture(144, random_state=3, n_threads=n, tol=1e-2).fit(X) for n in (1, 2)]
    assert fits[0].lower_bounds_ == fits[1].lower_bounds_
    for name in ("means_", "covariances_", "neighbors_"):
        np.testing.assert_array_equal(getattr(fits[0], name), getattr(fits[1], name))


def test_clone_pickle_save_and_load(tmp_path: Path) -> None:
    X, _ = grid(n=1000)
    model = VariationalGaussianMixture(30, n_neighbors=6, random_state=0)
    before = model.get_params()
    model.fit(X)
    assert model.get_params() == before == clone(model).get_params()
    for copy in (pickle.loads(pickle.dumps(model)), globular.load(globular.save(model, tmp_path / "model"))):
        assert isinstance(copy, VariationalGaussianMixture)
        np.testing.assert_array_equal(copy.score_samples(X), model.score_samples(X))
        np.testing.assert_array_equal(copy.predict(X, exact=False), model.predict(X, exact=False))


@pytest.mark.parametrize(
    "options",
    [
        {"n_components": 0}, {"n_candidates": 0}, {"n_neighbors": 0}, {"search": "near"},
        {"covariance_type": "whole"}, {"weights": "free"}, {"tol": -1.0}, {"reg_covar": -1.0}, {"init": "guess"},
        {"n_threads": 0}, {"max_time": 0.0},
    ],
    ids=str,
)  # fmt: skip
def test_bad_parameters_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        VariationalGaussianMixture(**{"n_components": 3, **options}).fit(blobs())


def test_sparse_rows_and_too_few_rows_are_refused() -> None:
    with pytest.raises(TypeError, match="dense rows"):
        VariationalGaussianMixture(2).fit(sparse.csr_matrix(blobs()))
    with pytest.raises(ValueError, match="n_samples=5 should be >= n_components=8"):
        VariationalGaussianMixture().fit(blobs(n=5))


@parametrize_with_checks(
    [VariationalGaussianMixture(), VariationalGaussianMixture(3, covariance_type="diag", weights="learned")],
    expected_failed_checks=lambda estimator: {"check_sample_weight_equivalence_on_dense_data": OTHER_DRAWS},
)
def test_scikit_learn_conventions(estimator: BaseEstimator, check: Callable[[Any], None]) -> None:
    check(estimator)


# ---------------------------------------------------------------- GaussianMixture(algorithm="variational")


@pytest.mark.parametrize("init_params", ["kmeans", "k-means++", "random_from_data", "random"])
@pytest.mark.parametrize("covariance_type", TYPES)
def test_facade_runs_the_variational_algorithm(covariance_type: str, init_params: str) -> None:
    X, _ = grid(n=1000)
    model = GaussianMixture(
        30, covariance_type=covariance_type, algorithm="variational", init_params=init_params, random_state=0
    )
    model.fit(X)
    assert model.algorithm_ == "variational" and model.converged_
    assert model.lower_bound_ <= model.score(X) + 0.01
    assert model.weights_.sum() == pytest.approx(1.0)
    start = clone(model).set_params(max_iter=0).fit(X)
    assert start.n_iter_ == 0 and np.isfinite(start.score(X))


def test_facade_keeps_given_parts_of_a_start() -> None:
    X = blobs(n=200, D=3)
    shares = np.random.default_rng(0).dirichlet(np.ones(4))
    options: dict[str, Any] = {"covariance_type": "diag", "algorithm": "variational", "max_iter": 0, "random_state": 0}
    means = GaussianMixture(4, means_init=X[:4], weights_init=shares, **options).fit(X)
    np.testing.assert_array_equal(means.means_, X[:4])
    np.testing.assert_allclose(means.weights_, shares)
    precisions = GaussianMixture(4, precisions_init=np.full((4, 3), 4.0), **options).fit(X)
    np.testing.assert_allclose(precisions.covariances_, 0.25)


def test_facade_is_as_good_as_exact_em() -> None:
    X, _ = grid()
    options: dict[str, Any] = {"covariance_type": "tied_spherical", "random_state": 0, "max_iter": 200}
    exact = GaussianMixture(64, algorithm="em", **options).fit(X)
    model = GaussianMixture(64, algorithm="variational", **options).fit(X)
    assert model.score(X) > exact.score(X) - 0.05
    assert model.n_distances_ / model.n_iter_ < exact.n_distances_ / exact.n_iter_


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
