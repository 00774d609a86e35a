"""Votes of a batch: sums of the rows that join and leave clusters, and the M-step of dense centres."""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.jit import Queue, inline, kernel, take_number, twin
from globular.jit.memory import prefetch_row
from globular.kernels.rows import add_row, squared_distance


@inline
def add_four(x: Any, at: Any, i: int, weights: Any, scales: Any, origin: Any, sums: Any, totals: Any, c: int) -> None:
    """Rows i … i + 3 join one cluster: its sum is read and written once for all of them. O(D)."""
    scaled = scales.shape[0] > 0
    a0, a1, a2, a3 = at[i], at[i + 1], at[i + 2], at[i + 3]
    w0, w1, w2, w3 = weights[i], weights[i + 1], weights[i + 2], weights[i + 3]
    s0, s1 = scales[i] if scaled else 1.0, scales[i + 1] if scaled else 1.0
    s2, s3 = scales[i + 2] if scaled else 1.0, scales[i + 3] if scaled else 1.0
    total = 0.0
    for j in range(x.shape[1]):
        v0, v1 = s0 * x[a0, j] - origin[0, j], s1 * x[a1, j] - origin[0, j]
        v2, v3 = s2 * x[a2, j] - origin[0, j], s3 * x[a3, j] - origin[0, j]
        y0, y1, y2, y3 = w0 * v0, w1 * v1, w2 * v2, w3 * v3
        sums[c, j] += (y0 + y1) + (y2 + y3)
        total += (y0 * v0 + y1 * v1) + (y2 * v2 + y3 * v3)
    totals[c, 1] += total


@kernel
def sum_votes(
    queue: Queue,  # IN/OUT runs
    runs: Any,  # IN  (R, 3), see `sums.cut_runs`
    pieces: Any,  # IN  (P,)
    rows: Any,  # IN
    at: Any,  # IN  (n,) where the rows lie in `rows`
    labels: Any,  # IN  (n,) ascending
    weights: Any,  # IN  (n,) w of rows that join their clusters, −w of those that leave them
    scales: Any,  # IN  (n,) or empty
    origin: Any,  # IN  (1, D)
    origin_norm: Any,  # IN  (1,) its squared length
    totals: Any,  # OUT (C, 3) ± Σ w, ± Σ w ‖s x − origin‖², ± number of rows of positive weight
    sums: Any,  # IN/OUT (C, D) ± Σ w (s x − origin); of CSR rows ± Σ w s x
    piece_totals: Any,  # OUT (P, 3) the same of pieces
    piece_sums: Any,  # OUT (P, D)
) -> None:
    """accumulate(i) of Alg. 3, with the squares that sse needs. O(n · D) or O(nnz)."""
    run = take_number(queue)
    while run < runs.shape[0]:
        begin, end, piece = runs[run, 0], runs[run, 1], runs[run, 2]
        if piece >= 0:
            piece_totals[piece] = 0.0
            piece_sums[piece] = 0.0
            add_votes(
                rows, at, labels, weights, scales, origin, origin_norm, begin, end, pieces[piece] - piece,
                piece_totals, piece_sums,
            )  # fmt: skip
        else:
            add_votes(rows, at, labels, weights, scales, origin, origin_norm, begin, end, 0, totals, sums)
        run = take_number(queue)


@twin
def add_votes(
    rows: Any, at: Any, labels: Any, weights: Any, scales: Any, origin: Any, origin_norm: Any, begin: int, end: int,
    base: int, totals: Any, sums: Any,
) -> None:  # fmt: skip
    """Rows begin … end − 1 to the sums of their labels less `base`. O(D) or O(nnz) each."""
    x = rows[0]
    for i in range(begin, end):
        totals[labels[i] - base, 0] += weights[i]
        totals[labels[i] - base, 2] += np.sign(weights[i])
    i = begin
    while i < end:
        c = labels[i] - base
        if i + 3 < end and labels[i + 3] == labels[i]:
            for k in range(i + 4, min(i + 8, end)):
                prefetch_row(x, at[k])
            add_four(x, at, i, weights, scales, origin, sums, totals, c)
            i += 4
            continue
        scale, total = scales[i] if scales.shape[0] else 1.0, 0.0
        for j in range(x.shape[1]):
            value = scale * x[at[i], j] - origin[0, j]
            sums[c, j] += weights[i] * value
            total += value * value
        totals[c, 1] += weights[i] * total
        i += 1


@add_votes.for_csr
def _add_votes(
    rows: Any, at: Any, labels: Any, weights: Any, scales: Any, origin: Any, origin_norm: Any, begin: int, end: int,
    base: int, totals: Any, sums: Any,
) -> None:  # fmt: skip
    for i in range(begin, end):
        c, weight = labels[i] - base, weights[i]
        scale = scales[i] if scales.shape[0] else 1.0
        totals[c, 0] += weight
        totals[c, 1] += weight * squared_distance(rows, at[i], scale, origin, 0, origin_norm)
        totals[c, 2] += np.sign(weight)
        add_row(rows, at[i], weight * scale, origin[0], sums, c)


@kernel
def move_centers(
    sums: Any,  # IN  (C, D) Σ w (x − origin) before the last batch
    change: Any,  # IN/OUT (C, D) what the last batch adds to the sums; on return the sums with it
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
            added = change[c, j]
            total = sums[c, j] + added
            change[c, j] = total
            step = old[c, j] - origin[j]
            with_sums += step * total
            with_change += step * added
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
                centers[c, j] = (change[c, j] + counts[c] * origin[j]) / divisor
                shift += (centers[c, j] - old[c, j]) ** 2
        else:
            for j in range(D):
                centers[c, j] = origin[j] + change[c, j] / divisor
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
