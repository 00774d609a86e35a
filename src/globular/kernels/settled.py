"""What is C-sized in the hard pass, before its rows and after them: one call each, for small data have little else."""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.jit import Queue, kernel, take_number
from globular.kernels.nominate import Bound

ROUND_UP = 1.0 + 2.0**-20
"""Factor that makes up for the rounding of shifts and their sums."""

SIDE = 16
"""Of a tile when centres are transposed."""


@kernel
def _transpose(
    centers: Any,  # IN  (C, D)
    offset: Any,  # IN  (D,) or empty
    factors: Any,  # OUT (D, ≥ C) −2 (m − offset)
) -> None:
    """Centres across, tile by tile, so that what is read and what is written stays in the cache. O(C·D)."""
    C, D = centers.shape
    for first in range(0, D, SIDE):
        for begin in range(0, C, SIDE):
            for j in range(first, min(first + SIDE, D)):
                origin = offset[j] if offset.shape[0] else 0.0
                for c in range(begin, min(begin + SIDE, C)):
                    factors[j, c] = -2.0 * (centers[c, j] - origin)


@kernel
def aim_at(
    centers: Any,  # IN  (C, D) the new centres, float64
    offset: Any,  # IN  (D,) or empty
    tiny: float,  # IN  the smallest normal number of the rows' dtype
    counts: Any,  # IN  (C,) Σ w of the last pass
    nominees: Any,  # IN/OUT those of the last pass; its centres are float64 too
    shifts: Any,  # OUT (C,) float32: how much room the rows of a label lose
) -> float:
    """Take new centres: how far each has moved, together with the farthest of the others, and their scores. O(C·D).

    Returns Σ_c n_c ‖shift‖², what the centres' moves would take off the objective if they were those of means.
    """
    C, D = centers.shape
    factors, width = nominees.factors, nominees.factors.shape[2]
    across = factors.shape[0] == 1  # all centres in one tile
    farthest, first, second, longest, gain = -1, 0.0, 0.0, 0.0, 0.0
    for c in range(C):
        shift, square = 0.0, 0.0
        for j in range(D):
            value = centers[c, j]
            difference = value - nominees.centers[c, j]
            shift += difference * difference
            nominees.centers[c, j] = value
            about = value - offset[j] if offset.shape[0] else value
            square += about * about
            if not across:
                factors[c // width, j, c % width] = -2.0 * about
        nominees.score_norms[c] = square
        longest = max(longest, square)
        gain += counts[c] * shift
        shift = np.sqrt(shift)
        shifts[c] = shift * ROUND_UP
        if not shift <= first:
            farthest, first, second = c, shift, first
        elif shift > second:
            second = shift
    if across:
        _transpose(centers, offset, factors[0])
    for c in range(C):
        shifts[c] = (np.float64(shifts[c]) + (second if c == farthest else first)) * ROUND_UP
    bounds = nominees.bounds
    # scores of longer rows may overflow, and those of too many terms say nothing: such rows are compared exactly
    reach = 0.125 / np.sqrt(tiny) - np.sqrt(longest)
    bounds[Bound.LARGEST] = reach * reach if reach > 0.0 and bounds[Bound.PER_PRODUCT] < 0.1 else 0.0
    for c in range(C, nominees.score_norms.shape[0]):
        nominees.score_norms[c] = bounds[Bound.NOBODY]
    return gain


@kernel
def add_up(
    queue: Queue,  # IN/OUT stretches of clusters not taken yet
    clusters_at_once: int,  # IN
    tally: Any,  # IN
    afresh: bool,  # IN  whether the spans have added all rows, not the moved ones
    centers: Any,  # IN  (C, D)
    offset: Any,  # IN  (D,) or empty
    sums: Any,  # IN/OUT (C, D) Σ w s (x − offset)
    counts: Any,  # IN/OUT (C,) Σ w
    peaks: Any,  # IN/OUT (C,) the largest count since all rows were added up
    gains: Any,  # OUT (C,) n ‖m‖² − 2 s·m about the offset: what a cluster adds to Σ w ‖x‖² to make Σ w ‖x − m‖² of it
    shares: Any,  # OUT (C,) the share of its peak that it has left
) -> None:
    """Add what the spans have added up, in their order, until no cluster is left. O(spans · C · D)."""
    C, D = sums.shape
    begin = take_number(queue) * clusters_at_once
    while begin < C:
        end = min(begin + clusters_at_once, C)
        if afresh:
            sums[begin:end] = 0.0
            counts[begin:end] = 0.0
        for span in range(tally.touched.shape[0]):
            if tally.touched[span]:
                for c in range(begin, end):
                    counts[c] += tally.counts[span, c]
                    for j in range(D):
                        sums[c, j] += tally.sums[span, c, j]
        for c in range(begin, end):
            peaks[c] = counts[c] if afresh else max(peaks[c], counts[c])
            shares[c] = 1.0
            if counts[c] == 0.0:
                for j in range(D):
                    sums[c, j] = 0.0
            else:
                shares[c] = counts[c] / peaks[c]
            gain = 0.0
            for j in range(D):
                about = centers[c, j] - offset[j] if offset.shape[0] else centers[c, j]
                gain += (counts[c] * about - 2.0 * sums[c, j]) * about
            gains[c] = gain
        begin = take_number(queue) * clusters_at_once
