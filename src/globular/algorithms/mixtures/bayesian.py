"""Variational EM for mixtures whose parameters all have priors (Bishop 2006, 10.2), with all components throughout.

    repeat:  E-step  q(c | x) ∝ exp E[log p(c, x)]                      one soft pass
             M-step  posteriors from Σ q, Σ q x and Σ q x xᵀ            `model.bayesian`

The objective of a step is the lower bound behind its M-step, as in scikit-learn: of all rows, and so is `tol`.
"""

from __future__ import annotations

from collections.abc import Iterator

from globular.algorithms.mixtures.em import CONVERGED
from globular.algorithms.steps import Step
from globular.model.bayesian import BayesianPosterior, BayesianPrior
from globular.model.gaussian import entropy_of
from globular.model.observations import ObservedMoments
from globular.seam.mixture_passes import Expect
from globular.seam.shard import Shard


def bayesian_em(
    shard: Shard, start: BayesianPosterior, prior: BayesianPrior, max_iter: int, tol: float, bound: float
) -> Iterator[Step[BayesianPosterior]]:
    """Run from `start`, whose lower bound was `bound`; one step per iteration."""
    posterior = start
    for iteration in range(1, max_iter + 1):
        mixture = posterior.mixture
        found = shard.run(Expect(mixture))
        posterior = prior.update(ObservedMoments.from_pass(mixture, found))
        before, bound = bound, posterior.bound(entropy_of(mixture, found))
        stopped = CONVERGED if abs(bound - before) < tol else "max_iter" if iteration == max_iter else ""
        yield Step(iteration, bound, found.n_distances, None, posterior, stopped)
        if stopped:
            return
