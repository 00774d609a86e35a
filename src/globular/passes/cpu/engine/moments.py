"""What a block of rows or chunks adds to the sums of an E-step, and what a mixture says of its rows.

The responsibilities times φ (see `densities`) are the moments of the M-step (Eqs. 12–14), one matrix product; those of
*tight* components are taken about their means.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from globular.jit import inline, kernel
from globular.jit.blas import add_product
from globular.passes.cpu.engine.densities import (
    NOTHING,
    TILE,
    add_moments,
    find_largest,
    joint_block,
    mirror,
    per_weight,
    put_difference,
    scale_lines,
    softmax_block,
    weight_of,
)
from globular.passes.host import NO_NUMBERS, NO_TABLE, NONE


class Tally(NamedTuple):
    """What spans or stretches add up, weighted by the responsibilities; all spans may lie one behind the other."""

    raw: Any  # (spans, C, W) sums of the features
    tight_sums: Any  # (spans, T, D) of tight components about their means
    tight_scatter: Any  # (spans, T, S), or (spans, T, D²) where it is whole matrices
    totals: Any  # (spans, 2) Σ w log p(x), Σ w


class Answers(NamedTuple):
    """What a mixture says of every row, as far as it is asked for."""

    components: Any = NO_NUMBERS  # (N,) the one of largest p(c | x), the lowest on ties, −1 for noise; or empty
    densities: Any = NONE  # (N,) log p(x), or empty
    table: Any = NO_TABLE  # (N, ≥ C), or empty: p(c | x) where densities are wanted too, else log p(c, x)


@inline
def begin_sums(tally: Any) -> None:
    """Zeros, written by the thread that adds to them: they are in its cache then."""
    tally.raw[:] = 0.0
    tally.tight_sums[:] = 0.0
    tally.tight_scatter[:] = 0.0
    tally.totals[0] = tally.totals[1] = 0.0


@kernel
def share_block(
    observed: Any,  # IN
    first: int,  # IN
    n: int,  # IN
    form: Any,  # IN
    block: Any,  # OUT its joint: w q(c); its densities: each row's part of the bound per unit weight
) -> None:
    """Responsibilities of some rows: the best ones (Eq. 10), or where `block` has room for it those of their means.

    With q = p(s | x̄) the bound of Eq. 9 is Σ q (⟨log p(s, x)⟩ − log q) = log p(x̄) + Σ q (⟨log p(s, x)⟩ − log p(s, x̄)).
    O(n·C·S)
    """
    by_means = block.bare.shape[0] > 0
    if by_means:
        joint_block(observed, first, n, form, False, block, block.bare)
    joint_block(observed, first, n, form, True, block, block.joint)
    if not by_means:
        softmax_block(block.joint, n, form.background, block.largest, block.totals, block.densities)
    else:
        for c in range(block.joint.shape[0]):
            for i in range(n):
                block.joint[c, i] -= block.bare[c, i]
        softmax_block(block.bare, n, form.background, block.largest, block.totals, block.densities)
        for c in range(block.joint.shape[0]):
            for i in range(n):
                block.densities[i] += block.bare[c, i] / block.totals[i] * block.joint[c, i]
                block.joint[c, i] = block.bare[c, i]
    for i in range(n):
        total = block.totals[i]
        block.totals[i] = weight_of(observed.counted, first + i) / total if total > 0.0 else np.nan
    scale_lines(block.joint, n, block.totals)


@kernel
def add_tight(
    observed: Any,  # IN
    first: int,  # IN
    n: int,  # IN
    least: float,  # IN
    form: Any,  # IN
    block: Any,  # IN  features and shares
    tally: Any,  # IN/OUT
) -> None:
    """Moments of tight components about their means; rows with no share to speak of cost nothing. O(n·T·S)."""
    (T, D), scatter = form.means.shape, tally.tight_scatter
    differences, whole = block.differences, form.factors.shape[1] > 0
    for t in range(T):
        shares = block.joint[form.tight[t]]
        m, largest = 0, 0.0
        for i in range(n):
            largest = max(largest, shares[i])
        for i in range(n + 1):  # the last time what is left is added: at a second place it would be compiled twice
            if i < n and shares[i] > max(least * weight_of(observed.counted, first + i), NOTHING * largest):
                for d in range(D):
                    put_difference(differences, m, d, block.features[i, d] - form.means[t, d])
                differences.values[m] = shares[i]
                if observed.scatter.shape[1]:
                    part = shares[i] * per_weight(observed.weights, first + i)
                    add_spread(observed.scatter, first + i, part, scatter, t, D if whole else 0)
                m += 1
            if m == TILE or (i == n and m > 0):
                add_moments(differences, m, whole, t, tally.tight_sums, scatter)
                m = 0


@inline
def add_spread(spread: Any, i: int, part: float, scatter: Any, t: int, D: int) -> None:
    """Add a part of what a chunk's rows scatter about its mean; of matrices, of D > 0, the upper triangle. O(S)."""
    if D:
        place = 0
        for d in range(D):
            for e in range(d, D):
                scatter[t, d * D + e] += part * spread[i, place]
                place += 1
    else:
        for s in range(scatter.shape[1]):
            scatter[t, s] += part * spread[i, s]


@kernel
def expect_some(
    observed: Any,  # IN
    first: int,  # IN
    end: int,  # IN  rows first … end − 1
    least: float,  # IN
    form: Any,  # IN
    block: Any,  # scratch of this thread
    tally: Any,  # OUT without the axis of spans
) -> None:
    """The sums of some rows. O(n·C·S)."""
    begin_sums(tally)
    B, (C, W), totals = block.features.shape[0], form.coefficients.shape, tally.totals
    for begin in range(first, end, B):
        n = min(B, end - begin)
        share_block(observed, begin, n, form, block)
        if form.tight.shape[0] < C:
            add_product(block.joint, block.features, 0, n, tally.raw)
        else:
            for c in range(C):
                for i in range(n):
                    tally.raw[c, W - 1] += block.joint[c, i]
        add_tight(observed, begin, n, least, form, block, tally)
        for i in range(n):
            totals[0] += weight_of(observed.counted, begin + i) * block.densities[i]
            totals[1] += weight_of(observed.counted, begin + i)
    mirror(tally.tight_scatter, form.means.shape[1] if form.factors.shape[1] else 0)


@kernel
def answer_some(
    observed: Any,  # IN
    first: int,  # IN
    end: int,  # IN  rows first … end − 1
    form: Any,  # IN
    block: Any,  # scratch of this thread
    answers: Any,  # OUT
) -> None:
    """What a mixture says of some rows. O(n·C·S)."""
    B = block.features.shape[0]
    for begin in range(first, end, B):
        n = min(B, end - begin)
        joint_block(observed, begin, n, form, True, block, block.joint)
        answer_block(begin, n, form.background, block, answers)


@inline
def answer_block(begin: int, n: int, background: float, block: Any, answers: Any) -> None:
    """What is asked for, from the log-joint of n rows from `begin` on, which the block has. O(n·C)."""
    components, densities, table = answers
    if components.shape[0]:
        find_largest(block.joint, n, block.largest, components[begin : begin + n])
        for i in range(n):
            if background > block.largest[i]:
                components[begin + i] = -1
    if densities.shape[0]:
        softmax_block(block.joint, n, background, block.largest, block.totals, densities[begin : begin + n])
        if table.shape[0]:
            for i in range(n):
                block.totals[i] = 1.0 / block.totals[i]
            scale_lines(block.joint, n, block.totals)
    if table.shape[0]:
        for i in range(n):
            for c in range(block.joint.shape[0]):
                table[begin + i, c] = block.joint[c, i]
