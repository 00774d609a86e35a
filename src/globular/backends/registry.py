"""Which shard for which rows. Nobody outside of `backends` names a kind of shard: a new one is added here.

Rows on Dask workers are laid out by `backends.dask.opening`, whose workers come here for each of their parts.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from globular.backends.cpu import CpuShard
from globular.backends.host import HostShard
from globular.backends.many.stream import StreamShard
from globular.data.blocks import Matrix, Source
from globular.model.statistics import F64


def shard_over(
    rows: Matrix | Source,
    weights: F64 | None = None,
    *,
    unit_rows: bool = False,
    n_threads: int = 1,
    first_row: int = 0,
) -> HostShard:
    """A shard over rows that this process can read: a matrix stays where it lies, a source is read for every pass.

    `first_row` is the number of the first row in the whole data, of which these rows may be a part.
    """
    if isinstance(rows, np.ndarray | sparse.csr_matrix | sparse.csr_array):
        return CpuShard(rows, weights, unit_rows=unit_rows, n_threads=n_threads, first_row=first_row)
    return StreamShard(rows, weights, unit_rows=unit_rows, n_threads=n_threads, first_row=first_row)
