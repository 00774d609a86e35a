"""Yinyang k-means (Ding et al. 2015): Lloyd's labels, with fewer distances.

The centres are grouped once. Each row keeps a lower bound per group on its distance to the group's centres, loosened by
the largest shift in the group after every M-step; groups whose bound exceeds the distance to the row's own centre are
not searched. Bounds change no label, so every step equals Lloyd's.
"""

from __future__ import annotations

from collections.abc import Iterator

from globular.algorithms.kmeans.lloyd import KMeansOptions, exact_kmeans
from globular.algorithms.steps import Step
from globular.model.groups import CenterGroups
from globular.model.statistics import F64
from globular.seam.among import Bounded
from globular.seam.passes import Assign
from globular.seam.shard import Shard


def default_groups(n_clusters: int, n_columns: int) -> int:
    """A tenth of the clusters, as in the paper, but bounds of at most a quarter of float32 rows."""
    return max(1, min(n_clusters // 10, n_columns // 4))


def yinyang(shard: Shard, centers: F64, options: KMeansOptions, n_groups: int | None = None) -> Iterator[Step[F64]]:
    """Lloyd's algorithm with one bound per row and group of centres."""
    groups = CenterGroups.by_proximity(centers, n_groups or default_groups(*centers.shape))
    return exact_kmeans(
        shard, centers, options, lambda centers, shifts: shard.run(Assign(centers, Bounded(groups, shifts)))
    )
