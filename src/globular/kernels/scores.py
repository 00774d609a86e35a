"""Rows about an offset."""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.jit import inline


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
