"""Any list of shards as one: map and add."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from globular.backends.mapped import MappedShard
from globular.backends.protocol import Index, Labels, LocalShard, Shard
from globular.model.statistics import F64


class SplitShard(MappedShard):
    """Shards side by side; row i of the whole is a row of the shard it falls into."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        if not shards:
            raise ValueError("a split needs at least one shard")
        if len({shard.n_columns for shard in shards}) > 1:
            raise ValueError("all shards of a split must have the same number of columns")
        self.shards = list(shards)
        self.n_columns = shards[0].n_columns
        self._ends = np.cumsum([shard.n_rows for shard in shards])
        self.n_rows = int(self._ends[-1])

    def parts(self) -> Iterator[Shard]:
        return iter(self.shards)

    @property
    def passes(self) -> Mapping[str, str]:
        return self.shards[0].passes

    @property
    def total_weight(self) -> float:
        return float(sum(shard.total_weight for shard in self.shards))

    @property
    def labels(self) -> Labels:
        return np.concatenate([shard.labels for shard in self.shards])

    def locate(self, masses: F64) -> Index:
        everything = [shard.take_potential(np.arange(shard.n_rows)).sum() for shard in self.shards]
        return self._locate(masses, np.array(everything), lambda shard, local: shard.locate(local))

    def locate_weight(self, masses: F64) -> Index:
        everything = [shard.total_weight for shard in self.shards]
        return self._locate(masses, np.array(everything), lambda shard, local: shard.locate_weight(local))

    def _locate(self, masses: F64, totals: F64, find: Callable[[Shard, F64], Index]) -> Index:
        """Find the shard of each mass from the totals, then the row inside it."""
        ends = np.cumsum(totals)
        last = np.flatnonzero(totals > 0)[-1] if (totals > 0).any() else 0
        owner = np.minimum(np.searchsorted(ends, masses, side="right"), last)
        found = np.empty(len(masses), dtype=np.intp)
        for number in np.unique(owner):
            mine = owner == number
            first = self._ends[number] - self.shards[number].n_rows
            found[mine] = first + find(self.shards[number], masses[mine] - (ends[number] - totals[number]))
        return found

    def seed_weights(self, n_seeds: int) -> F64:
        return np.sum([shard.seed_weights(n_seeds) for shard in self.shards], axis=0)

    def take(self, indices: Index) -> F64:
        return self._collect(indices, np.empty((len(indices), self.n_columns)), lambda shard, rows: shard.take(rows))

    def take_potential(self, indices: Index) -> F64:
        return self._collect(indices, np.empty(len(indices)), lambda shard, rows: shard.take_potential(rows))

    def take_weights(self, indices: Index) -> F64:
        return self._collect(indices, np.empty(len(indices)), lambda shard, rows: shard.take_weights(rows))

    def _collect(self, indices: Index, out: F64, take: Callable[[Shard, Index], F64]) -> F64:
        owner = np.searchsorted(self._ends, indices, side="right")
        for number in np.unique(owner):
            mine = owner == number
            first = self._ends[number] - self.shards[number].n_rows
            out[mine] = take(self.shards[number], indices[mine] - first)
        return out

    def local(self, rows: F64, weights: F64 | None = None) -> LocalShard:
        return self.shards[0].local(rows, weights)
