"""Before Chunky EM ends it looks where EM would go; several starts are tried on cells."""

import numpy as np
import pytest

from globular import ChunkyGaussianMixture, GaussianMixture
from globular.algorithms.mixtures import ahead, chunky
from globular.algorithms.mixtures.ahead import LookAhead
from globular.algorithms.mixtures.em import EMOptions, covariance_limits, em, start_from_means
from globular.datasets import separated_mixture
from globular.model.statistics import F64
from globular.passes.cpu import CpuShard


def thin_and_wide(n: int = 60_000) -> F64:
    """Clusters of very different widths with heavy tails, where coarse cells cannot tell the thin ones apart."""
    rng = np.random.default_rng(7)
    centers, widths = rng.normal(0, 4, size=(12, 3)), 10 ** rng.uniform(-2, 0.3, size=(12, 3))
    which = rng.integers(12, size=n)
    return np.asarray(centers[which] + widths[which] * rng.standard_t(3, size=(n, 3)))


def gain_of_em(model: ChunkyGaussianMixture, X: F64) -> float:
    """What EM on the rows, begun at a fitted mixture, adds to its mean log-likelihood."""
    start = {"weights_init": model.weights_, "means_init": model.means_, "precisions_init": model.precisions_}
    return float(GaussianMixture(model.n_components, algorithm="em", **start).fit(X).score(X) - model.score(X))


@pytest.mark.parametrize("seed", [0, 2])
def test_no_more_than_refine_tol_is_lost_against_em(seed: int) -> None:
    X = thin_and_wide()
    model = ChunkyGaussianMixture(16, random_state=seed, max_cells=30_000).fit(X)
    assert model.stopped_ == chunky.CONVERGED
    assert gain_of_em(model, X) < model.refine_tol


def test_a_look_finds_what_em_gains() -> None:
    """On all rows, where these are few, and about the same on a sample of many."""
    X = thin_and_wide()
    limits_of = EMOptions()
    for rows in (X[:10_000], X):
        shard = CpuShard(rows)
        limits = covariance_limits(shard, limits_of)
        start = start_from_means(shard, rows[:12], "full", limits_of)
        steps = list(em(shard, start, EMOptions(tol=1e-3, max_iter=60)))
        gained = (steps[-1].objective - steps[0].objective) / len(rows)
        look = LookAhead(shard, start.n_parameters(learned_weights=True), np.random.default_rng(0))
        found = look.look(start, limits, 0.01, learned_weights=True)
        assert found.gain == pytest.approx(gained, rel=0.4)
        ended = list(em(shard, steps[-1].model, EMOptions(tol=1e-5, max_iter=300)))[-1].model
        again = look.look(ended, limits, 0.1, learned_weights=True)
        assert again.gain < 0.1 and again.n_distances < found.n_distances / 2


def test_the_bound_never_falls_by_going_ahead() -> None:
    X = thin_and_wide(20_000)
    model = ChunkyGaussianMixture(16, random_state=1).fit(X)
    bounds = np.array(model.lower_bounds_)
    assert (np.diff(bounds) > -1e-9).all()


def test_rows_are_few_or_enough_for_the_parameters() -> None:
    """The sizes at which a look takes all rows, and more than the fewest."""
    rng = np.random.default_rng(0)
    for n_rows, n_parameters, n_taken in (
        (2 * ahead.FEWEST_BATCH_ROWS, 10, 2 * ahead.FEWEST_BATCH_ROWS),
        (2 * ahead.FEWEST_BATCH_ROWS + 1, 10, ahead.FEWEST_BATCH_ROWS),
        (32 * ahead.FEWEST_BATCH_ROWS, 10_000, 2 * ahead.FEWEST_BATCH_ROWS),
    ):
        look = LookAhead(CpuShard(np.zeros((n_rows, 1), dtype=np.float32)), n_parameters, rng)
        assert look._rows.n_rows == n_taken


def test_several_starts_are_tried_and_the_best_is_kept() -> None:
    data = separated_mixture(20_000, 12, 2, separation=2.0, random_state=0)
    scores = {}
    for most in (1, 4):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(chunky, "MOST_DRAWS", most)
            found = [ChunkyGaussianMixture(12, random_state=seed).fit(data.X).score(data.X) for seed in range(6)]
        scores[most] = np.mean(found)
    assert scores[4] > scores[1]
