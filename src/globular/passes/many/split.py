"""Any list of shards as one: a pass is run on every part, and the results are merged along a tree.

Labels equal those of one shard over all rows bit for bit, because a label depends on its own row and the centres only.
Sums are added in another order than on one shard, so they agree to rounding (about 1e-15 of their size).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from globular.model.statistics import F64, Floats
from globular.passes.cpu.shard import CpuShard, local_shard
from globular.passes.host import HostShard
from globular.seam.among import Need
from globular.seam.passes import Index, Labels, Locate, Pass, Result, RowValue, Take, Total
from globular.seam.shard import Shard

IN_PARTS = "the rows lie in several parts, each of which would have to keep a second copy"
Value = TypeVar("Value")
Node = tuple[int, int]
"""(level, number): the parts number · 2^level up to, and not including, (number + 1) · 2^level."""


class TreeSum(Generic[Value]):
    """Values at nodes of the tree over `n_parts` parts; two children become their parent as soon as both are there.

    Parts 0 and 1 are added, parts 2 and 3, then those two, and so on. The order in which numbers are added decides
    their last digits. A tree over the part numbers is an order that does not depend on who holds which part: a worker
    adds up what it can of its own parts, others go on from there, and the total has the same bits for any number of
    workers, and in one process.
    """

    def __init__(self, n_parts: int, merge: Callable[[Value, Value], Value]) -> None:
        self.n_parts = n_parts
        self.merge = merge
        self.nodes: dict[Node, Value] = {}

    def insert(self, level: int, number: int, value: Value) -> None:
        """Put in the sum of a node, and climb as far as siblings are there."""
        while 1 << level < self.n_parts:
            sibling = (level, number ^ 1)
            if number % 2 and sibling in self.nodes:
                value = self.merge(self.nodes.pop(sibling), value)
            elif sibling in self.nodes:
                value = self.merge(value, self.nodes.pop(sibling))
            elif number % 2 or (number + 1) << level < self.n_parts:
                break  # the sibling will come; without one (past the last part) the value climbs alone
            level, number = level + 1, number // 2
        self.nodes[level, number] = value


def tree_total(n_parts: int, merge: Callable[[Any, Any], Any], values: Iterable[Value]) -> Value:
    """The sum of the values of all parts, given in order."""
    tree = TreeSum[Value](n_parts, merge)
    for number, value in enumerate(values):
        tree.insert(0, number, value)
    (total,) = tree.nodes.values()
    return total


class SideBySide(Shard):
    """Parts that keep their own rows and state; row i of the whole is a row of the part it falls into."""

    _ends: Index
    """One past the last row of every part."""
    _parts: Sequence[Any]
    """Something that has `total_weight` and `lacks`, for every part."""

    @abstractmethod
    def _merged(self, work: Pass[Result]) -> Result:
        """The results of a pass on all parts, merged along the tree over their numbers."""

    @abstractmethod
    def _some(self, work: Mapping[int, Pass[Result]]) -> dict[int, Result]:
        """A pass of its own for each of some parts."""

    @property
    def weights_of_parts(self) -> F64:
        """Σ w of every part."""
        return np.array([part.total_weight for part in self._parts])

    @property
    def n_rows(self) -> int:  # type: ignore[override]
        return int(self._ends[-1])

    @property
    def total_weight(self) -> float:
        return float(sum(self.weights_of_parts.tolist()))

    @property
    def lacks(self) -> Mapping[Need, str]:
        found = {need: reason for part in self._parts for need, reason in part.lacks.items()}
        return {**found, Need.ONE_PLACE: IN_PARTS, Need.SPARSE: IN_PARTS}

    def run(self, work: Pass[Result]) -> Result:
        self._check(work)
        asked: Pass[Any] = work
        if isinstance(asked, Take):  # by the number in the whole
            return cast(Result, self.take(asked.indices, asked.what))
        if isinstance(asked, Locate):
            return cast(Result, self.locate(asked.masses, asked.by))
        return self._merged(work)

    def take(self, indices: Index, what: RowValue = "rows") -> NDArray[Any]:
        owners = np.searchsorted(self._ends, indices, side="right")
        shape = (len(indices), self.n_columns) if what == "rows" else (len(indices),)
        out: NDArray[Any] = np.empty(shape, dtype=np.int32 if what == "labels" else np.float64)
        return self._gather(owners, lambda part, own: Take(indices[own] - self._first(part), what), out)

    def locate(self, masses: F64, by: Any = "weights") -> Index:
        """Find the part of each mass from the totals, then the row inside it."""
        totals = self.weights_of_parts
        if by != "weights":
            errors = self._some(dict.fromkeys(range(len(totals)), Total(by)))
            totals = np.concatenate([errors[part] for part in range(len(totals))])
        ends = np.cumsum(totals)
        last = np.flatnonzero(totals > 0)[-1] if (totals > 0).any() else 0
        owners = np.minimum(np.searchsorted(ends, masses, side="right"), last)
        firsts, before, out = np.append(0, self._ends), ends - totals, np.empty(len(masses), dtype=np.intp)
        return firsts[owners] + self._gather(owners, lambda part, own: Locate(masses[own] - before[part], by), out)

    def _gather(
        self, owners: Index, work: Callable[[int, NDArray[np.bool_]], Pass[Any]], out: NDArray[Any]
    ) -> NDArray[Any]:
        """What the owner of each value says: `work` is what to ask of a part for those that it owns."""
        found = self._some({int(part): work(int(part), owners == part) for part in np.unique(owners)})
        for part, values in found.items():
            out[owners == part] = values
        return out

    def _first(self, part: int) -> int:
        return int(self._ends[part - 1]) if part else 0

    def subset(self, indices: Index) -> CpuShard:
        return self.local(self.take(indices), self.take(indices, "weights"))

    def local(self, rows: Floats, weights: F64 | None = None) -> CpuShard:
        return local_shard(rows, weights, self.n_threads)


class SplitShard(SideBySide):
    """Shards side by side in this process; row 0 of each gets the number it has in the whole."""

    def __init__(self, shards: Sequence[HostShard]) -> None:
        if not shards:
            raise ValueError("a split needs at least one shard")
        if len({shard.n_columns for shard in shards}) > 1:
            raise ValueError("all shards of a split must have the same number of columns")
        self.shards = self._parts = list(shards)
        self.n_columns, self.n_threads = shards[0].n_columns, shards[0].n_threads
        self._ends = np.cumsum([shard.n_rows for shard in shards])
        for number, shard in enumerate(shards):
            shard.first_row = self._first(number)

    @property
    def labels(self) -> Labels:
        return np.concatenate([shard.labels for shard in self.shards])

    def _merged(self, work: Pass[Result]) -> Result:
        return tree_total(len(self.shards), work.merge, (shard.run(work) for shard in self.shards))

    def _some(self, work: Mapping[int, Pass[Result]]) -> dict[int, Result]:
        return {part: self.shards[part].run(own) for part, own in work.items()}

    def local(self, rows: Floats, weights: F64 | None = None) -> Shard:  # type: ignore[override]
        """Beside the first part, which may lie on a card."""
        return self.shards[0].local(rows, weights)
