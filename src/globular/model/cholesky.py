"""Cholesky factors of matrices that are positive definite but for rounding."""

from __future__ import annotations

from functools import partial

import numpy as np

from globular.model.statistics import F64
from globular.threads import single_threaded_blas

_EPS = float(np.finfo(np.float64).eps)
_MOST_LIFTS = 25  # tries of a Cholesky factor, each with ten times the lift: the last is far more than any rounding


def least_pivot(D: int) -> float:
    """Share of a diagonal that pivots are at least, or they are rounding."""
    return _EPS * D


def with_factors(matrices: F64, least: F64) -> tuple[F64, F64]:
    """The matrices, their diagonals lifted by units of rounding where a Cholesky factor needs it; and the factors.

    `least` is what a diagonal is at least, but for rounding, (D,). Multiples of these matrices have factors, too.
    """
    try:
        # on matrices this small threads only wait for each other
        lower: F64 = single_threaded_blas.run(partial(np.linalg.cholesky, matrices))
        if (_pivots(lower) >= least_pivot(matrices.shape[1]) * _diagonals(matrices)).all():
            return matrices, lower
    except np.linalg.LinAlgError:
        pass
    both = [_lifted(each, least) for each in matrices]
    return np.stack([lifted for lifted, _ in both]), np.stack([factor for _, factor in both])


def _lifted(matrix: F64, least: F64) -> tuple[F64, F64]:
    """The same of one matrix: what is lifted depends on no other."""
    rounding = least_pivot(len(matrix))
    diagonal = np.maximum(np.diagonal(matrix), least)
    lifted, share = matrix, 10.0 * rounding
    for _ in range(_MOST_LIFTS):
        try:
            lower = np.asarray(np.linalg.cholesky(lifted), dtype=np.float64)
            if np.all(_pivots(lower) >= rounding * np.diagonal(lifted)):
                return lifted, lower
        except np.linalg.LinAlgError:
            pass
        lifted = matrix + share * np.diag(diagonal)
        share *= 10.0
    raise np.linalg.LinAlgError("a scatter matrix is not finite")


def _pivots(lower: F64) -> F64:
    """What is left of the diagonal of a matrix, or of several, when the rows above are taken away."""
    return _diagonals(lower) ** 2


def _diagonals(matrices: F64) -> F64:
    return np.einsum("...dd->...d", matrices)
