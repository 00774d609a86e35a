"""Greedy growth of a mixture (after Verbeek, Vlassis & Kröse 2003), on the cells of a partition tree.

Start with one Gaussian, whose bound is exact on any cells. Then, until there are components enough: try to split some
components in two, by a few EM steps on the share that the component holds of every cell; keep the split that raises the
bound most; and let all components settle. A split costs two components, not all of them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from globular.algorithms.mixtures.em import one_gaussian
from globular.model.chunks import Within
from globular.model.covariances import CovarianceLimits
from globular.model.gaussian import GaussianParameters, m_step
from globular.model.statistics import F64
from globular.seam.shard import Shard
from globular.seam.tree_passes import ExpectCells

N_TRIED = 10
"""Components that one round tries to split: those that hold most."""
PARTIAL_STEPS = 4
"""EM steps on a pair alone."""
SETTLING_STEPS = 2
"""EM steps of all components after each split."""
N_DIRECTIONS = 16
"""Draws from a component, the longest of which is the direction of its split."""


def grow_mixture(
    shard: Shard,
    n_components: int,
    covariance_type: str,
    rng: np.random.Generator,
    *,
    limits: CovarianceLimits,
    learned_weights: bool = True,
) -> GaussianParameters:
    """A mixture of `n_components`, grown one by one on the cells that the tree is open to."""
    mixture = one_gaussian(shard, covariance_type)
    mixture = m_step(mixture, shard.run(ExpectCells(mixture)), limits)
    while mixture.n_components < n_components:
        mixture = _split_best(shard, mixture, rng, limits)
        for _ in range(SETTLING_STEPS):
            mixture = m_step(mixture, shard.run(ExpectCells(mixture)), limits, learned_weights=learned_weights)
    return mixture


def _split_best(
    shard: Shard, mixture: GaussianParameters, rng: np.random.Generator, limits: CovarianceLimits
) -> GaussianParameters:
    """The mixture with one component split in two."""
    counts = shard.run(ExpectCells(mixture)).counts
    best_gain, best, chosen = -np.inf, mixture, 0
    for component in np.argsort(-counts, kind="stable")[:N_TRIED]:
        within = Within(mixture, int(component))
        alone = shard.run(ExpectCells(mixture.pick([within.component]), within=within)).log_likelihood
        pair = _halves(mixture, within.component, rng)
        for _ in range(PARTIAL_STEPS):
            fitted = m_step(pair, shard.run(ExpectCells(pair, within=within)), limits)
            pair = replace(fitted, weights=mixture.weights[within.component] * fitted.weights)
        gain = shard.run(ExpectCells(pair, within=within)).log_likelihood - alone
        if gain > best_gain:
            best_gain, best, chosen = gain, pair, within.component
    return _with_pair(mixture, chosen, best)


def _halves(mixture: GaussianParameters, component: int, rng: np.random.Generator) -> GaussianParameters:
    """Two copies of a component, moved apart along a direction in which it is long."""
    noise = rng.standard_normal((N_DIRECTIONS, mixture.n_features))
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    draws = mixture.family.spread(mixture.covariances, component, noise)
    step: F64 = draws[np.argmax(np.einsum("ij,ij->i", draws, draws))]
    pair = mixture.pick([component, component])
    return replace(pair, weights=0.5 * pair.weights, means=pair.means + np.stack([step, -step]))


def _with_pair(mixture: GaussianParameters, component: int, pair: GaussianParameters) -> GaussianParameters:
    """The mixture with a pair in place of a component: the first where it was, the second at the end."""
    weights, means = mixture.weights.copy(), mixture.means.copy()
    weights[component], means[component] = pair.weights[0], pair.means[0]
    if mixture.family.tied:  # one covariance for all: the pair's in proportion to what it holds
        share = pair.weights.sum() / mixture.weights.sum()
        covariances = np.asarray((1.0 - share) * mixture.covariances + share * pair.covariances)
    else:
        covariances = np.concatenate([mixture.covariances, pair.covariances[1:]])
        covariances[component] = pair.covariances[0]
    return GaussianParameters(
        np.append(weights, pair.weights[1]), np.vstack([means, pair.means[1:]]), covariances, mixture.covariance_type
    )
