"""Sticks, Gaussian–Wishart, normal–gamma and Dirichlet posteriors against closed forms and the plain reference."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from scipy.special import digamma, gammaln, logsumexp

from globular.model.counts import CountsPrior
from globular.model.covariances import FAMILIES
from globular.model.dirichlet import InfiniteMixture, Sticks
from globular.model.gaussian import isotropic_mixture
from globular.model.observations import ObservedMoments, Posterior, Prior
from globular.model.wishart import KINDS, GaussianPrior
from globular.passes.cpu import CpuShard
from globular.seam.mixture_passes import Expect
from reference import infinite as reference
from reference.expect import scatter_of

Rows = NDArray[np.float64]
ALPHA = (1.0, 1.5)


def gaussian_prior(kind: str, D: int, S: float = 2.0) -> GaussianPrior:
    scale = np.full(D, S) + np.arange(D)
    return GaussianPrior(KINDS[kind], 0.3, np.linspace(-1, 1, D), D + 2.5, np.diag(scale) if kind == "full" else scale)


def plain(prior: GaussianPrior) -> reference.NormalWishart:
    return reference.NormalWishart(prior.beta, prior.m, prior.nu, prior.S)


def some_rows(n: int = 60, D: int = 3, seed: int = 0) -> Rows:
    random = np.random.default_rng(seed)
    return random.normal(size=(n, D)) @ random.normal(size=(D, D)) + 4 * (np.arange(n) % 3)[:, None]


def moments_of(rows: Rows, q: Rows, kind: str) -> ObservedMoments:
    """Sufficient statistics straight from their definition; `q` is (N, C)."""
    counts = q.sum(axis=0)
    means = (q.T @ rows) / counts[:, None]
    differences = rows[:, None] - means
    scatter = FAMILIES["tied_spherical" if kind == "counts" else kind].scatter
    matrices = np.einsum("nc,ncd,nce->cde", q, differences, differences)
    return ObservedMoments(counts, means, scatter_of(matrices, scatter), scatter)


def some_q(n: int, C: int, seed: int = 0) -> Rows:
    return np.random.default_rng(seed).dirichlet(np.ones(C), size=n)


def mixture_for(kind: str, T: int = 3) -> tuple[Rows, GaussianPrior, InfiniteMixture[Posterior]]:
    rows, prior = some_rows(), gaussian_prior(kind, 3)
    q = some_q(len(rows), T + 1)
    tail = float(q[:, T].sum())
    return rows, prior, InfiniteMixture.update(prior, ALPHA, moments_of(rows, q[:, :T], kind), tail)


@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=8), st.floats(0.01, 20), st.floats(0.01, 20), st.floats(0, 100),
    st.booleans(),
)  # fmt: skip
def test_weights_and_remainder_sum_to_one(counts, first, second, tail, closed):
    sticks = Sticks.from_counts((first, second), np.array(counts), tail, closed=closed)
    assert sticks.weights.sum() + sticks.remainder == pytest.approx(1.0)
    assert (sticks.weights >= 0).all() and 0 <= sticks.remainder <= 1


def test_tail_is_the_sum_of_its_terms() -> None:
    """Eq. 9 against the terms of the series."""
    sticks = Sticks.from_counts(ALPHA, np.array([5.0, 2.0]), 0.5)
    prior = Sticks.from_counts(ALPHA, np.zeros(2000))
    terms = sticks.log_rests.sum() + prior.log_weights
    assert sticks.log_tail == pytest.approx(float(logsumexp(terms)), rel=1e-10)
    assert Sticks.from_counts(ALPHA, np.array([5.0, 2.0]), closed=True).log_tail == -np.inf


def test_stick_expectations_are_those_of_samples() -> None:
    sticks = Sticks.from_counts(ALPHA, np.array([6.0, 3.0, 1.0]), 1.0)
    v = np.random.default_rng(0).beta(sticks.first, sticks.second, size=(200_000, 3))
    left = np.cumprod(np.hstack([np.ones((len(v), 1)), 1 - v]), axis=1)
    weights = v * left[:, :3]
    np.testing.assert_allclose(sticks.weights, weights.mean(axis=0), rtol=0.01)
    np.testing.assert_allclose(sticks.log_weights, np.log(weights).mean(axis=0), rtol=0.01)
    assert sticks.remainder == pytest.approx(left[:, 3].mean(), rel=0.02)
    expected = [
        reference.beta_divergence(np.array(phi), ALPHA) for phi in zip(sticks.first, sticks.second, strict=True)
    ]
    np.testing.assert_allclose(sticks.divergences(), expected)


def test_no_order_is_better_than_by_size() -> None:
    counts = np.array([7.0, 4.0, 1.0])
    evidence = {
        order: Sticks.from_counts((0.7, 1.3), np.array(order), 0.2).log_evidence()
        for order in itertools.permutations(counts)
    }
    assert max(evidence, key=lambda order: evidence[order]) == tuple(counts)


@pytest.mark.parametrize("kind", ["full", "diag"])
def test_cycle_is_the_reference(kind: str) -> None:
    rows, prior, mixture = mixture_for(kind)
    statistics = CpuShard(rows).run(Expect(mixture.local))
    components = [
        reference.NormalWishart(*parts)
        for parts in zip(
            mixture.posterior.beta, mixture.posterior.m, mixture.posterior.nu, mixture.posterior.S, strict=True
        )
    ]
    sticks = np.column_stack([mixture.sticks.first, mixture.sticks.second])
    expected = reference.cycle(rows, np.ones(len(rows)), ALPHA, sticks, components, plain(prior))
    assert mixture.free_energy(statistics.log_likelihood) == pytest.approx(expected.free_energy, rel=1e-9)
    np.testing.assert_allclose(statistics.counts[:3], expected.q.sum(axis=0), rtol=1e-8)
    assert statistics.counts[3] == pytest.approx(expected.tail.sum(), rel=1e-8)
    moments = ObservedMoments.from_pass(mixture.local, statistics)
    updated = InfiniteMixture.update(prior, ALPHA, moments.take(slice(0, 3)), float(moments.counts[3]))
    np.testing.assert_allclose(
        np.column_stack([updated.sticks.first, updated.sticks.second]), expected.sticks, rtol=1e-8
    )
    for i, component in enumerate(expected.components):
        np.testing.assert_allclose(updated.posterior.m[i], component.m, rtol=1e-7)
        np.testing.assert_allclose(updated.posterior.S[i], component.S, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("kind", ["full", "diag"])
def test_divergences_and_evidences_are_the_reference(kind: str) -> None:
    rows, prior = some_rows(), gaussian_prior(kind, 3)
    q = some_q(len(rows), 2)
    posterior = prior.update(moments_of(rows, q, kind))
    updated = [plain(prior).update(rows, q[:, i]) for i in range(2)]
    expected = [reference.wishart_divergence(component, plain(prior)) for component in updated]
    np.testing.assert_allclose(posterior.divergences(), expected, rtol=1e-9)
    evidences = [plain(prior).log_evidence(rows, q[:, i]) for i in range(2)]
    np.testing.assert_allclose(posterior.log_evidences(), evidences, rtol=1e-9)
    np.testing.assert_allclose(prior.itself().divergences(), 0, atol=1e-12)


@pytest.mark.parametrize("D", [1, 5])
@pytest.mark.parametrize("least", [0.2, 1.0, 1e6])
def test_terms_of_wishart_posteriors_are_those_of_plain_formulas(D: int, least: float) -> None:
    """Degrees of freedom from barely enough to millions, and a prior that is not diagonal."""
    random = np.random.default_rng(D)
    S, S0 = (np.cov(random.normal(size=(D, 20))).reshape(D, D) + 0.1 * np.eye(D) for _ in range(2))
    nu, m, m0 = np.array([D - 1 + least]), random.normal(size=(1, D)), random.normal(size=D)
    prior = GaussianPrior(KINDS["full"], 1.0, m0, D + 1.0, S0)
    factors, terms = KINDS["full"](np.ones(1), m, nu, S[None], prior)._solved
    W, halves = np.linalg.inv(S), 0.5 * (nu[0] - np.arange(D))
    expected = [digamma(halves).sum(), np.trace(S0 @ W), (m[0] - m0) @ W @ (m[0] - m0), gammaln(halves).sum()]
    np.testing.assert_allclose(terms[:, 0], [*expected, np.linalg.slogdet(S)[1]], rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(factors[0] @ factors[0].T, nu[0] * W, rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(factors[0], np.triu(factors[0]))


@pytest.mark.parametrize("kind", ["full", "diag"])
def test_one_closed_component_has_the_evidence_in_closed_form(kind: str) -> None:
    """With a single component F is −log p(X), the ratio of the conjugate normalisers."""
    rows, prior = some_rows(), gaussian_prior(kind, 3)
    mixture = InfiniteMixture.update(prior, ALPHA, moments_of(rows, np.ones((len(rows), 1)), kind), closed=True)
    statistics = CpuShard(rows).run(Expect(mixture.local))
    evidence = plain(prior).log_evidence(rows, np.ones(len(rows)))
    assert -mixture.free_energy(statistics.log_likelihood) == pytest.approx(evidence, rel=1e-10)


@pytest.mark.parametrize("kind", ["full", "diag"])
@pytest.mark.parametrize("D", [1, 2])
def test_predictive_density_integrates_to_one(kind: str, D: int) -> None:
    rows = np.random.default_rng(0).normal(size=(40, D)) * 2
    prior = gaussian_prior(kind, D)
    mixture = InfiniteMixture.update(prior, ALPHA, moments_of(rows, some_q(40, 2), kind), 0.5)
    # a change of variables x = sinh t reaches far into the tails of the Student-t densities
    t = np.linspace(-9, 9, 6001 if D == 1 else 601)
    axes = np.meshgrid(*[t] * D, indexing="ij")
    grid = np.stack([axis.ravel() for axis in axes], axis=1)
    density = np.exp(mixture.log_predictive(np.sinh(grid)) + np.log(np.cosh(grid)).sum(axis=1))
    assert density.sum() * (t[1] - t[0]) ** D == pytest.approx(1.0, abs=2e-3)


@pytest.mark.parametrize("kind", ["full", "diag"])
def test_predictive_density_is_the_ratio_of_evidences(kind: str) -> None:
    rows, prior = some_rows(), gaussian_prior(kind, 3)
    posterior = prior.update(moments_of(rows, np.ones((len(rows), 1)), kind))
    new = np.array([[0.5, -2.0, 7.0]])
    with_new = np.vstack([rows, new])
    ones = np.ones(len(with_new))
    expected = plain(prior).log_evidence(with_new, ones) - plain(prior).log_evidence(rows, ones[:-1])
    assert float(posterior.log_predictive(new)[0, 0]) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("kind", ["full", "diag"])
def test_draws_have_the_predictive_distribution(kind: str) -> None:
    rows = some_rows(D=2)
    prior = GaussianPrior(KINDS[kind], 0.5, np.zeros(2), 9.0, np.eye(2) * 2 if kind == "full" else np.full(2, 2.0))
    posterior = prior.update(moments_of(rows, np.ones((len(rows), 1)), kind))
    drawn = posterior.draw(0, 4000, np.random.RandomState(0))
    assert stats.ks_2samp(drawn[:, 0], -drawn[:, 0] + 2 * posterior.m[0, 0]).pvalue > 1e-3  # symmetric about the mean
    entropy = -posterior.log_predictive(drawn).mean()
    again = -posterior.log_predictive(posterior.draw(0, 4000, np.random.RandomState(1))).mean()
    assert entropy == pytest.approx(again, abs=0.1)


@pytest.mark.parametrize("kind", ["full", "diag"])
def test_a_fitted_prior_is_the_closest_of_its_scales(kind: str) -> None:
    rows = some_rows()
    moments = moments_of(rows, some_q(len(rows), 3), kind)
    S = rows.var(axis=0)
    prior = GaussianPrior(KINDS[kind], 0.3, rows.mean(axis=0), 6.0, np.diag(S) if kind == "full" else S, 1e-9 * S)
    posterior = prior.update(moments)
    fitted = prior.fitted(posterior)

    def divergence(scales: Rows) -> float:
        other = replace(prior, S=scales * fitted.S, floor=None)
        return float(type(posterior)(posterior.beta, posterior.m, posterior.nu, posterior.S, other).divergences().sum())

    for d, scale in itertools.product(range(3), (0.9, 1.1)):
        assert divergence(np.ones(3)) < divergence(np.where(np.arange(3) == d, scale, 1.0))
    assert replace(prior, floor=None).fitted(posterior).S is prior.S  # unless it may not be fitted


def count_rows(n: int = 50) -> Rows:
    random = np.random.default_rng(0)
    shares = np.array([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]])
    return np.array([random.multinomial(30, shares[i % 2]) for i in range(n)], dtype=np.float64)


@pytest.mark.parametrize("variance", [0.1, 1.0, 30.0])
def test_expected_log_likelihood_of_counts_is_linear(variance: float) -> None:
    """S as Gaussians of one variance, whatever that is, against xᵀ E[log θ]."""
    from scipy.special import digamma

    rows = count_rows()
    prior = CountsPrior(np.array([1.0, 2.0, 0.5]), variance)
    mixture = InfiniteMixture.update(prior, ALPHA, moments_of(rows, some_q(len(rows), 2), "counts"), 0.1)
    statistics = CpuShard(rows).run(Expect(mixture.local))
    constant = prior.row_constant(len(rows), rows.mean(axis=0), rows.var(axis=0))
    a = np.vstack([mixture.posterior.a, prior.a])
    S = rows @ (digamma(a) - digamma(a.sum(axis=1, keepdims=True))).T
    S = S + np.append(mixture.sticks.log_weights, mixture.sticks.log_tail)
    assert statistics.log_likelihood + constant == pytest.approx(float(logsumexp(S, axis=1).sum()), rel=1e-9)
    q = np.exp(S - logsumexp(S, axis=1, keepdims=True))
    np.testing.assert_allclose(statistics.counts, q.sum(axis=0), rtol=1e-8)
    found = ObservedMoments.from_pass(mixture.local, statistics)
    np.testing.assert_allclose(found.counts[:, None] * found.means, q.T @ rows, rtol=1e-7)


def test_counts_evidence_and_predictive() -> None:
    rows = count_rows()
    prior = CountsPrior(np.array([1.0, 2.0, 0.5]), 1.0)
    posterior = prior.update(moments_of(rows, np.ones((len(rows), 1)), "counts"))
    # every row of three counts that sum to two: the predictive probabilities sum to one
    small = np.array([x for x in itertools.product(range(3), repeat=3) if sum(x) == 2], dtype=np.float64)
    assert np.exp(posterior.log_predictive(small)).sum() == pytest.approx(1.0)
    mixture = InfiniteMixture.update(prior, ALPHA, moments_of(rows, np.ones((len(rows), 1)), "counts"), closed=True)
    log_normaliser = CpuShard(rows).run(Expect(mixture.local)).log_likelihood
    log_normaliser += prior.row_constant(len(rows), rows.mean(axis=0), rows.var(axis=0))
    assert -mixture.free_energy(log_normaliser) == pytest.approx(float(posterior.log_evidences()[0]), rel=1e-9)


@pytest.mark.parametrize("kind", ["full", "diag", "counts"])
def test_merged_moments_are_those_of_both(kind: str) -> None:
    rows = count_rows()
    q = some_q(len(rows), 3)
    merged = moments_of(rows, q, kind).merged(np.array([0]), np.array([2]))
    expected = moments_of(rows, q[:, [0]] + q[:, [2]], kind)
    for name in ("counts", "means", "scatter"):
        np.testing.assert_allclose(getattr(merged, name), getattr(expected, name), rtol=1e-9)


def test_priors_share_one_interface() -> None:
    priors: list[Prior] = [gaussian_prior("full", 3), gaussian_prior("diag", 3), CountsPrior(np.ones(3), 1.0)]
    rows = count_rows()
    for prior in priors:
        whole = isotropic_mixture(rows.mean(axis=0)[None], 1.0, prior.covariance_type)
        moments = ObservedMoments.from_pass(whole, CpuShard(rows).run(Expect(whole)))
        posterior = prior.update(moments)
        assert len(posterior.join(prior.itself())) == 2
        assert posterior.divergences()[0] > 0
        assert np.isfinite(posterior.log_predictive(rows)).all()
