"""Kernels of swaps: what a centre is worth, and what a second one in its cluster would gain."""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.jit import Queue, kernel, take_number
from globular.kernels.rows import add_row, squared_distance


@kernel
def two_closest(
    scores: Any,  # IN  (n, C) −2 x·(m − offset)
    score_norms: Any,  # IN  (C,) ‖m − offset‖²
    scales: Any,  # IN  (n,) or empty
    lengths: Any,  # IN  (n,) ‖x − offset‖
    weights: Any,  # IN  (n,) or empty
    labels: Any,  # OUT (n,) the closest centre
    d2: Any,  # OUT (n,) squared distance to it
    losses: Any,  # IN/OUT (C,) Σ w (second − closest squared distance)
) -> float:
    """The closest and the second closest of two centres or more by their scores; returns Σ w d². O(n · C)."""
    objective = 0.0
    for i in range(d2.shape[0]):
        scale = scores.dtype.type(scales[i] if scales.shape[0] else 1.0)
        lowest, second, closest = scores.dtype.type(np.inf), scores.dtype.type(np.inf), 0
        for c in range(score_norms.shape[0]):
            score = score_norms[c] + scale * scores[i, c]
            if score < second:
                if score < lowest:
                    lowest, second, closest = score, lowest, c
                else:
                    second = score
        length = np.float64(scale) * lengths[i]
        weight = weights[i] if weights.shape[0] else 1.0
        labels[i] = closest
        d2[i] = max(0.0, length * length + lowest)
        losses[closest] += weight * (np.float64(second) - lowest)
        objective += weight * d2[i]
    return objective


@kernel
def halve_clusters(
    queue: Queue,  # IN/OUT spans of rows
    length: int,  # IN  rows of a span
    first_row: int,  # IN  number of the first of these rows
    rows: Any,  # IN
    scales: Any,  # IN  (n,) or empty
    weights: Any,  # IN  (n,) or empty
    names: Any,  # IN  (C,) or empty: labels of those that are closer to the second
    labels: Any,  # IN/OUT (n,)
    firsts: Any,  # IN  (C, D) float64
    first_norms: Any,  # IN  (C,)
    seconds: Any,  # IN  (C, D) float64
    second_norms: Any,  # IN  (C,)
    offset: Any,  # IN  (D,) zeros
    d2: Any,  # OUT (n,) squared distance to the closer of the two
    objectives: Any,  # OUT (spans,) Σ w d²
    sums: Any,  # OUT (spans, C, D) Σ w x over the rows that are closer to the second; or (0, C, D)
    counts: Any,  # OUT (spans, C) Σ w over them; or (0, C)
    won: Any,  # OUT (2, N) where there are no sums: the numbers of these rows from where each span begins, and their c
    n_won: Any,  # OUT (spans,) how many they are
) -> None:
    """Give every row to the closer one of the two centres of its cluster. O(n · D)."""
    s = take_number(queue)
    while s < objectives.shape[0]:
        objective, begin, is_summed = 0.0, s * length, sums.shape[0] > 0
        at = first_row + begin
        if is_summed:
            sums[s] = 0.0
            counts[s] = 0.0
        for i in range(begin, min(begin + length, labels.shape[0])):
            scale = scales[i] if scales.shape[0] else 1.0
            weight = weights[i] if weights.shape[0] else 1.0
            c = labels[i]
            first = squared_distance(rows, i, scale, firsts, c, first_norms)
            second = squared_distance(rows, i, scale, seconds, c, second_norms)
            if second < first:
                if is_summed:
                    counts[s, c] += weight
                    add_row(rows, i, weight * scale, offset, sums[s], c)
                else:
                    won[0, at], won[1, at] = first_row + i, c
                    at += 1
                if names.shape[0]:
                    labels[i] = names[c]
            d2[i] = min(first, second)
            objective += weight * d2[i]
        objectives[s], n_won[s] = objective, at - first_row - begin
        s = take_number(queue)
