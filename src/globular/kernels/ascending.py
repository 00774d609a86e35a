"""Where a value belongs among ascending ones; numba's own search takes longer to compile than most kernels."""

from __future__ import annotations

from typing import Any

from globular.jit import inline


@inline
def count_up_to(ascending: Any, value: Any) -> int:
    """How many of the ascending values are at most this one. O(log n)."""
    low, high = 0, ascending.shape[0]
    while low < high:
        middle = (low + high) // 2
        if ascending[middle] <= value:
            low = middle + 1
        else:
            high = middle
    return low
