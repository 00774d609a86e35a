"""`BayesianGaussianMixture` against scikit-learn's, number by number, and what scikit-learn's has not."""

from typing import Any

import numpy as np
import pytest
import sklearn.mixture
from sklearn.exceptions import ConvergenceWarning

import globular
from globular import BayesianGaussianMixture
from makers import corners as blobs

pytestmark = pytest.mark.filterwarnings("ignore:Best performing init:sklearn.exceptions.ConvergenceWarning")
X, LABELS = blobs()
TYPES = "full", "tied", "diag", "spherical"
STATE = "weight_concentration_", "mean_precision_", "means_", "degrees_of_freedom_", "covariances_"
PRIORS: list[dict[str, Any]] = [
    {},
    {"weight_concentration_prior_type": "dirichlet_distribution", "weight_concentration_prior": 2.0},
    {"mean_prior": np.ones(X.shape[1]), "mean_precision_prior": 3.0, "degrees_of_freedom_prior": 9.5, "reg_covar": 0.1},
]


def as_theirs(model: BayesianGaussianMixture) -> Any:
    """scikit-learn's model as if it had ended where ours has."""
    theirs = sklearn.mixture.BayesianGaussianMixture()
    theirs.set_params(**{name: getattr(model, name) for name in theirs.get_params()})
    for name in (*STATE, "precisions_cholesky_", "lower_bound_"):
        setattr(theirs, name, getattr(model, name))
    theirs.converged_ = False
    return theirs


@pytest.mark.parametrize("covariance_type", TYPES)
@pytest.mark.parametrize("prior", PRIORS)
def test_steps_from_the_same_place_are_those_of_scikit_learn(covariance_type: str, prior: dict[str, Any]) -> None:
    how: dict[str, Any] = {"covariance_type": covariance_type, "warm_start": True, "random_state": 0, **prior}
    ours = BayesianGaussianMixture(n_components=7, max_iter=2, **how).fit(X)
    theirs = as_theirs(ours).set_params(max_iter=15).fit(X)
    ours.set_params(max_iter=15).fit(X)
    for name in (*STATE, "weights_", "precisions_", "precisions_cholesky_", "covariance_prior_", "lower_bound_"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-8, atol=1e-9, err_msg=name)
    assert (ours.n_iter_, ours.converged_) == (theirs.n_iter_, theirs.converged_)
    np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))
    for ask in ("predict_proba", "score_samples"):
        np.testing.assert_allclose(getattr(ours, ask)(X), getattr(theirs, ask)(X), rtol=1e-8, atol=1e-10)


def test_the_keywords_are_those_of_scikit_learn() -> None:
    theirs = sklearn.mixture.BayesianGaussianMixture().get_params()
    ours = BayesianGaussianMixture().get_params()
    assert {name: ours[name] for name in theirs} == theirs


def test_components_that_the_data_do_not_speak_for_lose_their_weight() -> None:
    model = BayesianGaussianMixture(n_components=9, random_state=0, max_iter=500, n_init=2).fit(X)
    assert (model.weights_ > 0.01).sum() == len(np.unique(LABELS))
    assert np.all(np.diff(model.lower_bounds_) > -1e-6) and model.lower_bound_ == model.lower_bounds_[-1]
    drawn, components = model.sample(500)
    assert model.score(drawn) == pytest.approx(model.score(X), abs=0.3) and components.max() < 9


def test_a_weight_of_two_is_two_rows() -> None:
    weights = np.arange(len(X)) % 3
    how: dict[str, Any] = {"n_components": 3, "init_params": "random_from_data", "warm_start": True, "max_iter": 1}
    start = BayesianGaussianMixture(random_state=0, **how).fit(X)
    repeated = BayesianGaussianMixture(**how)
    vars(repeated).update(vars(start))
    start.set_params(max_iter=5).fit(X, sample_weight=weights)
    repeated.set_params(max_iter=5).fit(np.repeat(X, weights, axis=0))
    np.testing.assert_allclose(start.means_, repeated.means_, rtol=1e-8)
    assert start.lower_bound_ == pytest.approx(repeated.lower_bound_)


def test_a_saved_model_says_the_same(tmp_path: Any) -> None:
    model = BayesianGaussianMixture(n_components=4, random_state=0).fit(X)
    again = globular.load(globular.save(model, tmp_path / "model") or tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    assert isinstance(again.weight_concentration_, tuple)


@pytest.mark.parametrize("columns", ["a constant column", "tiny units"])
def test_singular_data_are_no_error(columns: str) -> None:
    rows = X * 1e-6 if columns == "tiny units" else np.column_stack([X, np.ones(len(X))])
    model = BayesianGaussianMixture(n_components=5, reg_covar=0.0, random_state=0).fit(rows)
    assert np.isfinite(model.score(rows))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"covariance_prior": [[1.0, 2.0], [2.0, 1.0]]}, "covariance_prior"),
        ({"covariance_prior": np.eye(3)}, "covariance_prior has shape"),
        ({"mean_prior": [1.0]}, "mean_prior has shape"),
        ({"degrees_of_freedom_prior": 0.5}, "degrees_of_freedom_prior"),
        ({"covariance_type": "tied_spherical"}, "covariance_type"),
        ({"weight_concentration_prior_type": "process"}, "weight_concentration_prior_type"),
    ],
)
def test_wrong_priors_are_told(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BayesianGaussianMixture(**parameters).fit(X[:, :2])


def test_a_fit_that_was_cut_short_says_so() -> None:
    with pytest.warns(ConvergenceWarning, match="max_iter=1"):
        BayesianGaussianMixture(n_components=3, max_iter=1, random_state=0).fit(X)
