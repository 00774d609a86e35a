"""Coordinates of rows in a subspace."""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.kernels.compile import allocating_kernel
from globular.kernels.queue import take_number


@allocating_kernel  # it makes nothing, but a call of BLAS is compiled with the allocator only
def project_rows(
    queue: Any,  # IN/OUT blocks of B rows
    x: Any,  # IN  (N, D)
    scales: Any,  # IN  (N,) or empty
    origin: Any,  # IN  (D,) in the rows' dtype
    basis: Any,  # IN  (D, d) in it
    seen: Any,  # scratch (B, D)
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
        np.dot(seen[:m], basis, out[begin : begin + m])
        begin = B * take_number(queue)
