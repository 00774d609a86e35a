"""Attributes that users set by hand: they count, or an error says what to do instead."""

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn import mixture
from sklearn.exceptions import NotFittedError

import globular
from makers import blobs

X = blobs(120, 3, 3)
COUNTS = np.random.default_rng(0).integers(0, 9, size=(60, 4)).astype(np.float64)
GAUSSIAN = [
    globular.GaussianMixture(3, random_state=0),
    globular.GaussianMixture(3, noise=True, covariance_type="spherical", random_state=0),
    globular.VariationalGaussianMixture(3, random_state=0),
    globular.ChunkyGaussianMixture(3, covariance_type="diag", random_state=0),
    globular.InfiniteGaussianMixture(random_state=0),
]
OTHERS = [
    globular.LowRankGaussianMixture(3, random_state=0),
    globular.VonMisesFisherMixture(3, random_state=0),
    globular.PoissonMixture(3, random_state=0),
    globular.BernoulliMixture(3, random_state=0),
    globular.InfiniteMultinomialMixture(random_state=0),
]
NAMES = ["weights_", "means_", "covariances_", "precisions_", "precisions_cholesky_", "concentrations_", "loadings_"]


def rows_for(model: Any) -> Any:
    if isinstance(model, globular.BernoulliMixture):
        return (COUNTS > 4).astype(np.float64)
    return X if model in GAUSSIAN or isinstance(model, globular.LowRankGaussianMixture) else COUNTS


@pytest.mark.parametrize("model", GAUSSIAN + OTHERS, ids=lambda model: type(model).__name__)
def test_no_attribute_that_is_set_after_a_fit_is_ignored(model: Any) -> None:
    rows = rows_for(model)
    densities = model.fit(rows).score_samples(rows)
    for name in (name for name in NAMES if hasattr(model, name)):
        changed = copy.deepcopy(model)
        if name in model._derived:
            with pytest.raises(AttributeError, match=f"{name} follows from .*_; set that, call fit") as raised:
                setattr(changed, name, 0.9 * getattr(model, name))
            assert ("from_parameters" in str(raised.value)) == (model in GAUSSIAN)
            with pytest.raises(ValueError, match="read-only"):
                getattr(model, name)[...] = 0.0
        else:
            setattr(changed, name, 0.9 * getattr(model, name))
            assert not np.array_equal(changed.score_samples(rows), densities), name


@pytest.mark.parametrize("model", GAUSSIAN[:4], ids=lambda model: type(model).__name__)
def test_precisions_follow_covariances(model: Any, tmp_path: Path) -> None:
    model = copy.deepcopy(model).fit(X.astype(np.float32))
    assert model.precisions_.dtype == model.precisions_cholesky_.dtype == np.float32
    before = model.precisions_
    model.covariances_ = 4.0 * model.covariances_
    for other in (model, pickle.loads(pickle.dumps(model)), globular.load(globular.save(model, tmp_path / "model"))):
        np.testing.assert_allclose(other.precisions_, before / 4.0, rtol=1e-5)
        np.testing.assert_array_equal(other.score_samples(X), model.score_samples(X))


@pytest.mark.parametrize("model", GAUSSIAN[:4] + OTHERS[:4], ids=lambda model: type(model).__name__)
def test_a_model_of_which_parts_were_set_says_what_is_missing(model: Any) -> None:
    model, rows = type(model)(), rows_for(model)
    model.weights_ = [1.0]
    for answer in (model.predict, model.predict_proba, model.score_samples, model.score):
        with pytest.raises(NotFittedError, match=r"weights_ was set on a .* not fitted; (set weights_.* or )?call fit"):
            answer(rows)
    with pytest.raises(NotFittedError, match="weights_ was set"):
        model.sample()
    assert not hasattr(globular.GaussianMixture(), "precisions_")


@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag", "spherical"])
@pytest.mark.parametrize("by", ["covariances_", "precisions_", "precisions_cholesky_"])
def test_parameters_set_without_a_fit_are_a_mixture_as_in_scikit_learn(by: str, covariance_type: str) -> None:
    theirs = mixture.GaussianMixture(3, covariance_type=covariance_type, random_state=0).fit(X)
    ours = globular.GaussianMixture(3, covariance_type=covariance_type, random_state=0)
    for name in ("weights_", "means_", by):
        setattr(ours, name, getattr(theirs, name))
    for name in ("predict", "predict_proba", "score_samples", "bic"):
        np.testing.assert_allclose(getattr(ours, name)(X), getattr(theirs, name)(X), rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(ours.precisions_cholesky_, theirs.precisions_cholesky_, rtol=1e-8, atol=1e-12)
    assert ours.sample(5)[0].shape == (5, X.shape[1])
    assert ours.partial_fit(X).score(X) >= theirs.score(X) - 1e-6
    ours.set_params(warm_start=True, max_iter=1, tol=10.0).fit(X)
    np.testing.assert_allclose(ours.means_, theirs.means_, atol=0.1)


@pytest.mark.parametrize("name", ["precisions_", "precisions_cholesky_"])
def test_what_is_set_after_a_fit_leaves_nothing_stale(name: str) -> None:
    model = globular.GaussianMixture(3, random_state=0).fit(X)
    setattr(model, name, 2.0 * getattr(model, name))
    again = globular.GaussianMixture.from_parameters(model.weights_, model.means_, model.covariances_)
    np.testing.assert_allclose(model.score_samples(X), again.score_samples(X))
    np.testing.assert_allclose(np.linalg.inv(model.covariances_), model.precisions_, rtol=1e-9, atol=1e-9)


def test_parameters_that_are_no_mixture_are_named() -> None:
    model = globular.GaussianMixture(2)
    with pytest.raises(ValueError, match=r"precisions must be .* for covariance_type='full'"):
        model.precisions_ = -np.eye(2)[None]
    model.means_, model.covariances_, model.weights_ = np.eye(2), np.stack([np.eye(2)] * 2), np.array([0.7, 0.7])
    for _ in range(2):
        with pytest.raises(ValueError, match="weights_ must be at least 0 and sum to one"):
            model.predict(np.eye(2))
    model.weights_ = np.full(2, 0.5)
    assert model.predict(np.eye(2)).tolist() == [0, 1]


@pytest.mark.parametrize("model", OTHERS[1:4], ids=lambda model: type(model).__name__)
def test_families_take_parameters_that_are_set(model: Any) -> None:
    rows = rows_for(model)
    fitted, made = copy.deepcopy(model).fit(rows), type(model)(3)
    for name in fitted._by_hand:
        setattr(made, name, getattr(fitted, name))
    np.testing.assert_array_equal(made.score_samples(rows), fitted.score_samples(rows))
