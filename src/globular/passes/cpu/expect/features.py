"""Gaussian log-densities as linear functions of features, and moments about the means from sums of features.

Second moments are packed: one number, one per column, or the upper triangle of a matrix. Packed precisions have the
entries off the diagonal doubled, so that xᵀ Σ⁻¹ x is a plain product with the packed xxᵀ.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from globular.jit import kernel
from globular.model.covariances import ScatterKind
from globular.model.statistics import F64


@kernel
def packed_coefficients(
    factors: Any,  # IN  (C, D, D) upper triangular, U Uᵀ = Σ⁻¹; or (1, D, D) for all
    means: Any,  # IN  (C, D) about the offset
    constants: Any,  # IN  (C,)
    typical: Any,  # IN  (D,) how far out a typical row is
    precisions: Any,  # OUT (C, S) packed
    coefficients: Any,  # OUT (C, D + S + 1) what the features are multiplied with
    sizes: Any,  # OUT (C,) of the terms of the expanded square, for rows as far out as the mean or a typical row
    pulls: Any,  # scratch (D,)
) -> None:
    """Gaussians with whole matrices as linear functions of the features. O(C·D³)."""
    C, D = means.shape
    S = precisions.shape[1]
    for c in range(C):
        factor = factors[min(c, factors.shape[0] - 1)]
        sizes[c] = 0.0
        for d in range(D):
            pulls[d] = 0.0
        place = 0
        for d in range(D):
            reach = max(abs(means[c, d]), typical[d])
            for e in range(d, D):
                entry = 0.0
                for j in range(e, D):
                    entry += factor[d, j] * factor[e, j]
                pulls[d] += entry * means[c, e]
                if e > d:
                    pulls[e] += entry * means[c, d]
                    entry *= 2.0
                precisions[c, place] = entry
                coefficients[c, D + place] = -0.5 * entry
                sizes[c] += abs(entry) * reach * max(abs(means[c, e]), typical[e])
                place += 1
        remoteness = 0.0
        for d in range(D):
            coefficients[c, d] = pulls[d]
            remoteness += pulls[d] * means[c, d]
        coefficients[c, D + S] = constants[c] - 0.5 * remoteness


@kernel
def column_coefficients(
    factors: Any,  # IN  (C, D) or (C, 1), the roots of precisions; or one line for all
    means: Any,  # IN  (C, D) about the offset
    constants: Any,  # IN  (C,)
    typical: Any,  # IN  (D,) how far out a typical row is, or (1,) where columns share a variance
    precisions: Any,  # OUT (C, S)
    coefficients: Any,  # OUT (C, D + S + 1)
    sizes: Any,  # OUT (C,)
) -> None:
    """`packed_coefficients` of Gaussians without correlations. O(C·D)."""
    C, D = means.shape
    S = precisions.shape[1]
    for c in range(C):
        line = min(c, factors.shape[0] - 1)
        remoteness, size = 0.0, 0.0
        for s in range(S):
            precision = factors[line, s] * factors[line, s]
            precisions[c, s] = precision
            coefficients[c, D + s] = -0.5 * precision
        for d in range(D):
            mean, precision = means[c, d], precisions[c, min(d, S - 1)]
            reach = max(abs(mean), typical[min(d, typical.shape[0] - 1)])
            coefficients[c, d] = precision * mean
            remoteness += precision * mean * mean
            size += precision * reach * reach
        coefficients[c, D + S] = constants[c] - 0.5 * remoteness
        sizes[c] = size


@kernel
def column_moments_about(
    raw: Any,  # IN  (C, D + S + 1) features summed with responsibilities
    means: Any,  # IN  (C, D) about the offset
    sums: Any,  # OUT (C, D) about the means
    scatter: Any,  # OUT (C, S) about the means; never negative
) -> None:
    """`moments_about` for the squares of columns, or their sum. O(C·D)."""
    C, D = means.shape
    S, count = scatter.shape[1], raw.shape[1] - 1
    for c in range(C):
        for s in range(S):
            scatter[c, s] = raw[c, D + s]
        for d in range(D):
            sums[c, d] = raw[c, d] - raw[c, count] * means[c, d]
            scatter[c, min(d, S - 1)] -= means[c, d] * (raw[c, d] + sums[c, d])
        for s in range(S):
            scatter[c, s] = max(scatter[c, s], 0.0)


@kernel
def moments_about(
    raw: Any,  # IN  (C, D + S + 1) features summed with responsibilities
    means: Any,  # IN  (C, D) about the offset
    sums: Any,  # OUT (C, D) about the means
    scatter: Any,  # OUT (C, D, D) about the means
) -> None:
    """Σ (x − μ)(x − μ)ᵀ = Σ x xᵀ − μ (Σ x)ᵀ − (Σ (x − μ)) μᵀ. O(C·S)."""
    C, D = means.shape
    count = raw.shape[1] - 1
    for c in range(C):
        for d in range(D):
            sums[c, d] = raw[c, d] - raw[c, count] * means[c, d]
        place = D
        for d in range(D):
            for e in range(d, D):
                entry = raw[c, place] - means[c, d] * raw[c, e] - sums[c, d] * means[c, e]
                scatter[c, d, e] = scatter[c, e, d] = entry
                place += 1


# --- drivers ---------------------------------------------------------------------------------------------------------


class LinearForm(NamedTuple):
    """Log-densities as linear functions of the features."""

    precisions: F64
    """The dual of the precisions, (C, S); (C, 0) where all components are evaluated by differences."""
    coefficients: F64
    """θ, (C, D + S + 1)."""
    sizes: F64
    """Of the terms of the expanded square, for rows as far out as the mean or a typical row, (C,)."""


def linear_form(kind: ScatterKind, factors: F64, means: F64, constants: F64, typical: F64) -> LinearForm:
    """Gaussians with these factors of the precisions, and means and typical rows about the offset.

    Where differences cost less they stand in for all components (of infinite size).
    """
    C, D = means.shape
    if kind.by_differences(D):
        return LinearForm(np.empty((C, 0)), np.zeros((C, D + 1)), np.full(C, np.inf))
    S = kind.width(D)
    form = LinearForm(np.empty((C, S)), np.empty((C, D + S + 1)), np.empty(C))
    if kind.separable:
        column_coefficients(kind.stacked(factors, D), means, constants, typical, *form)
    else:
        packed_coefficients(kind.stacked(factors, D), means, constants, typical, *form, np.empty(D))
    return form


def central(kind: ScatterKind, raw: F64, means: F64) -> tuple[F64, F64]:
    """First and second moments about the means, from sums of the features."""
    sums, scatter = np.empty(means.shape), np.empty(kind.shape(*means.shape))
    (column_moments_about if kind.separable else moments_about)(raw, means, sums, scatter)
    return sums, scatter
