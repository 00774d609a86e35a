"""What an infinite mixture is fitted to: rows, or the cells of a partition tree; and a component's share of it.

Both answer an E-step with the same statistics, so one algorithm runs on either. Trials of splits work on the *share* of
a component, where everything counts in proportion to the component's responsibility for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from globular.algorithms.graphs import estimated_graph, nearest_graph
from globular.model.chunks import Chunks, Claims, NodeValue
from globular.model.covariances import ScatterKind
from globular.model.gaussian import GaussianParameters
from globular.model.graph import Graph, Search
from globular.model.statistics import F64, I64, SoftStatistics, WithinStatistics
from globular.seam.among import Need, Neighbors, Remembered
from globular.seam.mixture_passes import Expect, ExpectShares, ExpectSparse, RowsOf, SparseRowsOf
from globular.seam.shard import Shard
from globular.seam.tree_passes import (
    BestCut,
    CellsOf,
    ExpectCells,
    ForgetMembers,
    Gains,
    OpenCut,
    OpenGaining,
    OpenHeld,
    Plant,
)

_MANY_ROWS = 50_000
"""With fewer rows than this cells are opened for proportionally less."""
_MADE_UP = 0.9
"""Share of what all cells would lower F by that those expanded have to make up."""
_WORTHWHILE = 2
"""Cells look at C′ components where the mixture has more than this many times C′."""
_LOOK_EVERY = 8
"""Passes over the components that matter to a row from the first look at all of them to the second."""
_LEAST_CELLS = 16
"""Cells that a component needs to be tried, if it has the rows."""
_START_DEPTH = 4
"""The first cells are at least this deep in the tree, as in the paper."""


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """The parts of the data that some components are responsible for, weighted by that: copies of rows, or cells."""

    local: Shard
    """Where passes over the cells are run; it has no rows."""
    cells: Chunks
    """Chunks of all shares, one behind the other."""
    starts: I64
    """Those of the i-th are starts[i] … starts[i + 1] − 1."""
    n_distances: int
    """Evaluations that it took."""
    refined: bool = False
    """Whether the data were opened for it, so that free energies before and after do not compare."""

    @property
    def sizes(self) -> I64:
        """Cells or rows of each share."""
        return np.diff(self.starts)

    def e_step(self, mixture: GaussianParameters, bounds: I64, seen: I64) -> WithinStatistics:
        """Statistics of many small mixtures, each on the shares that it sees; see `ExpectShares`."""
        return self.local.run(ExpectShares(self.cells, self.starts, mixture, bounds, seen))


class RowData:
    """VIM and BJ: every row by itself, under all components."""

    _T = 0
    """Components of the last E-step, where rows remember theirs."""

    def __init__(self, shard: Shard, max_trial_rows: float, rng: np.random.Generator) -> None:
        self.shard, self._max_trial_rows, self._rng = shard, max_trial_rows, rng
        self.is_sparse = Need.DENSE in shard.lacks

    @property
    def truncated(self) -> bool:
        """Whether components are remembered by their numbers."""
        return False

    def e_step(self, mixture: GaussianParameters, arrangement: int = 0) -> SoftStatistics:
        """Statistics of the E-step; another arrangement than the last one has other components, or another order."""
        return self.shard.run(ExpectSparse(mixture) if self.is_sparse else Expect(mixture))

    def look_again(self) -> bool:
        """Let the next E-step look at all components; False if the last one has."""
        return False

    def shares(self, mixture: GaussianParameters, components: I64, counts: F64, most: float = np.inf) -> Shares:
        """The shares of some components of `mixture`, which hold the weights `counts`.

        Deviation: of a component with more than `max_trial_rows` rows, or `most`, a random part stands for all of them.
        Copies of rows stay within bounds so, and a split is accepted by the free energy of all rows anyway.
        """
        remembered = self.truncated and mixture.n_components == self._T
        held = counts * (self.shard.n_rows / self.shard.total_weight)
        rates = np.minimum(1.0, min(self._max_trial_rows, most) / np.maximum(held, 1.0))
        seed = int(self._rng.integers(2**62))
        of = SparseRowsOf if self.is_sparse else RowsOf
        claims = self.shard.run(of(mixture, components, rates, seed, remembered=remembered))
        return self._shares(claims, 0 if remembered else self.shard.n_rows * mixture.n_components)

    def _shares(self, claims: Claims, n_distances: int, *, refined: bool = False) -> Shares:
        local = self.shard.local(np.empty((0, self.shard.n_columns)))
        return Shares(local, claims.chunks, claims.starts, n_distances, refined)

    def parts(self, value: NodeValue, gain: float) -> Chunks | None:
        """The partition of the data that is worth most, see `Shard.best_nodes`; None if there is no tree."""
        return None

    def open_parts(self) -> None:
        """Open the cells that are larger than the parts found last."""

    def refine(self, mixture: GaussianParameters, *, thorough: bool) -> int:
        """Look closer where that lowers F; returns the number of evaluations, 0 if nothing was worth it.

        `thorough` at the end of a fit, otherwise while the mixture grows.
        """
        return 0


class ActiveRowData(RowData):
    """Rows of Fast-VIM: between two looks at all components a row looks only at those that mattered to it.

    Deviation: that leaves out responsibilities below e^−10, which F counts against itself; it has settled only when a
    look at all components says so.
    """

    def __init__(self, shard: Shard, max_trial_rows: float, rng: np.random.Generator) -> None:
        super().__init__(shard, max_trial_rows, rng)
        self._remembers = not shard.why_not(Remembered)
        self._arrangement = 0
        self._n_left, self._interval = 0, _LOOK_EVERY
        self._has_seen_all = True

    @property
    def truncated(self) -> bool:
        return self._remembers

    def look_again(self) -> bool:
        if self._has_seen_all:
            return False
        self._n_left = 0
        return True

    def e_step(self, mixture: GaussianParameters, arrangement: int = 0) -> SoftStatistics:
        if not self._remembers:
            return super().e_step(mixture)
        if arrangement != self._arrangement:
            self._arrangement, self._n_left, self._interval = arrangement, 0, _LOOK_EVERY
        look = self._n_left == 0 or mixture.n_components != self._T
        statistics = self.shard.run(Expect(mixture, Remembered(renew=look)))
        self._T = mixture.n_components
        if look:
            # the longer the same components move about, the less they move
            self._n_left, self._interval = self._interval, 2 * self._interval
        else:
            self._n_left -= 1
        self._has_seen_all = statistics.n_distances >= self.shard.n_rows * mixture.n_components
        return statistics


@dataclass(frozen=True, slots=True)
class CellOptions:
    """How fine the cells are."""

    leaf_size: int = 16
    n_cells: int = 1000
    """Open the tree to about this many cells of even weight at first."""
    growth_tol: float = 0.01
    """While the mixture grows, expand cells if that lowers F by this much per row."""
    tol: float = 0.005
    """When the mixture has stopped growing, expand cells if that lowers F by this much per row."""
    most_cells: float = 0.125
    """When more cells than this share of the rows are wanted, the rows themselves take over."""
    C_prime: int | None = None
    """Components that each cell looks at, whatever their number; None for all. Rows never take over then."""
    G: int = 8
    """Components in a neighbourhood, where cells look at few of them."""


class CellData(ActiveRowData):
    """Fast-VIM: all rows of a cell share their responsibilities (Eqs. 19 to 22).

    Deviation: where the cells that are wanted would cost as much as rows do, rows take over, as in VIM.
    """

    def __init__(
        self, shard: Shard, scatter: ScatterKind, options: CellOptions, max_trial_rows: float, rng: np.random.Generator
    ) -> None:
        super().__init__(shard, max_trial_rows, rng)
        self._options = options
        largest = shard.total_weight / options.n_cells
        self.n_cells = shard.run(Plant(scatter, options.leaf_size, largest=largest, depth=_START_DEPTH))
        self.by_rows = options.C_prime is None and self.n_cells > options.most_cells * shard.n_rows
        """Whether rows have taken over."""
        self._graph: Graph | None = None

    @property
    def truncated(self) -> bool:
        return super().truncated if self.by_rows else self._options.C_prime is not None

    def e_step(self, mixture: GaussianParameters, arrangement: int = 0) -> SoftStatistics:
        if self.by_rows:
            return super().e_step(mixture, arrangement)
        if self.truncated and arrangement != self._arrangement:
            self._arrangement, self._graph = arrangement, None
            self.shard.run(ForgetMembers())
        if self._looks_at_few(mixture):
            return self._truncated_step(mixture)
        return self.shard.run(ExpectCells(mixture))

    def _looks_at_few(self, mixture: GaussianParameters) -> bool:
        C_prime = self._options.C_prime
        return C_prime is not None and mixture.n_components > _WORTHWHILE * C_prime

    def _truncated_step(self, mixture: GaussianParameters) -> SoftStatistics:
        """Every cell looks at neighbourhoods of its C′ components; the tail is a component like the others here."""
        options = self._options
        if self._graph is None:
            self._graph = nearest_graph(self.shard, mixture.means, options.G)
        seed = int(self._rng.integers(2**63))
        search = Search(options.C_prime or 1, n_random=1, seed=seed, estimate=True)
        found = self.shard.run(ExpectCells(mixture, Neighbors(self._graph, search)))
        self._graph = estimated_graph(self.shard, mixture.means, self._graph, found.pairs)
        return found

    def shares(self, mixture: GaussianParameters, components: I64, counts: F64, most: float = np.inf) -> Shares:
        if self.by_rows:
            return super().shares(mixture, components, counts, most)
        before, n_distances = self.n_cells, self.n_cells * mixture.n_components
        claims = self.shard.run(CellsOf(mixture, components))
        few = np.diff(claims.starts) < _LEAST_CELLS
        if few.any():
            # Step 2a: what is one cell to all components may be two clusters
            self.n_cells = self.shard.run(OpenHeld(mixture, components[few], _LEAST_CELLS))
        if self.n_cells > before:
            n_distances += self.n_cells * mixture.n_components
            claims = self.shard.run(CellsOf(mixture, components))
        return self._shares(claims, n_distances, refined=self.n_cells > before)

    def parts(self, value: NodeValue, gain: float) -> Chunks | None:
        return self.shard.run(BestCut(value, gain))

    def open_parts(self) -> None:
        if not self.by_rows:
            self.n_cells = self.shard.run(OpenCut())

    def refine(self, mixture: GaussianParameters, *, thorough: bool) -> int:
        """Expand the cells that lower F most: as few as make up most of what all of them would."""
        if self.by_rows:
            return 0
        gains = self.shard.run(Gains(mixture, self.n_cells, truncated=self._looks_at_few(mixture)))
        tol = self._options.tol if thorough else self._options.growth_tol
        tol *= min(1.0, self.shard.n_rows / _MANY_ROWS)  # few rows can afford to be looked at closely
        if gains.total < tol * self.shard.total_weight:
            return 0
        n_expanded = int(np.searchsorted(np.cumsum(gains.gains), _MADE_UP * gains.gains.sum())) + 1
        most = np.inf if self._options.C_prime is not None else self._options.most_cells * self.shard.n_rows
        fits = self.n_cells + n_expanded <= most
        if not fits and not thorough:
            return 0
        if fits:
            self.n_cells = self.shard.run(OpenGaining(float(gains.gains[:n_expanded][-1])))
        # a leaf opens into many rows, so that there may be more cells now than were counted on
        self.by_rows = not fits or self.n_cells > most
        return gains.n_distances
