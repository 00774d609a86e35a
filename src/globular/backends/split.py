"""Any list of shards as one: map and add."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import add
from typing import Any, Concatenate

import numpy as np
from numpy.typing import NDArray

from globular.backends.mapped import Arguments, MappedShard, PartsInTurn, Result, call_part
from globular.backends.protocol import Index, Labels, LocalShard, Shard
from globular.backends.tree import tree_total
from globular.errors import UnsupportedPassError
from globular.model.columns import ColumnMeans
from globular.model.nested import Batch, NestedSearch, NestedStatistics
from globular.model.statistics import F64
from globular.model.subspace import Subspace

IN_PARTS = "the rows lie in several parts, each of which would have to keep a second copy"


def potential_of(part: Shard) -> float:
    """Σ w d² of a part, as left by its last `d2_pass`."""
    return float(part.take_potential(np.arange(part.n_rows)).sum())


class SideBySide(MappedShard):
    """Parts that keep their own rows and state; row i of the whole is a row of the part it falls into."""

    n_columns: int
    _ends: Index
    """One past the last row of every part."""

    @abstractmethod
    def _some(self, function: Callable[..., Result], arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Result]:
        """A function of a shard on some of the parts, each with arguments of its own."""

    @abstractmethod
    def _join_own(
        self,
        merge: Callable[[Result, Result], Result],
        function: Callable[..., Result],
        arguments: Sequence[tuple[Any, ...]],
    ) -> Result:
        """`_join` with arguments of its own for every part."""

    @property
    @abstractmethod
    def weights_of_parts(self) -> F64:
        """Σ w of every part."""

    @property
    def n_rows(self) -> int:
        return int(self._ends[-1])

    @property
    def total_weight(self) -> float:
        return float(sum(self.weights_of_parts.tolist()))

    def locate(self, masses: F64) -> Index:
        return self._locate(Shard.locate, masses, np.array(self._each(potential_of)))

    def locate_weight(self, masses: F64) -> Index:
        return self._locate(Shard.locate_weight, masses, self.weights_of_parts)

    def _locate(self, find: Callable[[Shard, F64], Index], masses: F64, totals: F64) -> Index:
        """Find the part of each mass from the totals, then the row inside it."""
        ends = np.cumsum(totals)
        last = np.flatnonzero(totals > 0)[-1] if (totals > 0).any() else 0
        owners = np.minimum(np.searchsorted(ends, masses, side="right"), last)
        wanted = {int(part): masses[owners == part] - (ends[part] - totals[part]) for part in np.unique(owners)}
        located = np.empty(len(masses), dtype=np.intp)
        for part, rows in self._some(find, {part: (mine,) for part, mine in wanted.items()}).items():
            located[owners == part] = rows + self._first_row(part)
        return located

    def _first_row(self, part: int) -> int:
        return int(self._ends[part - 1]) if part else 0

    def nested_pass(
        self, centers: F64 | ColumnMeans, origin: F64, batch: Batch, search: NestedSearch
    ) -> NestedStatistics:
        batches = [batch.seen_from(self._first_row(part)) for part in range(len(self._ends))]
        return self._join_own(add, Shard.nested_pass, [(centers, origin, seen, search) for seen in batches])

    def pick(self, indices: Index) -> Shard:
        return self.local(self.take(indices), self.take_weights(indices))

    def within(self, subspace: Subspace) -> Shard:
        raise UnsupportedPassError(f"within is not available here: {IN_PARTS}")

    def seed_weights(self, n_seeds: int) -> F64:
        return self._add(Shard.seed_weights, n_seeds)

    def take(self, indices: Index) -> F64:
        return self._collect(Shard.take, indices, np.empty((len(indices), self.n_columns)))

    def take_potential(self, indices: Index) -> F64:
        return self._collect(Shard.take_potential, indices, np.empty(len(indices)))

    def take_weights(self, indices: Index) -> F64:
        return self._collect(Shard.take_weights, indices, np.empty(len(indices)))

    def _collect(self, take: Callable[[Shard, Index], NDArray[Any]], indices: Index, out: NDArray[Any]) -> NDArray[Any]:
        """What `take` says of these rows, each asked of the part that has it."""
        owners = np.searchsorted(self._ends, indices, side="right")
        wanted = {int(part): (indices[owners == part] - self._first_row(int(part)),) for part in np.unique(owners)}
        for part, values in self._some(take, wanted).items():
            out[owners == part] = values
        return out


class SplitShard(SideBySide, PartsInTurn):
    """Shards side by side in this process."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        if not shards:
            raise ValueError("a split needs at least one shard")
        if len({shard.n_columns for shard in shards}) > 1:
            raise ValueError("all shards of a split must have the same number of columns")
        self.shards = list(shards)
        self.n_columns = shards[0].n_columns
        self._ends = np.cumsum([shard.n_rows for shard in shards])

    def parts(self) -> Iterator[Shard]:
        return iter(self.shards)

    @property
    def passes(self) -> Mapping[str, str]:
        return {**self.shards[0].passes, "within": IN_PARTS}

    @property
    def weights_of_parts(self) -> F64:
        return np.array([shard.total_weight for shard in self.shards])

    @property
    def labels(self) -> Labels:
        return np.concatenate([shard.labels for shard in self.shards])

    def _join(
        self,
        merge: Callable[[Result, Result], Result],
        function: Callable[Concatenate[Shard, Arguments], Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        results = (call_part(shard, function, *args, **kwargs) for shard in self.shards)
        return tree_total(len(self.shards), merge, results)

    def _some(self, function: Callable[..., Result], arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Result]:
        return {part: call_part(self.shards[part], function, *given) for part, given in arguments.items()}

    def _join_own(
        self,
        merge: Callable[[Result, Result], Result],
        function: Callable[..., Result],
        arguments: Sequence[tuple[Any, ...]],
    ) -> Result:
        results = (call_part(shard, function, *own) for shard, own in zip(self.shards, arguments, strict=True))
        return tree_total(len(self.shards), merge, results)

    def local(self, rows: F64, weights: F64 | None = None) -> LocalShard:
        return self.shards[0].local(rows, weights)
