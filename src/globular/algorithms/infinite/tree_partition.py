"""A second opinion on the number of components: the best partition that the tree contains.

Growth by splits may stop short: hundreds of clusters in a grid look uniform from afar, and of what is uniform no part
has a lower F than the whole. But where no row is shared F is a sum over components (what each holds, its parameters
integrated out, and its stick), so that the tree can be asked for the partition of smallest F. If that is below the F
of the mixture that has grown, by many more components, the mixture begins anew from there. The check costs one look at
every node.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from globular.algorithms.infinite.data import RowData
from globular.model.chunks import Chunks
from globular.model.covariances import FAMILIES
from globular.model.dirichlet import StickPrior, Sticks
from globular.model.observations import ObservedMoments, Prior
from globular.model.statistics import F64

_FITTED = 256
"""Leaves that are enough to fit a prior to."""


@dataclass(frozen=True, slots=True)
class Worth:
    """What a node adds to −F as a component of its own, nearly: its stick as if there were no order of components."""

    prior: Prior
    smallest: float
    total_weight: float

    def __call__(self, nodes: Chunks) -> F64:
        weights = np.maximum(nodes.weights, 1e-300)
        of_sticks = nodes.weights * np.log(weights / self.total_weight) - np.log(max(self.total_weight, 1.0))
        worth = self.prior.update(_moments(nodes, self.prior)).log_evidences() + of_sticks
        return np.where(nodes.weights >= self.smallest, worth, -np.inf)


def best_partition(
    data: RowData, prior: Prior, smallest: float, gain: float, least: int
) -> tuple[ObservedMoments, Prior] | None:
    """The components of the best partition, and the prior: fitted to the leaves of the tree, as far as it may be.

    None if there is no tree, or one of fewer than `least` parts.
    """
    if prior.fitted(prior.itself()) is not prior:
        leaves = data.parts(_nothing, -1.0)
        if leaves is None or len(leaves) < least:
            return None
        prior = _fitted(prior, leaves, smallest)
    nodes = data.parts(Worth(prior, smallest, data.shard.total_weight), gain)
    return None if nodes is None or len(nodes) < least else (_moments(nodes, prior), prior)


def _fitted(prior: Prior, leaves: Chunks, smallest: float) -> Prior:
    """The prior fitted to some of the leaves as components."""
    some = leaves.pick(slice(None, None, -(-len(leaves) // _FITTED)))
    some = some.pick(some.weights >= min(smallest, float(some.weights.max())))
    moments = _moments(some, prior)
    for _ in range(5):  # the partition that follows fits it again
        prior = prior.fitted(prior.update(moments))
    return prior


def _nothing(nodes: Chunks) -> F64:
    """All nodes are worth the same: with a negative gain asked of a split the best partition is all leaves."""
    return np.zeros(len(nodes))


def _moments(nodes: Chunks, prior: Prior) -> ObservedMoments:
    """Nodes as components."""
    kind = FAMILIES[prior.covariance_type].scatter
    return ObservedMoments(nodes.weights, nodes.means, nodes.moments(kind), kind)


def hard_free_energy(moments: ObservedMoments, prior: Prior, alpha: StickPrior) -> float:
    """F of components that share no row."""
    sticks = Sticks.from_counts(alpha, -np.sort(-moments.counts))
    return float(-prior.update(moments).log_evidences().sum() - sticks.log_evidence() + sticks.shared_divergence)
