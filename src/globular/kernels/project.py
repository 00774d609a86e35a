"""Coordinates of rows in a subspace."""

from __future__ import annotations

from typing import Any

from globular.jit import Queue, Scratch, kernel, take_number
from globular.jit.blas import multiply
from globular.kernels.rows import multiply_csr_row


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
