"""Coordinates of rows in a subspace: one matrix product, block by block; and what leads sparse rows to one."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from globular.jit import Queue, Scratch, kernel, take_number
from globular.jit.blas import multiply
from globular.model.statistics import F64, Floats
from globular.model.subspace import Subspace
from globular.passes.cpu.engine.rows import multiply_csr_row
from globular.passes.cpu.rows import CSRRows, KernelRows, on_rows
from globular.passes.cpu.shard import CpuShard
from globular.passes.host import ROWS_PER_PRODUCT, HostShard
from globular.seam.passes import PowerStep, Project


@kernel
def project_rows(
    queue: Queue,  # IN/OUT blocks of B rows
    x: Any,  # IN  (N, D)
    scales: Any,  # IN  (N,) or empty
    origin: Any,  # IN  (D,) in the rows' dtype
    basis: Any,  # IN  (D, d) in it
    seen: Scratch,  # scratch (B, D)
    out: Any,  # OUT (N, d) (x − origin) · basis
) -> None:
    """The origin is subtracted before the product: far from zero it would eat the digits of the rows. O(N · D · d)."""
    n, B = x.shape[0], seen.shape[0]
    begin = B * take_number(queue)
    while begin < n:
        m = min(B, n - begin)
        for k in range(m):
            stretch = x.dtype.type(scales[begin + k] if scales.shape[0] else 1.0)
            for j in range(x.shape[1]):
                seen[k, j] = stretch * x[begin + k, j] - origin[j]
        multiply(seen, basis, out[begin : begin + m])
        begin = B * take_number(queue)


@kernel
def project_csr_rows(
    queue: Queue,  # IN/OUT blocks of B rows
    B: int,  # IN
    rows: Any,  # IN  (data, indices, indptr)
    scales: Any,  # IN  (N,) or empty
    basis: Any,  # IN  (D, d) in the rows' dtype
    origin: Any,  # IN  (d,) origin · basis
    out: Any,  # OUT (N, d)
) -> None:
    """The same for CSR rows, whose origin is near enough; `out` may have another precision. O(nnz · d)."""
    n, d = out.shape
    begin = B * take_number(queue)
    while begin < n:
        for i in range(begin, min(begin + B, n)):
            multiply_csr_row(rows, i, scales[i] if scales.shape[0] else 1.0, basis, 0, out[i])
            for c in range(d):
                out[i, c] -= origin[c]
        begin = B * take_number(queue)


class _Columns(NamedTuple):
    """Sparse rows by their columns, from the first power step until there are coordinates."""

    entries: CSRRows


@HostShard.implements(Project)
def project(shard: HostShard, work: Project) -> CpuShard:
    """The coordinates of all rows, those of one part after the other, in the dtype of the rows."""
    return project_as(shard.dtype, shard, work.subspace)


def project_as(dtype: np.dtype[Any], shard: HostShard, subspace: Subspace) -> CpuShard:
    """The same, in this dtype."""
    coordinates = np.empty((shard.n_rows, subspace.dimension), dtype=dtype)
    begin = 0
    for part in shard.parts():
        cast(CpuShard, part).forget(_Columns)
        _write_coordinates(cast(CpuShard, part), subspace, coordinates[begin : begin + part.n_rows])
        begin += part.n_rows
    weights = shard.weights if len(shard.weights) else None
    return CpuShard(coordinates, weights, n_threads=shard.n_threads, state=shard.state, first_row=shard.first_row)


def _write_coordinates(shard: CpuShard, subspace: Subspace, out: Floats) -> None:
    """(x − origin) · basis of every row to `out` (N, d), in its dtype."""
    dtype = out.dtype
    origin, basis = subspace.origin.astype(dtype), np.ascontiguousarray(subspace.basis, dtype=dtype)

    def project(queue: NDArray[np.int64], rows: KernelRows, part: slice) -> None:
        if isinstance(shard.rows, CSRRows):
            project_csr_rows(queue, ROWS_PER_PRODUCT, rows, shard.scales[part], basis, seen_origin, out[part])
            return
        seen = np.empty((ROWS_PER_PRODUCT, shard.n_columns), dtype=out.dtype)
        project_rows(queue, rows[0], shard.scales[part], origin, basis, seen, out[part])

    seen_origin = (subspace.origin @ subspace.basis).astype(dtype)
    on_rows(shard.rows, shard.n_threads, project)


@CpuShard.implements(PowerStep)
def power_step(shard: CpuShard, work: PowerStep) -> F64:
    """Coordinates of the rows, then the same product again of the columns with them."""
    rows, n_directions = shard.rows, work.subspace.dimension
    assert isinstance(rows, CSRRows)
    coordinates = np.empty((shard.n_rows, n_directions), dtype=shard.dtype)
    _write_coordinates(shard, work.subspace, coordinates)
    if len(shard.weights):
        coordinates *= shard.weights[:, None]
    totals = np.add.reduce(coordinates, axis=0, dtype=np.float64)
    if len(shard.scales):
        coordinates *= shard.scales[:, None]
    columns = _columns_of(shard, rows)
    out, nowhere = np.empty((shard.n_columns, n_directions)), np.zeros(n_directions)

    def multiply(queue: NDArray[np.int64], columns: KernelRows, part: slice) -> None:
        project_csr_rows(queue, ROWS_PER_PRODUCT, columns, shard.scales[:0], coordinates, nowhere, out[part])

    on_rows(columns, shard.n_threads, multiply, calls_blas=False)
    out -= work.subspace.origin[:, None] * totals
    return out


def _columns_of(shard: CpuShard, rows: CSRRows) -> CSRRows:
    """Taken once for all power steps; as much memory as the rows."""
    kept = shard.recall(_Columns)
    if kept is None:
        matrix = sparse.csr_matrix((rows.data, rows.indices, rows.indptr), shape=rows.shape)
        kept = _Columns(CSRRows(matrix.T.tocsr()))
        shard.keep(kept)
    return kept.entries
