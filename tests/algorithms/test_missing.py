"""EM of rows with missing entries."""

import numpy as np
import pytest

from globular.algorithms.mixtures import missing
from globular.algorithms.mixtures.em import EMOptions, em_by
from globular.algorithms.mixtures.missing import IncompleteRows
from globular.model.covariances import FAMILIES
from globular.model.gaussian import GaussianParameters
from globular.model.statistics import F64
from globular.passes.cpu import CpuShard
from makers import blobs, weights_for
from reference import missing as reference

C, D = 3, 4


def with_holes(n: int = 60, share: float = 0.3, seed: int = 0) -> F64:
    """Rows of which entries are missing at random; of one all, of some none."""
    X = blobs(n, C, D, seed=seed)
    X[np.random.default_rng(seed + 1).uniform(size=X.shape) < share] = np.nan
    X[3], X[5] = np.nan, 1.0
    return X


def mixture_of(covariance_type: str, seed: int = 0) -> GaussianParameters:
    """Components that overlap, correlated where the family knows it."""
    random = np.random.default_rng(seed)
    family = FAMILIES[covariance_type]
    shape = family.shape(C, D)
    covariances = random.uniform(1.0, 4.0, size=shape)
    if not family.scatter.separable:
        roots = random.normal(size=shape)
        covariances = 4.0 * (roots @ np.swapaxes(roots, -1, -2)) + np.eye(D)
    return GaussianParameters(np.array([0.2, 0.3, 0.5]), 3.0 * random.normal(size=(C, D)), covariances, covariance_type)


@pytest.mark.parametrize("numbers_per_block", [1, 7 * C * D * D, missing.NUMBERS_PER_BLOCK])
@pytest.mark.parametrize("covariance_type", sorted(FAMILIES))
def test_the_e_step_is_that_of_the_oracle(covariance_type, numbers_per_block, monkeypatch):
    monkeypatch.setattr(missing, "NUMBERS_PER_BLOCK", numbers_per_block)
    X, mixture = with_holes(), mixture_of(covariance_type)
    weights = weights_for(len(X))
    found, expected = IncompleteRows.of(X, weights).expect(mixture), reference.expect(X, weights, mixture)
    for name in ("counts", "sums", "scatter", "log_likelihood", "total_weight", "n_distances"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-10, atol=1e-9, err_msg=name)
    two = IncompleteRows.of(X, weights, n_threads=2).expect(mixture)
    np.testing.assert_array_equal(two.scatter, found.scatter)
    filled = IncompleteRows.of(X).filled(mixture)
    np.testing.assert_allclose(filled, [reference.imputed(row, mixture) for row in X], rtol=1e-10, atol=1e-10)
    np.testing.assert_array_equal(filled[~np.isnan(X)], X[~np.isnan(X)])


@pytest.mark.parametrize("covariance_type", sorted(FAMILIES))
def test_the_likelihood_of_what_is_known_never_falls(covariance_type: str) -> None:
    rows = IncompleteRows.of(with_holes(200))
    steps = em_by(rows.expect, mixture_of(covariance_type), EMOptions(max_iter=40, tol=0.0), rows.limits(0.0))
    objectives = np.array([step.objective for step in steps])
    assert len(objectives) == 40 and (np.diff(objectives) >= -1e-9 * np.abs(objectives[1:])).all()


def test_draws_have_the_moments_of_the_one_gaussian() -> None:
    random = np.random.default_rng(0)
    covariance = np.array([[1.0, 0.9, 0.0], [0.9, 1.0, 0.3], [0.0, 0.3, 1.0]])
    X = random.multivariate_normal([1.0, 2.0, 3.0], covariance, size=20_000)
    X[random.uniform(size=X.shape) < 0.4] = np.nan
    rows = IncompleteRows.of(X)
    one = rows.one_gaussian()
    np.testing.assert_allclose(one.covariances[0], covariance, atol=0.05)
    drawn = rows.drawn(one, np.random.RandomState(0))
    np.testing.assert_array_equal(drawn[~np.isnan(X)], X[~np.isnan(X)])
    np.testing.assert_allclose(np.cov(drawn.T), covariance, atol=0.06)


@pytest.mark.parametrize("enough", [True, False])
def test_starts_are_found_on_complete_rows_of_several_kinds(enough: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    X = with_holes(300)
    n_complete = int((~np.isnan(X)).all(axis=1).sum())
    monkeypatch.setattr(missing, "ENOUGH_ROWS", n_complete / (C * D) + (0.0 if enough else 0.01))
    rows, random = IncompleteRows.of(X), np.random.RandomState(0)
    shard, limits = CpuShard(rows.drawn(rows.one_gaussian(), random)), rows.limits("auto")
    sizes, starts = [], iter([mixture_of("full", seed) for seed in range(4)])

    def begin(shard):
        sizes.append(shard.n_rows)
        assert np.isfinite(shard.take(np.arange(shard.n_rows))).all()
        return next(starts)
        yield

    options = EMOptions(max_iter=5, tol=0.0)
    steps = missing.search_start(rows, shard, C, begin, options, limits, random)
    objectives: list[float] = []
    while True:
        try:
            objectives.append(next(steps).objective)
        except StopIteration as end:
            found = end.value
            break
    assert sizes == [n_complete] * enough + [300] * (1 + missing.N_DRAWN)
    assert rows.expect(found).log_likelihood >= max(objectives[4::5]) - 1e-9
