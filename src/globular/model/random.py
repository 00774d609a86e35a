"""Random orders by hashing: named by a seed, the same in any split of the rows, and never stored."""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.model.statistics import I64

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2⁶⁴ by the golden ratio: the step of splitmix64, and what Fibonacci hashing multiplies by."""
MIX1 = np.uint64(0xBF58476D1CE4E5B9)
"""The first multiplier of splitmix64."""
MIX2 = np.uint64(0x94D049BB133111EB)
"""The second."""
_SIX_STEPS = np.uint64(int(GOLDEN) * 6 % 2**64)
_MIXING = (np.uint64(30), MIX1), (np.uint64(27), MIX2), (np.uint64(31), np.uint64(1))


def random_order(seed: int, n: int, span: tuple[int, int]) -> I64:
    """What is at positions span[0] … span[1] − 1 of a random order of 0 … n − 1. O(positions).

    A network permutes 2^bits numbers; one that falls beyond n is sent through it again until it does not.
    """
    bits = max(8, (n - 1).bit_length())  # networks of fewer are not quite fair
    found = _shuffled(seed, np.arange(*span, dtype=np.uint64), bits)
    while len(beyond := np.flatnonzero(found >= n)):
        found[beyond] = _shuffled(seed, found[beyond], bits)
    return np.asarray(found.astype(np.int64))


def _shuffled(seed: int, x: Any, bits: int) -> Any:
    """Other numbers of these bits, one for each: a Feistel network of two parts, which need not be as wide."""
    low, high = np.uint64(bits - bits // 2), np.uint64(bits // 2)
    z, shifted = np.empty((2, len(x)), dtype=np.uint64)
    parts = [x & ((np.uint64(1) << low) - np.uint64(1)), x >> low]
    for r in range(6):  # each part in turn by a hash of the other
        np.multiply(parts[1 - r % 2], _SIX_STEPS, out=z)
        z += np.uint64((seed + int(GOLDEN) * (r + 1)) % 2**64)
        for shift, factor in _MIXING:
            np.right_shift(z, shift, out=shifted)
            z ^= shifted
            z *= factor
        z &= (np.uint64(1) << (high if r % 2 else low)) - np.uint64(1)
        parts[r % 2] ^= z
    return (parts[1] << low) | parts[0]
