"""Some columns of a fitted mixture: marginals, conditionals, and mixtures made from parameters."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import globular
from globular.estimators import conditional as estimators_conditional
from globular.model.covariances import FAMILIES
from globular.model.gaussian import GaussianParameters
from makers import blobs
from reference import conditional as reference

from globular import (  # isort: skip
    ChunkyGaussianMixture, GaussianMixture, InfiniteGaussianMixture, VariationalGaussianMixture, load, save,
)  # fmt: skip

D, C = 5, 3


def parameters(covariance_type: str, seed: int = 0) -> tuple[Any, Any, Any, str]:
    """Overlapping components with every kind of correlation that the family knows."""
    random = np.random.default_rng(seed)
    family = FAMILIES[covariance_type]
    shape = family.shape(C, D)
    if family.scatter.separable:
        covariances = random.uniform(0.5, 2.0, size=shape)
    else:
        roots = random.normal(size=shape)
        covariances = roots @ np.swapaxes(roots, -1, -2) + 0.5 * np.eye(D)
    return random.dirichlet(np.full(C, 3.0)), random.normal(size=(C, D)), covariances, covariance_type


@pytest.fixture(params=sorted(FAMILIES))
def made(request: pytest.FixtureRequest) -> GaussianMixture:
    return GaussianMixture.from_parameters(*parameters(request.param))


def as_parameters(model: Any) -> GaussianParameters:
    return GaussianParameters(model.weights_, model.means_, model.covariances_, model.covariance_type)


def test_a_made_mixture_answers_as_a_fitted_one(made: GaussianMixture, tmp_path: Path) -> None:
    X, y = made.set_params(random_state=0).sample(200)
    assert X.shape == (200, D) and y.shape == (200,)
    restored, pickled = load(save(made, tmp_path / "model")), pickle.loads(pickle.dumps(made))
    for other in (restored, pickled):
        np.testing.assert_array_equal(other.score_samples(X), made.score_samples(X))
    assert made.predict_proba(X).shape == (200, C) and set(made.predict(X)) <= set(range(C))
    assert np.isfinite([made.score(X), made.bic(X), made.aic(X)]).all()
    assert made.n_iter_ == 0 and len(made.history_) == 0
    with pytest.raises(Exception, match="not fitted"):
        clone(made).predict(X)


def test_a_made_mixture_can_be_fitted_further(made: GaussianMixture) -> None:
    X = blobs(300, C, D)
    before = made.score(X)
    assert made.set_params(warm_start=True).fit(X).score(X) > before


def test_marginals_are_densities_of_their_columns(made: GaussianMixture) -> None:
    columns = np.array([3, 0])
    marginal = made.marginal(columns)
    X = blobs(50, C, D)[:, columns]
    matrices = FAMILIES[made.covariance_type].matrices(made.covariances_, C, D)[:, columns[:, None], columns]
    expected = GaussianMixture.from_parameters(made.weights_, made.means_[:, columns], matrices)
    np.testing.assert_allclose(marginal.score_samples(X), expected.score_samples(X), rtol=1e-12)
    assert marginal.covariance_type == made.covariance_type
    np.testing.assert_array_equal(made.marginal(range(D)).covariances_, made.covariances_)


def test_conditions_of_one_row_are_the_closed_form(made: GaussianMixture) -> None:
    known, row = np.array([4, 1]), np.array([0.3, -1.2])
    given = made.condition(known, row)
    weights, means, matrices = reference.conditional(as_parameters(made), known, row)
    np.testing.assert_allclose(given.weights_, weights, rtol=1e-10)
    np.testing.assert_allclose(given.means_, means, rtol=1e-10, atol=1e-12)
    found = FAMILIES[given.covariance_type].matrices(given.covariances_, C, D - 2)
    np.testing.assert_allclose(found, matrices, rtol=1e-10, atol=1e-12)
    assert given.sample(3)[0].shape == (3, D - 2)


@pytest.mark.parametrize("numbers_per_block", [1, 17 * D, 1 << 20])
def test_regression_is_the_closed_form_in_blocks_of_any_size(made, numbers_per_block, monkeypatch):
    monkeypatch.setattr(estimators_conditional, "NUMBERS_PER_BLOCK", numbers_per_block)
    known, rows = np.array([2, 0, 3]), np.random.default_rng(1).normal(size=(40, 3))
    mean, std = made.condition(known, rows, return_std=True)
    closed = [reference.moments(*reference.conditional(as_parameters(made), known, row)) for row in rows]
    np.testing.assert_allclose(mean, [each[0] for each in closed], rtol=1e-10, atol=1e-11)
    np.testing.assert_allclose(std**2, [each[1] for each in closed], rtol=1e-10)
    np.testing.assert_array_equal(made.condition(known, rows), mean)


def test_bayes_rule_holds(made: GaussianMixture) -> None:
    row = np.random.default_rng(2).normal(size=D)
    apart = made.marginal([1, 2]).score_samples(row[None, 1:3]) + made.condition([1, 2], row[1:3]).score_samples(
        row[None, [0, 3, 4]]
    )
    np.testing.assert_allclose(apart, made.score_samples(row[None]), rtol=1e-12)


@pytest.mark.parametrize(
    "estimator",
    [
        GaussianMixture(3, random_state=0),
        VariationalGaussianMixture(3, random_state=0),
        ChunkyGaussianMixture(3, random_state=0),
        InfiniteGaussianMixture(random_state=0),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_every_mixture_of_gaussians_answers(estimator: Any) -> None:
    X = blobs(400, 3, 3)
    model = clone(estimator).fit(pd.DataFrame(X, columns=["a", "b", "c"]))
    marginal = model.marginal(["c", "a"])
    assert type(marginal) is GaussianMixture and list(marginal.feature_names_in_) == ["c", "a"]
    np.testing.assert_array_equal(marginal.means_, model.means_[:, [2, 0]])
    assert list(model.condition("b", 1.0).feature_names_in_) == ["a", "c"]
    mean, std = model.condition([0, 1], X[:, :2], return_std=True)
    assert np.mean((mean[:, 0] - X[:, 2]) ** 2) < X[:, 2].var() and (std > 0).all()
    assert np.mean(np.abs(mean[:, 0] - X[:, 2]) < 3 * std[:, 0]) > 0.98


def test_counts_have_no_columns_that_follow_from_others() -> None:
    assert not hasattr(globular.InfiniteMultinomialMixture, "condition")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": [0.5, 0.6, 0.1]}, "weights must be at least 0 and add up to 1"),
        ({"weights": [0.5, 0.5]}, "weights has shape"), ({"means": [1.0, 2.0]}, "means has shape"),
        ({"means": np.full((C, D), np.nan)}, "means"), ({"covariances": np.eye(D)}, "covariances has shape"),
        ({"covariances": -np.ones((C, D, D))}, "covariances must be symmetric, positive-definite"),
        ({"covariance_type": "round"}, "covariance_type must be one of"),
    ],
)  # fmt: skip
def test_wrong_parameters_are_named(change: dict[str, Any], message: str) -> None:
    names = ("weights", "means", "covariances", "covariance_type")
    given = dict(zip(names, parameters("full"), strict=True))
    with pytest.raises(ValueError, match=message):
        GaussianMixture.from_parameters(**given | change)


@pytest.mark.parametrize(
    ("columns", "values", "message"),
    [
        ([0, 5], [1.0, 1.0], "columns must be numbers from 0 to 4"), ([0, -5], [1.0, 1.0], "columns must differ"),
        ([], [], "columns must be one or more"), ([0.5], [1.0], "columns must be one or more"),
        (["a"], [1.0], "columns: there is no column 'a'"), (range(5), np.ones(5), "columns names all columns"),
        ([0, 1], [1.0], r"values has shape \(1,\)"), ([0, 1], [1.0, np.nan], "values contains NaN"),
        ([0, 1], np.ones((2, 2, 2)), "values"),
    ],
)  # fmt: skip
def test_wrong_columns_and_values_are_named(columns: Any, values: Any, message: str) -> None:
    model = GaussianMixture.from_parameters(*parameters("full"))
    with pytest.raises(ValueError, match=message):
        model.condition(columns, values)


def test_the_spread_of_one_row_is_that_of_its_mixture() -> None:
    model = GaussianMixture.from_parameters(*parameters("full"))
    with pytest.raises(ValueError, match="return_std"):
        model.condition([0], [1.0], return_std=True)


def test_what_is_not_fitted_has_no_columns() -> None:
    with pytest.raises(Exception, match="not fitted"):
        GaussianMixture(2).marginal([0])
