"""Shards side by side in one process, their results merged along the tree by which workers merge theirs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from globular.data.residuals import Residuals
from globular.data.sources import ArraySource
from globular.model.statistics import F64, Floats
from globular.passes.host import HostShard
from globular.passes.many import SideBySide, StreamShard, TreeSum
from globular.seam.passes import Labels, Pass, Result
from globular.seam.shard import Shard

Value = TypeVar("Value")


def tree_total(n_parts: int, merge: Callable[[Any, Any], Any], values: Iterable[Value]) -> Value:
    """The sum of the values of all parts, given in order."""
    tree = TreeSum[Value](n_parts, merge)
    for number, value in enumerate(values):
        tree.insert(0, number, value)
    (total,) = tree.nodes.values()
    return total


def left_here(shard: Any, codes: Any, books: Sequence[Any]) -> HostShard:
    """What code words leave of a matrix in memory."""
    left = Residuals(ArraySource(shard.rows.array), codes, books, unit_rows=len(shard.scales) > 0)
    return StreamShard(left, shard.weights if len(shard.weights) else None)


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

    def left(self, codes: Any, books: Sequence[Any]) -> "SplitShard":
        cut = np.split(codes, self._ends[:-1])
        return SplitShard([left_here(shard, own, books) for shard, own in zip(self.shards, cut, strict=True)])

    def local(self, rows: Floats, weights: F64 | None = None) -> Shard:  # type: ignore[override]
        """Beside the first part, which may lie on a card."""
        return self.shards[0].local(rows, weights)
