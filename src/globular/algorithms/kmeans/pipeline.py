"""K-means from nothing to labelled rows, from top to bottom: what `KMeans` does.

Few clusters are seeded and iterated exactly. For many an iteration over all rows and columns is dear and the seeds
decide where it ends, so as much as possible is done on less:

1. a subspace of the columns, in which the next four stages see the rows    `subspace`
2. a part of the rows, on which seeds, swaps and iterations come first        `coreset`
3. seeds                                                                      `seeding`
4. swaps of centres, which mend what iterations cannot                        `swaps`
5. iterations, which search a few cells of centres                            `probing`
6. iterations in the whole space                                              `subspace`
7. labels for the centres as they are handed out (`label_rows`)               `probing`
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from globular.algorithms.kmeans.coreset import draw_part, part_bytes, swap_and_step_from_part
from globular.algorithms.kmeans.lloyd import KMeansOptions, lloyd
from globular.algorithms.kmeans.probing import ProbingOptions, probing_kmeans
from globular.algorithms.kmeans.subspace import LARGEST_COPY, enter_subspace, leave_subspace
from globular.algorithms.kmeans.swaps import swap_and_step
from globular.algorithms.kmeans.yinyang import yinyang
from globular.algorithms.seeding.named import Start
from globular.algorithms.steps import Step
from globular.model.statistics import F64
from globular.seam.shard import Shard

logger = logging.getLogger("globular")

EXACT: dict[str, Callable[[Shard, F64, KMeansOptions], Iterator[Step[F64]]]] = {"lloyd": lloyd, "yinyang": yinyang}
ALGORITHMS = (*EXACT, "probing")
PROBING_FROM = 500
"""Number of clusters from which "auto" probes; with fewer, exact iterations cost as little and give more."""
FIXED_BYTES = 64 * 2**20
"""Samples, cells and the blocks of a few threads."""


QUALITIES = {
    "fast": ProbingOptions(n_probes=2, min_gain=1e-2),
    "balanced": ProbingOptions(n_probes=2, min_gain=5e-3),
    "best": ProbingOptions(n_probes=3, min_gain=1e-3),
}
"""Points on the time–quality curve of probing k-means."""


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """How to cluster, and when to stop."""

    n_clusters: int
    algorithm: str = "auto"
    """"auto" or one of `ALGORITHMS`."""
    quality: str = "balanced"
    """One of `QUALITIES`; for "probing"."""
    max_iter: int = 300
    tol: float = 0.0
    """For exact algorithms: stop when the sum of the squared shifts of all centres falls to this."""
    unit_centers: bool = False
    may_narrow: bool = True
    """Whether "probing" may begin in a subspace and with a part of the rows; the seeds then come from there."""
    exact_labels: bool = False

    @property
    def chosen(self) -> str:
        """The algorithm that "auto" comes to."""
        if self.algorithm != "auto":
            return self.algorithm
        return "lloyd" if self.n_clusters < PROBING_FROM else "probing"

    @property
    def last_probes(self) -> int:
        """Cells that `label_rows` searches after the last step; 0 looks at all centres."""
        return 0 if self.exact_labels or self.chosen in EXACT else QUALITIES[self.quality].n_probes

    @property
    def probing(self) -> ProbingOptions:
        """The part of the options that probing k-means takes."""
        return replace(QUALITIES[self.quality], max_iter=self.max_iter, unit_centers=self.unit_centers)


def kmeans(
    shard: Shard, seed: Callable[[Shard], Start], options: PipelineOptions, random_state: np.random.RandomState
) -> Iterator[Step[F64]]:
    """Cluster the rows of a shard. `seed` finds starting centres for the rows that it is handed."""
    if options.chosen in EXACT:
        exact = KMeansOptions(options.max_iter, options.tol, options.unit_centers)
        return EXACT[options.chosen](shard, seed(shard).centers, exact)
    return _probing(shard, seed, options, np.random.default_rng(random_state.randint(2**31, size=4)))


def _probing(
    shard: Shard, seed: Callable[[Shard], Start], options: PipelineOptions, rng: np.random.Generator
) -> Iterator[Step[F64]]:
    """Stages 1 to 6."""
    inside, part, seen, probing = None, None, shard, options.probing
    if options.may_narrow:
        inside = enter_subspace(shard, options.n_clusters, rng, unit_centers=options.unit_centers)
        if inside is not None:
            logger.info("begins in %d of %d dimensions", inside.subspace.dimension, shard.n_columns)
            seen, probing = inside.shard, replace(probing, unexplained=inside.unexplained)
        part = draw_part(seen, options.n_clusters, rng)
    start = seed(seen if part is None else part)
    if not start.is_seeding:  # a start that the user has chosen stays as it is
        return probing_kmeans(shard, start.centers, options.probing, rng, labelled=start.labelled)
    if part is None:
        steps = swap_and_step(seen, start.centers, probing, rng, labelled=start.labelled)
    else:
        logger.info("begins with %d of %d rows", part.n_rows, shard.n_rows)
        steps = swap_and_step_from_part(seen, part, start.centers, probing, rng)
    return steps if inside is None else leave_subspace(shard, inside, steps, options.probing, rng)


def most_bytes(n_clusters: int, n_rows: int, n_columns: int) -> int:
    """The most memory that stages 1 to 7 take: centres, sums and copies, words a row, coordinates, and a part."""
    coordinates = min(LARGEST_COPY, 8 * n_rows * n_columns)
    whole = 8 * (12 * n_clusters * n_columns + 8 * n_rows)
    return whole + coordinates + part_bytes(n_rows, n_columns) + FIXED_BYTES
