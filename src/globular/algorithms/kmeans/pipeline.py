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
from collections.abc import Callable, Generator, Iterator
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

Seeding = Callable[[Shard], Generator[Step[F64], None, Start]]
"""Finds starting centres for the rows that it is handed, and shows the first of them as it goes."""

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
    shard: Shard, seed: Seeding, options: PipelineOptions, random_state: np.random.RandomState
) -> Iterator[Step[F64]]:
    """Cluster the rows of a shard. Every step has as many centres as there shall be, in the whole space."""
    if options.chosen in EXACT:
        start = yield from seed(shard)
        exact = KMeansOptions(options.max_iter, options.tol, options.unit_centers)
        yield from EXACT[options.chosen](shard, start.centers, exact)
    else:
        yield from _probing(shard, seed, options, np.random.default_rng(random_state.randint(2**31, size=4)))


def _probing(shard: Shard, seed: Seeding, options: PipelineOptions, rng: np.random.Generator) -> Iterator[Step[F64]]:
    """Stages 1 to 6."""
    inside = None
    if options.may_narrow:
        inside = enter_subspace(shard, options.n_clusters, rng, unit_centers=options.unit_centers)
    if inside is None:
        yield from _seed_and_step(shard, seed, options, options.probing, rng)
        return
    logger.info("begins in %d of %d dimensions", inside.subspace.dimension, shard.n_columns)
    probing = replace(options.probing, unexplained=inside.unexplained)
    steps = _seed_and_step(inside.shard, seed, options, probing, rng)
    yield from leave_subspace(shard, inside, steps, options.probing, rng)


def _seed_and_step(
    shard: Shard, seed: Seeding, options: PipelineOptions, probing: ProbingOptions, rng: np.random.Generator
) -> Iterator[Step[F64]]:
    """Stages 2 to 5."""
    part = draw_part(shard, options.n_clusters, rng) if options.may_narrow else None
    start = yield from seed(shard if part is None else part)
    if not start.is_seeding:  # a start that the user has chosen stays as it is
        yield from probing_kmeans(shard, start.centers, probing, rng, labelled=start.labelled)
    elif part is None:
        yield from swap_and_step(shard, start.centers, probing, rng, labelled=start.labelled)
    else:
        logger.info("begins with %d of %d rows", part.n_rows, shard.n_rows)
        steps = swap_and_step_from_part(shard, part, start.centers, probing, rng)
        del part  # the steps give it up when they are done with it
        yield from steps


def most_bytes(n_clusters: int, n_rows: int, n_columns: int) -> int:
    """The most memory that stages 1 to 7 take: centres, sums and copies, words a row, coordinates, and a part."""
    coordinates = min(LARGEST_COPY, 8 * n_rows * n_columns)
    whole = 8 * (12 * n_clusters * n_columns + 8 * n_rows)
    return whole + coordinates + part_bytes(n_rows, n_columns) + FIXED_BYTES
