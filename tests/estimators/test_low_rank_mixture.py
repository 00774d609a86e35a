"""`LowRankGaussianMixture`: what a fitted one answers, and what it refuses."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.decomposition import FactorAnalysis

import globular
from globular import GaussianMixture, LowRankGaussianMixture
from globular.errors import DataError
from globular.persistence import read_info

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
F64 = np.ndarray[Any, np.dtype[np.float64]]


def rows(n: int = 900, C: int = 6, D: int = 15, q: int = 2, seed: int = 0) -> F64:
    """Groups of rows about planes."""
    random = np.random.default_rng(seed)
    means, planes = 5.0 * random.normal(size=(C, D)), 2.0 * random.normal(size=(C, q, D))
    labels = random.integers(C, size=n)
    found = means[labels] + np.einsum("nq,nqd->nd", random.normal(size=(n, q)), planes[labels])
    return np.asarray(found + 0.3 * random.normal(size=(n, D)))


@pytest.fixture(scope="module", params=[True, False], ids=["correlated", "independent"])
def fitted(request: Any) -> tuple[LowRankGaussianMixture, F64]:
    X = rows()
    model = LowRankGaussianMixture(6, 2, correlated_noise=request.param, n_candidates=6, random_state=3, reg_covar=0.0)
    return model.fit(X), X


def as_full(model: LowRankGaussianMixture) -> GaussianMixture:
    loadings, noise = model.loadings_, model.noise_variances_[:, :, None] * np.eye(model.n_features_in_)
    if model.correlated_noise:
        back = np.linalg.inv(model.noise_regressions_)
        noise = back @ noise @ back.T
    covariances = loadings.transpose(0, 2, 1) @ loadings + noise
    return GaussianMixture.from_parameters(model.weights_, model.means_, covariances)


def test_answers_are_those_of_the_mixture_of_whole_matrices(fitted: Any) -> None:
    model, X = fitted
    full = as_full(model)
    np.testing.assert_allclose(model.score_samples(X), full.score_samples(X), rtol=1e-9)
    np.testing.assert_allclose(model.predict_proba(X), full.predict_proba(X), atol=1e-9)
    np.testing.assert_array_equal(model.predict(X), full.predict(X))
    np.testing.assert_array_equal(model.labels_, model.predict(X))
    assert model.score(X) == pytest.approx(full.score(X), rel=1e-9)
    assert model.bic(X) - model.aic(X) == pytest.approx(model._n_parameters() * (np.log(len(X)) - 2))


def test_one_component_is_factor_analysis() -> None:
    X = rows(500, C=1)
    model = LowRankGaussianMixture(
        1, 2, correlated_noise=False, reg_covar=0.0, tol=0.0, max_iter=300, random_state=0
    ).fit(X)
    theirs = FactorAnalysis(2, tol=1e-10, max_iter=5000).fit(X)
    assert model.score(X) == pytest.approx(theirs.score(X), abs=1e-3)
    found = model.loadings_[0].T @ model.loadings_[0]
    np.testing.assert_allclose(found, theirs.components_.T @ theirs.components_, atol=0.05 * np.abs(found).max())
    np.testing.assert_allclose(model.transform(X) @ model.loadings_[0] + model.means_, model.reconstruct(X), atol=1e-9)


def test_reconstruction_takes_noise_off(fitted: Any) -> None:
    model, X = fitted
    random = np.random.default_rng(1)
    noisy = X + 2.0 * random.normal(size=X.shape)
    clean, error = model.reconstruct(noisy, noise_std=2.0), np.square(noisy - X).mean()
    assert np.square(clean - X).mean() < 0.35 * error
    # the best linear estimate, component by component
    full = as_full(model)
    blurred = GaussianMixture.from_parameters(full.weights_, full.means_, full.covariances_ + 4.0 * np.eye(15))
    shares, wanted = blurred.predict_proba(noisy), np.zeros_like(X)
    for c in range(6):
        gain = full.covariances_[c] @ np.linalg.inv(blurred.covariances_[c])
        wanted += shares[:, [c]] * (full.means_[c] + (noisy - full.means_[c]) @ gain.T)
    np.testing.assert_allclose(clean, wanted, atol=1e-8)
    own = model.reconstruct(X)
    assert (np.square(own - X).mean(axis=0) <= 1.01 * model.weights_ @ model.noise_variances_).all()


def test_factors_are_those_of_the_most_likely_component(fitted: Any) -> None:
    model, X = fitted
    labels, z = model.predict(X), model.transform(X)
    assert z.shape == (len(X), 2)
    found = model.means_[labels] + np.einsum("nq,nqd->nd", z, model.loadings_[labels])
    sure = model.predict_proba(X).max(axis=1) > 1 - 1e-12
    np.testing.assert_allclose(found[sure], model.reconstruct(X)[sure], atol=1e-8)


def test_samples_are_like_the_rows(fitted: Any) -> None:
    model, X = fitted
    drawn, components = model.sample(20_000)
    assert drawn.shape == (20_000, 15) and (np.diff(components) >= 0).all()
    assert model.score(drawn) == pytest.approx(model.score(X), abs=0.3)


def test_many_components_by_cells() -> None:
    X = rows(6000, C=40)
    model = LowRankGaussianMixture(600, 2, noise="tied_diag", random_state=0, max_iter=6, tol=0.0).fit(X)
    exact = model.score_samples(X)
    bound = model.score_samples(X, exact=False)
    assert (bound <= exact + 1e-9).all() and (exact - bound).mean() < 0.1
    assert (model.predict(X, exact=False) == model.predict(X)).mean() > 0.9
    assert model.transform(X, exact=False).shape == (6000, 2)
    near = np.square(model.reconstruct(X, exact=False) - model.reconstruct(X)).mean()
    assert near < 1e-2
    assert model.n_distances_ < 6 * 6000 * 600


def test_float32_and_weights() -> None:
    X = rows(600)
    weights = np.random.default_rng(0).integers(0, 3, len(X)).astype(float)
    model = LowRankGaussianMixture(4, 2, random_state=0, n_candidates=4, init=X[:4], tol=0.0, max_iter=20)
    weighted = clone(model).fit(X.astype(np.float32), sample_weight=weights)
    repeated = clone(model).fit(np.repeat(X, weights.astype(int), axis=0))
    found = weighted.means_, weighted.loadings_, weighted.transform(X.astype(np.float32))
    assert {each.dtype for each in found} == {np.dtype(np.float32)}
    assert weighted.lower_bound_ == pytest.approx(repeated.lower_bound_, rel=1e-4)
    assert len(weighted.labels_) == len(X)


@pytest.mark.parametrize("far", [1.0, 1e5])
def test_a_far_row_does_not_blur_the_others_in_float32(far: float) -> None:
    """The copy of the rows in coordinates of the noise has more digits where they would be lost."""
    X = np.random.default_rng(0).normal(size=(300, 3)).astype(np.float32)
    X[-1] *= far
    model = LowRankGaussianMixture(2, 1, random_state=0).fit(X)
    np.testing.assert_allclose(model.score_samples(X), model.score_samples(X.astype(np.float64)), rtol=1e-4, atol=1e-4)


def test_what_was_saved_says_the_same(fitted: Any, tmp_path: Path) -> None:
    model, X = fitted
    again = globular.load(globular.save(model, tmp_path / "model"))
    np.testing.assert_array_equal(again.reconstruct(X), model.reconstruct(X))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).transform(X), model.transform(X))
    assert read_info(tmp_path / "model").n_clusters == 6
    model = pickle.loads(pickle.dumps(model))
    model.noise_variances_ = -model.noise_variances_
    with pytest.raises(ValueError, match="noise_variances_ must be positive"):
        globular.save(model, tmp_path / "other")
    document = json.loads((tmp_path / "model" / "model.json").read_text())
    document["parameters"]["n_factors"] = 3
    del document["sha256"]
    (tmp_path / "model" / "model.json").write_text(json.dumps(document))
    with pytest.raises(DataError, match="holds 2 factors, n_factors=3"):
        globular.load(tmp_path / "model")


def test_a_fit_goes_on_where_the_last_one_ended() -> None:
    X = rows()
    model = LowRankGaussianMixture(20, 2, reg_covar=0.0, random_state=0, max_iter=3, tol=0.0, warm_start=True).fit(X)
    before = model.lower_bound_
    model.fit(X)
    assert model.lower_bounds_[0] > before - 0.05 and model.lower_bound_ > before
    with pytest.raises(ValueError, match="warm_start"):
        model.set_params(n_factors=3).fit(X)


def test_what_is_refused() -> None:
    X = rows(100)
    with pytest.raises(ValueError, match="noise"):
        LowRankGaussianMixture(2, 2, noise="full").fit(X)
    model = LowRankGaussianMixture(2, 2, random_state=0).fit(X)
    for wrong in (0.0, -1.0, float("nan"), [1.0, 2.0]):
        with pytest.raises(ValueError, match="noise_std must be a positive number, or 15"):
            model.reconstruct(X, noise_std=wrong)
    each = model.reconstruct(X, noise_std=np.full(15, 0.5))
    np.testing.assert_array_equal(each, model.reconstruct(X, noise_std=0.5))
    with pytest.raises(TypeError, match="dense"):
        model.fit(csr_array(X))


def test_noise_that_is_correlated_alike_in_all_components_is_told_better() -> None:
    random = np.random.default_rng(0)
    T = np.eye(15) - np.diag(np.full(14, 0.9), -1)
    X = rows(3000) + (np.linalg.inv(T) @ random.normal(size=(15, 3000))).T
    shared, alone = (
        LowRankGaussianMixture(6, 2, correlated_noise=each, random_state=0).fit(X[:2000]) for each in (True, False)
    )
    assert shared.score(X[2000:]) > alone.score(X[2000:]) + 0.5
    assert shared._n_parameters() == alone._n_parameters() + 15 * 14 // 2
    assert not hasattr(alone, "noise_regressions_")
    single = LowRankGaussianMixture(6, 2, random_state=0).fit(X[:2000].astype(np.float32))
    assert single.score(X[2000:].astype(np.float32)) == pytest.approx(shared.score(X[2000:]), abs=0.1)
    clean = shared.reconstruct(X, noise_std=1.0, exact=False)
    assert clean.shape == X.shape and np.isfinite(clean).all()
    shared.noise_regressions_ = shared.noise_regressions_.T
    with pytest.raises(ValueError, match="noise_regressions_ must be lower triangular"):
        shared.predict(X)


@pytest.mark.parametrize("n", [1, 15, 20])
def test_as_many_factors_as_columns(n: int, tmp_path: Path) -> None:
    X = rows(300)
    model = LowRankGaussianMixture(3, n, random_state=0, max_iter=10).fit(X)
    assert np.isfinite(model.score(X)) and model.transform(X).shape == (300, min(n, 15))
    assert globular.load(globular.save(model, tmp_path / "model")).n_factors == n


def test_digits_are_told_better_than_without_correlations() -> None:
    X = load_digits().data
    train, test = X[::2], X[1::2]
    model = LowRankGaussianMixture(20, 4, reg_covar=0.1, random_state=0).fit(train)
    diagonal = GaussianMixture(30, covariance_type="diag", reg_covar=0.1, random_state=0).fit(train)
    assert model.score(test) > diagonal.score(test)


def test_whole_matrices_are_lifted_where_rounding_leaves_no_factor() -> None:
    model = LowRankGaussianMixture(2, 1, correlated_noise=False, random_state=0).fit(rows())
    model.loadings_ = 1e7 * np.random.default_rng(0).normal(size=model.loadings_.shape)
    model.noise_variances_ = np.full_like(model.noise_variances_, 1e-6)
    full = model.to_full()
    wanted = np.einsum("cfd,cfe->cde", model.loadings_, model.loadings_)
    np.testing.assert_allclose(full.covariances_, wanted, rtol=1e-6, atol=1e-6 * wanted.max())
    assert np.isfinite(full.score_samples(rows())).all()
