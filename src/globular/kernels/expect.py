"""Passes of Gaussian mixtures as one call per thread: sums of an E-step, and what a mixture says of every row.

Rows come in spans, and a thread takes the next span until none is left (`kernels.queue`). What a span adds up goes to
its own place, so results do not depend on threads. A span that says of which mixture it is, is a *stretch*: one kernel
serves all rows under one mixture and many small mixtures, each with rows of its own (`kernels.shares`). See
`kernels.joint` for what is done with a block of rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from globular.jit import Queue, Scratch, inline, kernel, take_number
from globular.jit.blas import add_product
from globular.kernels.differences import TILE, add_moments, mirror, put_difference
from globular.kernels.joint import Block, Form, joint_block, per_weight, scale_lines, softmax_block

NOTHING = 1e-20
"""A share that adds nothing to the largest one of its component in a block: less than sums are rounded by."""


class Tally(NamedTuple):
    """What spans or stretches add up, weighted by the responsibilities; all spans may lie one behind the other."""

    raw: Any  # (spans, C, W) sums of the features
    tight_sums: Any  # (spans, T, D) of tight components about their means
    tight_scatter: Any  # (spans, T, S), or (spans, T, D²) where it is whole matrices
    totals: Any  # (spans, 2) Σ w log p(x), Σ w


class Answers(NamedTuple):
    """What a mixture says of every row, as far as it is asked for."""

    components: Any  # (N,) the one of largest p(c | x), the lowest on ties, −1 for noise; or empty
    densities: Any  # (N,) log p(x), or empty
    table: Any  # (N, ≥ C), or empty: p(c | x) where densities are wanted too, else log p(c, x)


class Stretches(NamedTuple):
    """Some rows each, under one of some mixtures: what a thread takes at once."""

    mixture: Any  # (I,) ascending
    first: Any  # (I,) rows or chunks first … end − 1
    end: Any  # (I,)
    place: Any  # (I,) where the sums of its first component go, in those of all stretches


@inline
def weight_of(weights: Any, i: int) -> float:
    """Of a row; one if there are no weights."""
    return weights[i] if weights.shape[0] else 1.0


@inline
def begin_sums(raw: Any, sums: Any, scatter: Any, totals: Any) -> None:
    """Zeros, written by the thread that adds to them: they are in its cache then."""
    for c in range(raw.shape[0]):
        for w in range(raw.shape[1]):
            raw[c, w] = 0.0
    for t in range(sums.shape[0]):
        for d in range(sums.shape[1]):
            sums[t, d] = 0.0
        for s in range(scatter.shape[1]):
            scatter[t, s] = 0.0
    totals[0] = totals[1] = 0.0


@kernel
def share_block(
    observed: Any,  # IN
    counted: Any,  # IN
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
        block.totals[i] = weight_of(counted, first + i) / total if total > 0.0 else np.nan
    scale_lines(block.joint, n, block.totals)


@kernel
def add_tight(
    observed: Any,  # IN
    counted: Any,  # IN
    first: int,  # IN
    n: int,  # IN
    least: float,  # IN
    form: Any,  # IN
    block: Any,  # IN  features and shares
    sums: Any,  # IN/OUT (T, D)
    scatter: Any,  # IN/OUT (T, S) or (T, D²)
) -> None:
    """Moments of tight components about their means; rows with no share to speak of cost nothing. O(n·T·S)."""
    T, D = form.means.shape
    differences, whole = block.differences, form.factors.shape[1] > 0
    for t in range(T):
        shares = block.joint[form.tight[t]]
        m, largest = 0, 0.0
        for i in range(n):
            largest = max(largest, shares[i])
        for i in range(n + 1):  # the last time what is left is added: at a second place it would be compiled twice
            if i < n and shares[i] > max(least * weight_of(counted, first + i), NOTHING * largest):
                for d in range(D):
                    put_difference(differences, m, d, block.features[i, d] - form.means[t, d])
                differences.values[m] = shares[i]
                if observed.scatter.shape[1]:
                    part = shares[i] * per_weight(observed.weights, first + i)
                    add_spread(observed.scatter, first + i, part, scatter, t, D if whole else 0)
                m += 1
            if m == TILE or (i == n and m > 0):
                add_moments(differences, m, whole, t, sums, scatter)
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
    counted: Any,  # IN
    first: int,  # IN
    end: int,  # IN  rows first … end − 1
    least: float,  # IN
    form: Any,  # IN
    block: Any,  # scratch of this thread
    raw: Any,  # OUT (C, W)
    sums: Any,  # OUT (T, D)
    scatter: Any,  # OUT (T, S) or (T, D²)
    totals: Any,  # OUT (2,)
) -> None:
    """The sums of some rows, see `Tally`. O(n·C·S)."""
    begin_sums(raw, sums, scatter, totals)
    B, (C, W) = block.features.shape[0], form.coefficients.shape
    for begin in range(first, end, B):
        n = min(B, end - begin)
        share_block(observed, counted, begin, n, form, block)
        if form.tight.shape[0] < C:
            add_product(block.joint, block.features, 0, n, raw)
        else:
            for c in range(C):
                for i in range(n):
                    raw[c, W - 1] += block.joint[c, i]
        add_tight(observed, counted, begin, n, least, form, block, sums, scatter)
        for i in range(n):
            totals[0] += weight_of(counted, begin + i) * block.densities[i]
            totals[1] += weight_of(counted, begin + i)
    mirror(scatter, form.means.shape[1] if form.factors.shape[1] else 0)


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
    B, C = block.features.shape[0], form.coefficients.shape[0]
    components, densities, table = answers
    for begin in range(first, end, B):
        n = min(B, end - begin)
        joint_block(observed, begin, n, form, True, block, block.joint)
        if components.shape[0]:
            find_largest(block.joint, n, block.largest, components[begin : begin + n])
            for i in range(n):
                if form.background > block.largest[i]:
                    components[begin + i] = -1
        if densities.shape[0]:
            softmax_block(block.joint, n, form.background, block.largest, block.totals, densities[begin : begin + n])
            if table.shape[0]:
                for i in range(n):
                    block.totals[i] = 1.0 / block.totals[i]
                scale_lines(block.joint, n, block.totals)
        if table.shape[0]:
            for i in range(n):
                for c in range(C):
                    table[begin + i, c] = block.joint[c, i]


@kernel
def expect_or_answer(
    queue: Queue,  # IN/OUT stretches not taken yet
    stretches: Any,  # IN
    bounds: Any,  # IN  (G + 1,) the components of mixture g are bounds[g] … bounds[g + 1] − 1
    observed: Any,  # IN
    counted: Any,  # IN  (N,) or empty: how much each row or chunk counts
    least: float,  # IN  rows with a smaller share of a tight component count, but move nothing
    form: Any,  # IN  all components; of several mixtures all are tight
    block: Scratch,  # scratch of this thread, for the largest mixture
    tally: Any,  # OUT of components, one stretch behind the other; or empty
    answers: Any,  # OUT where the tally is empty
) -> None:
    """E-steps and what M-steps need of them, or what a mixture says of every row.

    Nearly all of their code is the same: as two kernels it would be compiled twice. O(rows·components·S) of all
    stretches.
    """
    item = take_number(queue)
    while item < stretches.first.shape[0]:
        begin, end = bounds[stretches.mixture[item]], bounds[stretches.mixture[item] + 1]
        C, place = end - begin, stretches.place[item]
        mixture = Form(
            form.offset, form.coefficients[begin:end], form.tight[:C], form.means[begin:end], form.factors[begin:end],
            form.precisions[begin:end], form.constants[begin:end], form.background,
        )  # fmt: skip
        scratch = Block(
            block.features, block.joint[:C], block.bare, block.largest, block.densities, block.totals, block.differences
        )
        if tally.totals.shape[0]:
            T = mixture.means.shape[0]
            at = place if T == C else place // C * T  # where some are tight there is one mixture
            expect_some(
                observed, counted, stretches.first[item], stretches.end[item], least, mixture, scratch,
                tally.raw[place : place + C], tally.tight_sums[at : at + T], tally.tight_scatter[at : at + T],
                tally.totals[item],
            )  # fmt: skip
        else:
            answer_some(observed, stretches.first[item], stretches.end[item], mixture, scratch, answers)
        item = take_number(queue)


@inline
def find_largest(joint: Any, n: int, largest: Any, found: Any) -> None:
    """The component of largest joint, the lowest on ties. O(n·C)."""
    for begin in range(0, n, TILE):
        end = n if n - begin < TILE else begin + TILE
        top, best = largest[begin:end], found[begin:end]
        for i in range(end - begin):
            top[i] = joint[0, begin + i]
            best[i] = 0
        for c in range(1, joint.shape[0]):
            line = joint[c, begin:end]
            for i in range(end - begin):
                best[i] = c if line[i] > top[i] else best[i]
                top[i] = line[i] if line[i] > top[i] else top[i]


@kernel
def add_parts(
    queue: Queue,  # IN/OUT stretches of numbers not taken yet
    parts: Any,  # IN  (parts, K)
    length: int,  # IN  numbers that a thread adds up at once
    total: Any,  # OUT (K,)
) -> None:
    """parts[0] + parts[1] + …, in this order. O(parts·K)."""
    K = total.shape[0]
    first = take_number(queue) * length
    while first < K:
        end = min(K, first + length)
        for k in range(first, end):
            total[k] = 0.0
        for i in range(parts.shape[0]):
            for k in range(first, end):
                total[k] += parts[i, k]
        first = take_number(queue) * length
