"""Scores of some rows with all centres, and labels from them where they leave no doubt.

A score is −2 x·(m − offset); with ‖m − offset‖² and ‖x − offset‖² added it is a squared distance up to rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.jit import inline, kernel
from globular.jit.blas import multiply
from globular.jit.memory import float_bits, prefetch_row
from globular.kernels.nearest import compare, scores_may_overflow


@inline
def copy_row(x: Any, row: int, offset: Any, out: Any, i: int) -> float:
    """A row about the offset, if there is one, to out[i]; its squared length. O(D)."""
    total = 0.0
    if offset.shape[0]:
        for j in range(x.shape[1]):
            out[i, j] = x[row, j] - offset[j]
            total += np.float64(out[i, j]) * out[i, j]
    else:
        for j in range(x.shape[1]):
            out[i, j] = x[row, j]
            total += np.float64(x[row, j]) * x[row, j]
    return total


@kernel
def score_rows(
    x: Any,  # IN  (·, D)
    at: Any,  # IN  (n,) where each row lies in `x`
    offset: Any,  # IN  (D,) or empty
    factors: Any,  # IN  (D, C) −2 (m − offset)ᵀ
    seen: Any,  # scratch (B, D) rows of one product
    scores: Any,  # OUT (n, C)
    lengths: Any,  # OUT (n,) ‖x − offset‖
) -> None:
    """Scores of dense rows, B at a time, in one call: threads that return to Python in between wait for each other.

    O(n · C · D)
    """
    n, B = at.shape[0], seen.shape[0]
    for first in range(0, n, B):
        m = min(B, n - first)
        for i in range(m):
            if i + 4 < m:
                prefetch_row(x, at[first + i + 4])
            lengths[first + i] = np.sqrt(copy_row(x, at[first + i], offset, seen, i))
        multiply(seen, factors, scores[first : first + m])


@inline
def rounding(rows: Any, i: int, reach: float, scale: float, n_columns: int, unit: float, tiny: float) -> float:
    """Rounding error of a score and of an exact distance that it stands for; reach is ‖x‖ + ‖m‖ or more."""
    n_terms = rows[0].shape[1] if len(rows) == 1 else rows[-1][i + 1] - rows[-1][i]
    share = (4.0 * n_terms + 16.0) * unit + (n_columns + 8.0) * 2.0**-52
    return share * reach * reach + (4.0 * n_terms + 16.0) * tiny * (1.0 + scale)


@kernel
def decide(
    rows: Any,  # IN
    at: Any,  # IN  (n,) where each row lies in `rows`
    lengths: Any,  # IN  (n,) ‖x − offset‖
    scales: Any,  # IN  (n,) or empty
    scores: Any,  # IN  (n, ≥ C) −2 x·(m − offset)
    score_norms: Any,  # IN  (C,) ‖m − offset‖² in the scores' dtype
    centers: Any,  # IN  (C, D) float64
    norms: Any,  # IN  (C,) ‖m‖² float64
    unit: float,  # IN  unit round-off of the scores
    tiny: float,  # IN  their smallest normal number
    best: Any,  # OUT (n,) no less than the squared distance to the closest centre
    labels: Any,  # OUT (n,) the closest centre, the lowest index on ties
) -> None:
    """Labels from scores where these leave no doubt, else by exact distances of the centres in question. O(n · C).

    Unlike `nominate_and_check` it computes no exact distance where one score is clearly the lowest: nobody asks for it.
    """
    C, D = centers.shape
    for i in range(lengths.shape[0]):
        scale = scales[i] if scales.shape[0] else 1.0
        stretch = score_norms.dtype.type(scale)
        length = scale * lengths[i]
        shift = score_norms.dtype.type(length * length)
        lowest = float_bits((score_norms[0] + shift) + stretch * scores[i, 0])
        for c in range(1, C):
            key = float_bits((score_norms[c] + shift) + stretch * scores[i, c])
            lowest = key if key < lowest else lowest
        label = 0
        for c in range(C):
            here = float_bits((score_norms[c] + shift) + stretch * scores[i, c]) == lowest
            label = max(label, c if here else 0)
        squared = max(np.float64((score_norms[label] + shift) + stretch * scores[i, label]), 0.0)
        own = length + np.sqrt(np.float64(score_norms[label]))
        error = rounding(rows, at[i], own, scale, D, unit, tiny)
        # a centre that is as close has ‖m‖ ≤ ‖x‖ + d, which bounds the error of its score
        reach = 2.0 * length + np.sqrt(squared + error)
        top = squared + error + rounding(rows, at[i], reach, scale, D, unit, tiny)
        labels[i], best[i] = label, squared + error
        if scores_may_overflow(max(own, reach), scale, tiny):
            labels[i] = -1
            for c in range(C):
                compare(rows, at[i], scale, centers, norms, i, c, best, labels)
            continue
        limit = float_bits(score_norms.dtype.type(top * (1.0 + 4.0 * unit)))
        n_close = 0
        for c in range(C):
            n_close += float_bits((score_norms[c] + shift) + stretch * scores[i, c]) <= limit
        if n_close > 1:
            labels[i] = -1
            for c in range(C):
                if float_bits((score_norms[c] + shift) + stretch * scores[i, c]) <= limit:
                    compare(rows, at[i], scale, centers, norms, i, c, best, labels)
