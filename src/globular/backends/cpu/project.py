"""Coordinates of rows in a subspace: one matrix product, block by block."""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray

from globular.backends.cpu.rows import Floats, KernelRows, on_rows
from globular.backends.cpu.shard import CpuShard
from globular.backends.host import HostShard
from globular.kernels.project import project_rows
from globular.model.subspace import Subspace
from globular.seam.passes import Project

ROWS_PER_BLOCK = 512


@HostShard.implements(Project)
def project(shard: HostShard, work: Project) -> CpuShard:
    """The coordinates of all rows, those of one part after the other."""
    coordinates = np.empty((shard.n_rows, work.subspace.dimension), dtype=shard.dtype)
    begin = 0
    for part in shard.parts():
        _write_coordinates(cast(CpuShard, part), work.subspace, coordinates[begin : begin + part.n_rows])
        begin += part.n_rows
    weights = shard.weights if len(shard.weights) else None
    return CpuShard(coordinates, weights, n_threads=shard.n_threads, state=shard.state, first_row=shard.first_row)


def _write_coordinates(shard: CpuShard, subspace: Subspace, out: Floats) -> None:
    """(x − origin) · basis of every row, in the dtype of the rows, to `out` (N, d)."""
    rows = shard.dense_rows
    origin, basis = subspace.origin.astype(rows.dtype), np.ascontiguousarray(subspace.basis, dtype=rows.dtype)

    def project(queue: NDArray[np.int64], rows: KernelRows, part: slice) -> None:
        seen = np.empty((ROWS_PER_BLOCK, shard.n_columns), dtype=out.dtype)
        project_rows(queue, rows[0], shard.scales[part], origin, basis, seen, out[part])

    on_rows(rows, shard.n_threads, project)
