"""Predictive densities of Gaussian components whose parameters are integrated out: mixtures of Student-t densities."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from globular.kernels.compile import kernel
from globular.kernels.differences import TILE, find_lengths, put_difference
from globular.kernels.joint import softmax_block
from globular.kernels.queue import Queue, Scratch, take_number

FARTHEST = -1e300
"""Log-density where squares are beyond all numbers."""
LARGE = 1e100
"""Products of terms are not to become much larger."""


class Students(NamedTuple):
    """Student-t densities, log p(x) = c − ½(ν′ + 1) Σ log(1 + s y²), with y what x − m is under some factors.

    Of a whole matrix the squares of y are added up first; else there is a term for every column.
    """

    means: Any  # (C, D)
    factors: Any  # (C, D²) upper triangles; or (C, 0): none
    scales: Any  # (C, 1) or (C, D)
    constants: Any  # (C,)
    powers: Any  # (C,) ½(ν′ + 1)


@kernel
def predict_spans(
    queue: Queue,  # IN/OUT tiles of rows not taken yet
    x: Any,  # IN  (N, D)
    students: Any,  # IN
    triangular: int,  # IN  address of BLAS's product with a triangle
    differences: Scratch,  # scratch of this thread
    joint: Scratch,  # scratch (C, TILE)
    largest: Scratch,  # scratch (TILE,)
    totals: Scratch,  # scratch (TILE,)
    densities: Any,  # OUT (N,) log Σ_c p(c, x)
) -> None:
    """O(N·C·S)."""
    (N, D), C = x.shape, students.means.shape[0]
    span = take_number(queue)
    while span * TILE < N:
        first = span * TILE
        m = min(TILE, N - first)
        for c in range(C):
            constant, power = students.constants[c], students.powers[c]
            if students.factors.shape[1]:
                for k in range(m):
                    for d in range(D):
                        put_difference(differences, k, d, x[first + k, d] - students.means[c, d])
                find_lengths(differences, m, students.factors, students.scales, triangular, c)
                for k in range(m):
                    spread = math.log1p(students.scales[c, 0] * differences.values[k])
                    joint[c, k] = max(constant - power * spread, FARTHEST)
            else:
                for k in range(m):
                    spread, product = 0.0, 1.0  # a logarithm of many columns
                    for d in range(D):
                        away = x[first + k, d] - students.means[c, d]
                        product *= 1.0 + students.scales[c, d] * away * away
                        if product > LARGE or d == D - 1:
                            spread, product = spread + math.log(product), 1.0
                    joint[c, k] = max(constant - power * spread, FARTHEST)
        softmax_block(joint, m, -np.inf, largest, totals, densities[first : first + m])
        span = take_number(queue)
