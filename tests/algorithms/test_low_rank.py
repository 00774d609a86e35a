"""Mixtures of factor analysers: the M-step, exact and truncated EM, and the start."""

from dataclasses import replace

import numpy as np
import pytest

from globular.algorithms.kmeans.variational import VariationalOptions
from globular.algorithms.mixtures.low_rank import LowRankEM, find_coordinates, start_low_rank
from globular.model.covariances import CovarianceLimits
from globular.model.low_rank import NOISES, LowRankParameters, low_rank_m_step
from globular.model.statistics import F64
from globular.passes.cpu import CpuShard
from globular.seam.among import Probe, Within
from globular.seam.mixture_passes import ExpectLowRank
from globular.seam.passes import Assign
from globular.seam.shard import Shard
from reference import expect as soft
from reference import low_rank as oracle

D, Q = 12, 2


def true_mixture(C: int, seed: int = 0) -> LowRankParameters:
    random = np.random.default_rng(seed)
    return LowRankParameters(
        random.dirichlet(np.full(C, 5.0)), 4.0 * random.normal(size=(C, D)), random.normal(size=(C, Q, D)),
        random.uniform(0.2, 1.0, (C, D)),
    )  # fmt: skip


def rows_of(C: int, n: int = 600, seed: int = 0) -> F64:
    return true_mixture(C, seed).sample(n, np.random.RandomState(seed))[0]


def limits_for(X: F64, reg_covar: float = 0.0) -> CovarianceLimits:
    return CovarianceLimits.for_data(reg_covar, X.mean(axis=0), X.var(axis=0))


def start_for(
    shard: Shard, X: F64, C: int, noise: str = "diag", reg_covar: float = 0.0, *, correlated: bool = False
) -> LowRankParameters:
    means = X[np.linspace(0, len(X) - 1, C).astype(int)]
    shard.run(Assign(means, want="labels"))
    rng = np.random.default_rng(0)
    return start_low_rank(
        shard, means, Q, noise, rng, limits=limits_for(X, reg_covar), labelled=True, correlated=correlated
    )


def fitted(
    shard: Shard, X: F64, C: int, C_prime: int, noise: str = "diag", max_iter: int = 12, *, correlated: bool = False
) -> tuple[list[float], LowRankParameters]:
    options = VariationalOptions(C_prime=C_prime, max_iter=max_iter, tol=0.0)
    start, rng = start_for(shard, X, C, noise, correlated=correlated), np.random.default_rng(1)
    steps = list(LowRankEM(shard, noise, options, rng, limits_for(X)).steps(start))
    return [step.objective for step in steps], steps[-1].model


def alike(one: LowRankParameters, other: LowRankParameters, rtol: float) -> None:
    for name in ("weights", "means", "noise"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=rtol, atol=rtol, err_msg=name)
    np.testing.assert_allclose(oracle.covariance_matrices(one), oracle.covariance_matrices(other), rtol=rtol, atol=rtol)


def test_the_woodbury_identity_is_that_of_whole_matrices() -> None:
    mixture, X = true_mixture(3), rows_of(3, 50)
    for c, matrix in enumerate(oracle.covariance_matrices(mixture)):
        inverse = np.diag(mixture.precisions[c]) - mixture.directions[c].T @ mixture.directions[c]
        np.testing.assert_allclose(inverse, np.linalg.inv(matrix), atol=1e-12)
        inner = (X - mixture.means[c]) @ mixture.directions[c].T
        found = mixture.factors(inner, np.full(len(X), c))
        np.testing.assert_allclose(found, oracle.factor_means(X, mixture, c), atol=1e-10)


def test_an_m_step_is_that_of_the_textbook() -> None:
    X, mixture = rows_of(4), true_mixture(4, seed=3)
    weights = np.random.default_rng(0).uniform(0.5, 2.0, len(X))
    limits = limits_for(X, 1e-3)
    found = low_rank_m_step(mixture, CpuShard(X, weights).run(ExpectLowRank(mixture)), limits, "diag")
    q, _ = soft.posterior(X, oracle.as_full(mixture))
    alike(found, oracle.m_step(X, weights, q, mixture, limits), 1e-9)


@pytest.mark.parametrize("correlated", [True, False])
def test_all_components_are_exact_em(correlated: bool) -> None:
    X, C = rows_of(4), 4
    shard, limits, weights = CpuShard(X), limits_for(X), np.ones(len(X))
    mixture = start_for(shard, X, C, correlated=correlated)
    options, at = VariationalOptions(C, max_iter=8, tol=0.0), mixture.coordinates
    seen, within = oracle.seen(X, mixture), limits if at is None else at.limits(limits)
    for step in LowRankEM(shard, "diag", options, np.random.default_rng(0), limits).steps(mixture):
        q, densities = soft.posterior(X, oracle.in_columns(mixture))
        assert step.objective == pytest.approx(densities.sum(), rel=1e-10)
        mixture = replace(oracle.m_step(seen, weights, q, mixture, within), coordinates=at)
        alike(step.model, mixture, 1e-8)


@pytest.mark.parametrize("correlated", [True, False])
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("C_prime", [1, 3, 20])
def test_the_bound_never_falls(noise: str, C_prime: int, correlated: bool) -> None:
    X = rows_of(20, 2000)
    objectives, mixture = fitted(CpuShard(X), X, 20, C_prime, noise, 25, correlated=correlated)
    assert (np.diff(objectives) >= -1e-9 * np.abs(objectives[:-1])).all()
    assert objectives[-1] > objectives[0]
    assert (
        len(np.unique(mixture.noise)) == {"diag": 20 * D, "spherical": 20, "tied_diag": D, "tied_spherical": 1}[noise]
    )


def test_few_components_a_row_end_where_all_of_them_do() -> None:
    X = rows_of(20, 4000)
    exact, truncated = (fitted(CpuShard(X), X, 20, C_prime, max_iter=40)[0][-1] for C_prime in (20, 4))
    assert truncated == pytest.approx(exact, rel=2e-3) and truncated <= exact + 1e-3 * abs(exact)


def test_weights_are_repetitions() -> None:
    X = rows_of(5, 300)
    copies = np.random.default_rng(0).integers(1, 4, len(X))
    mixture = true_mixture(5)
    weighted = CpuShard(X, copies.astype(float)).run(ExpectLowRank(mixture))
    repeated = CpuShard(np.repeat(X, copies, axis=0)).run(ExpectLowRank(mixture))
    for name in ("counts", "sums", "scatter", "cross", "log_likelihood", "total_weight"):
        np.testing.assert_allclose(getattr(weighted, name), getattr(repeated, name), rtol=1e-10, atol=1e-9)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float16])
def test_rows_of_other_types(dtype: type) -> None:
    X = np.round(rows_of(5, 200) + 20).astype(dtype)
    mixture = true_mixture(5)
    for among in (Probe(None, 0, 2), None):
        found = []
        for rows in (X, X.astype(np.float64)):
            shard = CpuShard(rows)
            shard.run(Assign(mixture.means, want="labels"))
            found.append(shard.run(ExpectLowRank(mixture) if among is None else ExpectLowRank(mixture, among)))
        np.testing.assert_allclose(found[0].cross, found[1].cross, rtol=1e-12, atol=1e-9)


def test_the_start_has_the_principal_components_of_cells() -> None:
    X = rows_of(3, 900)
    shard = CpuShard(X)
    start = start_for(shard, X, 3)
    for c in range(3):
        own = X[shard.labels == c]
        values = np.linalg.eigvalsh(np.cov(own.T, bias=True))[::-1]
        found = np.linalg.eigvalsh(oracle.covariance_matrices(start)[c])[::-1]
        np.testing.assert_allclose(found[:Q], values[:Q], rtol=0.15)
        np.testing.assert_allclose(np.trace(oracle.covariance_matrices(start)[c]), values.sum(), rtol=1e-2)


def test_coordinates_are_those_of_the_noise_that_cells_share() -> None:
    random = np.random.default_rng(0)
    T = np.eye(D) + np.tril(0.4 * random.normal(size=(D, D)), -1)
    shape, sizes = np.linalg.inv(T), np.repeat([1.0, 5.0], 20_000)
    X = sizes[:, None] * (random.normal(size=(40_000, D)) @ shape.T)
    X[20_000:, 0] += 1e3
    shard = CpuShard(X)
    means = np.stack([X[:20_000].mean(axis=0), X[20_000:].mean(axis=0)])
    shard.run(Assign(means, want="labels"))
    found = find_coordinates(shard, means, limits_for(X))
    np.testing.assert_allclose(found.regressions, T, atol=0.05)
    back = found.back(found.to(X[:50]))
    np.testing.assert_allclose(back, X[:50], rtol=1e-12, atol=1e-9)
    assert found.log_volume == pytest.approx(np.linalg.slogdet(found.forward)[1])


def test_the_columns_and_their_coordinates_are_one_mixture() -> None:
    X = rows_of(4)
    mixture = start_for(CpuShard(X), X, 4, correlated=True)
    assert mixture.coordinates is not None
    again = mixture.in_columns().to_coordinates(mixture.coordinates.regressions)
    one, other = (oracle.in_columns(each) for each in (mixture, again))
    np.testing.assert_allclose(one.means, other.means, rtol=1e-10)
    np.testing.assert_allclose(one.covariances, other.covariances, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(mixture.covariances(), one.covariances, rtol=1e-9, atol=1e-12)


def test_weights_of_correlated_noise_are_repetitions() -> None:
    X = rows_of(5, 300)
    copies = np.random.default_rng(0).integers(1, 4, len(X))
    means, limits = true_mixture(5).means, limits_for(X)
    found = []
    for shard in (CpuShard(X, copies.astype(float)), CpuShard(np.repeat(X, copies, axis=0))):
        shard.run(Assign(means, want="labels"))
        found.append(find_coordinates(shard, means, limits))
    np.testing.assert_allclose(found[0].forward, found[1].forward, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("C", [4, 8])
def test_shared_noise_is_learnt_and_components_are_moved_to_the_truth(C: int) -> None:
    """Independent noise, and a start with two true components in one: few components look at all, others at K(n)."""
    truth = replace(true_mixture(C, 1), loadings=2.0 * np.random.default_rng(1).normal(size=(C, Q, D)))
    X, _ = truth.sample(4000, np.random.RandomState(0))
    means = truth.means.copy()
    means[0] = means[1] + 0.1
    shard, limits, rng = CpuShard(X), limits_for(X), np.random.default_rng(0)
    shard.run(Assign(means, want="labels"))
    start = start_low_rank(shard, means, Q, "diag", rng, limits=limits, labelled=True, correlated=True)
    options = VariationalOptions(min(C, 5), max_iter=100, tol=1e-3)
    first, plain = start.coordinates, list(LowRankEM(shard, "diag", options, rng, limits).steps(start))[-1]
    steps = list(LowRankEM(shard, "diag", options, rng, limits).improved(start, moves=True))
    wanted = CpuShard(X).run(ExpectLowRank(truth)).log_likelihood
    assert steps[-1].objective > wanted - 0.02 * len(X) > plain.objective
    assert [step.iteration for step in steps] == list(range(1, len(steps) + 1)) and len(steps) <= 100
    assert first is not None and steps[-1].model.coordinates is not None
    off = [np.abs(np.tril(at.regressions, -1)).mean() for at in (first, steps[-1].model.coordinates)]
    assert off[1] < 0.5 * off[0]


def test_cells_of_few_rows_have_fewer_factors() -> None:
    X = rows_of(3, 30)
    shard = CpuShard(X)
    start = start_for(shard, X, 25, reg_covar=1e-3)
    assert np.isfinite(start.loadings).all() and (start.noise > 0).all()
    options = VariationalOptions(C_prime=3, max_iter=5, tol=0.0)
    last = list(LowRankEM(shard, "diag", options, np.random.default_rng(0), limits_for(X, 1e-3)).steps(start))[-1]
    assert np.isfinite(last.objective) and np.isfinite(last.model.loadings).all()


@pytest.mark.parametrize("noise", ["diag", "spherical"])
def test_factors_never_drown_the_noise(noise: str) -> None:
    """Rows that differ along one direction alone: I + Λ diag(1/ψ) Λᵀ stays positive in float64."""
    mixture = LowRankParameters(np.full(2, 0.5), np.zeros((2, D)), np.ones((2, Q, D)), np.ones((2, D)))
    shard = CpuShard(1e6 * np.repeat(np.random.default_rng(0).normal(size=(40, 1)), D, axis=1))
    shard.run(Assign(np.array([[-1e6], [1e6]]) * np.ones(D), want="labels"))
    for _ in range(10):
        found = shard.run(ExpectLowRank(mixture, Within()))
        mixture = low_rank_m_step(mixture, found, CovarianceLimits(0.0, np.full(D, 1e-20)), noise)
    signals = (np.square(mixture.loadings) / mixture.noise[:, None]).sum(axis=(1, 2))
    assert 1e12 < signals.max() <= 1.001e13 and np.isfinite(mixture.triangles).all()
