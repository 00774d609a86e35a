"""Probing k-means: E-steps that search a few cells of centres, redrawn every time.

Truncated variational EM with another source of candidates. Before every E-step the C centres are clustered into cells
(from random centres, by a few Lloyd steps on C points). Each row goes to its closest cells and searches those
exactly by matrix products; it changes its cluster only for a closer one, so K(n) contains the old cluster and the
objective never rises (Prop. 1 of Forster & Lücke 2018). An iteration costs N·(cells + probes · C / cells) distances,
O(N √C D), and they run at the speed of a matrix product; with very many centres the cells are themselves in cells, and
it is O(N C^(1/3) D). Redrawing the cells matters: the same cells would miss the same neighbours again.

Centres move with momentum (see `momentum`): a step's model are the means, the next E-step takes centres beyond them.

Neighbourhood search alone stalls in local minima of the cluster graph when the intrinsic dimension is high; this does
not, and since cells are cheap to redraw it needs no memory of neighbourhoods at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np

from globular.algorithms.kmeans.cells import draw_cells, label_by_cells, search_widely
from globular.algorithms.kmeans.centers import update_centers
from globular.algorithms.kmeans.momentum import Momentum
from globular.algorithms.steps import Step
from globular.model.cells import CenterCells
from globular.model.statistics import F64, HardStatistics
from globular.seam.among import Need, Probe
from globular.seam.passes import Assign, Labels, TakeLabels
from globular.seam.shard import Shard


@dataclass(frozen=True, slots=True)
class ProbingOptions:
    """How widely to search, and when to stop."""

    n_probes: int = 2
    """Cells that each row searches in an E-step; 0 looks at all centres, and needs no cells."""
    max_iter: int = 100
    min_gain: float = 1e-3
    """Stop when an iteration lowers the objective by less than this share of it, or of what is explained if `total` is
    known and that is less."""
    total: float = np.inf
    """The error of a single centre: where most of it remains whatever the clusters, as in text, less is at stake."""
    tol: float = 0.0
    """Stop also when the sum of the squared shifts of all centres falls to this; see `heeds_shifts`."""
    unit_centers: bool = False
    unexplained: float = 0.0
    """The part of the objective that the rows of a shard do not show, because they are coordinates in a subspace."""
    swap_probes: int = 2
    """Cells that each row searches in a round of swaps, however many it will search in the iterations; 0 looks at all
    centres."""
    swap_gain: float | None = None
    """What a round of swaps has to gain, if not `min_gain`."""
    settles: bool = False
    """Whether the first iterations, which gain the most, come before swaps."""

    @property
    def heeds_shifts(self) -> bool:
        """Whether centres that stay where they are end it: where rows probe, what an iteration gains says as much."""
        return self.n_probes == 0 or self.min_gain == 0

    def at_stake(self, objective: float) -> float:
        """What gains are measured by."""
        return min(objective, max(self.total - objective, LEAST_STAKE * objective))


LEAST_STAKE = 1e-3
"""Least share of the objective that gains are measured by; smaller = longer fits of rows of which clusters explain
little."""
EXACT_LABELS_UP_TO = 5000
"""Number of clusters up to which the last labels look at all centres: that takes at most a third as long as a fit that
is not `KMeans`' own; larger = more labels exact, for more time."""
N_PROBES = 2
"""Cells that a row searches where the quality does not say; larger = more rows find their closest centre, for as much
more time."""
LEAST_RECALL = 0.9
"""Share of the rows that have their closest centre when a fit ends, unless time is up or they have looked into cells
ten times; with less, the fit warns."""
GOOD_RECALL = 0.99
"""Share of the rows up to which the last labels look at cells again, as long as that is cheap; larger = longer fits."""
MORE_LOOKS = 0.25
"""Distances that looks after the first may take for `GOOD_RECALL`, as a share of those of the fit, which take longer;
larger = more labels exact, for more time. With 3,000 to 6,000 clusters of 300,000 rows 0.25 are 13 to 15 % of it."""
WIDER = (1, 2, 3, 4)
"""How many times as many cells as the first look those after it may search; larger = more memory a row."""
WIDE_SEARCH = 4.0
"""Time of the first search over all rows, about, in units of a look into a single cell."""


def probing_kmeans(
    shard: Shard,
    centers: F64,
    options: ProbingOptions,
    rng: np.random.Generator,
    *,
    momentum: Momentum | None = None,
    before: float = np.inf,
    labelled: bool = True,
) -> Iterator[Step[F64]]:
    """K-means from labelled rows (by hierarchical seeding or `label_by_cells`), or from others, searched widely first.

    `momentum` is how the centres were moving, `before` the objective at the start, where they are known. Where
    `n_probes` is 0 rows look at all centres.
    """

    def probe(centers: F64, iteration: int) -> HardStatistics:
        if iteration == 1 and not labelled:
            return search_widely(shard, centers, options.n_probes, rng)
        return shard.run(Assign(centers, Probe(draw_cells(shard, centers, rng), options.n_probes)))

    e_step = probe if options.n_probes else None
    return accelerated_kmeans(shard, centers, options, e_step, momentum=momentum, before=before)


def accelerated_kmeans(
    shard: Shard,
    centers: F64,
    options: ProbingOptions,
    e_step: Callable[[F64, int], HardStatistics] | None = None,
    *,
    momentum: Momentum | None = None,
    before: float = np.inf,
) -> Iterator[Step[F64]]:
    """K-means with momentum; an E-step looks at all centres unless there is another for (centres, iteration)."""
    fresh = momentum is None
    momentum = momentum or Momentum(unit_centers=options.unit_centers, n_threads=shard.n_threads)
    for iteration in count(1):
        statistics = shard.run(Assign(centers)) if e_step is None else e_step(centers, iteration)
        update = update_centers(shard, statistics, centers, unit=options.unit_centers, rows_follow=False)
        objective = statistics.objective + options.unexplained
        gain, before = before - objective, objective
        stopped = ""
        if objective == 0.0 or (gain < options.min_gain * options.at_stake(objective) and update.n_relocated == 0):
            stopped = "an iteration gained less than quality asks for"
        elif options.heeds_shifts and float((update.shifts(centers) ** 2).sum()) <= max(options.tol, update.rounding):
            stopped = "centres moved less than tol"
        elif iteration >= options.max_iter:
            stopped = "max_iter"
        yield Step(iteration, objective, statistics.n_distances, statistics.n_changed, update.centers, stopped)
        if stopped:
            return
        # from seeds the first step is a long one, and beyond its end there may be no row left
        centers = update.centers if fresh and iteration == 1 else momentum.beyond(centers, update)


def find_labels(shard: Shard, centers: F64, rng: np.random.Generator, n_probes: int = 4, n_rounds: int = 2) -> int:
    """Label rows from nothing without looking at all centres; returns the distances it took."""
    n_distances = label_by_cells(shard, centers, draw_cells(shard, centers, rng)).n_distances
    for _ in range(n_rounds):
        cells = draw_cells(shard, centers, rng)
        n_distances += shard.run(Assign(centers, Probe(cells, n_probes), "labels")).n_distances
    return n_distances


@dataclass(frozen=True, slots=True)
class Labelling:
    """What came of labelling all rows; the labels themselves stay with the shard."""

    objective: float
    n_distances: int
    recall: float = 1.0
    """Share of a sample of the rows that have a closest centre for their label."""


def label_probes(n_clusters: int, *, exact: bool) -> int:
    """Cells that a row searches for its last label, where iterations take longer than those of probing; 0 is all."""
    return 0 if exact or n_clusters <= EXACT_LABELS_UP_TO else N_PROBES


def label_rows(
    shard: Shard, centers: F64, n_probes: int, *, labelled: bool = True, seconds_left: float = np.inf, n_before: int = 0
) -> Labelling:
    """Label every row with the closest centre of a few cells.

    Rows that are `labelled` keep their label if none is closer, others look into a single cell first. All rows look at
    newly drawn cells until a share of `LEAST_RECALL` has its closest centre, and of `GOOD_RECALL` where that takes few
    distances beside the `n_before` of the fit; or until another look would take more than `seconds_left`. The cells
    are drawn with a fixed seed, here and in `predict(exact=False)`: labels belong to the centres, not to the
    `random_state` of the fit that found them.
    """
    rng, n_distances, left, wider = np.random.default_rng(0), 0, MORE_LOOKS * n_before, 1
    hurried, began = seconds_left < np.inf, time.perf_counter()
    deadline, cells = began + seconds_left, draw_cells(shard, centers, rng)
    for look in range(1 if labelled else 0, 11):
        if look == 0:
            found = label_by_cells(shard, centers, cells)
        else:
            found = shard.run(Assign(centers, Probe(cells, wider * n_probes), "labels"))
        n_distances += found.n_distances
        if look or hurried:
            sample = LabelSample(shard, centers, rng)
            recall, now = sample.recall, time.perf_counter()
            if recall >= GOOD_RECALL or now + (now - began) * (WIDE_SEARCH if look == 0 else 1.0) > deadline:
                break
        began, cells = time.perf_counter(), draw_cells(shard, centers, rng)
        if look and recall >= LEAST_RECALL:
            wider, cost = sample.wider(cells, n_probes, left)
            left -= cost
            if not wider:
                break
    return Labelling(found.objective, n_distances, recall)


class LabelSample:
    """Some rows at random, with their labels and their closest centres. O(sample · C · D)."""

    def __init__(self, shard: Shard, centers: F64, rng: np.random.Generator, n_rows: int = 1000) -> None:
        chosen = np.sort(rng.choice(shard.n_rows, min(n_rows, shard.n_rows), replace=False))
        self.shard, self.centers, self.rows, self.labels = shard, centers, shard.take(chosen), shard.labels[chosen]
        self.sample = shard.local(self.rows)
        self.sample.run(Assign(centers, want="labels"))
        self.closest = self._distances(np.asarray(self.sample.labels))

    def _distances(self, labels: Labels) -> F64:
        distances: F64 = np.linalg.norm(self.rows - self.centers[labels], axis=1)
        return distances

    @property
    def recall(self) -> float:
        """Share of the rows whose label is a closest centre."""
        return self._recall(self.labels)

    def _recall(self, labels: Labels) -> float:
        """The same of other labels; rounding does not count."""
        size = np.linalg.norm(self.rows, axis=1) + np.linalg.norm(self.centers[labels], axis=1)
        rounding = 8.0 * np.finfo(np.float64).eps * size
        return float(np.mean(self._distances(labels) <= self.closest + rounding))

    def wider(self, cells: CenterCells, n_probes: int, n_distances: float) -> tuple[int, float]:
        """How many times `n_probes` the next look should search so that it finds enough, and its distances.

        0 if no look takes fewer than `n_distances`. Cells in cells are found by way of a few, so that to search more of
        them is of little use; and cards take memory for each.
        """
        best, cost, narrow = 0, 0.0, cells.above is not None or Need.CPU in self.shard.lacks
        for wider in WIDER[:1] if narrow else WIDER:
            self.sample.run(TakeLabels(self.labels))
            found = self.sample.run(Assign(self.centers, Probe(cells, wider * n_probes), "labels"))
            needed = found.n_distances * self.shard.n_rows / len(self.rows)
            if needed > n_distances:
                break
            best, cost = wider, needed
            if self._recall(np.asarray(self.sample.labels)) >= GOOD_RECALL:
                break
        return best, cost


def label_recall(shard: Shard, centers: F64, rng: np.random.Generator, n_rows: int = 1000) -> float:
    """Share of a random sample of rows whose label is a closest centre, but for rounding. O(sample · C · D)."""
    return LabelSample(shard, centers, rng, n_rows).recall
