"""What an infinite mixture is fitted to: rows, or the cells of a partition tree; and a component's share of it.

Both answer an E-step with the same statistics, so one algorithm runs on either. Trials of splits work on the *share* of
a component, where everything counts in proportion to the component's responsibility for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from globular.model.chunks import Chunks, NodeValue
from globular.model.covariances import ScatterKind
from globular.model.gaussian import GaussianParameters
from globular.model.graph import Graph, estimated_graph
from globular.model.search import Search
from globular.model.statistics import F64, I64, Claim, SoftStatistics
from globular.seam.among import Neighbors, Remembered
from globular.seam.passes import CellNeighbors, Expect, ExpectChunks, RowsOf
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
_MOST = 0.9
"""Share of what all cells would lower F by that those expanded have to make up."""
_WORTHWHILE = 2
"""Cells look at C′ components when there are more than so many times as many."""
_LOOK_EVERY = 8
"""Passes over the components that matter to a row from the first look at all of them to the second."""
_SMALL = 2**20
"""Shares with fewer numbers than that in the squares of their chunks are small."""
_LEAST_CELLS = 16
"""Cells that a component needs to be tried, if it has the rows."""
_START_DEPTH = 4
"""The first cells are at least so deep in the tree, as in the paper."""


class Share(Protocol):
    """The part of the data that a component is responsible for."""

    def __len__(self) -> int:
        """Rows or cells."""
        ...

    def e_step(self, mixture: GaussianParameters) -> SoftStatistics:
        """Statistics of the E-step."""
        ...


@dataclass(frozen=True, slots=True)
class Shares:
    """The shares of some components."""

    shares: Sequence[Share]
    n_distances: int
    """Evaluations that it took."""
    refined: bool = False
    """Whether the data were opened for it, so that free energies before and after do not compare."""


class Field(Protocol):
    """All the data."""

    def e_step(self, mixture: GaussianParameters) -> SoftStatistics:
        """Statistics of the E-step."""
        ...

    @property
    def total_weight(self) -> float: ...

    @property
    def truncated(self) -> bool:
        """Whether it remembers components by their numbers."""
        ...

    @property
    def complete(self) -> bool:
        """Whether the last E-step has looked at all components that the next one would look at."""
        ...

    def look_again(self) -> None:
        """Let the next E-step look at all components."""
        ...

    def trial_threads(self, shares: Sequence[Share]) -> int:
        """How many trials of splits on these shares to run side by side."""
        ...

    def arrange(self, arrangement: int) -> None:
        """Forget what it remembers of components if they are not those of this arrangement."""
        ...

    def column_moments(self) -> tuple[F64, F64]:
        """Mean and variance of every column."""
        ...

    def shares(self, mixture: GaussianParameters, components: I64, counts: F64) -> Shares:
        """The shares of some components of `mixture`, which hold so much weight each."""
        ...

    def parts(self, value: NodeValue, gain: float) -> Chunks | None:
        """The partition of the data that is worth most, see `Shard.best_nodes`; None if there is no tree."""
        ...

    def open_parts(self) -> None:
        """Open the cells that are larger than those parts."""
        ...

    def refine(self, mixture: GaussianParameters, *, thorough: bool) -> int:
        """Look closer where that lowers F; returns the number of evaluations, 0 if nothing was worth it.

        `thorough` at the end of a fit, otherwise while the mixture grows.
        """
        ...


class Rows:
    """VIM and BJ: every row by itself."""

    def __init__(self, shard: Shard, max_rows: int, rng: np.random.Generator) -> None:
        self._shard, self._max_rows, self._rng = shard, max_rows, rng
        self.total_weight = shard.total_weight

    def column_moments(self) -> tuple[F64, F64]:
        return self._shard.column_moments()

    def e_step(self, mixture: GaussianParameters) -> SoftStatistics:
        return self._shard.run(Expect(mixture))

    def shares(self, mixture: GaussianParameters, components: I64, counts: F64) -> Shares:
        """Deviation: of a component with more than `max_rows` rows a random part stands for all of them.

        Copies of rows stay within bounds so, and a split is accepted by the free energy of all rows anyway.
        """
        claims = self._claims(mixture, components, counts, kept=False)
        n_distances = self._shard.n_rows * mixture.n_components
        return Shares([LocalRows(self._shard, claim.rows, claim.weights) for claim in claims], n_distances)

    def _claims(self, mixture: GaussianParameters, components: I64, counts: F64, *, kept: bool) -> list[Claim]:
        held = counts * (self._shard.n_rows / self._shard.total_weight)
        rates = np.minimum(1.0, self._max_rows / np.maximum(held, 1.0))
        return self._shard.run(RowsOf(mixture, components, rates, int(self._rng.integers(2**62)), remembered=kept))

    truncated = False
    complete = True

    def trial_threads(self, shares: Sequence[Share]) -> int:
        """Every pass of a trial has all threads."""
        return 1

    def arrange(self, arrangement: int) -> None:
        """Rows remember nothing."""

    def look_again(self) -> None:
        """They always look at all."""

    def parts(self, value: NodeValue, gain: float) -> Chunks | None:
        return None

    def open_parts(self) -> None:
        """There are none."""

    def refine(self, mixture: GaussianParameters, *, thorough: bool) -> int:
        return 0


class KeptRows(Rows):
    """Rows of Fast-VIM: between two looks at all components a row looks only at those that mattered to it.

    Deviation: that leaves out responsibilities below e^−10, which F counts against itself; it has settled only when a
    look at all components says so.
    """

    def __init__(self, shard: Shard, max_rows: int, rng: np.random.Generator) -> None:
        super().__init__(shard, max_rows, rng)
        self.truncated = not shard.why_not(Remembered)
        self._arrangement, self._T = 0, 0
        self._n_left, self._interval = 0, _LOOK_EVERY

    def arrange(self, arrangement: int) -> None:
        if arrangement != self._arrangement:
            self._arrangement, self._interval = arrangement, _LOOK_EVERY
            self.look_again()

    def look_again(self) -> None:
        self._n_left = 0

    def e_step(self, mixture: GaussianParameters) -> SoftStatistics:
        if not self.truncated:
            return super().e_step(mixture)
        look = self._n_left == 0 or mixture.n_components != self._T
        statistics = self._shard.run(Expect(mixture, Remembered(renew=look)))
        self._T = mixture.n_components
        if look:
            # the longer the same components move about, the less they move
            self._n_left, self._interval = self._interval, 2 * self._interval
        else:
            self._n_left -= 1
        self.complete = statistics.n_distances >= self._shard.n_rows * mixture.n_components
        return statistics

    def shares(self, mixture: GaussianParameters, components: I64, counts: F64) -> Shares:
        kept = self.truncated and mixture.n_components == self._T
        claims = self._claims(mixture, components, counts, kept=kept)
        n_distances = 0 if kept else self._shard.n_rows * mixture.n_components
        kind = mixture.family.scatter
        rows = [Chunks(claim.weights, claim.rows, np.empty((len(claim.rows), 0)), kind) for claim in claims]
        return Shares([CellShare(self._shard, chunks) for chunks in rows], n_distances)


class LocalRows:
    """Copies of some rows, weighted."""

    def __init__(self, shard: Shard, rows: F64, weights: F64) -> None:
        self._local = shard.local(rows, weights)

    def __len__(self) -> int:
        return self._local.n_rows

    def e_step(self, mixture: GaussianParameters) -> SoftStatistics:
        return self._local.run(Expect(mixture))


@dataclass(frozen=True, slots=True)
class CellOptions:
    """How fine the cells are."""

    leaf_size: int = 16
    n_cells: int = 1000
    """Open the tree to about so many cells of even weight at first."""
    growth_tol: float = 0.01
    """While the mixture grows, expand cells if that lowers F by this much per row …"""
    tol: float = 0.005
    """… and when it has stopped growing, by this much."""
    most_cells: float = 0.125
    """When more cells than this share of the rows are wanted, the rows themselves take over."""
    C_prime: int | None = None
    """Components that each cell looks at, whatever their number; None for all. Rows never take over then."""
    G: int = 8
    """Components in a neighbourhood, where cells look at few of them."""
    n_threads: int = 1


class Cells:
    """Fast-VIM: all rows of a cell share their responsibilities (Eqs. 19 to 22).

    Deviation: where so many cells are wanted that they would cost as much as rows do, rows take over, as in VIM.
    """

    def __init__(
        self, shard: Shard, scatter: ScatterKind, options: CellOptions, max_rows: int, rng: np.random.Generator
    ) -> None:
        self._shard, self._options, self._rng = shard, options, rng
        self._rows = KeptRows(shard, max_rows, rng)
        self.total_weight = shard.total_weight
        largest = self.total_weight / options.n_cells
        self.n_cells = shard.run(Plant(scatter, options.leaf_size, largest=largest, depth=_START_DEPTH))
        self.by_rows = options.C_prime is None and self.n_cells > options.most_cells * shard.n_rows
        self._arrangement = 0
        self._graph: Graph | None = None

    def column_moments(self) -> tuple[F64, F64]:
        return self._shard.column_moments()

    @property
    def truncated(self) -> bool:
        return self._rows.truncated if self.by_rows else self._options.C_prime is not None

    @property
    def complete(self) -> bool:
        return not self.by_rows or self._rows.complete

    def look_again(self) -> None:
        self._rows.look_again()

    def arrange(self, arrangement: int) -> None:
        if self.by_rows:
            self._rows.arrange(arrangement)
        elif self.truncated and arrangement != self._arrangement:
            self._arrangement, self._graph = arrangement, None
            self._shard.run(ForgetMembers())

    def e_step(self, mixture: GaussianParameters) -> SoftStatistics:
        if self.by_rows:
            return self._rows.e_step(mixture)
        if self._is_truncated(mixture):
            return self._truncated_step(mixture)
        return self._shard.run(ExpectCells(mixture))

    def _is_truncated(self, mixture: GaussianParameters) -> bool:
        C_prime = self._options.C_prime
        return C_prime is not None and mixture.n_components > _WORTHWHILE * C_prime

    def _truncated_step(self, mixture: GaussianParameters) -> SoftStatistics:
        """Every cell looks at neighbourhoods of its C′ components; the tail is a component like the others here."""
        options = self._options
        if self._graph is None:
            self._graph = nearest_means(self._shard, mixture.means, options.G)
        seed = int(self._rng.integers(2**63))
        search = Search(options.C_prime or 1, n_random=1, seed=seed, estimate=True)
        found = self._shard.run(ExpectCells(mixture, Neighbors(self._graph, search)))
        self._graph = estimated_graph(self._graph, found.pairs, options.n_threads)
        return found

    def shares(self, mixture: GaussianParameters, components: I64, counts: F64) -> Shares:
        if self.by_rows:
            return self._rows.shares(mixture, components, counts)
        before, n_distances = self.n_cells, self.n_cells * mixture.n_components
        claims = self._shard.run(CellsOf(mixture, components))
        few = np.array([len(chunks) < _LEAST_CELLS for chunks in claims])
        if few.any():
            # Step 2a: what is one cell to all components may be two clusters
            self.n_cells = self._shard.run(OpenHeld(mixture, components[few], _LEAST_CELLS))
        if self.n_cells > before:
            n_distances += self.n_cells * mixture.n_components
            claims = self._shard.run(CellsOf(mixture, components))
        return Shares([CellShare(self._shard, chunks) for chunks in claims], n_distances, self.n_cells > before)

    def parts(self, value: NodeValue, gain: float) -> Chunks | None:
        return self._shard.run(BestCut(value, gain))

    def open_parts(self) -> None:
        if not self.by_rows:
            self.n_cells = self._shard.run(OpenCut())

    def trial_threads(self, shares: Sequence[Share]) -> int:
        """Small shares are over before another thread has started."""
        sizes = [share.size for share in shares if isinstance(share, CellShare)]
        return self._options.n_threads if sum(sizes) > _SMALL * len(sizes) else 1

    def refine(self, mixture: GaussianParameters, *, thorough: bool) -> int:
        """Expand the cells that lower F most: as few as make up most of what all of them would."""
        if self.by_rows:
            return 0
        gains = self._shard.run(Gains(mixture, self.n_cells, truncated=self._is_truncated(mixture)))
        tol = self._options.tol if thorough else self._options.growth_tol
        tol *= min(1.0, self._shard.n_rows / _MANY_ROWS)  # few rows can afford to be looked at closely
        if gains.total < tol * self.total_weight:
            return 0
        n_expanded = int(np.searchsorted(np.cumsum(gains.gains), _MOST * gains.gains.sum())) + 1
        most = np.inf if self._options.C_prime is not None else self._options.most_cells * self._shard.n_rows
        fits = self.n_cells + n_expanded <= most
        if not fits and not thorough:
            return 0
        if fits:
            self.n_cells = self._shard.run(OpenGaining(float(gains.gains[:n_expanded][-1])))
        # a leaf opens into many rows, so that there may be more cells now than were counted on
        self.by_rows = not fits or self.n_cells > most
        return gains.n_distances


def nearest_means(shard: Shard, means: F64, n_neighbors: int) -> Graph:
    """The components closest to each by their means. O(C²D)."""
    C = len(means)
    together = np.zeros((1, 1), dtype=np.intp)
    return shard.local(means).run(CellNeighbors(np.array([0, C], dtype=np.intp), together, min(n_neighbors, C)))


class CellShare:
    """Cells, each with the weight that a component has in it."""

    def __init__(self, shard: Shard, chunks: Chunks) -> None:
        self._chunks, self._local = chunks, shard.local(chunks.means[:0])
        self.size = len(chunks) * chunks.means.shape[1] ** 2

    def __len__(self) -> int:
        return len(self._chunks)

    def e_step(self, mixture: GaussianParameters) -> SoftStatistics:
        return self._local.run(ExpectChunks(self._chunks, mixture))
