"""Centres of sparse rows, themselves sparse: a column that no row of a cluster has is zero in its mean, and not kept.

Thousands of clusters of short texts have a few hundred columns each out of ten thousands: (C, D) arrays of them would
take longer to write in every iteration than the rows take to find their closest centre.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from globular.model.statistics import F64, Floats

SPARSE_FROM = 400
"""Centres from which an inverted file of them takes less time than all products; larger = later."""
NUMBERS_PER_ENTRY = 16
"""Numbers of dense centres for each that is not zero from which they are worth inverting; larger = fewer are."""


def are_sparse(centers: Floats) -> bool:
    """Whether dense centres, (C, D), are many, and empty enough for an inverted file to pay."""
    return len(centers) >= SPARSE_FROM and NUMBERS_PER_ENTRY * int(np.count_nonzero(centers)) <= centers.size


@dataclass(frozen=True, slots=True)
class SparseCenters:
    """C centres: what algorithms do with them."""

    matrix: sparse.csr_array
    """(C, D) in float64; columns ascend."""

    @classmethod
    def of(cls, centers: Floats) -> SparseCenters:
        """Dense centres, (C, D)."""
        C, D = centers.shape
        entries = np.flatnonzero(centers != 0)  # SciPy's own search by rows and columns takes ten times as long
        begins = entries.searchsorted(D * np.arange(C + 1))
        columns = entries - np.repeat(D * np.arange(C), np.diff(begins))
        return cls(sparse.csr_array((centers.ravel()[entries].astype(np.float64), columns, begins), (C, D)))

    @property
    def shape(self) -> tuple[int, int]:
        C, D = self.matrix.shape
        return C, D

    @property
    def owners(self) -> NDArray[np.int32]:
        """The centre of each entry."""
        return np.repeat(np.arange(self.shape[0], dtype=np.int32), np.diff(self.matrix.indptr))

    @property
    def norms(self) -> F64:
        """‖m‖², (C,)."""
        return np.asarray(np.bincount(self.owners, self.matrix.data**2, minlength=self.shape[0]), dtype=np.float64)

    def with_data(self, data: Floats) -> sparse.csr_array:
        """The matrix with other numbers in its places, which are not copied."""
        return sparse.csr_array((data, self.matrix.indices, self.matrix.indptr), self.shape)

    def over(self, divisors: F64) -> SparseCenters:
        """Each centre by its divisor, (C,)."""
        return SparseCenters(self.with_data(self.matrix.data / divisors[self.owners]))

    def followed_by(self, others: SparseCenters) -> SparseCenters:
        """These centres and others."""
        return SparseCenters(sparse.vstack([self.matrix, others.matrix], format="csr"))

    def picked(self, which: NDArray[np.integer]) -> SparseCenters:
        """Some of the centres, in this order."""
        return SparseCenters(self.matrix[which])

    def replaced(self, which: NDArray[np.integer], others: SparseCenters) -> SparseCenters:
        """The centres, some of them replaced by others."""
        order = np.arange(self.shape[0])
        order[which] = self.shape[0] + np.arange(len(which))
        return self.followed_by(others).picked(order)

    def is_same(self, old: SparseCenters) -> NDArray[np.bool_]:
        """Whether each centre is what it was before, (C,)."""
        return np.diff((self.matrix - old.matrix).indptr) == 0

    def squared_shift(self, old: SparseCenters) -> float:
        """Σ_c ‖m − m_old‖²."""
        shift = (self.matrix - old.matrix).data
        return float(shift @ shift)

    def dense_centers(self) -> F64:
        """The centres, (C, D)."""
        return np.asarray(self.matrix.toarray())


@dataclass(frozen=True, slots=True)
class SparseMeans(SparseCenters):
    """Centres that are the sums of their rows, each over a divisor."""

    counts: F64
    """Σ w per cluster, (C,)."""
    divisors: F64
    """0 where the centre is not a mean: the cluster has no rows, or they cancel."""

    def sums(self) -> sparse.csr_array:
        """Σ w x per cluster, (C, D)."""
        return self.with_data(self.matrix.data * self.divisors[self.owners])


@dataclass(slots=True)
class SparseSeeds:
    """Seeds that were drawn."""

    indices: NDArray[np.intp]
    """Their rows."""
    centers: SparseCenters
    potential: float
    """Σ w d² to the closest seed."""


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
    far: SparseCenters
    """Rows for the clusters that have none: the farthest from their centres, at different places."""
