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
def coefficients_of(
    factors: Any,  # IN  (C, F) or (1, F): U, U Uᵀ = Σ⁻¹, upper triangular; or roots of precisions, of columns or of all
    whole: bool,  # IN  whether these are matrices, F = D²
    means: Any,  # IN  (C, D) about the offset
    constants: Any,  # IN  (C,)
    typical: Any,  # IN  (D,) how far out a typical row is
    precisions: Any,  # OUT (C, S) packed
    coefficients: Any,  # OUT (C, D + S + 1) what the features are multiplied with
    sizes: Any,  # OUT (C,) of the terms of the expanded square, for rows as far out as the mean or a typical row
) -> None:
    """Gaussians as linear functions of the features. O(C·D³), or O(C·D) without correlations."""
    (C, D), S = means.shape, precisions.shape[1]
    for c in range(C):
        line, pulls, remoteness, size = min(c, factors.shape[0] - 1), coefficients[c], 0.0, 0.0
        pulls[:D] = 0.0
        if whole:
            place = 0
            for d in range(D):
                reach = max(abs(means[c, d]), typical[d])
                for e in range(d, D):
                    entry = 0.0
                    for j in range(e, D):
                        entry += factors[line, d * D + j] * factors[line, e * D + j]
                    pulls[d] += entry * means[c, e]
                    if e > d:
                        pulls[e] += entry * means[c, d]
                        entry *= 2.0
                    precisions[c, place] = entry
                    size += abs(entry) * reach * max(abs(means[c, e]), typical[e])
                    place += 1
        else:
            for s in range(S):
                precisions[c, s] = factors[line, s] * factors[line, s]
            for d in range(D):
                precision, reach = precisions[c, min(d, S - 1)], max(abs(means[c, d]), typical[d])
                pulls[d] = precision * means[c, d]
                size += precision * reach * reach
        for d in range(D):
            remoteness += pulls[d] * means[c, d]
        for s in range(S):
            coefficients[c, D + s] = -0.5 * precisions[c, s]
        coefficients[c, D + S] = constants[c] - 0.5 * remoteness
        sizes[c] = size


@kernel
def moments_about(
    raw: Any,  # IN  (C, D + S + 1) features summed with responsibilities
    means: Any,  # IN  (C, D) about the offset
    whole: bool,  # IN  whether second moments are matrices
    sums: Any,  # OUT (C, D) about the means
    scatter: Any,  # OUT (C, D²) or (C, S) about the means; squares are never negative
) -> None:
    """Σ (x − μ)(x − μ)ᵀ = Σ x xᵀ − μ (Σ x)ᵀ − (Σ (x − μ)) μᵀ. O(C·S)."""
    (C, D), S, count = means.shape, scatter.shape[1], raw.shape[1] - 1
    for c in range(C):
        for d in range(D):
            sums[c, d] = raw[c, d] - raw[c, count] * means[c, d]
        if whole:
            place = D
            for d in range(D):
                for e in range(d, D):
                    entry = raw[c, place] - means[c, d] * raw[c, e] - sums[c, d] * means[c, e]
                    scatter[c, d * D + e] = scatter[c, e * D + d] = entry
                    place += 1
        else:
            for s in range(S):
                scatter[c, s] = raw[c, D + s]
            for d in range(D):
                scatter[c, min(d, S - 1)] -= means[c, d] * (raw[c, d] + sums[c, d])
            for s in range(S):
                scatter[c, s] = max(scatter[c, s], 0.0)


# --- drivers ---------------------------------------------------------------------------------------------------------


class LinearForm(NamedTuple):
    """Log-densities as linear functions of the features."""

    precisions: F64
    """The dual of the precisions, (C, S)."""
    coefficients: F64
    """θ, (C, D + S + 1)."""
    sizes: F64
    """Size of the terms of the expanded square, for rows as far out as the mean or a typical row, (C,)."""


def linear_form(kind: ScatterKind, factors: F64, means: F64, constants: F64, typical: F64) -> LinearForm:
    """Gaussians with these factors of the precisions, and means and typical rows about the offset."""
    C, D = means.shape
    S = kind.width(D)
    form = LinearForm(np.empty((C, S)), np.empty((C, D + S + 1)), np.empty(C))
    stacked = kind.stacked(factors, D)
    coefficients_of(stacked.reshape(len(stacked), -1), not kind.separable, means, constants, typical, *form)
    return form


def central(kind: ScatterKind, raw: F64, means: F64) -> tuple[F64, F64]:
    """First and second moments about the means, from sums of the features."""
    sums, scatter = np.empty(means.shape), np.empty(kind.shape(*means.shape))
    moments_about(raw, means, not kind.separable, sums, scatter.reshape(len(means), -1))
    return sums, scatter
