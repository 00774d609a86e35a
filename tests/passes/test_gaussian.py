"""Covariance families and the M-step: shapes, algebra, limits, sampling."""

import re
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from sklearn.mixture import GaussianMixture as SklearnMixture

import globular
from globular.estimators.conditional import given_start
from globular.model.chunks import Chunks
from globular.model.covariances import FAMILIES, CovarianceLimits
from globular.model.gaussian import GaussianParameters, isotropic_mixture, m_step
from globular.passes.cpu.engine.densities import load_features
from globular.passes.cpu.expect.blocks import ChunkBlocks
from globular.passes.cpu.expect.features import linear_form
from reference import expect as reference

TYPES = sorted(FAMILIES)
NO_LIMITS = CovarianceLimits(reg_covar=0.0, smallest=np.array([1e-30]))


def some_mixture(covariance_type: str, C: int = 3, D: int = 4, seed: int = 0) -> GaussianParameters:
    """A mixture with a covariance of its own per component where the family allows it."""
    random = np.random.default_rng(seed)
    rows = random.normal(size=(60, D)) * random.uniform(0.5, 3, size=D)
    start = isotropic_mixture(rows[:C], 2.0, covariance_type)
    return m_step(start, reference.soft_pass(rows, np.ones(60), start), NO_LIMITS)


@pytest.mark.parametrize("covariance_type", TYPES)
def test_factors_precisions_and_determinants_belong_to_the_covariances(covariance_type: str) -> None:
    mixture = some_mixture(covariance_type)
    C, D = mixture.means.shape
    assert mixture.covariances.shape == mixture.factors.shape == mixture.precisions.shape
    restored = mixture.family.inverse(mixture.precisions)
    np.testing.assert_allclose(restored, mixture.covariances, rtol=1e-10)
    log_determinants = [np.linalg.slogdet(matrix)[1] for matrix in reference.covariance_matrices(mixture)]
    half = mixture.family.half_log_determinants(mixture.factors, C, D)
    np.testing.assert_allclose(half, -0.5 * np.array(log_determinants), rtol=1e-10)


@pytest.mark.parametrize("covariance_type", TYPES)
def test_a_family_tells_the_same_covariances_in_every_form(covariance_type: str) -> None:
    mixture = some_mixture(covariance_type)
    family, (C, D), covariances = mixture.family, mixture.means.shape, mixture.covariances
    matrices = {
        "full": lambda: covariances,
        "tied": lambda: np.stack([covariances] * C),
        "diag": lambda: np.stack([np.diag(variances) for variances in covariances]),
        "spherical": lambda: np.stack([variance * np.eye(D) for variance in covariances]),
        "tied_spherical": lambda: np.stack([covariances * np.eye(D)] * C),
    }[covariance_type]()
    np.testing.assert_array_equal(family.matrices(covariances, C, D), matrices)
    np.testing.assert_array_equal(np.broadcast_to(mixture.variances(), (C, D)), np.diagonal(matrices, axis1=1, axis2=2))
    assert family.n_parameters(C, D) == len(np.unique(covariances))
    assert family.is_positive(covariances) and not family.is_positive(-covariances)
    some = mixture.pick([2, 0])
    np.testing.assert_array_equal(some.family.matrices(some.covariances, 2, D), matrices[[2, 0]])
    draws = family.spread(covariances, 1, np.eye(D))
    np.testing.assert_allclose(draws.T @ draws, matrices[1], atol=1e-12)


@pytest.mark.parametrize("covariance_type", TYPES)
def test_log_densities_are_linear_in_the_features(covariance_type: str) -> None:
    mixture = some_mixture(covariance_type)
    kind, rows = mixture.family.scatter, np.random.default_rng(3).normal(size=(7, mixture.n_features))
    form = linear_form(kind, mixture.factors, mixture.means, mixture.log_constants, np.ones(mixture.n_features))
    features, offset = np.empty((7, form.coefficients.shape[1])), np.zeros(mixture.n_features)
    observed = ChunkBlocks(mixture, offset).observed(Chunks(np.ones(7), rows, np.empty((7, 0)), kind))
    load_features(observed, 0, 7, offset, False, features)
    np.testing.assert_allclose(features @ form.coefficients.T, reference.log_joint(rows, mixture), rtol=1e-9)
    np.testing.assert_allclose(form.precisions, kind.dual(mixture.each(mixture.precisions)), rtol=1e-9)


@pytest.mark.parametrize("covariance_type", TYPES)
def test_isotropic_mixture_has_that_variance_in_every_direction(covariance_type: str) -> None:
    mixture = isotropic_mixture(np.zeros((2, 3)), 0.25, covariance_type)
    for matrix in reference.covariance_matrices(mixture):
        np.testing.assert_array_equal(matrix, 0.25 * np.eye(3))


@pytest.mark.parametrize("covariance_type", TYPES)
def test_m_step_maximises_the_expected_log_likelihood(covariance_type: str) -> None:
    """The optimality condition: no nearby parameters of the family do better under the same responsibilities."""
    random = np.random.default_rng(1)
    rows = random.normal(size=(80, 3))
    old = some_mixture(covariance_type, C=2, D=3, seed=2)
    q, _ = reference.posterior(rows, old)
    new = m_step(old, reference.soft_pass(rows, np.ones(80), old), NO_LIMITS)

    def expected(mixture: GaussianParameters) -> float:
        return float(np.sum(q * reference.log_joint(rows, mixture)))

    best = expected(new)
    for _ in range(20):
        means = new.means + 1e-3 * random.normal(size=new.means.shape)
        weights = new.weights * np.exp(1e-3 * random.normal(size=2))
        scale = np.exp(1e-3 * random.normal())
        other = GaussianParameters(weights / weights.sum(), means, new.covariances * scale, covariance_type)
        assert expected(other) < best


def test_m_step_with_equal_weights_keeps_them_equal() -> None:
    mixture = some_mixture("diag")
    statistics = reference.soft_pass(np.random.default_rng(0).normal(size=(30, 4)), np.ones(30), mixture)
    np.testing.assert_array_equal(m_step(mixture, statistics, NO_LIMITS, learned_weights=False).weights, 1 / 3)


@pytest.mark.parametrize("covariance_type", TYPES)
def test_component_without_rows_keeps_its_place(covariance_type: str) -> None:
    rows = np.random.default_rng(0).normal(size=(50, 2))
    start = isotropic_mixture(np.array([[0.0, 0.0], [1e4, 1e4]]), 1.0, covariance_type)
    new = m_step(start, reference.soft_pass(rows, np.ones(50), start), NO_LIMITS)
    np.testing.assert_array_equal(new.means[1], start.means[1])
    assert 0 < new.weights[1] < 1e-12
    assert np.all(np.isfinite(new.log_constants))


@pytest.mark.parametrize("covariance_type", TYPES)
@pytest.mark.parametrize("reg_covar", [0.0, 1e-6])
def test_singular_data_have_an_invertible_covariance(covariance_type: str, reg_covar: float) -> None:
    """Constant column, two columns that are copies, a component on one row."""
    column = np.random.default_rng(0).normal(size=20)
    rows = np.column_stack([column, 1e6 * column, column, np.full(20, 7.0)])
    limits = CovarianceLimits.for_data(reg_covar, rows.mean(axis=0), rows.var(axis=0))
    start = isotropic_mixture(rows[:2], 1.0, covariance_type)
    q = np.zeros((20, 2))
    q[0, 0], q[1:, 1] = 1, 1
    differences = rows[:, None, :] - start.means
    statistics = reference.soft_pass(rows, np.ones(20), start)
    statistics.counts = q.sum(axis=0)
    statistics.sums = np.einsum("nc,ncd->cd", q, differences)
    matrices = np.einsum("nc,ncd,nce->cde", q, differences, differences)
    statistics.scatter = reference.scatter_of(matrices, start.family.scatter)
    mixture = m_step(start, statistics, limits)
    assert np.all(np.isfinite(mixture.factors)) and np.all(np.isfinite(mixture.log_constants))
    for matrix in reference.covariance_matrices(mixture):
        assert np.linalg.eigvalsh(matrix)[0] > 0


def test_constant_data_still_have_a_positive_limit() -> None:
    for value in (0.0, 1e8):
        assert np.all(CovarianceLimits.for_data(0.0, np.full(3, value), np.zeros(3)).smallest > 0)


@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag"])
def test_columns_on_very_different_scales_do_not_disturb_each_other(covariance_type: str) -> None:
    """Variances 1e20 apart: a limit relative to all the data would swallow the small ones."""
    units = np.array([1e10, 1.0, 1e-2])
    random = np.random.default_rng(0)
    rows = random.normal(size=(100, 3)) @ np.array([[1, 0.5, 0], [0, 1, 0], [0, 0, 1]])

    def fitted(rows: np.ndarray) -> np.ndarray:
        limits = CovarianceLimits.for_data(0.0, rows.mean(axis=0), rows.var(axis=0))
        start = isotropic_mixture(rows[:1], 1.0, covariance_type)
        new = m_step(start, reference.soft_pass(rows, np.ones(100), start), limits)
        return reference.covariance_matrices(new)[0]

    np.testing.assert_allclose(fitted(rows * units), fitted(rows) * np.outer(units, units), rtol=1e-8)


@pytest.mark.parametrize("covariance_type", TYPES)
def test_limit_is_kept_and_touches_nothing_above_it(covariance_type: str) -> None:
    rows = np.random.default_rng(0).normal(size=(50, 3)) * np.array([1.0, 1.0, 1e-3])
    smallest = np.array([0.1, 0.1, 0.1])
    start = isotropic_mixture(rows[:2], 1.0, covariance_type)
    statistics = reference.soft_pass(rows, np.ones(50), start)
    limited = reference.covariance_matrices(m_step(start, statistics, CovarianceLimits(0.0, smallest)))
    free = reference.covariance_matrices(m_step(start, statistics, NO_LIMITS))
    for with_limit, without in zip(limited, free, strict=True):
        assert np.linalg.eigvalsh(with_limit)[0] >= 0.1 * (1 - 1e-12)
        np.testing.assert_allclose(with_limit[:2, :2], without[:2, :2], rtol=1e-4)


@pytest.mark.parametrize("covariance_type", TYPES)
def test_sample_has_the_moments_of_the_mixture(covariance_type: str) -> None:
    mixture = some_mixture(covariance_type)
    rows, labels = mixture.sample(60_000, np.random.RandomState(0))
    assert rows.shape == (60_000, 4) and np.all(np.diff(labels) >= 0)
    np.testing.assert_allclose(np.bincount(labels) / 60_000, mixture.weights, atol=0.01)
    for c, matrix in enumerate(reference.covariance_matrices(mixture)):
        mine = rows[labels == c]
        # 5 standard errors of a mean and, roughly, of a covariance
        error = 5 * np.sqrt(np.diag(matrix) / len(mine))
        assert np.all(np.abs(mine.mean(axis=0) - mixture.means[c]) < error)
        spread = np.sqrt(np.outer(np.diag(matrix), np.diag(matrix)))
        assert np.all(np.abs(np.cov(mine.T) - matrix) < 8 * spread / np.sqrt(len(mine)))


@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag", "spherical"])
def test_number_of_parameters_is_scikit_learns(covariance_type: str) -> None:
    rows = np.random.default_rng(0).normal(size=(50, 4))
    peer = SklearnMixture(3, covariance_type=covariance_type, random_state=0, tol=1.0).fit(rows)
    mixture = some_mixture(covariance_type)
    assert mixture.n_parameters(learned_weights=True) == peer._n_parameters()
    assert mixture.n_parameters(learned_weights=False) == peer._n_parameters() - 2


def test_reference_is_the_density_of_the_textbook() -> None:
    mixture = some_mixture("full")
    rows = np.random.default_rng(3).normal(size=(10, 4))
    density = sum(
        weight * multivariate_normal(mean, covariance).pdf(rows)
        for weight, mean, covariance in zip(mixture.weights, mixture.means, mixture.covariances, strict=True)
    )
    np.testing.assert_allclose(reference.posterior(rows, mixture)[1], np.log(density), rtol=1e-10)


@pytest.mark.parametrize("covariance_type", TYPES)
def test_precisions_that_are_not_positive_are_refused(covariance_type: str) -> None:
    mixture = some_mixture(covariance_type)
    with pytest.raises(ValueError, match=f"precisions_init: .* should be {mixture.family.requirement}"):
        given_start(None, None, -mixture.precisions, 3, mixture.n_features, covariance_type)


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="shapes"):
        GaussianParameters(np.ones(2) / 2, np.zeros((2, 3)), np.ones((2, 3)), "full")


def test_nobody_else_asks_which_family_it_is() -> None:
    """What differs between families is written in `model/covariances`; kernels are compiled for the arrays they get."""
    asks = re.compile(r'covariance_type (==|!=|in \()|"(norm|outer)"|scatter == |(covariances|scatter|S)\.ndim (==|!=)')
    home = Path(globular.__file__).parent
    elsewhere = [
        path for path in home.rglob("*.py") if not {"covariances", "reference"} & set(path.relative_to(home).parts)
    ]
    assert len(elsewhere) > 100
    for path in elsewhere:
        found = [line for line in path.read_text(encoding="utf-8").splitlines() if asks.search(line)]
        assert not found, (path, found)


def test_rows_are_drawn_where_rounded_weights_exceed_one() -> None:
    """Those of a float32 fit add up to one to seven digits, and the last component may be empty."""
    weights = np.array([0.1] * 9 + [0.1 + 4e-8, 0.0])
    mixture = GaussianParameters(weights, np.zeros((11, 1)), np.ones((11, 1)), "diag")
    assert mixture.sample(20, np.random.RandomState(0))[0].shape == (20, 1)
