"""The soft pass against its reference, and EM against scikit-learn and its own theory."""

import itertools
from dataclasses import replace
from functools import reduce
from operator import add

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy.special import logsumexp

from globular.algorithms.mixtures import em as em_module
from globular.algorithms.mixtures.em import EMOptions, e_step, em, start_at_random, start_from_means, variance_within
from globular.errors import UnsupportedPassError
from globular.model.covariances import FAMILIES
from globular.model.gaussian import GaussianParameters, isotropic_mixture
from globular.model.statistics import SoftStatistics
from globular.passes.cpu.engine.densities import scale_lines, softmax_block
from globular.passes.cpu.shard import CpuShard
from globular.seam.mixture_passes import Expect
from globular.seam.passes import Assign
from globular.seam.shard import answer
from reference import expect as reference
from reference.expect import assert_alike, mixture_for

TYPES = sorted(FAMILIES)
Rows = NDArray[np.float64]


def blobs(n: int = 300, C: int = 4, D: int = 3, seed: int = 0) -> Rows:
    random = np.random.default_rng(seed)
    centers = 4 * random.normal(size=(C, D))
    return centers[random.integers(C, size=n)] + random.normal(size=(n, D)) * random.uniform(0.5, 2, size=D)


def assert_statistics_equal(ours: SoftStatistics, theirs: SoftStatistics, rtol: float = 1e-10) -> None:
    assert_alike(ours, theirs, rtol)
    assert ours.n_distances == theirs.n_distances


@pytest.mark.parametrize("covariance_type", TYPES)
@pytest.mark.parametrize("offset", [0.0, 1e8])
@pytest.mark.parametrize("shrink", [1.0, 1e-9], ids=["ordinary", "tight"])
def test_soft_pass_is_the_reference(covariance_type: str, offset: float, shrink: float) -> None:
    """`tight` makes components that the expanded square would get wrong."""
    rows = blobs()
    mixture = mixture_for(rows, covariance_type)
    rows = rows + offset
    mixture = GaussianParameters(mixture.weights, mixture.means + offset, mixture.covariances * shrink, covariance_type)
    weights = np.random.default_rng(0).uniform(size=len(rows))
    ours = CpuShard(rows, weights).run(Expect(mixture))
    assert_statistics_equal(ours, reference.soft_pass(rows, weights, mixture))


def test_shares_count_however_small_a_component_is() -> None:
    """Rows are left out for a share that is small beside the others of the component, not for a small one."""
    rows = np.random.default_rng(0).normal(size=(300, 40))  # wide: matrices are applied to differences
    covariances = np.stack([np.eye(40), np.eye(40) / 1.5])
    mixture = GaussianParameters(np.array([1.0, 1e-30]), np.full((2, 40), 0.1), covariances, "full")
    ours, wanted = CpuShard(rows).run(Expect(mixture)), reference.soft_pass(rows, np.ones(300), mixture)
    for name in ("counts", "sums", "scatter"):
        one, other = getattr(ours, name)[1], getattr(wanted, name)[1]
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9 * np.abs(other).max())


@pytest.mark.parametrize("covariance_type", [name for name, family in FAMILIES.items() if family.tied])
@pytest.mark.parametrize("offset", [0.0, 1e8])
@pytest.mark.parametrize(("shrink", "linear"), [(1.0, True), (1e-9, False)], ids=["ordinary", "tight"])
def test_one_covariance_needs_no_quadratic_forms(covariance_type, offset, shrink, linear):
    """Unless components are so tight that differences of large terms would tell nothing."""
    rows = blobs()
    mixture = mixture_for(rows, covariance_type)
    rows = rows + offset
    mixture = GaussianParameters(mixture.weights, mixture.means + offset, mixture.covariances * shrink, covariance_type)
    weights = np.random.default_rng(0).uniform(size=len(rows))
    ours = e_step(CpuShard(rows, weights), mixture)
    assert len(ours.scatter) == (1 if linear else 4)
    wanted = reference.soft_pass(rows, weights, mixture)
    together = replace(wanted, scatter=wanted.scatter.sum(axis=0, keepdims=True))
    assert_statistics_equal(ours, together if linear else wanted)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint8, np.int64, ">f8"])
def test_soft_pass_reads_every_dtype(dtype: str) -> None:
    rows = np.abs(blobs()).astype(dtype)
    exact = rows.astype(np.float64)
    mixture = mixture_for(exact, "diag")
    ours = CpuShard(rows).run(Expect(mixture))
    assert_statistics_equal(ours, reference.soft_pass(exact, np.ones(len(rows)), mixture))


@pytest.mark.parametrize("covariance_type", TYPES)
def test_soft_pass_on_unit_rows(covariance_type: str) -> None:
    rows = blobs()
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    mixture = mixture_for(unit, covariance_type)
    ours = CpuShard(rows, unit_rows=True).run(Expect(mixture))
    assert_statistics_equal(ours, reference.soft_pass(unit, np.ones(len(rows)), mixture))


@pytest.mark.parametrize("covariance_type", TYPES)
def test_threads_give_the_same_bits_and_split_shards_the_same_sums(covariance_type: str) -> None:
    rows = blobs(n=20_000, C=20, D=5)  # several blocks
    weights = np.random.default_rng(0).uniform(size=len(rows))
    mixture = mixture_for(rows[:500], covariance_type, C=20)
    one = CpuShard(rows, weights, n_threads=1).run(Expect(mixture))
    two = CpuShard(rows, weights, n_threads=2).run(Expect(mixture))
    for name in ("counts", "sums", "scatter", "log_likelihood"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    cuts = [0, 1, 700, 9_000, 9_001, 20_000]
    parts = [CpuShard(rows[a:b], weights[a:b]).run(Expect(mixture)) for a, b in itertools.pairwise(cuts)]
    assert_statistics_equal(reduce(add, parts), one, rtol=1e-12)


@pytest.mark.parametrize("covariance_type", TYPES)
def test_rows_are_scored_as_in_the_reference(covariance_type: str) -> None:
    rows = blobs()
    mixture = mixture_for(rows, covariance_type)
    shard = CpuShard(rows, n_threads=2)
    q, log_density = reference.posterior(rows, mixture)
    np.testing.assert_allclose(answer(shard, mixture, "log_densities"), log_density, rtol=1e-10)
    np.testing.assert_allclose(answer(shard, mixture, "probabilities"), q, rtol=1e-9, atol=1e-300)
    np.testing.assert_array_equal(answer(shard, mixture, "components"), q.argmax(axis=1))


def test_soft_pass_refuses_sparse_rows() -> None:
    from scipy import sparse

    shard = CpuShard(sparse.random_array((10, 3), density=0.5, format="csr", random_state=0))
    with pytest.raises(UnsupportedPassError, match="dense"):
        shard.run(Expect(isotropic_mixture(np.zeros((1, 3)), 1.0, "diag")))


@given(
    arrays(np.float64, st.tuples(st.integers(1, 5), st.integers(1, 19)), elements=st.floats(-2e3, 2e3)),
    st.sampled_from([-np.inf, -2e3, 0.0, 2e3]),
)
def test_softmax_is_exact(joint: Rows, background: float) -> None:
    n = len(joint)
    q, totals, log_density = joint.T.copy(), np.empty(n), np.empty(n)
    softmax_block(q, n, background, np.empty(n), totals, log_density)
    scale_lines(q, n, 1.0 / totals)
    expected = logsumexp(np.column_stack([joint, np.full(n, background)]), axis=1)
    np.testing.assert_allclose(log_density, expected, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(q.T, np.exp(joint - expected[:, None]), rtol=1e-12, atol=1e-300)


def path(rows: Rows, start: GaussianParameters, options: EMOptions, weights: Rows | None = None) -> list[float]:
    return [step.objective for step in em(CpuShard(rows, weights), start, options)]


@given(
    covariance_type=st.sampled_from(TYPES),
    learned_weights=st.booleans(),
    rows=arrays(np.float64, st.tuples(st.integers(3, 40), st.integers(1, 3)), elements=st.integers(-9, 9)),
    seed=st.integers(0, 1000),
)
def test_log_likelihood_never_falls(covariance_type: str, learned_weights: bool, rows: Rows, seed: int) -> None:
    """Small whole numbers: many duplicates, constant columns and components that collapse.

    The floor is high enough for rounding to be invisible; below it the M-step is one under a constraint.
    """
    random = np.random.default_rng(seed)
    start = isotropic_mixture(rows[random.choice(len(rows), 3)], 5.0, covariance_type)
    weights = random.integers(0, 3, size=len(rows)) + np.eye(len(rows))[0]
    options = EMOptions(max_iter=8, tol=0.0, reg_covar=0.0, relative_floor=1e-5, learned_weights=learned_weights)
    objectives = np.array(path(rows, start, options, weights))
    assert np.all(np.isfinite(objectives))
    assert np.all(np.diff(objectives) >= -1e-9 * np.maximum(np.abs(objectives[1:]), weights.sum()))


def test_equal_weights_and_one_variance_at_zero_temperature_are_k_means() -> None:
    """The model of var-GMM: as σ² → 0 an EM step is a Lloyd step."""
    rows = blobs()
    means = rows[:4].copy()
    cold = isotropic_mixture(means, 1e-6, "tied_spherical")
    step = next(em(CpuShard(rows), cold, EMOptions(learned_weights=False)))
    shard = CpuShard(rows)
    statistics = shard.run(Assign(means))
    np.testing.assert_allclose(step.model.means, statistics.sums / statistics.counts[:, None], rtol=1e-9)
    moved = means - step.model.means
    spread = statistics.objective - statistics.counts @ np.sum(moved**2, axis=1)
    assert float(step.model.covariances) == pytest.approx(spread / rows.size + 1e-6, rel=1e-9)


@pytest.mark.parametrize("covariance_type", TYPES)
def test_start_from_means_is_the_m_step_of_the_closest_means(covariance_type: str) -> None:
    rows = blobs()
    means = rows[:4]
    options = EMOptions(reg_covar=0.0)
    start = start_from_means(CpuShard(rows), means, covariance_type, options)
    labels = np.argmin(((rows[:, None] - means) ** 2).sum(axis=2), axis=1)
    np.testing.assert_allclose(start.weights, np.bincount(labels) / len(rows), atol=0.01)
    groups = [rows[labels == c] for c in range(4)]
    np.testing.assert_allclose(start.means, [group.mean(axis=0) for group in groups], atol=0.05)
    matrices = reference.covariance_matrices(start)
    within = sum(len(group) * np.trace(np.cov(group.T, bias=True)) for group in groups)
    assert len(rows) * np.average(np.trace(matrices, axis1=1, axis2=2), weights=start.weights) == (
        pytest.approx(within, rel=0.02)
    )


@pytest.mark.parametrize("covariance_type", TYPES)
def test_random_start_is_near_the_gaussian_of_all_data(covariance_type: str) -> None:
    rows = blobs(n=2_000)
    random = np.random.RandomState(0)
    start = start_at_random(CpuShard(rows), 5, covariance_type, EMOptions(), random)
    assert np.all(np.abs(start.means - rows.mean(axis=0)) < 6 * rows.std() / np.sqrt(2_000))
    assert len(np.unique(start.means[:, 0])) == 5
    total = np.trace(reference.covariance_matrices(start), axis1=1, axis2=2)
    np.testing.assert_allclose(total, rows.var(axis=0).sum(), rtol=1e-4)


def test_component_of_weight_zero_takes_no_rows() -> None:
    rows = blobs(n=50)
    for covariance_type in TYPES:
        even = mixture_for(rows, covariance_type, C=2)
        gone = GaussianParameters(np.array([1.0, 0.0]), even.means, even.covariances, covariance_type)
        statistics = CpuShard(rows).run(Expect(gone))
        np.testing.assert_array_equal(statistics.counts, [50.0, 0.0])


def test_warm_start_continues_from_the_bound_it_is_given() -> None:
    rows = blobs()
    steps = list(em(CpuShard(rows), mixture_for(rows, "diag"), EMOptions(max_iter=500, tol=1e-9)))
    bound = steps[-1].objective / len(rows)
    again = list(em(CpuShard(rows), steps[-1].model, EMOptions(tol=1e-6, previous_bound=bound)))
    assert len(again) == 1


@pytest.mark.parametrize("offset", [0.0, 1e8])
def test_variance_within_is_that_of_all_rows_where_these_are_few(monkeypatch, offset):
    X = blobs(400) + offset
    weights = np.random.default_rng(0).integers(1, 4, 400).astype(np.float64)
    d2 = np.square(X[:, None] - X[:9]).sum(axis=2).min(axis=1)
    assert variance_within(CpuShard(X), X[:9]) == pytest.approx(d2.mean() / 3, rel=1e-12)
    weighted = variance_within(CpuShard(X, weights), X[:9])
    assert weighted == pytest.approx(weights @ d2 / (3 * weights.sum()), rel=0.1)
    monkeypatch.setattr(em_module, "SAMPLED_ROWS", 200)
    assert variance_within(CpuShard(X), X[:9]) == pytest.approx(d2.mean() / 3, rel=0.2)
