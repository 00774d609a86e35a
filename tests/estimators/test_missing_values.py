"""Missing values: mixtures that are told so take NaN for what is not known, all others refuse it."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.metrics import adjusted_rand_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from globular.model.covariances import FAMILIES
from globular.model.gaussian import GaussianParameters
from globular.model.statistics import F64
from makers import blobs, weights_for
from reference import missing as reference

from globular import (  # isort: skip
    ChunkyGaussianMixture, GaussianMixture, InfiniteGaussianMixture, KMeans, PoissonMixture, VariationalGaussianMixture,
)  # fmt: skip

GAUSSIANS = [
    GaussianMixture(3, random_state=0),
    VariationalGaussianMixture(3, random_state=0),
    ChunkyGaussianMixture(3, random_state=0),
]
ALL = pytest.mark.parametrize(
    "estimator", [*GAUSSIANS, InfiniteGaussianMixture(random_state=0)], ids=lambda each: type(each).__name__
)


def with_holes(X: F64, share: float = 0.2, seed: int = 1) -> F64:
    """A copy of which entries are missing at random."""
    return np.where(np.random.default_rng(seed).uniform(size=X.shape) < share, np.nan, X)


@pytest.mark.parametrize("estimator", GAUSSIANS, ids=lambda each: type(each).__name__)
def test_rows_are_judged_by_what_is_known_of_them(estimator: Any) -> None:
    X = blobs(300, 3, 4)
    model = clone(estimator).fit(X)
    holes = with_holes(X[:40], 0.4)
    holes[0] = np.nan
    mixture = GaussianParameters(model.weights_, model.means_, model.covariances_, model.covariance_type)
    shares, densities = zip(*(reference.row_posterior(mixture, row) for row in holes), strict=True)
    np.testing.assert_allclose(model.score_samples(holes, missing=True), densities, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(model.predict_proba(holes, missing=True), shares, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(model.predict(holes, missing=True), np.argmax(shares, axis=1))
    np.testing.assert_allclose(model.score_samples(X, missing=True), model.score_samples(X), rtol=1e-10)


@pytest.mark.parametrize("covariance_type", ["full", "diag"])
def test_infinite_mixtures_judge_by_predictive_densities_of_what_is_known(covariance_type: str) -> None:
    """The density of a row is that of what is known of it, integrated over what is not."""
    X = blobs(60, 2, 3)
    model = InfiniteGaussianMixture(covariance_type=covariance_type, random_state=0).fit(X)
    row, steps = X[0], np.linspace(-400.0, 400.0, 400_001)
    rows = np.tile(row, (len(steps), 1))
    rows[:, 1] = steps
    integral = np.trapezoid(np.exp(model.score_samples(rows)), steps)
    row = np.where([False, True, False], np.nan, row)
    found = model.score_samples([row, np.full(3, np.nan)], missing=True)
    np.testing.assert_allclose(np.exp(found), [integral, 1.0], rtol=1e-4)
    for method in (model.score_samples, model.predict_proba, model.predict):
        np.testing.assert_allclose(method(X, missing=True), method(X), rtol=1e-10, atol=1e-12)
    assert model.predict_proba(row[None], missing=True).shape == (1, model.n_components_)


@ALL
def test_imputed_values_are_expected_ones(estimator: Any) -> None:
    X = blobs(300, 3, 4)
    model = clone(estimator).fit(X)
    holes = with_holes(X)
    filled = model.impute(holes)
    weights = model.weights_ / model.weights_.sum()
    mixture = GaussianParameters(weights, model.means_, model.covariances_, model.covariance_type)
    np.testing.assert_allclose(filled, [reference.imputed(row, mixture) for row in holes], rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(filled[~np.isnan(holes)], X[~np.isnan(holes)])
    by_means = np.where(np.isnan(holes), np.nanmean(holes, axis=0), holes)
    assert np.mean((filled - X) ** 2) < 0.5 * np.mean((by_means - X) ** 2)


@ALL
def test_nan_is_an_error_unless_it_is_said_to_be_missing(estimator: Any) -> None:
    X = blobs(300, 3, 4)
    holes = with_holes(X)
    with pytest.raises(ValueError, match="X contains NaN"):
        clone(estimator).fit(holes)
    model = clone(estimator).fit(X)
    for method in ("predict", "predict_proba", "score_samples", "score"):
        with pytest.raises(ValueError, match="X contains NaN"):
            getattr(model, method)(holes)


@pytest.mark.parametrize("covariance_type", sorted(FAMILIES))
def test_a_fit_with_holes_is_nearly_that_of_complete_rows(covariance_type: str) -> None:
    random = np.random.default_rng(3)
    true = GaussianMixture.from_parameters(
        [0.5, 0.3, 0.2], 4.0 * random.normal(size=(3, 4)), FAMILIES[covariance_type].isotropic(1.0, 3, 4),
        covariance_type,
    ).set_params(random_state=0)  # fmt: skip
    X, new = true.sample(2000)[0], true.set_params(random_state=1).sample(4000)[0]
    complete = GaussianMixture(3, covariance_type=covariance_type, random_state=0).fit(X)
    model = GaussianMixture(3, covariance_type=covariance_type, random_state=0).fit(with_holes(X), missing=True)
    assert model.converged_ and model.algorithm_ == "em" and model.labels_.shape == (2000,)
    assert {"part", "iterations"} <= {record.stage for record in model.history_}
    assert model.score(new) > complete.score(new) - 0.05


def test_a_fit_of_complete_rows_is_the_same_either_way() -> None:
    X = blobs(300, 3, 4)
    plain, told = GaussianMixture(3, random_state=0).fit(X), GaussianMixture(3, random_state=0).fit(X, missing=True)
    np.testing.assert_array_equal(told.means_, plain.means_)
    np.testing.assert_array_equal(told.labels_, plain.labels_)


def test_threads_weights_and_names_have_their_place() -> None:
    X = blobs(200, 3, 4)
    weights, holes = np.round(weights_for(200)), with_holes(X)
    frame = pd.DataFrame(holes, columns=list("abcd"))
    one, two = (
        GaussianMixture(2, random_state=0, n_threads=n).fit(frame, sample_weight=weights, missing=True) for n in (1, 2)
    )
    np.testing.assert_array_equal(one.means_, two.means_)
    assert list(one.feature_names_in_) == list("abcd") and len(one.labels_) == 200
    repeated = GaussianMixture(2, means_init=one.means_, tol=0, max_iter=5)
    with pytest.warns(match="did not converge"):
        weighted = clone(repeated).fit(holes, sample_weight=weights, missing=True)
    copies = np.repeat(holes, weights.astype(int), axis=0)
    assert weighted.lower_bound_ > weighted.lower_bounds_[0]
    np.testing.assert_allclose(
        weighted.score_samples(copies, missing=True).sum(), weights @ weighted.score_samples(holes, missing=True)
    )


def test_files_are_read_and_what_is_elsewhere_is_refused(tmp_path: Path) -> None:
    X = with_holes(blobs(100, 2, 3))
    np.save(tmp_path / "X.npy", X)
    model = GaussianMixture(2, random_state=0).fit(tmp_path / "X.npy", missing=True)
    np.testing.assert_array_equal(model.means_, GaussianMixture(2, random_state=0).fit(X, missing=True).means_)
    np.testing.assert_array_equal(model.impute(tmp_path / "X.npy"), model.impute(X))
    array = pytest.importorskip("dask.array").from_array(X, chunks=(50, 3))
    with pytest.raises(TypeError, match="X: rows with missing values are fitted in memory"):
        model.fit(array, missing=True)
    lazy = model.predict_proba(array, missing=True)
    np.testing.assert_allclose(lazy.compute(scheduler="sync"), model.predict_proba(X, missing=True))


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"column": np.nan}, {}, "X: of column 1 no value is known"),
        ({"entry": np.inf}, {}, "X contains infinity, first in row 200 .*, column 2"),
        ({}, {"algorithm": "chunky"}, "missing values need algorithm='em'"),
        ({}, {"covariance_type": "diag", "algorithm": "variational"}, "missing values need algorithm='em'"),
        ({}, {"n_components": 400}, "n_components=400"),
    ],
)
def test_what_cannot_be_fitted_is_named(change: dict[str, float], options: dict[str, Any], message: str) -> None:
    X = with_holes(blobs(300, 3, 4))
    X[:, 1] = change.get("column", X[:, 1])
    X[200, 2] = change.get("entry", 0.0)
    with pytest.raises(ValueError, match=message):
        GaussianMixture(**{"n_components": 2, **options}).fit(X, missing=True)


@ALL
def test_scores_of_rows_with_missing_values_are_those_of_what_is_known(estimator: Any) -> None:
    X, weights = blobs(300, 3, 4), weights_for(300)
    model = clone(estimator).fit(X)
    holes = with_holes(X)
    densities = model.score_samples(holes, missing=True)
    assert model.score(holes, missing=True) == pytest.approx(densities.mean())
    assert model.score(holes, sample_weight=weights, missing=True) == pytest.approx(
        np.average(densities, weights=weights)
    )
    n_parameters = model._n_parameters()
    assert model.aic(holes, missing=True) == pytest.approx(2 * n_parameters - 2 * densities.sum())
    assert model.bic(holes, missing=True) == pytest.approx(n_parameters * np.log(300) - 2 * densities.sum())
    q = model.predict_proba(holes, missing=True)
    q = q / q.sum(axis=1, keepdims=True)
    entropy = -(q * np.log(np.maximum(q, 1e-300))).sum()
    assert model.icl(holes, missing=True) == pytest.approx(model.bic(holes, missing=True) + 2 * entropy, rel=1e-6)
    for name in ("score", "aic", "bic", "icl"):
        assert getattr(model, name)(X, missing=True) == pytest.approx(getattr(model, name)(X), rel=1e-6)
        with pytest.raises(ValueError, match="NaN"):
            getattr(model, name)(holes)


def test_fit_predict_takes_missing_values() -> None:
    holes = with_holes(blobs(200, 3, 4))
    model = GaussianMixture(3, random_state=0)
    np.testing.assert_array_equal(model.fit_predict(holes, missing=True), model.labels_)


def test_float32_rows_stay_float32() -> None:
    rows = np.random.default_rng(0).normal(size=(300, 3)).astype(np.float32)
    rows[::5, 1] = np.nan
    model = GaussianMixture(2, random_state=0).fit(rows, missing=True)
    answers = model.means_, model.impute(rows), model.predict_proba(rows, missing=True)
    assert {answer.dtype for answer in answers} == {np.dtype(np.float32)}
    double = GaussianMixture(2, random_state=0).fit(rows.astype(np.float64), missing=True)
    np.testing.assert_allclose(model.means_, double.means_, atol=1e-3)


def test_a_column_that_rows_of_weight_do_not_know_is_named() -> None:
    rows = blobs(40, 2, 2)
    rows[:5, 1] = np.nan
    weights = np.r_[np.ones(5), np.zeros(35)]
    named = pd.DataFrame(rows, columns=["height", "width"])
    for X, column in ((rows, "1"), (named, "'width'")):
        for k in (1, 3, 7):
            with pytest.raises(
                ValueError, match=f"of column {column} no value is known in the rows of positive weight"
            ):
                GaussianMixture(k).fit(X, sample_weight=weights, missing=True)
    weights[5] = 1.0
    assert np.isfinite(GaussianMixture(1).fit(rows, sample_weight=weights, missing=True).covariances_).all()


@pytest.mark.parametrize("make", [np.asarray, pd.DataFrame, lambda rows: rows.astype(object), np.ndarray.tolist])
def test_the_error_of_nan_names_missing_where_there_is_such_a_parameter(make: Any) -> None:
    rows = blobs(40, 2, 3)
    complete, rows[4, 1] = rows.copy(), np.nan
    place = r"NaN, first in row 4 \(the first row is 0\), column '?1'?; fill in these values"
    for model in (GaussianMixture(2), ChunkyGaussianMixture(2), PoissonMixture(2), KMeans(2)):
        allow = {GaussianMixture: '.*set missing="allow"', ChunkyGaussianMixture: ".*take GaussianMixture"}
        remedy = allow.get(type(model), " or drop their rows$")
        with pytest.raises(ValueError, match=place + remedy):
            model.fit(make(rows))
        ask_for = {GaussianMixture: '.*set missing="allow"', ChunkyGaussianMixture: ".*pass missing=True"}
        model.fit(np.abs(complete))
        remedy = ask_for.get(type(model), " or drop their rows$")
        for ask in (model.predict, model.score):
            with pytest.raises(ValueError, match=place + remedy):
                ask(make(rows))


def test_a_model_that_allows_missing_values_needs_no_argument() -> None:
    X = blobs(300, 3, 4)
    holes, told = with_holes(X), GaussianMixture(3, random_state=0, missing="allow").fit(with_holes(X))
    asked = GaussianMixture(3, random_state=0).fit(holes, missing=True)
    np.testing.assert_array_equal(told.means_, asked.means_)
    np.testing.assert_array_equal(told.labels_, asked.labels_)
    for name in ("predict", "predict_proba", "score_samples", "score", "aic", "bic", "icl"):
        np.testing.assert_array_equal(getattr(told, name)(holes), getattr(asked, name)(holes, missing=True))
        np.testing.assert_array_equal(getattr(told, name)(X), getattr(asked, name)(X))  # as without holes
    np.testing.assert_array_equal(told.predict(holes, min_log_density=np.inf), -1)
    for _ in (stepped := GaussianMixture(3, random_state=0, missing="allow")).fit_iter(holes):
        pass
    np.testing.assert_array_equal(stepped.labels_, told.labels_)
    complete = GaussianMixture(3, random_state=0, missing="allow").fit(X)
    np.testing.assert_array_equal(complete.means_, GaussianMixture(3, random_state=0).fit(X).means_)
    with pytest.raises(ValueError, match=r"X contains NaN.* or drop their rows$"):
        told.partial_fit(holes)
    with pytest.raises(ValueError, match="'missing' parameter"):
        GaussianMixture(missing=True).fit(X)


def test_missing_values_go_through_pipelines_and_searches() -> None:
    holes = with_holes(blobs(300, 3, 4))
    piped = make_pipeline(StandardScaler(), GaussianMixture(3, missing="allow", random_state=0)).fit(holes)
    assert piped.predict(holes).shape == (300,) and np.isfinite(piped.score(holes))
    search = GridSearchCV(
        GaussianMixture(missing="allow", random_state=0), {"n_components": [1, 3]}, cv=2, error_score="raise"
    )
    assert search.fit(holes).best_params_ == {"n_components": 3}
    assert GaussianMixture(missing="allow").__sklearn_tags__().input_tags.allow_nan


@pytest.mark.parametrize("covariance_type", ["full", "spherical"])
def test_noise_goes_with_missing_values(covariance_type: str) -> None:
    random = np.random.default_rng(0)
    labels = np.repeat([0, 1, -1], [400, 400, 100])
    X = np.where(labels[:, None] == 1, 8.0, 0.0) + random.normal(size=(900, 3))
    X[labels == -1] = random.uniform(-20, 30, size=(100, 3))
    holes = with_holes(X, 0.15)
    kind = {"covariance_type": covariance_type, "noise": True, "missing": "allow", "random_state": 0}
    model, plain = GaussianMixture(2, **kind).fit(holes), GaussianMixture(2, **kind).fit(X)
    assert model.noise_weight_ == pytest.approx(plain.noise_weight_, abs=0.03)
    assert adjusted_rand_score(labels, model.labels_) > 0.9 and set(model.labels_) == {0, 1, -1}
    objectives = [record.objective for record in model.history_ if record.stage == "iterations"]
    assert (np.diff(objectives) > -1e-6 * np.abs(objectives[1:])).all()
    np.testing.assert_array_equal(model.noise_bounds_[1] >= np.nanmax(holes, axis=0) - 1e-9, True)
    # of what is known, noise is spread over the box of those columns
    shares = model.predict_proba(holes)
    assert shares.shape == (900, 3) and np.allclose(shares.sum(axis=1), 1)
    row = np.array([[np.nan, 3.0, np.nan]])
    width = np.diff(model.noise_bounds_[:, 1], axis=0).item()
    density = (1 - model.noise_weight_) * np.exp(model.marginal([1]).score([[3.0]])) + model.noise_weight_ / width
    assert model.score(row) == pytest.approx(np.log(density))
    for name in ("predict_proba", "score_samples"):
        np.testing.assert_allclose(
            getattr(model, name)(X, missing=True), getattr(model, name)(X), rtol=1e-8, atol=1e-30
        )
    assert np.isfinite(model.impute(holes)).all()


@ALL
def test_anomaly_scores_of_rows_with_different_holes_can_be_compared(estimator: Any) -> None:
    X = blobs(600, 3, 4)
    model = clone(estimator).fit(X)
    holes = with_holes(X, 0.4)
    holes[0] = np.nan
    scores, known = model.anomaly_scores(holes), (~np.isnan(holes)).sum(axis=1)
    assert scores[0] == 0.0
    densities = model.score_samples(holes, missing=True)
    for values, alike in ((scores, True), (densities, False)):  # a hole fewer or more does not show
        means = [values[known == n].mean() for n in (1, 2, 3, 4)]
        assert (np.ptp(means) < 0.5) == alike
    order = np.argsort(model.anomaly_scores(X))
    if isinstance(model, GaussianMixture):
        np.testing.assert_array_equal(order, np.argsort(-model.score_samples(X)))
    far = np.array([[40.0, np.nan, np.nan, np.nan]])
    assert model.anomaly_scores(far).item() > scores.max()
