"""Centres of sparse rows, themselves sparse: a column that no row of a cluster has is zero in its mean, and not kept.

Thousands of clusters of short texts have a few hundred columns each out of ten thousands: (C, D) arrays of them would
take longer to write in every iteration than the rows take to find their closest centre.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from globular.model.statistics import F64, I64, Floats

SPARSE_FROM = 500
"""Centres from which an inverted file of them takes less time than all products; larger = later."""
CENTERS_AT_ONCE = 256
"""Dense centres that are looked through at once."""


@dataclass(frozen=True, slots=True)
class SparseCenters:
    """C centres in the form of CSR rows, columns ascending."""

    starts: I64
    """Where the entries of each centre begin, (C + 1,)."""
    columns: NDArray[np.int32]
    values: F64
    n_columns: int

    @classmethod
    def of(cls, centers: Floats) -> SparseCenters:
        """Dense centres, (C, D)."""
        counts, columns, values = [np.zeros(1, dtype=np.int64)], [np.empty(0, dtype=np.int32)], [np.empty(0)]
        for begin in range(0, len(centers), CENTERS_AT_ONCE):
            some = centers[begin : begin + CENTERS_AT_ONCE]
            owners, at = np.nonzero(some)
            counts.append(np.bincount(owners, minlength=len(some)))
            columns.append(at.astype(np.int32))
            values.append(some[owners, at].astype(np.float64))
        return cls(np.cumsum(np.concatenate(counts)), np.concatenate(columns), np.concatenate(values), centers.shape[1])

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.starts) - 1, self.n_columns

    @property
    def owners(self) -> I64:
        """The centre of each entry."""
        return np.repeat(np.arange(self.shape[0]), np.diff(self.starts))

    @property
    def norms(self) -> F64:
        """‖m‖², (C,)."""
        return np.asarray(np.bincount(self.owners, self.values**2, minlength=self.shape[0]), dtype=np.float64)

    def times(self, factors: F64) -> SparseCenters:
        """Each centre times its factor, (C,)."""
        return SparseCenters(self.starts, self.columns, self.values * factors[self.owners], self.n_columns)

    def followed_by(self, others: SparseCenters) -> SparseCenters:
        """These centres and others."""
        starts = np.concatenate([self.starts, self.starts[-1] + others.starts[1:]])
        columns, values = np.concatenate([self.columns, others.columns]), np.concatenate([self.values, others.values])
        return SparseCenters(starts, columns, values, self.n_columns)

    def picked(self, which: NDArray[np.integer]) -> SparseCenters:
        """Some of the centres, in this order."""
        sizes = np.diff(self.starts)[which]
        starts = np.concatenate([[0], np.cumsum(sizes)])
        at = np.arange(starts[-1]) + np.repeat(self.starts[which] - starts[:-1], sizes)
        return SparseCenters(starts, self.columns[at], self.values[at], self.n_columns)

    def replaced(self, which: NDArray[np.integer], others: SparseCenters) -> SparseCenters:
        """The centres, some of them replaced by others."""
        order = np.arange(self.shape[0])
        order[which] = self.shape[0] + np.arange(len(which))
        return self.followed_by(others).picked(order)

    def is_same(self, old: SparseCenters) -> NDArray[np.bool_]:
        """Whether each centre is what it was before, (C,)."""
        same = np.diff(self.starts) == np.diff(old.starts)
        kept = np.flatnonzero(same)
        one, other = self.picked(kept), old.picked(kept)
        differs = (one.columns != other.columns) | (one.values != other.values)
        same[kept[one.owners[differs]]] = False
        return same

    def squared_shift(self, old: SparseCenters) -> float:
        """Σ_c ‖m − m_old‖²."""
        keys, old_keys = (each.owners * self.n_columns + each.columns for each in (self, old))
        at = np.minimum(np.searchsorted(old_keys, keys), max(0, len(old_keys) - 1))
        both = old_keys[at] == keys if len(old_keys) else np.zeros(len(keys), dtype=np.bool_)
        moved, gone = self.values.copy(), old.values.copy()
        moved[both] -= old.values[at[both]]
        gone[at[both]] = 0.0
        return float(moved @ moved + gone @ gone)

    def dense(self) -> F64:
        """The centres, (C, D)."""
        out = np.zeros(self.shape)
        out[self.owners, self.columns] = self.values
        return out


@dataclass(slots=True)
class SparseStatistics:
    """What `HardStatistics` are, of sparse rows and centres."""

    sums: SparseCenters
    """Σ w x per cluster."""
    counts: F64
    """Σ w per cluster, (C,)."""
    objective: float
    n_changed: int
    n_distances: int
    """Products of entries that were looked at, in units of a row's entries."""
    far: NDArray[np.intp]
    """Rows for the clusters that have none: the farthest from their centres, at different places."""
