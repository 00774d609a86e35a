"""Mixtures with a component for noise: the same EM with a constant in the sum, and outliers that draw no component."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

import globular
from globular import GaussianMixture
from globular.algorithms.mixtures.em import EMOptions, covariance_limits, e_step, em
from globular.algorithms.mixtures.noise import dense_rows, with_noise
from globular.export import to_onnx
from globular.model.covariances import FAMILIES
from globular.model.gaussian import entropy_of, isotropic_mixture, m_step
from globular.model.noise import Noise
from globular.model.statistics import F64, I64
from globular.passes.cpu import CpuShard
from globular.seam.mixture_passes import Expect
from globular.seam.passes import Extremes
from makers import blobs, weights_for
from reference import expect as reference

TYPES = pytest.mark.parametrize("covariance_type", sorted(FAMILIES))


def with_outliers(k: int, D: int, n: int = 1500, share: float = 0.1, seed: int = 0) -> tuple[F64, I64, F64]:
    """Separate clusters and rows anywhere in a box around them: rows, labels (−1 for outliers) and the true means."""
    random = np.random.default_rng(seed)
    means = np.array([[12.0 * i] + [8.0 * ((i * (d + 2)) % 3) for d in range(1, D)] for i in range(k)])
    labels = random.integers(k, size=n)
    X = means[labels] + random.normal(size=(n, D))
    far = random.uniform(size=n) < share
    X[far] = random.uniform(means.min(axis=0) - 15.0, means.max(axis=0) + 15.0, size=(int(far.sum()), D))
    return X, np.where(far, -1, labels), means


def noisy_start(X: F64, covariance_type: str, C: int = 3, weight: float = 0.2) -> Any:
    shard = CpuShard(X)
    limits = covariance_limits(shard, EMOptions(reg_covar=0.0))
    noise = Noise.around(shard.run(Extremes()), limits, weight)
    return with_noise(isotropic_mixture(X[:C].copy(), 2.0, covariance_type), noise)


@TYPES
def test_the_likelihood_never_falls_and_no_step_leaves_weight_over(covariance_type: str) -> None:
    X = blobs(400, 3, 4)
    shard, weights = CpuShard(X, weights_for(400)), weights_for(400)
    steps = list(em(shard, noisy_start(X, covariance_type), EMOptions(max_iter=30, tol=0.0, reg_covar=0.0)))
    bounds = np.array([step.objective for step in steps])
    assert (np.diff(bounds) > -1e-9 * np.abs(bounds[1:])).all()
    last = steps[-1].model
    assert last.weights.sum() + last.noise.weight == pytest.approx(1.0, abs=1e-12)
    exact = weights @ reference.posterior(X, last)[1]
    assert e_step(shard, last).log_likelihood == pytest.approx(exact, rel=1e-10)


@TYPES
def test_a_step_equals_its_oracle(covariance_type: str) -> None:
    X, weights = blobs(300, 3, 4), weights_for(300)
    start, limits = noisy_start(X, covariance_type), covariance_limits(CpuShard(X), EMOptions())
    found, wanted = CpuShard(X, weights).run(Expect(start)), reference.soft_pass(X, weights, start)
    for name in ("counts", "sums", "scatter", "log_likelihood"):
        np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), rtol=1e-9, atol=1e-9)
    q = reference.answers(X, start)["probabilities"]
    after = m_step(start, found, limits)
    assert after.noise is not None
    assert after.noise.weight == pytest.approx(weights @ q[:, -1] / weights.sum(), rel=1e-10)
    entropy = -float(weights @ (q * np.log(np.maximum(q, 1e-300))).sum(axis=1))
    assert entropy_of(start, found) == pytest.approx(entropy, rel=1e-8)


def test_weights_are_repetitions() -> None:
    X, _, means = with_outliers(3, 2, n=300)
    weights = np.random.default_rng(0).integers(0, 4, 300)
    options: dict[str, Any] = {"noise": True, "means_init": means, "tol": 1e-9, "max_iter": 500}
    weighted = GaussianMixture(3, **options).fit(X, sample_weight=weights)
    repeated = GaussianMixture(3, **options).fit(np.repeat(X, weights, axis=0))
    np.testing.assert_allclose(weighted.means_, repeated.means_, rtol=1e-7)
    assert weighted.noise_weight_ == pytest.approx(repeated.noise_weight_, rel=1e-6)


@pytest.mark.parametrize(("k", "D"), [(3, 2), (5, 2), (4, 5), (8, 3), (6, 10)])
def test_outliers_draw_no_component(k: int, D: int) -> None:
    X, labels, means = with_outliers(k, D)
    plain = GaussianMixture(k, random_state=0).fit(X)
    model = GaussianMixture(k, noise=True, random_state=0).fit(X)
    assert distance(model.means_, means) < 0.4 and distance(model.means_, means) < distance(plain.means_, means)
    assert model.noise_weight_ == pytest.approx(0.1, abs=0.03)
    assert adjusted_rand_score(labels, model.labels_) > max(0.95, adjusted_rand_score(labels, plain.labels_))
    assert model.bic(X) < plain.bic(X)


def distance(found: F64, means: F64) -> float:
    """Of the true mean that is worst served to the closest that was found."""
    return float(np.sqrt(((found[:, None] - means) ** 2).sum(axis=2)).min(axis=0).max())


def test_without_outliers_there_is_hardly_any_noise() -> None:
    X, labels, _ = with_outliers(4, 3, share=0.0)
    model = GaussianMixture(4, noise=True, random_state=0).fit(X)
    assert model.noise_weight_ < 0.01 and adjusted_rand_score(labels, model.labels_) > 0.98


def test_what_a_fitted_model_says() -> None:
    X, _, _ = with_outliers(3, 2)
    model = GaussianMixture(3, noise=True, random_state=0).fit(X)
    assert model.weights_.sum() + model.noise_weight_ == pytest.approx(1.0)
    proba = model.predict_proba(X)
    assert proba.shape == (len(X), 4)
    np.testing.assert_allclose(proba.sum(axis=1), 1.0, rtol=1e-12)
    labels = model.predict(X)
    np.testing.assert_array_equal(labels, model.labels_)
    np.testing.assert_array_equal(labels == -1, proba.argmax(axis=1) == 3)
    far = model.noise_bounds_[1] + 1e3
    assert model.predict([far])[0] == -1 and np.isfinite(model.score_samples([far])[0])
    plain = GaussianMixture(3).fit(X)
    assert model._n_parameters() == plain._n_parameters() + 1
    likelihood = model.score(X) * len(X)
    assert model.bic(X) == pytest.approx(model._n_parameters() * np.log(len(X)) - 2 * likelihood)
    entropy = -(proba * np.log(np.maximum(proba, 1e-300))).sum()
    assert model.icl(X) == pytest.approx(model.bic(X) + 2 * entropy, rel=1e-9)
    assert len(model.cluster_sizes_) == 3 and model.cluster_sizes_.sum() == (labels >= 0).sum()


def test_samples_have_noise_among_them() -> None:
    X, _, _ = with_outliers(3, 2)
    model = GaussianMixture(3, noise=True, random_state=0).fit(X)
    rows, components = model.sample(4000)
    assert set(components) == {-1, 0, 1, 2}
    assert np.mean(components == -1) == pytest.approx(model.noise_weight_, abs=0.02)
    low, high = model.noise_bounds_
    assert ((rows[components == -1] >= low) & (rows[components == -1] <= high)).all()


def test_a_model_with_noise_is_kept_and_goes_on(tmp_path: Path) -> None:
    X, _, _ = with_outliers(3, 2)
    model = GaussianMixture(3, noise=True, random_state=0).fit(X)
    restored = globular.load(globular.save(model, tmp_path / "model"))
    np.testing.assert_array_equal(restored.predict_proba(X), model.predict_proba(X))
    again = restored.set_params(warm_start=True).fit(X)
    assert again.n_iter_ <= 2 and again.score(X) == pytest.approx(model.score(X), abs=1e-3)
    again.set_params(noise=False, warm_start=False).fit(X)
    assert not hasattr(again, "noise_weight_") and again.predict_proba(X).shape[1] == 3
    model.noise_weight_ = 2.0
    with pytest.raises(ValueError, match="noise_weight_ must be between 0 and 1"):
        model.predict(X)


def test_some_columns_and_the_others_are_those_of_rows_that_are_no_noise() -> None:
    X, _, _ = with_outliers(3, 3)
    model = GaussianMixture(3, noise=True, random_state=0).fit(X)
    marginal = model.marginal([0, 1])
    assert marginal.weights_.sum() == pytest.approx(1.0)
    assert model.condition([0], X[:5, :1]).shape == (5, 2)


def test_what_does_not_go_with_noise_says_so(tmp_path: Path) -> None:
    X, _, _ = with_outliers(3, 2, n=300)
    for algorithm in ("variational", "chunky"):
        with pytest.raises(ValueError, match="noise=True needs algorithm='em'"):
            GaussianMixture(3, covariance_type="diag", algorithm=algorithm, noise=True).fit(X)
    model = GaussianMixture(3, noise=True, random_state=0).fit(X)
    pytest.importorskip("onnx")
    with pytest.raises(TypeError, match="noise"):
        to_onnx(model, tmp_path / "model.onnx")


def test_odd_data_have_an_answer() -> None:
    constant = np.column_stack([blobs(200, 2, 2), np.full(200, 3.0)])
    same = np.ones((50, 2))
    for X in (constant, same, constant[:4], constant.astype(np.float32), constant + [1e8, 0.0, 0.0]):
        model = GaussianMixture(2, noise=True, random_state=0, reg_covar=1e-6).fit(X)
        assert np.isfinite(model.score_samples(X)).all() and np.isfinite(model.means_).all()


def test_equal_weights_share_what_is_no_noise() -> None:
    X, _, _ = with_outliers(3, 2)
    model = GaussianMixture(3, noise=True, weights_init="equal", random_state=0).fit(X)
    np.testing.assert_allclose(model.weights_, (1.0 - model.noise_weight_) / 3)


def test_rows_close_together_are_told_from_rows_anywhere() -> None:
    X, labels, _ = with_outliers(4, 2)
    shard = CpuShard(X)
    noise = Noise.around(shard.run(Extremes()), covariance_limits(shard, EMOptions()), 0.1)
    dense = np.zeros(len(X), dtype=bool)
    dense[dense_rows(shard, noise)] = True
    assert dense[labels >= 0].mean() > 0.97 and dense[labels < 0].mean() < 0.3
    few = CpuShard(X[:8])
    assert len(dense_rows(few, replace(noise, weight=0.5))) == 8


@TYPES
@pytest.mark.parametrize(("spread", "value"), [(0.0, 0.0), (0.0, 1e6), (1e-9, 0.0), (1e-3, 5.0), (0.1, 5.0)])
def test_columns_in_which_all_rows_agree_say_nothing_about_noise(covariance_type, spread, value):
    X, _, _ = with_outliers(4, 2)
    model = GaussianMixture(4, noise=True, covariance_type=covariance_type, random_state=0)
    without = labels_without_such_columns(covariance_type)
    random = np.random.default_rng(1)
    for n in (1, 3, 6):
        Y = np.hstack([X, value + spread * random.normal(size=(len(X), n))])
        model.fit(Y)
        assert adjusted_rand_score(without, model.labels_) > 0.97
        assert model.noise_weight_ == pytest.approx(0.1, abs=0.02)
        check_agreement(model, Y)
    counted = random.uniform(size=len(X)) < 0.7
    Y[~counted, 2:] += 7.0  # but rows of weight 0 do not agree
    model.fit(Y.astype(np.float32), sample_weight=counted)
    assert adjusted_rand_score(without[counted], model.labels_[counted]) > 0.96


@cache
def labels_without_such_columns(covariance_type: str) -> I64:
    X, _, _ = with_outliers(4, 2)
    return GaussianMixture(4, noise=True, covariance_type=covariance_type, random_state=0).fit(X).labels_


def check_agreement(model: GaussianMixture, X: F64) -> None:
    probable = model.predict_proba(X).argmax(axis=1)
    np.testing.assert_array_equal(model.labels_, np.where(probable == model.n_components, -1, probable))
    np.testing.assert_array_equal(model.predict(X), model.labels_)
    assert model.weights_.sum() + model.noise_weight_ == pytest.approx(1.0, abs=1e-12)


@TYPES
def test_answers_agree_where_all_rows_are_noise(covariance_type: str) -> None:
    X = np.random.default_rng(0).uniform(size=(200, 3))
    model = GaussianMixture(2, noise=True, covariance_type=covariance_type, means_init=X[:2] + 1e3)
    precisions = isotropic_mixture(X[:2], 1e-3, covariance_type).precisions
    model.set_params(weights_init=[0.5, 0.5], precisions_init=precisions).fit(X)
    assert model.noise_weight_ > 1.0 - 1e-12 and (model.labels_ == -1).all()
    check_agreement(model, X)
    model.weights_, model.noise_weight_ = np.zeros(2), 1.0
    check_agreement(model, X)
