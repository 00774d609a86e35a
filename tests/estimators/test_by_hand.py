"""Attributes that users set by hand: they count, or an error says what to do instead."""

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
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
def test_a_model_without_a_fit_says_how_to_make_one_from_parameters(model: Any) -> None:
    model, rows = type(model)(), rows_for(model)
    for name, value in (("weights_", [1.0]), ("means_", rows[:1]), ("covariances_", np.eye(rows.shape[1])[None])):
        setattr(model, name, value)
        for answer in (model.predict, model.predict_proba, model.score_samples, model.score):
            with pytest.raises(NotFittedError, match=r"weights_ was set on a .* not fitted; call fit") as raised:
                answer(rows)
            assert ("from_parameters" in str(raised.value)) == hasattr(type(model), "precisions_")
    with pytest.raises(NotFittedError, match="weights_ was set"):
        model.sample()
    assert not hasattr(globular.GaussianMixture(), "precisions_")
    if hasattr(type(model), "precisions_"):  # scikit-learn's idiom goes on so
        with pytest.raises(AttributeError, match=r"follows from covariances_; .*from_parameters"):
            model.precisions_cholesky_ = np.eye(rows.shape[1])[None]
