"""Passes over the cells of a partition tree of the rows: chunks of data instead of rows.

`Plant` lays the tree and opens it to a *frontier* of cells, no row in two of them and all rows in one; the other passes
are about that frontier. State by name: "tree", "frontier", "cell members" (the components that a cell keeps), "gains"
(what opening a cell would gain) and "cut" (what `BestCut` has found).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from globular.model.chunks import BoundGap, ChunkGains, Chunks, Claims, NodeValue, ShareRule, Within
from globular.model.covariances import ScatterKind
from globular.model.gaussian import GaussianParameters
from globular.model.statistics import SoftStatistics
from globular.seam.among import ALL, All, Need, Neighbors
from globular.seam.passes import NO_EFFECT, Change, Effect, Names, Pass

OPENING: Names = frozenset({"frontier", "cell members", "gains"})
"""What opening cells changes."""


@dataclass(frozen=True)
class Plant(Pass[int]):
    """Lay a partition tree over the rows and open it to a frontier of cells; their number.

    The frontier are the highest nodes of a weight of at most `largest` that are at least `depth` deep. The tree stays
    while `scatter` and `leaf_size` do: planting again only resets the frontier.
    """

    needs = Need.DENSE | Need.CPU
    effect = Effect(OPENING | {"tree"}, afresh=True)
    scatter: ScatterKind
    leaf_size: int
    largest: float = np.inf
    depth: int = 0


@dataclass(frozen=True, eq=False)
class ExpectCells(Pass[SoftStatistics]):
    """E-step over the cells of the frontier, all rows of a cell sharing responsibilities.

    The same statistics as those of `Expect`, with the bound F for the log-likelihood; weights of the mixture need not
    add up to one. Among `Neighbors` a cell looks at few components, found by its K(A). `within` lets every cell count
    with the share that a component holds of it. At most one density a cell and component.
    """

    mixture: GaussianParameters
    among: All | Neighbors = ALL
    rule: ShareRule = "optimal"
    within: Within | None = None

    @property
    def effect(self) -> Effect:
        return NO_EFFECT if self.among is ALL else Effect({"cell members"}, reads={"tree", "frontier"})


@dataclass(frozen=True, eq=False)
class Gains(Pass[ChunkGains]):
    """What replacing each cell with its children would gain per cell added; the n largest.

    All gains stay with the shard, for `OpenGaining`. `truncated` looks only at K(A), which a pass has left.
    """

    effect = Effect({"gains"}, afresh=True, reads={"tree", "frontier", "cell members"})
    mixture: GaussianParameters
    n: int
    truncated: bool = False

    def continues(self, earlier: Gains) -> bool:
        """Whether gains that an earlier pass has left still hold."""
        return self.mixture is earlier.mixture and self.truncated == earlier.truncated

    def merge(self, one: ChunkGains, other: ChunkGains) -> ChunkGains:
        return (one + other).first(self.n)


@dataclass(frozen=True, eq=False)
class Gap(Pass[BoundGap]):
    """By how much single rows for cells would raise the bound, estimated from a few rows of every cell."""

    mixture: GaussianParameters
    truncated: bool = False


class Opening(Pass[int]):
    """Opens cells; the result is the number of cells afterwards."""

    effect = Effect(OPENING, reads={"tree", "cut"})


@dataclass(frozen=True)
class OpenGaining(Opening):
    """Open every cell that gains at least `smallest` (and anything at all) per cell added."""

    smallest: float


@dataclass(frozen=True)
class OpenRows(Opening):
    """Open every cell down to single rows; takes memory for all rows in float64."""


@dataclass(frozen=True, eq=False)
class OpenHeld(Opening):
    """Open the cells that these components hold most of until each has about `least`, if it has that many rows.

    One density a cell and component, or none where cells remember their components.
    """

    mixture: GaussianParameters
    components: NDArray[np.integer]
    least: int


@dataclass(frozen=True)
class OpenCut(Opening):
    """Open cells down to what `BestCut` has found."""


@dataclass(frozen=True, eq=False)
class BestCut(Pass[Chunks]):
    """The nodes of the tree, no row in two of them and all rows in one, that are worth most together.

    To take two nodes instead of their parent has to gain at least `gain` per unit of weight.
    """

    effect = Effect({"cut"}, afresh=True, reads={"tree"})
    value: NodeValue
    gain: float


@dataclass(frozen=True, eq=False)
class CellsOf(Pass[Claims]):
    """The cells that these components are responsible for, weighted by w·q; one density a cell and component."""

    mixture: GaussianParameters
    components: NDArray[np.integer]

    def merge(self, one: Claims, other: Claims) -> Claims:
        return Claims.join([one, other])


@dataclass(frozen=True)
class ForgetMembers(Change):
    """Let the next pass among `Neighbors` find K(A) anew among all components, because they are other ones."""

    effect = Effect({"cell members"}, afresh=True, reads={"tree"})


@dataclass(frozen=True)
class TakeCells(Pass[Chunks]):
    """The cells of the frontier."""


@dataclass(frozen=True, slots=True)
class FrontierState:
    """A frontier in few numbers: with the tree it is made again, cells in the same order."""

    nodes: NDArray[np.int64]
    leaves: NDArray[np.int64]
    """Leaves that were opened, in the order of their rows."""
    members: NDArray[np.int32] | None
    gains: NDArray[np.float64] | None

    @property
    def n_bytes(self) -> int:
        arrays = (self.nodes, self.leaves, self.members, self.gains)
        return sum(array.nbytes for array in arrays if array is not None)


@dataclass(frozen=True)
class ReadFrontier(Pass[list[FrontierState | None]]):
    """The frontiers of all parts; None for one that takes more than `most_bytes`."""

    most_bytes: int


@dataclass(frozen=True, eq=False)
class PutFrontier(Change):
    """Open the tree to a frontier that it was opened to elsewhere; `gains` are what its gains came from."""

    effect = Effect(OPENING, afresh=True, reads={"tree"})
    state: FrontierState
    gains: Gains | None
