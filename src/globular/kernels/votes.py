"""Votes of a batch: sums of the rows that join and leave clusters, and the M-step of dense centres."""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.kernels.compile import kernel
from globular.kernels.rows import add_row, squared_distance, squared_norm


@kernel
def sum_votes(
    rows: Any,  # IN
    at: Any,  # IN  (n,) where each row lies in `rows`
    chosen: Any,  # IN  (n,) the rows' numbers in the shard
    weights: Any,  # IN  (N,) or empty
    scales: Any,  # IN  (N,) or empty
    shift: Any,  # IN  (D,) subtracted from dense rows before they are added
    origin: Any,  # IN  (1, D) what squares are taken about
    origin_norm: Any,  # IN  (1,) its squared length
    labels: Any,  # IN  (n,)
    sign: float,  # IN  1: the rows join their clusters, −1: they leave them
    base: int,  # IN  label that goes to the first row of `sums`
    sums: Any,  # IN/OUT (·, D) ± Σ w (s x − shift)
    counts: Any,  # IN/OUT (·,) ± Σ w
    squares: Any,  # IN/OUT (·,) ± Σ w ‖s x − origin‖²
    sizes: Any,  # IN/OUT (·,) ± number of rows of positive weight
) -> None:
    """accumulate(i) of Alg. 3 for some rows, with the squares that sse needs. O(n · D)."""
    for i in range(chosen.shape[0]):
        r, c = chosen[i], labels[i] - base
        weight = sign * (weights[r] if weights.shape[0] else 1.0)
        if weight == 0.0:
            continue
        scale = scales[r] if scales.shape[0] else 1.0
        counts[c] += weight
        sizes[c] += np.int64(sign)
        if origin_norm[0] > 0.0:
            squares[c] += weight * squared_distance(rows, at[i], scale, origin, 0, origin_norm)
        else:
            squares[c] += weight * scale * scale * squared_norm(rows, at[i])
        add_row(rows, at[i], weight * scale, shift, sums, c)


@kernel
def move_centers(
    change: Any,  # IN  (C, D) what the last batch added to the sums
    sums: Any,  # IN/OUT (C, D) Σ w (x − origin)
    counts: Any,  # IN  (C,) Σ w, the last batch included
    origin: Any,  # IN  (D,)
    old: Any,  # IN  (C, D) the centres
    unit: bool,  # IN  whether centres have unit length
    centers: Any,  # OUT (C, D) the means; a cluster without votes keeps its place
    shifts: Any,  # OUT (C,) ‖centers − old‖
    cross: Any,  # OUT (C, 3) (old − origin) · sums, (old − origin) · change, ‖old − origin‖²
    first: int,  # IN  clusters first … last − 1
    last: int,  # IN
) -> None:
    """Everything that touches C × D numbers in an M-step, in one go. O(clusters · D)."""
    D = old.shape[1]
    for c in range(first, last):
        with_sums, with_change, squared, norm = 0.0, 0.0, 0.0, 0.0
        for j in range(D):
            total = sums[c, j] + change[c, j]
            sums[c, j] = total
            step = old[c, j] - origin[j]
            with_sums += step * total
            with_change += step * change[c, j]
            squared += step * step
            whole = total + counts[c] * origin[j]
            norm += whole * whole
        cross[c, 0], cross[c, 1], cross[c, 2] = with_sums, with_change, squared
        divisor = np.sqrt(norm) if unit else counts[c]
        shift = 0.0
        # opposite rows may cancel: such a cluster keeps its direction
        if counts[c] <= 0.0 or (unit and divisor <= 1e-12 * counts[c]):
            for j in range(D):
                centers[c, j] = old[c, j]
        elif unit:
            for j in range(D):
                centers[c, j] = (sums[c, j] + counts[c] * origin[j]) / divisor
                shift += (centers[c, j] - old[c, j]) ** 2
        else:
            for j in range(D):
                centers[c, j] = origin[j] + sums[c, j] / divisor
                shift += (centers[c, j] - old[c, j]) ** 2
        shifts[c] = np.sqrt(shift)


@kernel
def copy_csr(
    rows: Any,  # IN  (data, indices, indptr)
    chosen: Any,  # IN  (m,) rows to copy
    data: Any,  # OUT
    indices: Any,  # OUT
    indptr: Any,  # IN  (m + 1,) where each row goes
) -> None:
    """Those CSR rows one after the other. O(nnz)."""
    for k in range(chosen.shape[0]):
        source = rows[2][chosen[k]]
        for j in range(indptr[k + 1] - indptr[k]):
            data[indptr[k] + j] = rows[0][source + j]
            indices[indptr[k] + j] = rows[1][source + j]
