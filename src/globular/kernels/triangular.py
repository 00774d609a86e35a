"""Inverses of many small triangular matrices: a library call for each would cost more than it computes."""

from __future__ import annotations

from typing import Any

from globular.kernels.compile import kernel


@kernel
def invert_lower(
    lower: Any,  # IN  (C, D, D) lower triangular
    inverse: Any,  # OUT (C, D, D) zeros above the diagonal
) -> None:
    """Forward substitution, a row of the inverse at a time. O(C·D³)."""
    C, D = lower.shape[:2]
    for c in range(C):
        for i in range(D):
            for j in range(D):
                inverse[c, i, j] = 0.0
            for k in range(i):
                factor = lower[c, i, k]
                for j in range(k + 1):
                    inverse[c, i, j] -= factor * inverse[c, k, j]
            scale = 1.0 / lower[c, i, i]
            for j in range(i):
                inverse[c, i, j] *= scale
            inverse[c, i, i] = scale
