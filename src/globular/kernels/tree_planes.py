"""The kernel of the top of a partition tree: all rows sent down planes that were found on a sample."""

from __future__ import annotations

from typing import Any

from globular.jit import kernel


@kernel
def route_rows(
    rows: Any,  # IN  (n, D)
    children: Any,  # IN  (n_nodes, 2); a leaf's are itself
    planes: Any,  # IN  (n_nodes, D)
    cuts: Any,  # IN  (n_nodes,)
    labels: Any,  # OUT (n,) the leaf of every row
) -> None:
    """Send rows down the planes. O(n·D·depth)."""
    n, D = rows.shape
    for first in range(0, n, 4):
        # four rows at a time: a step of one need not wait for those of the others; the last rows go twice
        i = min(first, max(n - 4, 0))
        j, k, m = min(i + 1, n - 1), min(i + 2, n - 1), min(i + 3, n - 1)
        a = b = c = e = 0
        while children[a, 0] != a or children[b, 0] != b or children[c, 0] != c or children[e, 0] != e:
            of_a = of_b = of_c = of_e = 0.0
            for d in range(D):
                of_a += rows[i, d] * planes[a, d]
                of_b += rows[j, d] * planes[b, d]
                of_c += rows[k, d] * planes[c, d]
                of_e += rows[m, d] * planes[e, d]
            a = children[a, 1 if of_a >= cuts[a] else 0]
            b = children[b, 1 if of_b >= cuts[b] else 0]
            c = children[c, 1 if of_c >= cuts[c] else 0]
            e = children[e, 1 if of_e >= cuts[e] else 0]
        labels[i], labels[j], labels[k], labels[m] = a, b, c, e
