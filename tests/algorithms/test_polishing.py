"""The end of an infinite mixture: how strong the prior is to be by rows left out, and a search beside it."""

from typing import Any

import numpy as np
import pytest

from globular.algorithms.infinite import polishing
from globular.algorithms.infinite.polishing import best_strength, searched_mixture
from globular.algorithms.mixtures.pipeline import rows_of_part
from globular.algorithms.seeding.common import evenly_spread_rows
from globular.model.dirichlet import InfiniteMixture
from globular.model.gaussian import GaussianParameters
from globular.model.observations import ObservedMoments
from globular.model.wishart import KINDS, GaussianPrior
from globular.passes.cpu import CpuShard
from globular.seam.answers import Answer
from globular.seam.mixture_passes import Expect
from reference import expect as soft

ALPHA = 1.0, 1.0
FEWEST = polishing.FEWEST_POLISHED


def rows(n: int, D: int = 3) -> Any:
    """Two clusters, thin in all but the first column."""
    spreads = np.r_[1.0, np.full(D - 1, 0.1)]
    return np.random.default_rng(0).normal(size=(n, D)) * spreads + 8.0 * (np.arange(n) % 2)[:, None]


def truth(X: Any) -> GaussianParameters:
    """A component for every cluster."""
    halves = X[::2], X[1::2]
    covariances = np.array([np.cov(half.T) for half in halves])
    return GaussianParameters(np.full(2, 0.5), np.array([half.mean(axis=0) for half in halves]), covariances, "full")


def prior_of(X: Any, covariance: Any, strength: float) -> GaussianPrior:
    """A prior of so many rows with this covariance, whose scale counts as fitted."""
    D = X.shape[1]
    nu = D + strength
    return GaussianPrior(KINDS["full"], 0.01, X.mean(axis=0), nu, nu * covariance, 1e-9 * nu * covariance)


def chosen(X: Any, prior: GaussianPrior) -> polishing.Strength:
    shard, mixture = CpuShard(X), truth(X)
    return best_strength(shard, mixture, shard.run(Expect(mixture)), prior, ALPHA)


def test_a_prior_that_is_right_stays_and_one_that_inflates_is_weakened() -> None:
    X = rows(2000)
    right = chosen(X, prior_of(X, truth(X).covariances[0], 400.0))
    inflated = chosen(X, prior_of(X, np.eye(3), 400.0))
    scale = 403.0
    assert np.trace(right.prior.S) == pytest.approx(scale * np.trace(truth(X).covariances[0]))
    assert np.trace(inflated.prior.S) == pytest.approx(0.01 * scale * 3)
    assert right.log_density > inflated.log_density


def test_weaker_priors_are_tried_while_they_are_better(watch: Any) -> None:
    X, tried = rows(2000), watch(GaussianPrior, "weakened", lambda prior, share: share)
    chosen(X, prior_of(X, truth(X).covariances[0], 400.0))
    assert tried == [1.0, 0.3]
    tried.clear()
    chosen(X, prior_of(X, np.eye(3), 400.0))
    assert tried == [1.0, 0.3, 0.1, 0.03, 0.01]


def test_the_density_is_that_of_rows_which_had_no_part() -> None:
    X = rows(2000)
    prior, mixture = prior_of(X, truth(X).covariances[0], 400.0), truth(X)
    left_out = evenly_spread_rows(2000, 400, np.random.default_rng(0))
    rest = CpuShard(np.delete(X, left_out, axis=0))
    posterior = InfiniteMixture.update(prior, ALPHA, ObservedMoments.from_pass(mixture, rest.run(Expect(mixture))), 0.0)
    density = sum(CpuShard(X[left_out]).run(Answer(posterior, "total"))) / len(left_out)
    assert chosen(X, prior).log_density == pytest.approx(density, rel=1e-9)


@pytest.mark.parametrize("n", [FEWEST - 1, FEWEST])
def test_too_few_rows_tell_nothing(n: int) -> None:
    X = rows(n)
    prior = prior_of(X, truth(X).covariances[0], 400.0)
    found = chosen(X, prior)
    few = n < FEWEST
    assert (found.log_density == -np.inf) == few
    assert pytest.approx((0.3 if few else 1.0) * prior.S) == found.prior.S


@pytest.mark.parametrize("n", [FEWEST - 1, FEWEST])
def test_too_few_rows_are_not_searched(n: int) -> None:
    X = rows(n)
    found = list(searched_mixture(CpuShard(X), 2, "full", 1e-3, np.random.default_rng(0)))
    assert len(found) == (n == FEWEST)
    for step in found:
        assert step.model.n_components == 2 and step.n_distances > 0
        assert np.mean(soft.posterior(X, step.model)[1]) == pytest.approx(
            np.mean(soft.posterior(X, truth(X))[1]), abs=0.01
        )
    assert not list(searched_mixture(CpuShard(X), 1, "full", 1e-3, np.random.default_rng(0)))


def test_a_search_that_would_be_dear_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of the part times components, beside the most densities of a step."""
    shard = CpuShard(rows(5000))
    densities = 3 * rows_of_part(shard, 3, "full")
    assert densities < 3 * shard.n_rows <= polishing._MOST_DENSITIES == 2**23
    for most, searched in ((densities, True), (densities - 1, False)):
        monkeypatch.setattr(polishing, "_MOST_DENSITIES", most)
        assert bool(list(searched_mixture(shard, 3, "full", 1e-3, np.random.default_rng(0)))) == searched
