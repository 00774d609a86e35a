"""The centres that k-means has found: dense, or sparse where rows and their means are.

A million columns and ten thousand centres are 80 GB, of which a few hundred MB are not zero. So a fit that keeps its
centres sparse hands out `sparse_centers_`; `cluster_centers_` is made of them for the first who asks.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from globular.estimators.checks import checked_floats
from globular.estimators.inputs import Input
from globular.model.sparse_centers import SparseCenters
from globular.model.statistics import F64, HardStatistics
from globular.seam.passes import Assign
from globular.seam.shard import Shard
from globular.seam.sparse_passes import LabelSparse


class KeptCenters:
    """Mixin of estimators that hand out centres."""

    n_features_in_: int
    sparse_centers_: sparse.csr_array

    @cached_property
    def cluster_centers_(self) -> NDArray[np.floating[Any]]:
        """The centres of a fit that keeps them sparse, made dense for the first who asks; else what a fit has set."""
        if "sparse_centers_" not in vars(self):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute 'cluster_centers_'")
        return np.asarray(self.sparse_centers_.toarray())

    def _keep_centers(self, centers: F64 | SparseCenters, data: Input) -> None:
        """Set `cluster_centers_`, or `sparse_centers_`, in the type of the data."""
        for name in ("cluster_centers_", "sparse_centers_"):
            self.__dict__.pop(name, None)
        if isinstance(centers, SparseCenters):
            self.sparse_centers_ = centers.with_data(centers.matrix.data.astype(data.dtype))
        else:
            self.cluster_centers_ = np.asarray(centers.astype(data.dtype))

    @property
    def _n_found(self) -> int:
        """How many there are."""
        kept = vars(self).get("sparse_centers_")
        return len(self.cluster_centers_) if kept is None else int(kept.shape[0])

    def _sparse_centers(self) -> SparseCenters | None:
        """The centres of a fit that keeps them sparse."""
        if (matrix := vars(self).get("sparse_centers_")) is None:
            return None
        if matrix.shape[1] != self.n_features_in_:
            raise ValueError(
                f"sparse_centers_ has {matrix.shape[1]} columns, the model {self.n_features_in_}; fit again"
            )
        if matrix.nnz:
            checked_floats(matrix.data, "sparse_centers_", (None,))
        return SparseCenters(SparseCenters(matrix).with_data(matrix.data.astype(np.float64)))

    def _centers(self) -> F64:
        return checked_floats(self.cluster_centers_, "cluster_centers_", (None, self.n_features_in_))

    def _assign(self, shard: Shard) -> HardStatistics:
        """Label every row with the closest of all centres, which stay sparse where rows are."""
        centers = self._sparse_centers() if self._stays_sparse(shard) else None
        return shard.run(Assign(self._centers(), want="labels") if centers is None else LabelSparse(centers))

    def _stays_sparse(self, shard: Shard) -> bool:
        """Whether an inverted file finds the closest centre: then no search among few of them is faster."""
        return "sparse_centers_" in vars(self) and not shard.why_not(LabelSparse)
