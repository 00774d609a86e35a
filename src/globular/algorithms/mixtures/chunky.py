"""Chunky EM (Verbeek, Vlassis & Nunnink 2003): EM on cells of the data instead of on rows.

The rows are partitioned into cells A, and all rows of a cell share one responsibility

    q_A(s) ∝ p(s) exp ⟨log p(x | s)⟩_A                                                                        (Eq. 10)

which needs the weight, mean and scatter of the cell alone (Eq. 11), and so do the M-step (Eqs. 12–14) and the bound
F = Σ_A w_A log Σ_s p(s) exp ⟨log p(x | s)⟩_A ≤ log-likelihood. F never falls in an EM step, nor when a cell is split;
with single rows for cells this is exact EM. Cells are the frontier of a partition tree (`data.tree`):

    plant the tree and open it to a few cells
    repeat:  EM steps at this partition until F settles
             open the cell whose children raise F most ("best_first"), or the best share of all cells ("batch")
    until F is close to the log-likelihood, and still is when EM has settled for good; or there are cells enough
    if cells were not enough to come close to the log-likelihood (or always, if asked to), let EM settle on the rows

How much can be lost? Where F is largest at θ_F and the log-likelihood L at θ*, L(θ_F) ≥ F(θ_F) ≥ F(θ*), so that θ_F is
at most the gap L(θ*) − F(θ*) worse than EM. The gap is what `refine_tol` limits, in nats per row, whatever the units of
the data. This holds at the top of F only: a bound that is close to the log-likelihood says nothing about a mixture that
stopped on the way, so the last cells get the steps that the others can do without. Nor does it say anything about θ*,
which may be sharper than the cells can tell: so EM on a sample of the rows looks ahead (`ahead`).

With `C_prime` each cell looks at few components only, found by the neighbourhood search of Forster & Lücke 2018, and an
iteration costs neither the rows nor the components.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from globular.algorithms.graphs import estimated_graph, nearest_graph
from globular.algorithms.mixtures.ahead import LookAhead
from globular.algorithms.mixtures.em import EMOptions, cold_mixture, start_at_random
from globular.algorithms.mixtures.greedy import grow_mixture
from globular.algorithms.mixtures.starts import MEANS_METHODS
from globular.algorithms.steps import Run, Step, result_of
from globular.model.chunks import ChunkGains, ShareRule
from globular.model.covariances import FAMILIES, NORM, CovarianceLimits
from globular.model.gaussian import GaussianParameters, m_step
from globular.model.given import GivenStart
from globular.model.graph import Graph, Search
from globular.model.statistics import F64, SoftStatistics
from globular.seam.among import Neighbors
from globular.seam.mixture_passes import Expect
from globular.seam.passes import Assign
from globular.seam.shard import Shard
from globular.seam.tree_passes import ExpectCells, Gains, Gap, OpenGaining, OpenRows, Plant, TakeCells

CONVERGED = "the bound is within refine_tol of the log-likelihood"
ENOUGH_CELLS = "max_cells"
STUCK = "opening cells gains nothing"
POLISHED = "EM on single rows changed the log-likelihood by less than tol"
HARDLY = "other cells raised the bound by less than tol of itself"
ENDINGS = (CONVERGED, ENOUGH_CELLS, STUCK, POLISHED, HARDLY)
"""Reasons to stop at which EM had settled."""
Refinement = Literal["best_first", "batch"]
Polishing = Literal["never", "needed", "always"]
_POLISHED_AFTER: dict[Polishing, tuple[str, ...]] = {
    "never": (),
    "needed": (ENOUGH_CELLS, STUCK),
    "always": (ENOUGH_CELLS, STUCK, CONVERGED),
}
_LAST_GAIN = 0.1
"""Where no more cells are opened EM goes on until F changes by less than this part of `tol`."""
_AHEAD = 2.0
"""How many times `share` of the cells are opened at once for a mixture that stays as it is meanwhile."""
_FEW_DIMENSIONS = 3
"""Dimensions that rows are taken to fill at most; larger = cells are opened further before the gap is looked at."""
_WORTH_GOING = 0.4
"""Share of `refine_tol` that EM on a sample of the rows has to gain for cells to be opened for it."""
LEAF_SIZE = 16
CELLS_PER_COMPONENT = 10
"""Cells that the tree is opened to at first, for every component."""
GROWTH_CELLS_PER_COMPONENT = 100
"""The same for a mixture that is grown on them: on coarse cells it would settle into them and be slow to leave."""
MOST_DRAWS = 4
"""Starts that are tried on the first cells, the best of which is gone on with."""
TRIAL_STEPS = 10
"""EM steps on the first cells after which starts are compared."""
DENSITIES_PER_ROW = 4
"""Fewer starts are tried where they would take more densities than this for every row."""


@dataclass(frozen=True, slots=True)
class ChunkyOptions:
    """How to run Chunky EM on a frontier that `plant_tree` has laid."""

    max_iter: int = 1000
    """Most EM steps, at all partitions together."""
    tol: float = 1e-3
    """EM at a partition ends when F per row changes by less; at the last one when it changes by a tenth of this."""
    refine_tol: float = 0.03
    """Refining ends when F per row is this close to the log-likelihood, as a sample has it."""
    max_cells: int = 10_000
    """Refining ends with this many cells, too."""
    refine: Refinement = "batch"
    share: float = 0.25
    """Cells that "batch" adds at once, relative to those there are."""
    polish: Polishing = "never"
    """Whether to go on with exact EM at the end: if `max_cells` came before `refine_tol` ("needed"), or in any case."""
    rule: ShareRule = "optimal"
    C_prime: int | None = None
    """Components that each cell looks at; None for all."""
    G: int = 5
    n_random: int = 1
    learned_weights: bool = True
    previous_bound: float = -np.inf
    """F per row of the fit that this one continues."""


@dataclass(frozen=True, slots=True)
class ChunkyModel:
    """State of Chunky EM."""

    mixture: GaussianParameters
    n_cells: int
    """Cells of the partition that the step's bound belongs to."""
    graph: Graph | None = None
    """Neighbourhoods of the components, where cells look at few of them."""


def begin_chunky(
    shard: Shard,
    n_components: int,
    init: Any,
    given: GivenStart,
    options: ChunkyOptions,
    random_state: np.random.RandomState,
    *,
    limits: CovarianceLimits,
) -> tuple[Run, int]:
    """Plant the tree, find a start on its first cells, and begin from there; the run, and how many cells these are.

    `init` is "greedy", "random" or one of `MEANS_METHODS`; what is given stays as it is.
    """
    grows = isinstance(init, str) and init == "greedy"
    n_cells = (GROWTH_CELLS_PER_COMPONENT if grows else CELLS_PER_COMPONENT) * n_components
    largest = shard.total_weight / min(n_cells, options.max_cells)
    n_cells = shard.run(Plant(FAMILIES[given.covariance_type].scatter, LEAF_SIZE, largest=largest))
    start = _start_on_cells(shard, n_components, init, given, options, random_state, limits)
    rng = np.random.default_rng(random_state.randint(2**31, size=4))
    return Run(chunky(shard, start, options, rng, limits=limits), start), n_cells


def _start_on_cells(
    shard: Shard,
    C: int,
    init: Any,
    given: GivenStart,
    options: ChunkyOptions,
    random_state: np.random.RandomState,
    limits: CovarianceLimits,
) -> GaussianParameters:
    """A start by `init` on the cells, except for what was given: no pass over all rows.

    Where there are fewer cells than components (few rows, many of them alike) means come from the rows.
    """
    complete = given.complete()
    if complete is not None:
        return complete
    family, learned = given.covariance_type, options.learned_weights
    rng = np.random.default_rng(random_state.randint(2**31, size=4))
    cells = shard.run(TakeCells())
    counted = cells.weights > 0
    few = np.count_nonzero(counted) < C
    local = shard if few else shard.local(cells.means[counted], cells.weights[counted])

    def start_from(means: F64) -> GaussianParameters:
        return start_from_cells(shard, means, family, limits, learned_weights=learned)

    def bound(start: GaussianParameters) -> float:
        return bound_after(shard, start, limits, TRIAL_STEPS, learned_weights=learned)

    if given.means is not None:
        found = start_from(given.means)
    elif init == "greedy":
        found = grow_mixture(shard, C, family, rng, limits=limits, learned_weights=learned)
    elif init == "random":
        found = start_at_random(local, C, family, EMOptions(reg_covar=limits.reg_covar), random_state)
    else:  # the best of several, each after some EM steps on the first cells, which cost next to nothing
        n_starts = max(1, min(MOST_DRAWS, DENSITIES_PER_ROW * shard.n_rows // (TRIAL_STEPS * local.n_rows * C)))
        starts = (start_from(result_of(MEANS_METHODS[init](local, C, rng))) for _ in range(n_starts))
        found = max(starts, key=bound) if n_starts > 1 else next(starts)
    return given.replace(found)


def chunky(
    shard: Shard,
    start: GaussianParameters,
    options: ChunkyOptions,
    rng: np.random.Generator,
    *,
    limits: CovarianceLimits,
) -> Iterator[Step[ChunkyModel]]:
    """Run Chunky EM from `start`; the objective of a step is F at the parameters and cells its E-step used."""
    cells = _Cells(shard, start, options, rng)
    mixture, bound = start, options.previous_bound
    if options.refine == "batch":
        cells.open_for(start, options.max_cells // 2)
    for iteration in range(1, options.max_iter + 1):
        statistics = cells.e_step(mixture)  # Eq. 10
        mixture = m_step(mixture, statistics, limits, learned_weights=options.learned_weights)  # Eqs. 12–14
        before, bound = bound, statistics.log_likelihood / statistics.total_weight
        model = ChunkyModel(mixture, cells.n_cells, cells.graph)
        stopped = cells.refine(mixture, bound) if abs(bound - before) < cells.tol else ""
        if stopped == CONVERGED and (better := cells.look_ahead(mixture, bound, limits)):
            model, stopped = replace(model, mixture=better), ""
            mixture = better
        if not stopped and iteration == options.max_iter:
            stopped = "max_iter"
        yield Step(iteration, statistics.log_likelihood, cells.take_distances(), None, model, stopped)
        if stopped:
            return


class _Cells:
    """The frontier in the hands of the algorithm: E-steps over it, and its refinement."""

    def __init__(
        self, shard: Shard, start: GaussianParameters, options: ChunkyOptions, rng: np.random.Generator
    ) -> None:
        self._shard, self._options, self._rng = shard, options, rng
        self._n_distances = 0
        self._on_rows = False
        self._ending, self._bound_then = "", -np.inf
        """Why these cells are the last ones, empty if they are not, and F per row when that was found."""
        self._sample: LookAhead | None = None
        self._looked_at = np.inf
        """F per row of a mixture that a look went ahead to, its cells fine enough for it."""
        self.graph: Graph | None = None
        if options.C_prime is not None:
            self.graph = nearest_graph(shard, start.means, options.G)
            self.e_step(start)  # K(A) of every cell, before anything is opened
        self.n_cells = len(shard.run(TakeCells()))

    def e_step(self, mixture: GaussianParameters) -> SoftStatistics:
        """Responsibilities of all cells, as sums."""
        options = self._options
        if options.C_prime is None or self.graph is None:
            rows_or_cells = Expect(mixture) if self._on_rows else ExpectCells(mixture, rule=options.rule)
            statistics = self._shard.run(rows_or_cells)
        else:
            search = Search(options.C_prime, options.n_random, int(self._rng.integers(2**63)), estimate=True)
            statistics = self._shard.run(ExpectCells(mixture, Neighbors(self.graph, search)))
            # Eq. 8 of Forster & Lücke
            self.graph = estimated_graph(self._shard, mixture.means, self.graph, statistics.pairs)
        self._n_distances += statistics.n_distances
        return statistics

    def _gains(self, mixture: GaussianParameters, n: int) -> ChunkGains:
        found = self._shard.run(Gains(mixture, n, truncated=self._options.C_prime is not None))
        self._n_distances += found.n_distances
        return found

    def _hardly(self, found: ChunkGains) -> bool:
        """Whether opening all cells would raise F too little for the gap to be worth a look.

        To halve cells in D dimensions takes 1 − 2^(−2/D) off the gap to the log-likelihood; rows that lie near a
        surface have fewer dimensions than columns.
        """
        least = found.total / (1.0 - 2.0 ** (-2.0 / min(self._shard.n_columns, _FEW_DIMENSIONS)))
        return least <= self._options.refine_tol * self._shard.total_weight

    def _is_tight(self, mixture: GaussianParameters) -> bool:
        """Whether F is as close to the log-likelihood as asked for.

        Deviation: the paper stops when opening the best cell hardly raises F, which shrinks with the number of cells;
        its other proposal, a sampled approximation of the gap (Section 4.2), says what can be lost.
        """
        gap = self._shard.run(Gap(mixture, truncated=self._options.C_prime is not None))
        self._n_distances += gap.n_distances
        return gap.total <= self._options.refine_tol * self._shard.total_weight

    def look_ahead(
        self, mixture: GaussianParameters, bound: float, limits: CovarianceLimits
    ) -> GaussianParameters | None:
        """Where to go on, cells opened for it, if EM on rows would get further from here; None if it would not.

        Deviation: the paper looks at the mixture that it has found. The cells need not be able to tell it from a better
        one, so that F has its top here and the log-likelihood elsewhere: hence a look at where EM goes. With F close to
        the log-likelihood there as well, nothing more is lost than `refine_tol`.
        """
        options = self._options
        if options.C_prime is not None or options.refine_tol == 0:
            return None
        if self._sample is None:
            n_parameters = mixture.n_parameters(learned_weights=options.learned_weights)
            self._sample = LookAhead(self._shard, n_parameters, self._rng)
        enough = _WORTH_GOING * options.refine_tol
        if self._looked_at < np.inf and bound < self._looked_at + options.refine_tol:
            return None  # little has changed since cells were opened for where EM goes
        ahead = self._sample.look(mixture, limits, enough, learned_weights=options.learned_weights)
        self._n_distances += ahead.n_distances
        if ahead.gain < enough:
            return None
        before = self.n_cells
        self.open_for(ahead.mixture, options.max_cells, tight=True)
        there = self.e_step(ahead.mixture)
        is_better = there.log_likelihood > (bound + options.tol) * there.total_weight
        if not is_better and self.n_cells == before:
            return None
        self._ending, self._bound_then = "", -np.inf
        self._looked_at = max(bound, there.log_likelihood / there.total_weight)
        return ahead.mixture if is_better else mixture

    def open_for(self, mixture: GaussianParameters, n_cells: int, *, tight: bool = False) -> None:
        """Open cells where this mixture has most to gain, up to about `n_cells`, before EM begins.

        `tight` opens some in any case, rows having shown that cells are too coarse, and looks at the gap as well.

        Deviation: the paper runs EM to convergence from four cells on. Components that share a cell become alike there
        and are slow to part again: a good start is better kept until cells are fine enough to tell them apart.
        """
        first = self.n_cells
        while self.n_cells < n_cells:
            found = self._gains(mixture, self.n_cells)
            fine = self._hardly(found) and (not tight or self._is_tight(mixture))
            if fine and not (tight and self.n_cells == first):
                return
            more = min(math.ceil(_AHEAD * self._options.share * self.n_cells), n_cells - self.n_cells)
            before, self.n_cells = self.n_cells, self._shard.run(OpenGaining(found.smallest_within(more)))
            if self.n_cells == before:
                return

    @property
    def tol(self) -> float:
        """Change of F per row below which EM has settled."""
        return _LAST_GAIN * self._options.tol if self._ending else self._options.tol

    def refine(self, mixture: GaussianParameters, bound: float) -> str:
        """Open some cells, go over to the rows, let EM settle for good on the last cells, or say why to stop."""
        options = self._options
        if self._on_rows:
            return POLISHED
        if self._ending and bound < self._bound_then + options.tol:
            return self._ending  # F hardly rose: what was found then still holds
        reason = self._open_some(mixture)
        if reason in _POLISHED_AFTER[options.polish]:
            self._on_rows, self._ending = True, ""
            self.n_cells = self._shard.n_rows
            if options.C_prime is not None:  # rows take over the components of their cells
                self.n_cells = self._shard.run(OpenRows())
            return ""
        if self._ending and reason:
            return reason
        self._ending, self._bound_then = reason, bound
        return ""

    def _open_some(self, mixture: GaussianParameters) -> str:
        """Open the best cell, or the best share of them; or say why not."""
        if self.n_cells >= self._options.max_cells:
            return ENOUGH_CELLS
        more = 1
        if self._options.refine == "batch":
            more = min(math.ceil(self._options.share * self.n_cells), self._options.max_cells - self.n_cells)
        found = self._gains(mixture, more)
        if self._hardly(found) and self._is_tight(mixture):
            return CONVERGED
        before, self.n_cells = self.n_cells, self._shard.run(OpenGaining(found.smallest_within(more)))
        return "" if self.n_cells > before else STUCK

    def take_distances(self) -> int:
        """Densities evaluated since the last call."""
        n_distances, self._n_distances = self._n_distances, 0
        return n_distances


def start_from_cells(
    shard: Shard, means: F64, covariance_type: str, limits: CovarianceLimits, *, learned_weights: bool
) -> GaussianParameters:
    """Every cell to its closest mean, then an M-step: what `em.start_from_means` does with rows."""
    cells = shard.run(TakeCells())
    D = means.shape[1]
    apart = shard.local(cells.means, cells.weights).run(Assign(means, want="labels")).objective
    inside = float(cells.kind.coarsen(cells.scatter, NORM, D).sum())
    cold = cold_mixture(means, (apart + inside) / (shard.total_weight * D), covariance_type, limits)
    return m_step(cold, shard.run(ExpectCells(cold)), limits, learned_weights=learned_weights)


def bound_after(
    shard: Shard, mixture: GaussianParameters, limits: CovarianceLimits, n_steps: int, *, learned_weights: bool
) -> float:
    """F per row that some EM steps on the cells as they are lead to."""
    bound = -np.inf
    for _ in range(n_steps):
        statistics = shard.run(ExpectCells(mixture))
        bound = statistics.log_likelihood / statistics.total_weight
        mixture = m_step(mixture, statistics, limits, learned_weights=learned_weights)
    return bound
