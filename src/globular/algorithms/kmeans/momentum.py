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

from globular.algorithms.kmeans.centers import CenterUpdate, by_parts
from globular.model.statistics import F64
from globular.seam.passes import Index

DECAY = 0.9
"""Share of a centre's velocity that an iteration keeps; larger = a longer memory."""
REACH = 0.95
"""Share of the way beyond its mean that the objective allows a centre; 0 is Lloyd, and 1 would gain nothing."""
LEAD = 5.0
"""The same as a multiple of what its mean has just moved by; larger = settled centres go farther."""


class Momentum:
    """The velocities of the centres over the iterations of one fit."""

    def __init__(self, *, unit_centers: bool = False, n_threads: int = 1) -> None:
        self._unit_centers, self._n_threads = unit_centers, n_threads
        self._velocity: F64 | None = None
        self._means: F64 | None = None

    def beyond(self, old: F64, update: CenterUpdate) -> F64:
        """Where the next E-step shall have the centres that were `old` and whose M-step gave `update`. O(C·D)."""
        means, last_means, centers = update.centers, self._means, np.empty_like(update.centers)
        velocities = np.zeros_like(means) if self._velocity is None else self._velocity
        jumped = [cluster for cluster, _ in update.relocated]

        def move(part: slice) -> None:
            shift, velocity = means[part] - old[part], velocities[part]
            radius = _lengths(shift)
            velocity *= DECAY
            velocity += shift
            if jumped:
                velocity[[cluster - part.start for cluster in jumped if part.start <= cluster < part.stop]] = 0.0
            speed = _lengths(velocity)
            if last_means is not None:
                radius = np.minimum(radius, LEAD * _lengths(means[part] - last_means[part]))
            step = np.divide(REACH * radius, speed, out=np.zeros_like(speed), where=speed > 0)
            centers[part] = step[:, None] * velocity + means[part]
            if self._unit_centers:
                centers[part] = _on_cap(centers[part], means[part], old[part])

        by_parts(move, means.shape, self._n_threads)
        self._velocity, self._means = velocities, means  # nobody changes the centres of an update
        return centers

    def forget(self, clusters: Sequence[int] | Index) -> None:
        """These centres have jumped: where they came from says nothing about where they will go."""
        if self._velocity is not None and len(clusters):
            self._velocity[clusters] = 0.0


def _on_cap(centers: F64, means: F64, old: F64) -> F64:
    """Unit centres; a long step past a unit mean may leave the cap on which the old centre lies, and stays then."""
    lengths = _lengths(centers)
    centers = centers / np.where(lengths > 0, lengths, 1.0)[:, None]  # a cluster of zero rows has no direction
    outside = np.einsum("ij,ij->i", centers, means) < np.einsum("ij,ij->i", old, means)
    return np.where(outside[:, None], means, centers)


def _lengths(vectors: F64) -> F64:
    return np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
