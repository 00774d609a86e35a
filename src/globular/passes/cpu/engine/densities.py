"""Log-densities of a block of rows or chunks under all components of a Gaussian mixture, and their responsibilities.

With φ = (x̄, packed x̄x̄ᵀ + S_A / w_A, 1) the expected log-joint ⟨log p(c, x)⟩_A of a chunk is φ · θ_c: a matrix product.
A row is a chunk without scatter. Everything is taken about an offset near the mean of the data; where the expanded
square would still cancel (*tight* components) the part of the mean comes from differences, which lose nothing.
A block has a line for every component, so that all loops run along rows whatever the number of components is.

Differences have a line for every column unless columns are many, and products are loops along four of them: BLAS would
take a lock for each of them, at which many threads wait. (16 threads on rows of 16 columns were as slow as one.)
Otherwise they have a line for every row, which BLAS multiplies.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from globular.jit import inline, kernel
from globular.jit.blas import add_symmetric, multiply_by_triangle, multiply_rows
from globular.jit.memory import bits_float, float_bits

DENSITY_TILE, PADDED_TILE = 128, 136
"""Rows whose differences are taken at once, and numbers from one line of them to the next: lines a power of two apart
would drive each other out of the cache."""
FEW_COLUMNS = 32
"""Most columns that have lines of their own."""


class Differences(NamedTuple):
    """Scratch of a thread for DENSITY_TILE rows."""

    by_row: Any  # (DENSITY_TILE, D), or (0, D) where columns are few
    by_column: Any  # (D, PADDED_TILE) where they are, else (0, PADDED_TILE)
    scaled: Any  # (DENSITY_TILE,) scratch
    values: Any  # (DENSITY_TILE,) squared lengths, or weights


def new_differences(n_columns: int) -> Differences:
    """Scratch for rows of `n_columns` columns."""
    n_rows, n_lines = (0, n_columns) if n_columns <= FEW_COLUMNS else (DENSITY_TILE, 0)
    return Differences(np.empty((n_rows, n_columns)), np.empty((n_lines, PADDED_TILE)), *np.empty((2, DENSITY_TILE)))


@inline
def put_difference(differences: Any, k: int, d: int, value: float) -> None:
    """Column d of the k-th difference."""
    if differences.by_column.shape[0]:
        differences.by_column[d, k] = value
    else:
        differences.by_row[k, d] = value


@inline
def find_lengths(differences: Any, m: int, factors: Any, precisions: Any, c: int) -> None:
    """The values become (x − μ)ᵀ Σ⁻¹ (x − μ) of m differences, which may be gone after that. O(m·S).

    `factors` and `precisions` are of a `Form`, of which nothing else is read.
    """
    lengths, last, whole = differences.values, precisions.shape[1] - 1, factors.shape[1] > 0
    for k in range(m):
        lengths[k] = 0.0
    if differences.by_column.shape[0]:
        D, lines, entry = differences.by_column.shape[0], differences.by_column, differences.scaled
        for d in range(D):
            if whole:
                for k in range(m):
                    entry[k] = 0.0
                for e in range(0, d + 1, 4):
                    # beyond the triangle the last line counts again, for nothing
                    f, g, h = min(e + 1, d), min(e + 2, d), min(e + 3, d)
                    one, two = factors[c, e * D + d], factors[c, f * D + d] if f > e else 0.0
                    three, four = factors[c, g * D + d] if g > f else 0.0, factors[c, h * D + d] if h > g else 0.0
                    for k in range(m):
                        entry[k] += (one * lines[e, k] + two * lines[f, k]) + (three * lines[g, k] + four * lines[h, k])
                for k in range(m):
                    lengths[k] += entry[k] * entry[k]
            else:
                factor = precisions[c, min(d, last)]
                for k in range(m):
                    lengths[k] += factor * lines[d, k] * lines[d, k]
        return
    away = differences.by_row
    if whole:
        multiply_by_triangle(factors, c, away, m)
    for k in range(m):
        total = 0.0
        for d in range(away.shape[1]):
            factor = 1.0 if whole else precisions[c, min(d, last)]
            total += factor * away[k, d] * away[k, d]
        lengths[k] = total


@inline
def add_moments(differences: Any, m: int, whole: bool, c: int, sums: Any, scatter: Any) -> None:
    """Add m differences, whose weights are the values, to the sums of a component and to its scatter. O(m·S).

    Of a `whole` matrix the upper triangle is written; the differences are gone after that.
    """
    weights, last = differences.values, scatter.shape[1] - 1
    if differences.by_column.shape[0]:
        D, lines, scaled = differences.by_column.shape[0], differences.by_column, differences.scaled
        for d in range(D):
            total = 0.0
            for k in range(m):
                scaled[k] = weights[k] * lines[d, k]
                total += scaled[k]
            sums[c, d] += total
            end = D if whole else d + 1
            for e in range(d, end, 4):
                f, g, h = min(e + 1, end - 1), min(e + 2, end - 1), min(e + 3, end - 1)
                one = two = three = four = 0.0
                for k in range(m):
                    one += scaled[k] * lines[e, k]
                    two += scaled[k] * lines[f, k]
                    three += scaled[k] * lines[g, k]
                    four += scaled[k] * lines[h, k]
                place = d * D if whole else min(d, last) - d
                scatter[c, place + e] += one
                if f > e:
                    scatter[c, place + f] += two
                if g > f:
                    scatter[c, place + g] += three
                if h > g:
                    scatter[c, place + h] += four
        return
    away = differences.by_row
    for k in range(m):
        root = np.sqrt(weights[k])
        for d in range(away.shape[1]):
            sums[c, d] += weights[k] * away[k, d]
            away[k, d] *= root
            if not whole:
                scatter[c, min(d, last)] += away[k, d] * away[k, d]
    if whole:
        add_symmetric(away, m, scatter, c)


@inline
def mirror(scatter: Any, D: int) -> None:
    """Whole matrices from the upper triangles that `add_moments` writes. O(C·D²)."""
    for c in range(scatter.shape[0]):
        for d in range(D):
            for e in range(d + 1, D):
                scatter[c, e * D + d] = scatter[c, d * D + e]


class Observed(NamedTuple):
    """Rows or chunks; of both precisions, so that one kernel serves rows and cells."""

    x: Any  # (N, D) float64 rows, or means of chunks; (N, 0) for float32 rows
    single: Any  # (N, D) float32 rows, or (N, 0)
    scales: Any  # (N,) or empty: factors of the rows
    weights: Any  # (N,) or empty: of chunks, which their scatter is divided by
    scatter: Any  # (N, S) summed and packed, or (N, 0) for single rows
    counted: Any  # (N,) or empty: how much each row or chunk counts


class Form(NamedTuple):
    """A mixture as linear functions of the features, W = D + S + 1, or D + 1 where all components are tight."""

    offset: Any  # (D,)
    coefficients: Any  # (C, W) θ
    tight: Any  # (T,) components that are evaluated by differences
    means: Any  # (T, D) theirs, about the offset
    factors: Any  # (T, D²) upper triangles U, U Uᵀ = Σ⁻¹; or (T, 0) where precisions are of columns
    precisions: Any  # (T, S) packed
    constants: Any  # (T,)
    background: float  # log p(noise, x), or −∞


class Block(NamedTuple):
    """Scratch of a thread for B rows."""

    features: Any  # (B, W)
    joint: Any  # (C, B) log p(c, x), then w p(c | x)
    bare: Any  # (C, B) the same without scatter, or (0, 0)
    largest: Any  # (B,)
    densities: Any  # (B,)
    totals: Any  # (B,)
    differences: Any  # a `Differences`


@kernel
def load_features(
    observed: Any,  # IN
    first: int,  # IN
    n: int,  # IN  rows first … first + n − 1
    offset: Any,  # IN  (D,); rows may have more columns, which do not count
    with_scatter: bool,  # IN
    features: Any,  # OUT (≥ n, D + S + 1): x about the offset, packed xxᵀ + scatter / w, 1; S = 0 leaves those out
) -> None:
    """The features in which log-densities are linear. Chunks of weight zero have no scatter. O(n·S)."""
    D = offset.shape[0]
    S = features.shape[1] - D - 1
    for i in range(n):
        scale = observed.scales[first + i] if observed.scales.shape[0] else 1.0
        row = features[i]
        if observed.single.shape[1]:
            for d in range(D):
                row[d] = scale * observed.single[first + i, d] - offset[d]
        else:
            for d in range(D):
                row[d] = scale * observed.x[first + i, d] - offset[d]
        if S == D:
            for d in range(D):
                row[D + d] = row[d] * row[d]
        elif S == 1:
            total = 0.0
            for d in range(D):
                total += row[d] * row[d]
            row[D] = total
        elif S:
            place = D
            for d in range(D):
                value = row[d]
                for e in range(d, D):
                    row[np.uint64(place + e - d)] = value * row[e]
                place += D - d
        if with_scatter and observed.scatter.shape[1] and S:
            share = per_weight(observed.weights, first + i)
            for s in range(S):
                row[D + s] += share * observed.scatter[first + i, s]
        row[D + S] = 1.0


@inline
def per_weight(weights: Any, i: int) -> float:
    """1 / w of a chunk; 0 for one of weight zero, which has no scatter."""
    weight = weights[i] if weights.shape[0] else 1.0
    return 1.0 / weight if weight > 0.0 else 0.0


@kernel
def tight_joint(
    observed: Any,  # IN
    first: int,  # IN  the row in line 0 of the block
    n: int,  # IN
    form: Any,  # IN
    with_scatter: bool,  # IN
    block: Any,  # IN  features, and scratch
    joint: Any,  # OUT (C, ≥ n), the lines of tight components
) -> None:
    """⟨log p(c, x)⟩ of tight components from differences. O(n·T·S)."""
    (T, D), differences = form.means.shape, block.differences
    for t in range(T):
        line = joint[form.tight[t]]
        for begin in range(0, n, DENSITY_TILE):
            m = n - begin if n - begin < DENSITY_TILE else DENSITY_TILE
            for i in range(m):
                for d in range(D):
                    put_difference(differences, i, d, block.features[begin + i, d] - form.means[t, d])
            find_lengths(differences, m, form.factors, form.precisions, t)
            for i in range(m):
                line[begin + i] = differences.values[i]
        if with_scatter and observed.scatter.shape[1]:
            for i in range(n):
                total = 0.0
                for s in range(form.precisions.shape[1]):
                    total += form.precisions[t, s] * observed.scatter[first + i, s]
                line[i] += max(per_weight(observed.weights, first + i) * total, 0.0)
        constant = form.constants[t]
        for i in range(n):
            line[i] = constant - 0.5 * line[i]


@kernel
def joint_block(
    observed: Any,  # IN
    first: int,  # IN
    n: int,  # IN  rows first … first + n − 1
    form: Any,  # IN
    with_scatter: bool,  # IN
    block: Any,  # scratch: its features
    joint: Any,  # OUT (C, B) ⟨log p(c, x)⟩
) -> None:
    """Log-densities of some rows under all components. O(n·C·S)."""
    load_features(observed, first, n, form.offset, with_scatter, block.features)
    if form.tight.shape[0] < form.coefficients.shape[0]:
        multiply_rows(form.coefficients, 0, form.coefficients.shape[0], block.features, 0, n, joint)
    tight_joint(observed, first, n, form, with_scatter, block, joint)


@inline
def exponential(x: float) -> float:
    """eˣ for x ≤ 0, good to a few units in the last place.

    It is spelled out, 2ᵗ times a Taylor polynomial on |r| ≤ ½ log 2, because the compiler vectorises this and not a
    call of `exp`, which would take most of an E-step.
    """
    normal = x > -708.0  # the exponential of anything below is no normal number; it counts as zero
    t = np.floor(x * 1.4426950408889634 + 0.5)  # 1 / log 2
    r = x - t * 0.6931471805599453  # log 2
    r2 = r * r
    r4 = r2 * r2
    low = (1.0 + r + r2 * (1 / 2 + 1 / 6 * r)) + r4 * (1 / 24 + 1 / 120 * r + r2 * (1 / 720 + 1 / 5040 * r))
    high = (1 / 40320 + 1 / 362880 * r + r2 * (1 / 3628800 + 1 / 39916800 * r)) + r4 * (1 / 479001600)
    p = low + r4 * r4 * high  # in pairs: none waits for the last
    whole = 1.5 * 2.0**52  # added to a small whole number it puts that number into the low bits of the float
    power = bits_float((float_bits((t if normal else 0.0) + whole) + 1023) << 52)  # from its exponent
    return power * p if normal else 0.0


@kernel
def softmax_block(
    joint: Any,  # IN log p(c, x), OUT p(c | x) · totals; (C, ≥ n)
    n: int,  # IN
    background: float,  # IN  log p(noise, x), or −∞
    largest: Any,  # scratch (≥ n,)
    totals: Any,  # OUT (≥ n,) what a line of exponentials adds up to
    densities: Any,  # OUT (≥ n,) log p(x)
) -> None:
    """Exponentials of log-densities, and log p(x). O(n·C)."""
    C = joint.shape[0]
    for begin in range(0, n, DENSITY_TILE):
        end = n if n - begin < DENSITY_TILE else begin + DENSITY_TILE
        m = end - begin
        top, total = largest[begin:end], totals[begin:end]
        line = joint[0, begin:end]
        for i in range(m):
            top[i] = line[i] if line[i] > background else background
            total[i] = 0.0
        for c in range(1, C):
            line = joint[c, begin:end]
            for i in range(m):
                top[i] = line[i] if line[i] > top[i] else top[i]
        if background > -np.inf:
            for i in range(m):
                total[i] = exponential(background - top[i])
        for c in range(C):
            line = joint[c, begin:end]
            for i in range(m):
                line[i] = exponential(line[i] - top[i])
                total[i] += line[i]
        for i in range(m):
            densities[begin + i] = top[i] + np.log(total[i])


@kernel
def scale_lines(joint: Any, n: int, factors: Any) -> None:
    """Multiply what every row has for each component. O(n·C)."""
    for begin in range(0, n, DENSITY_TILE):
        end = n if n - begin < DENSITY_TILE else begin + DENSITY_TILE
        factor = factors[begin:end]
        for c in range(joint.shape[0]):
            line = joint[c, begin:end]
            for i in range(end - begin):
                line[i] *= factor[i]


NOTHING = 1e-20
"""A share that adds nothing to the largest one of its component in a block: less than sums are rounded by."""


@inline
def weight_of(weights: Any, i: int) -> float:
    """The weight of a row; one if there are no weights."""
    return weights[i] if weights.shape[0] else 1.0


@inline
def find_largest(joint: Any, n: int, largest: Any, found: Any) -> None:
    """The component of largest joint, the lowest on ties. O(n·C)."""
    for begin in range(0, n, DENSITY_TILE):
        end = n if n - begin < DENSITY_TILE else begin + DENSITY_TILE
        top, best = largest[begin:end], found[begin:end]
        for i in range(end - begin):
            top[i] = joint[0, begin + i]
            best[i] = 0
        for c in range(1, joint.shape[0]):
            line = joint[c, begin:end]
            for i in range(end - begin):
                best[i] = c if line[i] > top[i] else best[i]
                top[i] = line[i] if line[i] > top[i] else top[i]


@inline
def add_square(scatter: Any, c: int, share: float, difference: Any) -> None:
    """Add share · difference differenceᵀ to a packed scatter of whatever kind."""
    D, width = difference.shape[0], scatter.shape[1]
    if width == 1:
        total = 0.0
        for d in range(D):
            total += difference[d] * difference[d]
        scatter[c, 0] += share * total
    elif width == D:
        for d in range(D):
            scatter[c, d] += share * difference[d] * difference[d]
    else:
        place = 0
        for d in range(D):
            for e in range(d, D):
                scatter[c, place] += share * difference[d] * difference[e]
                place += 1
