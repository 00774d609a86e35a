"""Truncated variational EM (Forster & Lücke 2018): clustering at a cost that does not grow with the clusters.

Every row n keeps a set K(n) of C′ clusters, every cluster c a neighbourhood G_c of G clusters, itself included. An
E-step looks only at G(n) = ∪_{c ∈ K(n)} G_c, and at a few clusters drawn at random; K(n) becomes the C′ best of them.
The old K(n) is among the candidates, so the free energy never falls (Prop. 1). Neighbourhoods are found from the
distances between centres ("exhaustive": X, Alg. 1) or estimated from distances that rows had anyway ("estimated": S,
Alg. 2, Eq. 8).

C′ = 1 is k-means, C′ = G = C is exact EM; C′ > 1 with hard votes searches wider while only the closest cluster counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Literal

import numpy as np

from globular.algorithms.graphs import estimated_graph, nearest_graph
from globular.algorithms.kmeans.cells import draw_cells, graph_by_cells, label_by_cells
from globular.algorithms.kmeans.centers import update_centers
from globular.algorithms.steps import Step
from globular.model.graph import Graph, Search, introduce, random_graph
from globular.model.statistics import F64, PairStatistics
from globular.seam.among import Neighbors
from globular.seam.passes import Assign, ScatterLabels
from globular.seam.shard import Shard

CONVERGED = "objective changed less than tol"
Neighborhoods = Literal["estimated", "exhaustive"]
BEGINNINGS = ("closest", "printed")
"""Where rows begin: at their closest clusters, as cells find them, or at random ones (`VariationalOptions.printed`)."""


@dataclass(frozen=True, slots=True)
class VariationalOptions:
    """The letters of the paper, and when to stop."""

    C_prime: int = 1
    G: int = 5
    n_random: int = 1
    neighborhoods: Neighborhoods = "estimated"
    n_warmup: int = 0
    """E-steps without an M-step before the first iteration, while neighbourhoods form."""
    max_iter: int = 200
    tol: float = 1e-4
    """An iteration is idle if it improves the objective by less than this share (k-means), or per row (mixtures)."""
    patience: int = 3
    """Stop after this many idle iterations running."""
    unit_centers: bool = False
    relocate_empty: bool = False
    """Move empty clusters to far rows; else they keep their centre."""
    printed: bool = False
    """Alg. 1 and Alg. 2 as they are printed: every row begins with random clusters of its own (K(n) in Alg. 1, G(n) in
    Alg. 2). Else rows begin at their labels, see `start_rows`."""


@dataclass(frozen=True, slots=True)
class HardModel:
    """State of variational k-means."""

    centers: F64
    graph: Graph


class NeighborhoodSearch:
    """Where G_c comes from, and the seeds of the E-steps."""

    def __init__(self, shard: Shard, options: VariationalOptions, rng: np.random.Generator) -> None:
        self._shard, self._options, self._rng = shard, options, rng

    @property
    def estimated(self) -> bool:
        return self._options.neighborhoods == "estimated"

    def start(self, centers: F64, graph: Graph | None) -> Graph:
        """The first neighbourhoods: given (by seeding), from the centres (X), or drawn at random (S)."""
        C, C_prime = len(centers), min(self._options.C_prime, len(centers))
        G = min(self._options.G, C)
        if self._options.printed:
            self._shard.run(ScatterLabels(C, self._seed()))
        if not self.estimated:
            if self._options.printed and C_prime > 1:  # K(n): the label and others, from anywhere
                scattered = Neighbors(_of_one(C), Search(C_prime, C_prime - 1, self._seed(), estimate=False))
                self._shard.run(Assign(centers, scattered, "labels"))
            return self.exhaustive(centers)
        if graph is not None and graph.shape[1] >= G:
            return np.ascontiguousarray(graph[:, :G])
        return random_graph(C, G, self._rng)

    def first(self, centers: F64, graph: Graph) -> Neighbors:
        """Where rows search in the first E-step; as printed, Alg. 2 draws G(n) for every row.

        Two clusters are kept at least: where it is one, Eq. 8 hears less of clusters drawn at random.
        """
        if not (self._options.printed and self.estimated):
            return self.among(centers, graph)
        C = len(centers)
        C_prime = max(2, min(self._options.C_prime, C))
        size = min(self._options.C_prime, C) * graph.shape[1] + self._options.n_random
        everything = size >= C
        search = Search(C_prime, 0 if everything else size - 1, self._seed(), estimate=True)
        return Neighbors(_of_all(C) if everything else _of_one(C), search)

    def exhaustive(self, centers: F64) -> Graph:
        """The G nearest centres of every centre. O(C²D)."""
        return np.asarray(nearest_graph(self._shard, centers, self._options.G))

    def before(self, centers: F64, graph: Graph) -> Graph:
        """Alg. 1 renews the neighbourhoods before the E-step."""
        return graph if self.estimated else self.exhaustive(centers)

    def after(self, centers: F64, graph: Graph, pairs: PairStatistics) -> Graph:
        """Alg. 2 estimates them after it, if that E-step has collected what it takes."""
        return estimated_graph(self._shard, centers, graph, pairs) if pairs.pairs.size else graph

    def among(self, centers: F64, graph: Graph) -> Neighbors:
        """Where rows search in the next E-step."""
        return Neighbors(graph, Search(self._options.C_prime, self._options.n_random, self._seed(), self.estimated))

    def _seed(self) -> int:
        return int(self._rng.integers(2**63))


def _of_one(C: int) -> Graph:
    """Every cluster alone."""
    return np.arange(C, dtype=np.int32)[:, None]


def _of_all(C: int) -> Graph:
    """Every cluster with all others."""
    return np.ascontiguousarray((_of_one(C) + _of_one(C).T) % C, dtype=np.int32)


def start_rows(shard: Shard, centers: F64, graph: Graph | None, n_neighbors: int, rng: np.random.Generator) -> Graph:
    """First labels, and neighbourhoods if there are none, by way of cells of centres.

    Seeding that knows the neighbourhoods (`graph`) has labelled the rows too.
    """
    if graph is not None and graph.shape[1] >= min(n_neighbors, len(centers)):
        return graph
    cells = draw_cells(shard, centers, rng)
    label_by_cells(shard, centers, cells)
    return graph_by_cells(shard, centers, cells, n_neighbors)


def variational_kmeans(
    shard: Shard, centers: F64, options: VariationalOptions, rng: np.random.Generator, graph: Graph | None = None
) -> Iterator[Step[HardModel]]:
    """var-k-means-X/S (C′ = 1), and wider searches with hard votes (C′ > 1).

    Rows start from `shard.labels`, see `start_rows`. The objective of a step, Σ w ‖x − μ‖² at the centres before its
    M-step, never rises.
    """
    neighborhoods = NeighborhoodSearch(shard, options, rng)
    graph = neighborhoods.start(centers, graph)
    among = neighborhoods.first(centers, graph)
    n_distances = 0
    for _ in range(options.n_warmup):
        found = shard.run(Assign(centers, among, "labels"))
        n_distances += found.n_distances
        graph = neighborhoods.after(centers, graph, found.pairs)
        among = neighborhoods.among(centers, graph)

    patience = Patience(options)
    for iteration in count(1):
        found = shard.run(Assign(centers, among))
        graph = neighborhoods.after(centers, graph, found.pairs)
        # M-step, Eq. 4 with hard votes
        update = update_centers(
            shard, found, centers, unit=options.unit_centers, relocate=options.relocate_empty, rows_follow=False
        )
        stopped = patience.reason(
            iteration, found.objective, settled=iteration > 1 and found.n_changed + update.n_relocated == 0
        )
        yield Step(
            iteration, found.objective, found.n_distances + n_distances, found.n_changed,
            HardModel(update.centers, graph), stopped,
        )  # fmt: skip
        if stopped:
            return
        centers, n_distances = update.centers, 0
        graph = introduce(neighborhoods.before(centers, graph), update.relocated)
        among = neighborhoods.among(centers, graph)


class Patience:
    """Stop after several iterations of hardly any improvement, or when nothing moved.

    `unit` is what `tol` counts in (mixtures: the weight of the rows); None is the objective itself.
    """

    def __init__(self, options: VariationalOptions, unit: float | None = None) -> None:
        self._options = options
        self._unit = unit
        self._last = np.nan
        self._idle = 0

    @property
    def is_idle(self) -> bool:
        """Whether the last iteration has improved next to nothing."""
        return self._idle > 0

    def reason(self, iteration: int, objective: float, *, settled: bool) -> str:
        small = abs(objective - self._last) < self._options.tol * (self._unit or abs(objective))
        self._last = objective
        self._idle = self._idle + 1 if small or settled else 0
        if settled and self._options.n_random == 0:
            return "no label changed"
        if self._idle >= self._options.patience:
            return CONVERGED
        return "max_iter" if iteration >= self._options.max_iter else ""
