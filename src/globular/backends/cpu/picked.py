"""Some rows of a shard as a shard of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from globular.backends.cpu.center_scores import entries_of
from globular.backends.cpu.rows import CSRRows, DenseRows, Floats, read_only
from globular.backends.protocol import Index
from globular.kernels.votes import copy_csr
from globular.model.statistics import I64

if TYPE_CHECKING:
    from globular.backends.cpu.shard import CpuShard


@dataclass(frozen=True, slots=True)
class PickedRows(DenseRows):
    """Some rows of an array, gathered block by block."""

    chosen: Index

    def block(self, start: int, stop: int) -> Floats:
        return DenseRows.gather(self, self.chosen[start:stop])

    def gather(self, indices: NDArray[np.integer]) -> Floats:
        return DenseRows.gather(self, self.chosen[indices])

    def is_direct(self) -> bool:
        return False


def pick(shard: CpuShard, indices: Index) -> CpuShard:
    """See `Shard.pick`; dense rows are not copied."""
    part = type(shard)(np.empty((len(indices), 0), dtype=np.float32), n_threads=shard.n_threads)
    if np.array_equal(indices, np.arange(shard.n_rows)):
        part.rows = shard.rows
    elif isinstance(shard.rows, CSRRows):
        part.rows = _picked_csr(shard.rows, indices)
    else:
        part.rows = PickedRows(shard.rows.array, indices)
    part.n_columns = shard.n_columns
    part.weights = entries_of(shard.weights, indices)
    part.scales = entries_of(shard.scales, indices)
    return part


def _picked_csr(rows: CSRRows, chosen: I64) -> CSRRows:
    lengths = rows.indptr[chosen + 1] - rows.indptr[chosen]
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    data, indices = np.empty(indptr[-1], dtype=rows.dtype), np.empty(indptr[-1], dtype=np.int32)
    copy_csr((rows.data, rows.indices, rows.indptr), chosen, data, indices, indptr)
    picked = CSRRows.__new__(CSRRows)
    picked.shape = (len(chosen), rows.shape[1])
    picked.data, picked.indices, picked.indptr = read_only(data), read_only(indices), read_only(indptr)
    return picked
