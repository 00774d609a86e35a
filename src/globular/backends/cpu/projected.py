"""Coordinates of rows in a subspace: one matrix product, block by block."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from globular.backends.cpu.rows import DenseRows, Floats
from globular.model.subspace import Subspace
from globular.threads import even_ranges, run_all

if TYPE_CHECKING:
    from globular.backends.cpu.shard import CpuShard

ROWS_PER_BLOCK = 4096


def write_coordinates(shard: CpuShard, subspace: Subspace, out: Floats) -> None:
    """(x − origin) · basis of every row, in the dtype of the rows, to `out` (N, d)."""
    rows = shard.rows
    if not isinstance(rows, DenseRows):
        raise TypeError("a subspace needs dense rows")
    origin, basis = subspace.origin.astype(rows.dtype), subspace.basis.astype(rows.dtype)

    def project(span: tuple[int, int]) -> None:
        seen = rows.block(*span)
        if len(shard.scales):
            seen = seen * shard.scales[slice(*span), None].astype(rows.dtype)
        # subtracted before the product: an origin far from zero would eat the digits of the rows
        np.matmul(seen - origin if origin.any() else seen, basis, out=out[slice(*span)])

    run_all(project, even_ranges(shard.n_rows, ROWS_PER_BLOCK), shard.n_threads)
