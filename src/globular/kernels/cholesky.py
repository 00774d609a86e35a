"""Cholesky factors of many small matrices, and their inverses: a call of LAPACK for each costs more than its work."""

from __future__ import annotations

import math
from typing import Any

from globular.jit import inline, kernel


@inline
def factor(matrix: Any, least: float, lower: Any) -> bool:
    """The Cholesky factor of a matrix, zeros above its diagonal; False where a pivot is not so much of the diagonal.

    A row at a time; the upper triangle of the matrix is not read. O(D³)
    """
    D = matrix.shape[0]
    for i in range(D):
        for j in range(i + 1):
            rest = matrix[i, j]
            for k in range(j):
                rest -= lower[i, k] * lower[j, k]
            if j < i:
                lower[i, j] = rest / lower[j, j]
            elif rest > 0.0 and rest >= least * matrix[i, i]:
                lower[i, i] = math.sqrt(rest)
            else:
                return False
        for j in range(i + 1, D):
            lower[i, j] = 0.0
    return True


@inline
def invert_row(lower: Any, i: int, inverse: Any) -> None:
    """Row i of the inverse of a lower triangle, by forward substitution from the rows above it. O(i²)."""
    for j in range(lower.shape[0]):
        inverse[i, j] = 0.0
    for k in range(i):
        for j in range(k + 1):
            inverse[i, j] -= lower[i, k] * inverse[k, j]
    inverse[i, i] = 1.0
    for j in range(i + 1):
        inverse[i, j] /= lower[i, i]


@kernel
def invert_factors(
    matrices: Any,  # IN  (C, D, D) positive definite
    lower: Any,  # scratch (D, D)
    inverse: Any,  # scratch (D, D)
    factors: Any,  # OUT (C, D, D) upper triangles U, U Uᵀ the inverse of each; or (0, D, D): none are wanted
) -> bool:
    """Whether all of them have a factor, and what factors of their inverses are. O(C·D³)."""
    for c in range(matrices.shape[0]):
        if not factor(matrices[c], 0.0, lower):
            return False
        if factors.shape[0]:
            for i in range(lower.shape[0]):
                invert_row(lower, i, inverse)
                for j in range(lower.shape[0]):
                    factors[c, j, i] = inverse[i, j]
    return True
