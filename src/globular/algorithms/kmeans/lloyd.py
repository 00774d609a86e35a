"""Lloyd's algorithm: exact k-means, the yardstick of everything else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from globular.algorithms.kmeans.centers import update_centers
from globular.algorithms.steps import Step
from globular.model.statistics import F64
from globular.seam.passes import Assign
from globular.seam.shard import Shard

TOLERANCE = 1e-4
"""Squared shift of the centres, relative to the variance of the columns, at which k-means for a start ends; larger = an
earlier end (scikit-learn's default)."""
SAMPLE_STEPS = 10
"""Most steps of k-means on a sample, which gives groups or first means; more change what comes of them little."""


@dataclass(frozen=True, slots=True)
class KMeansOptions:
    """When to stop, and whether centres are kept at unit length."""

    max_iter: int = 300
    tol: float = 0.0
    """Stop when the sum of the squared shifts of all centres falls to this."""
    unit_centers: bool = False
    """Spherical k-means: centres are kept at unit length."""


def lloyd(shard: Shard, centers: F64, options: KMeansOptions) -> Iterator[Step[F64]]:
    """Assign every row to its closest centre, move every centre to the mean of its rows, repeat.

    The objective Σ w ‖x − μ‖² of a step belongs to the centres before the step's update; it never rises.
    """
    for iteration in count(1):
        statistics = shard.run(Assign(centers))
        update = update_centers(shard, statistics, centers, unit=options.unit_centers)
        # labels that a seeding or another run left behind say nothing about this one
        n_changed = statistics.n_changed if iteration > 1 else shard.n_rows
        stopped = ""
        if n_changed + update.n_relocated == 0:
            stopped = "no label changed"
        elif float((update.shifts(centers) ** 2).sum()) <= max(options.tol, update.rounding):
            stopped = "centres moved less than tol"
        elif iteration >= options.max_iter:
            stopped = "max_iter"
        yield Step(iteration, statistics.objective, statistics.n_distances, n_changed, update.centers, stopped)
        if stopped:
            return
        centers = update.centers
