"""K-means on a part of the rows first: where each cluster has hundreds of rows, most of a fit needs only some.

The mean of m rows misses that of all by 1/m of their variance. So centres fitted to m rows a cluster end about 1/m
above the error that all rows would give them, and an iteration or two over all rows make up for it. Seeds, swaps and
the iterations before cost what the part costs, whatever the number of rows.

The part is a lightweight coreset: half of it drawn by weight, half in proportion to the squared distance from the mean,
each row with the inverse of its chance for a weight. So remote groups of few rows are in it, and for any centres the
error of the part is that of all rows, up to the noise of sampling. Where rows are remote on several scales, as in
network traffic, even that misses some: all rows then have a much larger error than the part had, and are swapped too.

[Bachem, Lucic and Krause 2018]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from globular.algorithms.kmeans.probing import ProbingOptions
from globular.algorithms.kmeans.swaps import swap_and_step
from globular.algorithms.seeding.common import TAKEN_NUMBERS, DrawnRows, sample_by_weight_and_error
from globular.algorithms.steps import Step
from globular.model.history import PART
from globular.model.statistics import F64
from globular.seam.passes import AddSeeds
from globular.seam.shard import Shard

PART_ROWS_PER_CLUSTER = 128
FEWEST_PART_ROWS, LEAST_PER_CLUSTER = (4096, 8192), 64
"""Rows in all (from few columns to many), and per cluster, with which few clusters, whose swaps are tried out, can
still be searched."""
FIRST_SHARE, LAST_SHARE = 64, 8
"""Rows for each row of the first part, for few clusters of many rows, and of the last part; larger = smaller parts."""
LEAST_GROWTH = 2
"""How many times the rows of a part the next one has at least, else it is left out; all but the last have 16 times."""
TIMES_MORE_ROWS, TIMES_MORE_FOR_TRIALS = 4, 3
"""How many times the rows of the part there have to be for it to save time; and those that hundreds of clusters need
to be searched, where swaps that are tried out take many times the iterations before them."""
CREDIBLE, FAR_OFF = 1.1, 1.5
"""By how much the error of all rows may exceed that of the part before the part counts as misleading; and the same
where few clusters were searched to their end, which suits the part more than the rest."""


def draw_part(shard: Shard, n_clusters: int, rng: np.random.Generator) -> Shard | None:
    """Enough rows for the clusters, beside the algorithm; None where that is too many, or hardly fewer than all."""
    n = PART_ROWS_PER_CLUSTER * n_clusters
    if shard.n_rows < TIMES_MORE_ROWS * n or n * shard.n_columns > TAKEN_NUMBERS:
        return None
    return draw_rows(shard, n, rng).of(shard)


def draw_parts(shard: Shard, n_clusters: int, rng: np.random.Generator) -> list[Shard]:
    """Parts of the rows, each inside the next: from what few clusters need at least to an eighth of all rows, if more.

    None where even the first is hardly less than all. On a small part a search is cheap; on a larger one its centres
    are nearly those that all rows would give.
    """
    n_rows = shard.n_rows
    first = rows_of_first_part(n_rows, shard.n_columns, n_clusters)
    if first == 0 or first * shard.n_columns > TAKEN_NUMBERS:
        return []
    last = min(n_rows // LAST_SHARE, TAKEN_NUMBERS // shard.n_columns)
    size = last if last >= LEAST_GROWTH * first else first
    drawn = draw_rows(shard, size, rng)
    largest, parts, n = drawn.of(shard), [], first
    draws = rng.permutation(np.repeat(np.arange(largest.n_rows), drawn.counts))
    while LEAST_GROWTH * n <= size:
        # some of the draws, not of the rows: a remote row is drawn many times, and stands for little
        chosen, counts = np.unique(draws[:n], return_counts=True)
        weights = drawn.weights[chosen] * (counts / drawn.counts[chosen]) * (len(draws) / counts.sum())
        parts.append(shard.local(largest.take(chosen), weights))
        n *= 16
    return [*parts, largest]


def rows_of_first_part(n_rows: int, n_columns: int, n_clusters: int) -> int:
    """Rows with which the search for few clusters begins; 0 where that would be hardly less than all."""
    least = min(FEWEST_PART_ROWS[1], max(FEWEST_PART_ROWS[0], 256 * n_columns))
    first = max(least, LEAST_PER_CLUSTER * n_clusters, min(n_rows // FIRST_SHARE, PART_ROWS_PER_CLUSTER * n_clusters))
    return first if n_rows >= max(TIMES_MORE_ROWS * least, TIMES_MORE_FOR_TRIALS * first) else 0


def draw_rows(shard: Shard, n: int, rng: np.random.Generator) -> DrawnRows:
    """About n rows of a lightweight coreset."""
    mean, _ = shard.column_moments()
    potential = shard.run(AddSeeds(mean[None])).potential
    return sample_by_weight_and_error(shard, n, potential, rng)


def swap_and_step_from_part(
    shard: Shard, part: Shard, centers: F64, options: ProbingOptions, rng: np.random.Generator, *, labelled: bool
) -> Iterator[Step[F64]]:
    """`swap_and_step` on the part, whose rows may be labelled, to its end; then on all rows.

    All rows are swapped only if the part was misleading.
    """
    for step in swap_and_step(part, centers, options, rng, labelled=labelled):
        yield replace(step, iteration=0, stopped="", stage=PART, next_rows=None if step.stopped else part.n_rows)
    del part  # its memory is free while the steps over all rows are taken
    good_enough = CREDIBLE * step.objective
    yield from swap_and_step(shard, step.model, options, rng, labelled=False, good_enough=good_enough)
