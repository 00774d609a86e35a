"""Cells of a tree that components hold.

The kernel is called twice. First there is no room for what it finds, and every span of cells counts; then spans know
where to write, whatever thread takes them.
"""

from __future__ import annotations

from typing import Any

from globular.jit import Queue, kernel, take_number


@kernel
def find_cells(
    queue: Queue,  # IN/OUT spans not taken yet
    cells_per_span: int,  # IN
    q: Any,  # IN  (M, C) responsibilities
    components: Any,  # IN  (n,)
    least: float,  # IN  responsibility above which a cell is a component's
    weights: Any,  # IN  (M,)
    means: Any,  # IN  (M, D)
    scatter: Any,  # IN  (M, S), or (M, 0)
    places: Any,  # IN/OUT (spans, n) where what each component holds goes; then where it ends
    shares: Any,  # OUT (claims,) w q, or empty
    centers: Any,  # OUT (claims, D) their means
    spreads: Any,  # OUT (claims, S) their scatter, which is summed and so shrinks with the weight
) -> None:
    """O(M·n + claims·S)."""
    M = weights.shape[0]
    span = take_number(queue)
    while span * cells_per_span < M:
        for k in range(components.shape[0]):
            c, at = components[k], places[span, k]
            for i in range(span * cells_per_span, min(M, (span + 1) * cells_per_span)):
                if q[i, c] > least:
                    if shares.shape[0]:
                        shares[at] = weights[i] * q[i, c]
                        for d in range(means.shape[1]):
                            centers[at, d] = means[i, d]
                        for s in range(scatter.shape[1]):
                            spreads[at, s] = scatter[i, s] * q[i, c]
                    at += 1
            places[span, k] = at
        span = take_number(queue)
