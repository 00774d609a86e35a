"""Kernels of the E-step: responsibilities of a block of rows, and components too tight for the expanded square."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from globular.kernels.compile import allocating_kernel, kernel

_INVERSE_LN2 = 1.0 / math.log(2.0)
_LN2 = math.log(2.0)
_UNDERFLOW = -708.0  # exp of anything below is not a normal number; it counts as zero
_WHOLE_NUMBER = 6755399441055744.0
"""1.5 · 2⁵²: added to a small whole number it puts that number into the low bits of the float."""
_E2, _E3, _E4, _E5, _E6, _E7 = (1.0 / math.factorial(n) for n in range(2, 8))
_E8, _E9, _E10, _E11, _E12 = (1.0 / math.factorial(n) for n in range(8, 13))


@allocating_kernel
def softmax_rows(
    joint: Any,  # IN log p(c, x), OUT w·p(c | x); (B, C)
    weights: Any,  # IN  (B,), or empty for ones
    log_density: Any,  # OUT (B,) log p(x)
) -> None:
    """Turn log p(c, x) into w·p(c | x) in place, and give log p(x). O(B C).

    The exponential is spelled out (2ᵗ times a Taylor polynomial on |r| ≤ ½ log 2, good to a few units in the last
    place) because the compiler vectorises this and not a call of `exp`, which would take most of an E-step.
    """
    B, C = joint.shape
    powers = np.empty(C)
    bits = powers.view(np.int64)
    for i in range(B):
        row = joint[i]
        largest = _largest(row)
        for c in range(C):
            x = row[c] - largest
            t = np.floor(x * _INVERSE_LN2 + 0.5)
            r = x - t * _LN2
            p = _E9 + r * (_E10 + r * (_E11 + r * _E12))
            p = _E5 + r * (_E6 + r * (_E7 + r * (_E8 + r * p)))
            p = 1.0 + r * (1.0 + r * (_E2 + r * (_E3 + r * (_E4 + r * p))))
            row[c] = p if x > _UNDERFLOW else 0.0
            powers[c] = (t if x > _UNDERFLOW else 0.0) + _WHOLE_NUMBER
        for c in range(C):
            bits[c] = (bits[c] + 1023) << 52  # the float 2ᵗ, from its exponent
        total = 0.0
        for c in range(C):
            row[c] *= powers[c]
            total += row[c]
        log_density[i] = largest + np.log(total)
        scale = weights[i] if len(weights) else 1.0
        scale = scale / total if total > 0.0 else np.nan
        for c in range(C):
            row[c] *= scale


@kernel
def _largest(row: Any) -> Any:
    """Maximum, four at a time: a single running maximum waits for itself."""
    C = len(row)
    a = b = c = d = row[0]
    for j in range(0, C - 3, 4):
        a = row[j] if row[j] > a else a
        b = row[j + 1] if row[j + 1] > b else b
        c = row[j + 2] if row[j + 2] > c else c
        d = row[j + 3] if row[j + 3] > d else d
    for j in range(C - C % 4, C):
        a = row[j] if row[j] > a else a
    return max(max(a, b), max(c, d))


@kernel
def direct_joint(
    features: Any,  # IN  (B, ≥ D) means of chunks about the offset, and whatever follows
    spread: Any,  # IN  (B, S) their scatter per unit weight, or (B, 0)
    means: Any,  # IN  (T, D) about the offset
    precisions: Any,  # IN  (T, S), S = 1 or D
    constants: Any,  # IN  (T,)
    components: Any,  # IN  (T,) columns of `joint`
    joint: Any,  # OUT (B, C), those columns only
) -> None:
    """⟨log p(c, x)⟩ of the listed components from differences, which lose nothing. O(B T D)."""
    D, last = means.shape[1], precisions.shape[1] - 1
    for i in range(len(features)):
        for t in range(len(components)):
            total = 0.0
            for d in range(D):
                difference = features[i, d] - means[t, d]
                total += precisions[t, min(d, last)] * difference * difference
            for s in range(spread.shape[1]):
                total += precisions[t, s] * spread[i, s]
            joint[i, components[t]] = constants[t] - 0.5 * total


@kernel
def direct_moments(
    features: Any,  # IN  (B, ≥ D) as above
    spread: Any,  # IN  (B, S) or (B, 0)
    shares: Any,  # IN  (B, C) w q(c)
    means: Any,  # IN  (T, D)
    components: Any,  # IN  (T,) columns of `shares`
    sums: Any,  # IN/OUT (T, D), added to
    scatter: Any,  # IN/OUT (T, S), added to; S = 1 or D
) -> None:
    """First and second moments of the listed components about their means, from differences. O(B T D)."""
    D, last = means.shape[1], scatter.shape[1] - 1
    for t in range(len(components)):
        for i in range(len(features)):
            q = shares[i, components[t]]
            if q == 0.0:
                continue
            for d in range(D):
                difference = features[i, d] - means[t, d]
                sums[t, d] += q * difference
                scatter[t, min(d, last)] += q * difference * difference
            for s in range(spread.shape[1]):
                scatter[t, s] += q * spread[i, s]
