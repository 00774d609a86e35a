"""Coordinates of rows in a subspace: one matrix product, block by block."""

from __future__ import annotations

from typing import cast

import numpy as np

from globular.backends.cpu.rows import Floats
from globular.backends.cpu.shard import CpuShard
from globular.backends.host import HostShard
from globular.model.subspace import Subspace
from globular.seam.passes import Project
from globular.threads import even_ranges, run_all

ROWS_PER_BLOCK = 4096


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
    origin, basis = subspace.origin.astype(rows.dtype), subspace.basis.astype(rows.dtype)

    def project(span: tuple[int, int]) -> None:
        seen = rows.block(*span)
        if len(shard.scales):
            seen = seen * shard.scales[slice(*span), None].astype(rows.dtype)
        # subtracted before the product: an origin far from zero would eat the digits of the rows
        np.matmul(seen - origin if origin.any() else seen, basis, out=out[slice(*span)])

    run_all(project, even_ranges(shard.n_rows, ROWS_PER_BLOCK), shard.n_threads)
