"""Squares added to packed scatters."""

from __future__ import annotations

from typing import Any

from globular.jit import inline


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
