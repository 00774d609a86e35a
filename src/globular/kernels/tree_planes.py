"""Kernels of the top of a partition tree: planes found on a sample, and all rows sent down them."""

from __future__ import annotations

from typing import Any

from globular.kernels.compile import kernel
from globular.kernels.tree import split_node


@kernel
def _set_plane(
    projections: Any, begin: int, middle: int, end: int, center: Any, direction: Any, planes: Any, cuts: Any, node: int
) -> bool:
    """A plane x · direction = cut with the two parts of a split on its two sides; False if ties leave none."""
    below, above = projections[begin], projections[middle]
    for i in range(begin, middle):
        below = max(below, projections[i])
    for i in range(middle, end):
        above = min(above, projections[i])
    if below >= above:
        return False
    cuts[node] = 0.5 * (below + above)
    for d in range(center.shape[0]):
        planes[node, d] = direction[d]
        cuts[node] += center[d] * direction[d]
    return True


@kernel
def find_planes(
    rows: Any,  # IN/OUT (n, D) a sample, reordered
    order: Any,  # IN/OUT (n,)
    weights: Any,  # IN/OUT (n,) or empty
    largest: float,  # IN  nodes of more rows of the sample are split …
    deepest: int,  # IN  … down to this depth
    starts: Any,  # IN the root's at 0, OUT (capacity,)
    ends: Any,  # the same
    children: Any,  # OUT (capacity, 2); of leaves, themselves
    planes: Any,  # OUT (capacity, D) normals
    cuts: Any,  # OUT (capacity,)
    depths: Any,  # OUT (capacity,)
    projections: Any,  # scratch (n,)
    center: Any,  # scratch (D,)
    direction: Any,  # scratch (D,)
    turned: Any,  # scratch (D,)
) -> int:
    """Planes that split all rows about as they split a sample; the number of nodes. O(n·D·log n)."""
    n_nodes, node = 1, 0
    depths[0] = 0
    while node < n_nodes:
        children[node, 0] = children[node, 1] = node
        cuts[node] = 0.0
        for d in range(rows.shape[1]):
            planes[node, d] = 0.0
        begin, end = starts[node], ends[node]
        if end - begin > largest and depths[node] < deepest:
            middle = split_node(rows, order, weights, begin, end, projections, center, direction, turned)
            if middle > begin and _set_plane(projections, begin, middle, end, center, direction, planes, cuts, node):
                children[node, 0], children[node, 1] = n_nodes, n_nodes + 1
                starts[n_nodes], ends[n_nodes] = begin, middle
                starts[n_nodes + 1], ends[n_nodes + 1] = middle, end
                depths[n_nodes] = depths[n_nodes + 1] = depths[node] + 1
                n_nodes += 2
        node += 1
    return n_nodes


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
