"""E-steps and answers of mixtures with linear log-densities on sparse rows: one call per thread.

A row is multiplied with the slopes of all components at once, nonzero by nonzero, so a pass costs what the nonzeros of
the rows cost. Slopes and sums therefore have a line for every column, (D, C). Blocks, spans and responsibilities are
those of `kernels.joint` and `kernels.expect`, which do the same for dense rows as a matrix product.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from globular.jit import Queue, Scratch, inline, kernel, take_number
from globular.kernels.expect import NOTHING, find_largest, weight_of
from globular.kernels.joint import scale_lines, softmax_block
from globular.kernels.rows import multiply_csr_row

NO_BACKGROUND = -np.inf
"""There is no noise."""


class SparseForm(NamedTuple):
    """A mixture as linear functions of sparse rows."""

    slopes: Any  # (D, C)
    constants: Any  # (C,)


class SparseBlock(NamedTuple):
    """Scratch of a thread for B rows."""

    joint: Any  # (C, B) log p(c, x), then w p(c | x)
    product: Any  # (C,)
    chosen: Any  # (C,) components with a share in a row
    largest: Any  # (B,)
    densities: Any  # (B,)
    totals: Any  # (B,)


class SparseTally(NamedTuple):
    """What spans add up, weighted by the responsibilities."""

    sums: Any  # (spans, D, C)
    counts: Any  # (spans, C)
    totals: Any  # (spans, 2) Σ w log p(x), Σ w


@kernel
def joint_of_csr(
    rows: Any,  # IN  CSR
    scales: Any,  # IN  (N,) or empty: factors of the rows
    first: int,  # IN
    n: int,  # IN  rows first … first + n − 1
    form: Any,  # IN
    block: Any,  # OUT its joint
) -> None:
    """log p(c, x) of some rows under all components. O(nnz·C)."""
    C = form.constants.shape[0]
    for i in range(n):
        scale = scales[first + i] if scales.shape[0] else 1.0
        multiply_csr_row(rows, first + i, scale, form.slopes, 0, block.product)
        for c in range(C):
            block.joint[c, i] = block.product[c] + form.constants[c]


@inline
def add_csr_row(rows: Any, i: int, scale: float, joint: Any, at: int, least: float, block: Any, sums: Any) -> None:
    """sums[:, c] += w q(c) x for the components whose share is more than `least`. O(nnz·C), mostly O(nnz)."""
    data, indices, indptr = rows
    C, m = joint.shape[0], 0
    for c in range(C):
        share = joint[c, at]
        if share > least:
            block.product[m] = scale * share
            block.chosen[m] = c
            m += 1
    for k in range(indptr[i], indptr[i + 1]):
        line = sums[indices[k]]
        for j in range(m):
            line[block.chosen[j]] += block.product[j] * data[k]


@kernel
def expect_csr(
    queue: Queue,  # IN/OUT spans not taken yet
    rows_per_span: int,  # IN
    rows: Any,  # IN  CSR
    scales: Any,  # IN  (N,) or empty
    counted: Any,  # IN  (N,) or empty: how much each row counts
    form: Any,  # IN
    block: Scratch,  # scratch of this thread
    tally: Any,  # OUT
) -> None:
    """An E-step and what an M-step needs of it. O(nnz·C)."""
    N, B, C = rows[2].shape[0] - 1, block.densities.shape[0], form.constants.shape[0]
    span = take_number(queue)
    while span < tally.counts.shape[0]:
        sums, counts, totals = tally.sums[span], tally.counts[span], tally.totals[span]
        sums[:] = 0.0
        counts[:] = 0.0
        totals[:] = 0.0
        end = min(N, (span + 1) * rows_per_span)
        for first in range(span * rows_per_span, end, B):
            n = min(B, end - first)
            joint_of_csr(rows, scales, first, n, form, block)
            softmax_block(block.joint, n, NO_BACKGROUND, block.largest, block.totals, block.densities)
            for i in range(n):
                weight = weight_of(counted, first + i)
                totals[0] += weight * block.densities[i]
                totals[1] += weight
                block.totals[i] = weight / block.totals[i]
            scale_lines(block.joint, n, block.totals)
            for c in range(C):
                for i in range(n):
                    counts[c] += block.joint[c, i]
            for i in range(n):
                scale = scales[first + i] if scales.shape[0] else 1.0
                least = NOTHING * weight_of(counted, first + i)
                add_csr_row(rows, first + i, scale, block.joint, i, least, block, sums)
        span = take_number(queue)


@kernel
def answer_csr(
    queue: Queue,  # IN/OUT spans not taken yet
    rows_per_span: int,  # IN
    rows: Any,  # IN  CSR
    scales: Any,  # IN  (N,) or empty
    form: Any,  # IN
    block: Scratch,  # scratch of this thread
    components: Any,  # OUT (N,) the one of largest p(c | x), the lowest on ties; or empty
    densities: Any,  # OUT (N,) log p(x), or empty
    table: Any,  # OUT (N, C) p(c | x), or empty
) -> None:
    """What a mixture says of every row. O(nnz·C)."""
    N, B, C = rows[2].shape[0] - 1, block.densities.shape[0], form.constants.shape[0]
    span = take_number(queue)
    while span * rows_per_span < N:
        end = min(N, (span + 1) * rows_per_span)
        for first in range(span * rows_per_span, end, B):
            n = min(B, end - first)
            joint_of_csr(rows, scales, first, n, form, block)
            if components.shape[0]:
                find_largest(block.joint, n, block.largest, components[first : first + n])
            if densities.shape[0]:
                softmax_block(block.joint, n, NO_BACKGROUND, block.largest, block.totals, densities[first : first + n])
                if table.shape[0]:
                    for i in range(n):
                        for c in range(C):
                            table[first + i, c] = block.joint[c, i] / block.totals[i]
        span = take_number(queue)
