"""Passes over the rows, as values.

A pass holds small parameters (C-sized, float64). Whoever carries it out does everything N-sized, changes the per-row
state that the pass declares, and returns a result; results of several sets of rows are put together by `merge`.
Every pass has an oracle in `tests/reference`. "Rows as the passes see them" are the user's rows in float64, scaled to
unit length if the metric is the cosine.

Per-row state by name: "labels", the closest centre (−1 before the first pass); "d2", the squared distance to the
closest seed, or to the own centre after a pass among `Probe` or `Down`; "seeds", the number of that seed; "members",
K(n); "cells", the row's cell in a tree of centres; "bounds", what bounds have left; "pairs", what `Remembered` recalls.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from globular.model.columns import Ballots, ColumnMeans
from globular.model.nested import Batch, NestedSearch, NestedStatistics
from globular.model.statistics import F64, ColumnMoments, FarRows, HardStatistics, PotentialStatistics, SpareCenters
from globular.model.subspace import Subspace
from globular.seam.among import ALL, Down, HardAmong, Need, Neighbors, Probe

Result = TypeVar("Result")
Index: TypeAlias = NDArray[np.intp]
Labels: TypeAlias = NDArray[np.int32]
Names: TypeAlias = Set[str]
NO_NAMES: Names = frozenset()


@dataclass(frozen=True, slots=True)
class Effect:
    """What a pass does to the per-row state: what a lost part has to be told again."""

    writes: Names = NO_NAMES
    afresh: bool = False
    """Whether what is written does not depend on what was there before."""
    reads: Names = NO_NAMES
    """What is looked at beside what is written."""


NO_EFFECT = Effect()


class Pass(Generic[Result]):
    """What is to be done to all rows of a shard."""

    needs: ClassVar[Need] = Need(0)
    """What the rows must be like."""

    @property
    def effect(self) -> Effect:
        """What the pass does to the per-row state."""
        return NO_EFFECT

    @property
    def variant(self) -> type | None:
        """What tells apart passes of one kind that are carried out in different ways: the candidate source."""
        return type(self.among) if hasattr(self, "among") else None

    def merge(self, one: Result, other: Result) -> Result:
        """The result for two sets of rows, of which `one` comes first."""
        return one + other  # type: ignore[operator]


class Change(Pass[None]):
    """A pass without a result."""

    def merge(self, one: None, other: None) -> None:
        return None


HERE = Need.ONE_PLACE | Need.STAY
"""Rows in memory, in one place."""

# --- k-means ---------------------------------------------------------------------------------------------------------

Want = Literal["sums", "labels"]


@dataclass(frozen=True, eq=False)
class Assign(Pass[HardStatistics]):
    """Label every row with the closest of its candidate centres (lowest index on ties), and sum per cluster.

    `want`: "sums" of all rows, or "labels" and no sums.
    Among `Probe` and `Neighbors` a row keeps its label if nothing that it looks at is closer.
    """

    centers: F64
    among: HardAmong = ALL
    want: Want = "sums"

    @property
    def effect(self) -> Effect:
        match self.among:
            case Neighbors():
                return Effect({"labels", "members"})
            case Probe():
                return Effect({"labels", "d2"})
            case Down(route=route):
                return Effect({"labels", "d2", "cells"}, afresh=route == "top")
        return Effect({"labels"}, afresh=True)


@dataclass(frozen=True, eq=False)
class AssignBatch(Pass[NestedStatistics]):
    """Label the rows of a batch, and say how the votes changed; those of other rows stay as they are.

    Sums and squares are taken about `origin`. Exactly the closest centre unless the search has candidates. Centres by
    column are answered by ballots about zero, all others by sums. At most C distances for each row of the batch.
    """

    centers: F64 | ColumnMeans
    origin: F64
    rows: Batch
    search: NestedSearch

    @property
    def effect(self) -> Effect:
        return Effect({"labels", "bounds"}, afresh=self.search.restart)

    def for_rows(self, n: int) -> AssignBatch:
        """The same pass for a shard of n rows that are all in the batch, and whose state is known."""
        return replace(self, rows=Batch(0, n, n), search=replace(self.search, restart=False))


@dataclass(frozen=True, eq=False)
class ByColumn(Pass[ColumnMeans]):
    """Centres (k, D) column by column."""

    needs = Need.SPARSE
    centers: F64


@dataclass(frozen=True, eq=False)
class CastBallots(Pass[F64]):
    """Add rows to the sums of centres by column, in place; returns the gains of ‖S‖². O(nnz of the ballots)."""

    needs = Need.SPARSE
    centers: ColumnMeans
    ballots: Ballots
    void: NDArray[np.bool_]
    """Clusters that take no votes now, (k,)."""


@dataclass(frozen=True, eq=False)
class SumByLabel(Pass[HardStatistics]):
    """Sums of the rows as they are labelled; no distance is looked at, and the objective is 0."""

    n_clusters: int


@dataclass(frozen=True, eq=False)
class Farthest(Pass[FarRows]):
    """The n rows farthest from the centre of their own label; rows of weight zero do not count."""

    centers: F64
    n: int

    def merge(self, one: FarRows, other: FarRows) -> FarRows:
        return (one + other).first(self.n)


@dataclass(frozen=True, eq=False)
class Spare(Pass[SpareCenters]):
    """What the error would be without each of the centres: a row without its closest one goes to the second closest.

    Rows get the closest centre for a label, and their squared distance to it. Among few centres; by products whose
    rounding is not looked into.
    """

    effect = Effect({"labels", "d2"}, afresh=True)
    centers: F64


@dataclass(frozen=True, eq=False)
class Halve(Pass[HardStatistics]):
    """Cut every cluster in two: rows that are closer to the second of their cluster than to its first, summed up.

    The rows summed up get the label names[c] in the place of c, if there are names. The objective is that of both
    halves, and all rows get their squared distance to the closer of the two centres. Two distances a row.
    """

    firsts: F64
    seconds: F64
    names: Labels | None = None

    @property
    def effect(self) -> Effect:
        return Effect({"d2"}, reads={"labels"}) if self.names is None else Effect({"labels", "d2"})


# --- seeds -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class AddSeeds(Pass[PotentialStatistics]):
    """Lower each row's squared distance to its closest seed by these seeds; one distance a row and seed.

    `n_before` seeds were given before; 0 forgets all earlier ones.
    """

    seeds: F64
    n_before: int = 0

    @property
    def effect(self) -> Effect:
        return Effect({"d2", "seeds"}, afresh=self.n_before == 0)


@dataclass(frozen=True, eq=False)
class TrySeeds(Pass[F64]):
    """Σ w min(d², ‖x − m‖²) for each of some seeds alone; the state stays."""

    seeds: F64


@dataclass(frozen=True, slots=True)
class SeedRows:
    """Rows that are seeds of k-means++, and the Σ w d² that they leave."""

    indices: NDArray[np.intp]
    potential: float


# --- columns and subspaces -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Moments(Pass[ColumnMoments]):
    """Weighted mean and variance of every column."""


@dataclass(frozen=True)
class Extremes(Pass[F64]):
    """The smallest and the largest value of every column, (2, D)."""

    needs = Need.DENSE

    def merge(self, one: F64, other: F64) -> F64:
        return np.stack([np.minimum(one[0], other[0]), np.maximum(one[1], other[1])])


@dataclass(frozen=True, eq=False)
class Project(Pass[Any]):
    """A shard of the rows' coordinates in a subspace, in memory; all per-row state is shared with this one."""

    needs = Need.ONE_PLACE
    subspace: Subspace


@dataclass(frozen=True)
class Roots(Pass[Any]):
    """A shard of the square roots of the rows, signs kept, in memory; all per-row state is shared with this one."""

    needs = Need.ONE_PLACE | Need.STAY | Need.CPU


@dataclass(frozen=True)
class AsScaled(Pass[Any]):
    """A shard of the rows scaled to unit length, where they count as such, in memory; it shares all per-row state."""

    needs = Need.DENSE | Need.ONE_PLACE | Need.STAY | Need.CPU


@dataclass(frozen=True, eq=False)
class PowerStep(Pass[F64]):
    """Σ w (x − origin) zᵀ, z the coordinates of x: the scatter matrix times the basis, (D, d)."""

    needs = Need.SPARSE
    subspace: Subspace


# --- per-row state alone ---------------------------------------------------------------------------------------------

RowValue = Literal["rows", "weights", "errors", "labels"]
"""What is taken of a row: itself as the passes see it, its weight w, its error w·d², its label."""


@dataclass(frozen=True, eq=False)
class Take(Pass[NDArray[Any]]):
    """Something of some rows; see `Shard.take`."""

    indices: Index
    what: RowValue = "rows"


@dataclass(frozen=True, eq=False)
class Locate(Pass[Index]):
    """See `Shard.locate`."""

    masses: F64
    by: Literal["weights", "errors"] = "weights"


@dataclass(frozen=True)
class Total(Pass[F64]):
    """Σ w, or Σ w d², of all rows (one number) or of those of every label or seed (n numbers)."""

    of: Literal["weights", "errors"]
    by: Literal["labels", "seeds"] | None = None
    n: int = 1


@dataclass(frozen=True)
class AllLabels(Pass[list[Labels]]):
    """The labels of all rows, as arrays to be joined."""


@dataclass(frozen=True)
class ScatterLabels(Change):
    """Put every row into a random cluster, whatever the split: the start of truncated variational EM."""

    effect = Effect({"labels"}, afresh=True)
    n_clusters: int
    seed: int


@dataclass(frozen=True, eq=False)
class TakeLabels(Change):
    """Give every row the label that stands here at its number in the whole data."""

    effect = Effect({"labels"}, afresh=True)
    labels: Labels


@dataclass(frozen=True)
class LabelBySeeds(Change):
    """Give every row the number of its closest seed for a label."""

    effect = Effect({"labels"}, afresh=True, reads={"seeds"})


@dataclass(frozen=True, eq=False)
class BlendErrors(Change):
    """Put of_seeds[s] + share · d² in the place of d², s the row's closest seed: coresets are drawn by that."""

    effect = Effect({"d2"}, reads={"seeds"})
    of_seeds: F64
    share: float


@dataclass(frozen=True, eq=False)
class Relabel(Change):
    """Rename the clusters: a row of label c gets the label names[c]."""

    effect = Effect({"labels"})
    names: Labels
