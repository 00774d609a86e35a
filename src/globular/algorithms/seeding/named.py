"""Seedings by name, and which of them "auto" is: one place for k-means and mixtures."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

import numpy as np

from globular.algorithms.seeding.afk_mc2 import afk_mc2
from globular.algorithms.seeding.common import (
    Seeds,
    are_few_to_seed,
    effective_dimension,
    evenly_spread_masses,
    greedy_trials,
)
from globular.algorithms.seeding.hierarchical import hierarchical
from globular.algorithms.seeding.parallel import parallel
from globular.algorithms.seeding.plus_plus import plus_plus, plus_plus_of_few
from globular.algorithms.seeding.random import random
from globular.algorithms.seeding.shares import JUDGES, drawn_in
from globular.algorithms.steps import Step
from globular.model.graph import Graph
from globular.model.statistics import F64
from globular.seam.passes import Assign, Index, LabelBySeeds
from globular.seam.shard import Shard


@dataclass(frozen=True, slots=True)
class Start:
    """Centres to start from, how they were come by, and what else is known about them."""

    centers: F64
    name: str
    graph: Graph | None = None
    """Neighbourhoods of the centres, where the seeding knows them."""
    labelled: bool = False
    """Whether the seeding has labelled the rows."""
    unfinished: bool = False
    """Whether the centres are of a fit that was ended before its iterations."""

    @property
    def is_seeding(self) -> bool:
        """Whether the centres were drawn from the data, rather than given: swaps may move them."""
        return self.name in STARTS or self.unfinished


Starting = Generator[Step[F64], None, Start]
"""What finds a start: it shows the centres that it has so far, fewer than there shall be or all of them."""


def _greedy(shard: Shard, n_clusters: int, rng: np.random.Generator) -> Seeds:
    return plus_plus(shard, n_clusters, rng, greedy_trials(n_clusters))


SEEDINGS: dict[str, Callable[[Shard, int, np.random.Generator], Seeds]] = {
    "random": random,
    "k-means++": _greedy,
    "plain k-means++": plus_plus,
    "afk-mc2": afk_mc2,
    "k-means||": parallel,
}
KNOW_THE_CLOSEST = ("k-means++", "plain k-means++")
"""Seedings that have measured every row against every seed."""
STARTS = ("auto", *SEEDINGS, "hierarchical")

GREEDY_UP_TO, GREEDY_DISTANCES = 64, 1 << 21
"""Clusters, or distances of all rows from all seeds, up to which seeds are chosen greedily; before swaps the first."""
PLUS_PLUS_UP_TO = 2000
"""Above, hierarchical seeds cost much less; below, k-means++ ends up to 3 % lower on data that fall into groups."""
PLUS_PLUS_BEFORE_SWAPS_UP_TO = 500
"""Swaps make up for most of these 3 %, so where they follow, hierarchical seeds pay earlier."""
JUDGED_NUMBERS = 1 << 22
"""Numbers of the rows that tell whether seeds are drawn in (32 MiB); larger = also where columns are thousands."""
NEIGHBORS = 32
"""Neighbours that hierarchical seeding finds for each centre."""


def automatic(n_clusters: int, n_rows: int, *, before_swaps: bool = False) -> str:
    """The best seeding whose cost stays below that of a few Lloyd iterations."""
    if n_clusters <= GREEDY_UP_TO or (n_rows * n_clusters <= GREEDY_DISTANCES and not before_swaps):
        return "k-means++"
    limit = PLUS_PLUS_BEFORE_SWAPS_UP_TO if before_swaps else PLUS_PLUS_UP_TO
    return "plain k-means++" if n_clusters <= limit else "hierarchical"


def draw_seeds(
    shard: Shard,
    name: str,
    n_clusters: int,
    rng: np.random.Generator,
    *,
    rough: bool = False,
    n_neighbors: int = NEIGHBORS,
    unit_centers: bool = False,
) -> Starting:
    """Seeds by the seeding of this name, "auto" included; rows are labelled where the seeding knows how.

    `rough` hierarchical seeds have moved less and know no neighbours: enough where swaps follow.
    """
    is_chosen = name != "auto"
    if not is_chosen:
        name = automatic(n_clusters, shard.n_rows, before_swaps=rough)
    if name == "hierarchical":
        n_neighbors = 0 if rough else n_neighbors
        seeds = yield from hierarchical(shard, n_clusters, rng, n_neighbors, rough=rough, unit_centers=unit_centers)
        return Start(seeds.centers, name, seeds.neighbors if n_neighbors else None, labelled=True)
    if name == "k-means++" and are_few_to_seed(shard.n_rows, shard.n_columns, n_clusters):
        centers = yield from plus_plus_of_few(shard, n_clusters, rng, unit_centers=unit_centers)
        return Start(centers, name)
    centers = yield from SEEDINGS[name](shard, n_clusters, rng)
    closer = centers if is_chosen else _drawn_in(shard, centers, unit=unit_centers)
    labelled = name in KNOW_THE_CLOSEST and closer is centers
    if labelled:
        shard.run(LabelBySeeds())
    return Start(closer, name, labelled=labelled)


def _drawn_in(shard: Shard, seeds: F64, *, unit: bool) -> F64:
    """Seeds, or the same drawn in towards the mean of all rows where they are hubs: see `shares`."""
    n_judges = min(JUDGES, shard.n_rows, JUDGED_NUMBERS // shard.n_columns)
    if n_judges < len(seeds):
        return seeds
    mean, variances = shard.column_moments()
    masses = evenly_spread_masses(shard.total_weight, n_judges, np.random.default_rng(0))
    judges = shard.local(shard.take(shard.locate(masses, "weights")))

    def judge(centers: F64) -> tuple[float, Index]:
        error = judges.run(Assign(centers, want="labels")).objective
        return error, np.bincount(judges.labels, minlength=len(centers))

    return drawn_in(seeds, mean[None], np.array([len(seeds)]), effective_dimension(variances), judge, unit=unit)
