"""Starting centres of the k-means family: a seeding by name, an array, a callable, or the last fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.utils import check_array

from globular.algorithms import seeding
from globular.estimators.inputs import Input, naming
from globular.model.graph import Graph
from globular.model.statistics import F64
from globular.seam.passes import LabelBySeeds
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

    @property
    def is_seeding(self) -> bool:
        """Whether the centres were drawn from the data, rather than given."""
        return self.name in STARTS


Seeding = Callable[[Shard, int, np.random.Generator], F64]


def _greedy(shard: Shard, n_clusters: int, rng: np.random.Generator) -> F64:
    return seeding.plus_plus(shard, n_clusters, rng, n_local_trials=2 + int(np.log(n_clusters)))


SEEDINGS: dict[str, Seeding] = {
    "random": seeding.random,
    "k-means++": seeding.plus_plus,
    "greedy k-means++": _greedy,
    "afk-mc2": seeding.afk_mc2,
    "k-means||": seeding.parallel,
}
KNOW_THE_CLOSEST = ("k-means++", "greedy k-means++")
"""Seedings that have measured every row against every seed."""
STARTS = ("auto", *SEEDINGS, "hierarchical")

GREEDY_UP_TO = 64
PLUS_PLUS_UP_TO = 2000
"""Above, hierarchical seeds cost much less; below, k-means++ ends up to 3 % lower on data that fall into groups."""
PLUS_PLUS_BEFORE_SWAPS_UP_TO = 500
"""Swaps repair most of that, so where they follow hierarchical seeds pay earlier."""
NEIGHBORS = 32
"""Neighbours that hierarchical seeding finds for each centre."""


def starting_centers(estimator: Any, data: Input, random_state: np.random.RandomState, *, rough: bool = False) -> Start:
    """The centres for one run of an estimator with `init`, `n_clusters`, `warm_start` and `metric`.

    `rough` hierarchical seeds have moved less and know no neighbours: enough for an algorithm that goes on fast.
    """
    unit = estimator.metric == "cosine"
    if estimator.warm_start and hasattr(estimator, "cluster_centers_"):
        if len(estimator.cluster_centers_) != estimator.n_clusters:
            raise ValueError(
                f"warm_start has {len(estimator.cluster_centers_)} centres from the last fit, n_clusters="
                f"{estimator.n_clusters}; set warm_start=False to start anew"
            )
        centers = _check(estimator.cluster_centers_, estimator.n_clusters, data, "warm_start centres")
        start = Start(centers, "warm start")
    else:
        start = choose_centers(estimator.init, estimator.n_clusters, data, random_state, unit=unit, rough=rough)
    if not unit:
        return start
    lengths = np.linalg.norm(start.centers, axis=1, keepdims=True)
    centers = np.divide(start.centers, lengths, out=np.zeros_like(start.centers), where=lengths > 0)
    centers[lengths[:, 0] == 0, 0] = 1.0  # a row of zeros has no direction: any will do
    return replace(start, centers=centers)


def choose_centers(
    init: Any,
    n_clusters: int,
    data: Input,
    random_state: np.random.RandomState,
    *,
    unit: bool = False,
    rough: bool = False,
    size_name: str = "n_clusters",
) -> Start:
    """Centres by an `init` argument: the name of a seeding, an array or a callable.

    `unit` says that centres shall have unit length, `size_name` what the caller's users know `n_clusters` as; `rough`:
    see `starting_centers`.
    """
    if isinstance(init, str):
        name = automatic(n_clusters, before_swaps=rough) if init == "auto" else init
        rng = np.random.default_rng(random_state.randint(2**31, size=4))
        if name == "hierarchical":
            if rough:
                seeds = seeding.hierarchical(data.shard, n_clusters, rng, 0, rough=True, unit_centers=unit)
                return Start(seeds.centers, name, labelled=True)
            seeds = seeding.hierarchical(data.shard, n_clusters, rng, NEIGHBORS, unit_centers=unit)
            return Start(seeds.centers, name, seeds.neighbors, labelled=True)
        centers = SEEDINGS[name](data.shard, n_clusters, rng)
        if name in KNOW_THE_CLOSEST:
            data.shard.run(LabelBySeeds())
        return Start(centers, name, labelled=name in KNOW_THE_CLOSEST)
    if callable(init):
        if data.matrix is None:
            raise ValueError("init as a callable needs X in memory; pass the name of a seeding or an array instead")
        centers = init(data.matrix, n_clusters, random_state=random_state)
        return Start(_check(centers, n_clusters, data, "centres returned by init", size_name), "callable")
    return Start(_check(init, n_clusters, data, "init", size_name), "array")


def automatic(n_clusters: int, *, before_swaps: bool = False) -> str:
    """The seeding for so many clusters: the best one whose cost stays below that of a few Lloyd iterations."""
    if n_clusters <= GREEDY_UP_TO:
        return "greedy k-means++"
    limit = PLUS_PLUS_BEFORE_SWAPS_UP_TO if before_swaps else PLUS_PLUS_UP_TO
    return "k-means++" if n_clusters <= limit else "hierarchical"


def _check(centers: Any, n_clusters: int, data: Input, name: str, size_name: str = "n_clusters") -> F64:
    with naming(name):
        checked: F64 = check_array(centers, dtype=np.float64, input_name=name, copy=True)
    if checked.shape != (n_clusters, data.n_columns):
        raise ValueError(
            f"the shape of {name} is {checked.shape}, expected ({size_name}, n_features) = "
            f"{(n_clusters, data.n_columns)}"
        )
    return checked
