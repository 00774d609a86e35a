"""Momentum for hard algorithms: centres go past their means, and the objective still never rises.

For fixed labels the error of cluster c is its error about the mean plus n_c ‖m_c − mean_c‖². So a new centre may lie
anywhere in the ball around the mean that has the old centre on its surface without making the objective worse than it
was; the mean, where Lloyd puts it, is only the best place *for these labels*. The next labels will be others, and they
mostly go on changing in the direction of the last iterations. We therefore use the freedom of the ball:

    velocity ← DECAY · velocity + (mean − old)
    m_new = mean + r · velocity / ‖velocity‖,    r = REACH · min(‖mean − old‖, LEAD · ‖mean − last mean‖)

The second bound is for clusters whose rows have settled: their means stay, and there is nothing to be ahead of.

Since REACH < 1 every iteration lowers the objective unless nothing moves, as in Lloyd, and the fixed points are those
of Lloyd. It takes a third of the iterations to the same error, and long runs end lower: it walks over small ripples of
the objective on which Lloyd stops. With unit centres (cosine) the same holds for the cap instead of the ball.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from globular.algorithms.kmeans.centers import CenterUpdate
from globular.model.statistics import F64
from globular.seam.passes import Index

DECAY = 0.9
REACH = 0.95
LEAD = 5.0


class Momentum:
    """The velocities of the centres over the iterations of one fit."""

    def __init__(self, *, unit_centers: bool = False) -> None:
        self._unit_centers = unit_centers
        self._velocity: F64 | None = None
        self._means: F64 | None = None

    def beyond(self, old: F64, update: CenterUpdate) -> F64:
        """Where the next E-step shall have the centres that were `old` and whose M-step gave `update`. O(C·D)."""
        means = update.centers
        shift = means - old
        radius = _lengths(shift)
        if self._velocity is None:
            self._velocity = shift
        else:
            self._velocity *= DECAY
            self._velocity += shift
        jumped = [cluster for cluster, _ in update.relocated]
        self.forget(jumped)
        speed = _lengths(self._velocity)
        if self._means is not None:
            radius = np.minimum(radius, LEAD * _lengths(means - self._means))
        self._means = means  # nobody changes the centres of an update
        step = np.divide(REACH * radius, speed, out=np.zeros_like(speed), where=speed > 0)
        centers = step[:, None] * self._velocity
        centers += means
        if not self._unit_centers:
            return centers
        lengths = _lengths(centers)
        centers /= np.where(lengths > 0, lengths, 1.0)[:, None]  # a cluster of zero rows has no direction
        # a long step past a unit mean may leave the cap on which the old centre lies
        outside = np.einsum("ij,ij->i", centers, means) < np.einsum("ij,ij->i", old, means)
        return np.where(outside[:, None], means, centers)

    def forget(self, clusters: Sequence[int] | Index) -> None:
        """These centres have jumped: where they came from says nothing about where they will go."""
        if self._velocity is not None and len(clusters):
            self._velocity[clusters] = 0.0


def _lengths(vectors: F64) -> F64:
    return np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
