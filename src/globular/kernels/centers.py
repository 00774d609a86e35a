"""Centres between passes: prepared for the next one, moved to the means of their rows. Memory is the limit here."""

from __future__ import annotations

from typing import Any

from globular.jit import Queue, kernel, strict_kernel, take_number


@kernel
def prepare_centers(
    queue: Queue,  # IN/OUT blocks of members
    size: int,  # IN  members of a block
    centers: Any,  # IN  (C, D) float64
    members: Any,  # IN  (C,) the centres in the order that is wanted, or empty: as they are
    offset: Any,  # IN  (D,) or empty
    factor: float,  # IN
    norms: Any,  # OUT (C,) ‖m‖²
    score_norms: Any,  # OUT (C,) ‖m − offset‖² in that order
    factors: Any,  # OUT (C, D) factor · (m − offset) in that order
) -> None:
    """What products of rows and centres take. O(C · D)."""
    C, D = centers.shape
    begin = size * take_number(queue)
    while begin < C:
        for k in range(begin, min(begin + size, C)):
            c = members[k] if members.shape[0] else k
            norm, score_norm = 0.0, 0.0
            for j in range(D):
                norm += centers[c, j] * centers[c, j]
            if offset.shape[0]:
                for j in range(D):
                    shifted = centers[c, j] - offset[j]
                    score_norm += shifted * shifted
                    factors[k, j] = factor * shifted
            else:
                score_norm = norm
                for j in range(D):
                    factors[k, j] = factor * centers[c, j]
            norms[c], score_norms[k] = norm, score_norm
        begin = size * take_number(queue)


@strict_kernel
def divide_sums(
    queue: Queue,  # IN/OUT blocks of sums
    size: int,  # IN  sums of a block
    sums: Any,  # IN  (C, D)
    divisors: Any,  # IN  (C,)
    means: Any,  # OUT (C, D) sums / divisors
) -> None:
    """Means from sums: those of NumPy, number by number. O(C · D)."""
    begin = size * take_number(queue)
    while begin < sums.shape[0]:
        for c in range(begin, min(begin + size, sums.shape[0])):
            for j in range(sums.shape[1]):
                means[c, j] = sums[c, j] / divisors[c]
        begin = size * take_number(queue)
