"""Candidate sources: which centres or components a row compares itself with in a pass.

Looking at more centres than a source names is always correct, so a backend may answer any of them by `ALL`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Flag, auto
from typing import ClassVar, Literal, TypeAlias

from globular.model.cells import CellTree, CenterCells
from globular.model.graph import Graph, Search

Route = Literal["top", "down", "stay"]


class Need(Flag):
    """What a pass, or a source of candidates, may need the rows to be."""

    DENSE = auto()
    ONE_PLACE = auto()
    CPU = auto()
    CARD = auto()
    STAY = auto()
    """Not read anew for every pass."""
    SPARSE = auto()
    FEW_ENTRIES = auto()
    """In so few of the columns that an inverted file of the centres leaves most products out."""


@dataclass(frozen=True, slots=True)
class All:
    """Every centre."""

    needs: ClassVar[Need] = Need(0)


ALL = All()


@dataclass(frozen=True, slots=True, eq=False)
class Neighbors:
    """The neighbourhoods of the C′ centres that the row keeps, its K(n), and a few centres at random.

    About C′·G distances a row, whatever the number of centres; the result has the pairs of Eq. 8 if `search` asks.
    """

    needs: ClassVar[Need] = Need(0)
    graph: Graph
    search: Search


@dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """The centres in the `n_probes` cells closest to the row, and those that it keeps.

    About cells + n_probes · C / cells distances a row. A mixture keeps `n_candidates` components a row; without cells
    it looks at those alone. Rows whose K(n) does not begin with their label start from the label.
    """

    needs: ClassVar[Need] = Need(0)
    cells: CenterCells | None
    n_probes: int
    n_candidates: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Down:
    """The centres in the row's own cell of the last level but one of a tree.

    `route` says how a row comes to its cell: "top", down the whole tree; "down", the cell is its present label (the
    tree has grown by one level since the last pass); "stay", the cell of the last pass.
    """

    needs: ClassVar[Need] = Need(0)
    tree: CellTree
    route: Route = "top"


@dataclass(frozen=True, slots=True)
class Remembered:
    """The components that mattered to the row when all were looked at last; `renew` looks at all.

    The log-likelihood is then a bound of it from below.
    """

    needs: ClassVar[Need] = Need.DENSE | Need.STAY
    renew: bool


@dataclass(frozen=True, slots=True)
class Within:
    """The parts of the component that the row's label names: label · n_parts and those that follow.

    Labels and K(n) stay as they are.
    """

    needs: ClassVar[Need] = Need(0)
    n_parts: int = 1


HardAmong: TypeAlias = All | Neighbors | Probe | Down
SoftAmong: TypeAlias = All | Neighbors | Probe | Remembered
