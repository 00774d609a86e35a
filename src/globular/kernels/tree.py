"""Kernels of the partition tree: splitting nodes in place, and summing statistics from the leaves up."""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.kernels.compile import inline, kernel

SAMPLE, LEAST_SAMPLE = 256, 64
"""Most and least rows of a node from which its first principal component is found, an eighth of them in between."""
ITERATIONS = 10
"""Steps of the power iteration: the direction needs to be good, not exact."""
SETTLED = 1e-4
"""The iteration ends when the direction turns by less."""
LOPSIDED = 32
"""A side with less than this fraction of the rows is too small: split at the median instead."""


@inline
def _weight(weights: Any, i: int) -> float:
    return weights[i] if weights.shape[0] else 1.0


@inline
def _swap(rows: Any, order: Any, weights: Any, projections: Any, i: int, j: int) -> None:
    for d in range(rows.shape[1]):
        rows[i, d], rows[j, d] = rows[j, d], rows[i, d]
    order[i], order[j] = order[j], order[i]
    projections[i], projections[j] = projections[j], projections[i]
    if weights.shape[0]:
        weights[i], weights[j] = weights[j], weights[i]


@inline
def _project(rows: Any, i: int, center: Any, direction: Any) -> float:
    total = 0.0
    for d in range(center.shape[0]):
        total += (rows[i, d] - center[d]) * direction[d]
    return total


@kernel
def _sample_mean(rows: Any, weights: Any, begin: int, step: int, n: int, center: Any) -> float:
    """Weighted mean of a sample to `center`; returns its weight, 0 if none of it counts (the mean is then plain)."""
    total = 0.0
    for k in range(n):
        total += _weight(weights, begin + k * step)
    center[:] = 0.0
    for k in range(n):
        i = begin + k * step
        share = _weight(weights, i) / total if total > 0.0 else 1.0 / n
        for d in range(center.shape[0]):
            center[d] += share * rows[i, d]
    return total


@kernel
def _farthest_direction(rows: Any, begin: int, step: int, n: int, center: Any, direction: Any) -> bool:
    """Direction of the sampled row farthest from the centre; whether there is one that is not the centre itself."""
    largest, farthest = 0.0, begin
    for k in range(n):
        squared = 0.0
        for d in range(center.shape[0]):
            difference = rows[begin + k * step, d] - center[d]
            squared += difference * difference
        if squared > largest:
            largest, farthest = squared, begin + k * step
    if largest <= 0.0:
        return False
    for d in range(center.shape[0]):
        direction[d] = (rows[farthest, d] - center[d]) / np.sqrt(largest)
    return True


@kernel
def principal_direction(
    rows: Any,  # IN  (N, D)
    weights: Any,  # IN  (N,) or empty
    begin: int,  # IN  the node's rows
    end: int,  # IN
    center: Any,  # OUT (D,) mean of the sample
    direction: Any,  # OUT (D,) unit vector
    turned: Any,  # scratch (D,)
) -> bool:
    """First principal component of a sample, by power iteration; False if the sample is a single place. O(S·D)."""
    n_rows = end - begin
    n = min(n_rows, SAMPLE, max(n_rows // 8, LEAST_SAMPLE))
    step = max(1, n_rows // n)
    counted = _sample_mean(rows, weights, begin, step, n, center)
    if not _farthest_direction(rows, begin, step, n, center, direction):
        return False
    for _ in range(ITERATIONS):
        turned[:] = 0.0
        for k in range(n):
            i = begin + k * step
            share = _project(rows, i, center, direction)
            share *= _weight(weights, i) if counted > 0.0 else 1.0
            for d in range(center.shape[0]):
                turned[d] += share * (rows[i, d] - center[d])
        squared = 0.0
        for d in range(center.shape[0]):
            squared += turned[d] * turned[d]
        if squared <= 0.0:  # the rows that count are a single place, some that do not are elsewhere
            return True
        change = 0.0
        for d in range(center.shape[0]):
            difference = turned[d] / np.sqrt(squared) - direction[d]
            change += difference * difference
            direction[d] = turned[d] / np.sqrt(squared)
        if change < SETTLED * SETTLED:
            return True
    return True


@kernel
def _all_alike(rows: Any, begin: int, end: int, direction: Any) -> bool:
    """Whether all rows of a node are equal; else the direction to the first that is not."""
    for i in range(begin + 1, end):
        squared = 0.0
        for d in range(rows.shape[1]):
            direction[d] = np.float64(rows[i, d]) - rows[begin, d]
            squared += direction[d] * direction[d]
        if squared > 0.0:
            for d in range(rows.shape[1]):
                direction[d] /= np.sqrt(squared)
            return False
    return True


@kernel
def _partition(rows: Any, order: Any, weights: Any, projections: Any, begin: int, end: int, cut: float) -> int:
    """Rows below the cut to the left; returns where the others begin. O(n·D)."""
    left, right = begin, end - 1
    while True:
        while left <= right and projections[left] < cut:
            left += 1
        while left <= right and projections[right] >= cut:
            right -= 1
        if left > right:
            return left
        _swap(rows, order, weights, projections, left, right)
        left += 1
        right -= 1


@kernel
def _halve(rows: Any, order: Any, weights: Any, projections: Any, begin: int, end: int) -> int:
    """Rows with the lower half of the projections to the left, ties as they come: quickselect. O(n·D) on average."""
    middle = begin + (end - begin) // 2
    first, last = begin, end - 1
    while first < last:
        pivot = projections[first + (last - first) // 2]
        left, right = first, last
        while left <= right:
            while projections[left] < pivot:
                left += 1
            while projections[right] > pivot:
                right -= 1
            if left <= right:
                _swap(rows, order, weights, projections, left, right)
                left += 1
                right -= 1
        if middle <= right:
            last = right
        elif middle >= left:
            first = left
        else:
            break
    return middle


@kernel
def split_node(
    rows: Any,  # IN/OUT (N, D) reordered
    order: Any,  # IN/OUT (N,) row numbers, reordered alike
    weights: Any,  # IN/OUT (N,) or empty, reordered alike
    begin: int,  # IN  the node's rows
    end: int,  # IN
    projections: Any,  # scratch (N,) float64
    center: Any,  # scratch (D,)
    direction: Any,  # scratch (D,)
    turned: Any,  # scratch (D,)
) -> int:
    """Split a node at the bisector of its first principal component; returns where the second half begins.

    That is `begin` if all rows are alike: there is nothing to split. O(n·D).
    """
    found = principal_direction(rows, weights, begin, end, center, direction, turned)
    if not found and _all_alike(rows, begin, end, direction):
        return begin
    total, moment = 0.0, 0.0
    for i in range(begin, end):
        projections[i] = _project(rows, i, center, direction)
        total += _weight(weights, i)
        moment += _weight(weights, i) * projections[i]
    cut = moment / total if total > 0.0 else 0.0
    middle = _partition(rows, order, weights, projections, begin, end, cut)
    if LOPSIDED * min(middle - begin, end - middle) < end - begin:
        middle = _halve(rows, order, weights, projections, begin, end)
    return middle


@kernel
def grow_subtree(
    rows: Any,  # IN/OUT see `split_node`
    order: Any,  # IN/OUT
    weights: Any,  # IN/OUT
    leaf_size: int,  # IN  nodes of more rows are split
    starts: Any,  # IN the root's at 0, OUT (capacity,) of all nodes
    ends: Any,  # the same
    children: Any,  # OUT (capacity, 2), −1 for leaves
    projections: Any,  # scratch (N,)
    center: Any,  # scratch (D,)
    direction: Any,  # scratch (D,)
    turned: Any,  # scratch (D,)
) -> int:
    """Split a node and its children until all have at most `leaf_size` rows; the number of nodes. O(n·D·log n).

    Children come after their parents. A tree over n rows has at most 2n − 1 nodes.
    """
    n_nodes, node = 1, 0
    while node < n_nodes:
        children[node, 0] = children[node, 1] = -1
        begin, end = starts[node], ends[node]
        if end - begin > leaf_size:
            middle = split_node(rows, order, weights, begin, end, projections, center, direction, turned)
            if middle > begin:
                children[node, 0], children[node, 1] = n_nodes, n_nodes + 1
                starts[n_nodes], ends[n_nodes] = begin, middle
                starts[n_nodes + 1], ends[n_nodes + 1] = middle, end
                n_nodes += 2
        node += 1
    return n_nodes


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


@inline
def _add_square(scatter: Any, node: int, share: float, difference: Any) -> None:
    """Add share · difference differenceᵀ to a packed scatter of whatever kind."""
    D, width = difference.shape[0], scatter.shape[1]
    if width == 1:
        total = 0.0
        for d in range(D):
            total += difference[d] * difference[d]
        scatter[node, 0] += share * total
    elif width == D:
        for d in range(D):
            scatter[node, d] += share * difference[d] * difference[d]
    else:
        place = 0
        for d in range(D):
            for e in range(d, D):
                scatter[node, place] += share * difference[d] * difference[e]
                place += 1


@inline
def _difference(rows: Any, weights: Any, i: int, end: int, means: Any, node: int, out: Any, place: int) -> None:
    """√w (x − x̄) of a row, zeros for rows from `end` on."""
    D = means.shape[1]
    if i >= end:
        for d in range(D):
            out[place, d] = 0.0
        return
    scale = np.sqrt(_weight(weights, i))
    for d in range(D):
        out[place, d] = scale * (rows[i, d] - means[node, d])


@inline
def _sum_squares(
    rows: Any, weights: Any, begin: int, end: int, node: int, means: Any, scatter: Any, four: Any, square: Any
) -> None:
    """Scatter matrix of a leaf, four rows at a time and half a matrix in whole vectors. O(n·S)."""
    D = means.shape[1]
    square[:] = 0.0
    for i in range(begin, end, 4):
        for k in range(4):
            _difference(rows, weights, i + k, end, means, node, four, k)
        for d in range(D):
            a, b, c, e = four[0, d], four[1, d], four[2, d], four[3, d]
            for j in range(d - d % 8, D):
                square[d, j] += a * four[0, j] + b * four[1, j] + c * four[2, j] + e * four[3, j]
    place = 0
    for d in range(D):
        for j in range(d, D):
            scatter[node, place] = square[d, j]
            place += 1


@kernel
def _sum_rows(
    rows: Any,
    weights: Any,
    begin: int,
    end: int,
    node: int,
    sums: Any,
    means: Any,
    scatter: Any,
    four: Any,
    square: Any,
) -> None:
    """Statistics of a leaf in two sweeps. Rows that do not count at all have their plain mean. O(n·S)."""
    D = means.shape[1]
    total = 0.0
    for i in range(begin, end):
        total += _weight(weights, i)
    sums[node] = total
    for d in range(D):
        means[node, d] = rows[begin, d]
    for i in range(begin, end):
        share = _weight(weights, i) / total if total > 0.0 else 1.0 / (end - begin)
        for d in range(D):
            means[node, d] += share * (rows[i, d] - np.float64(rows[begin, d]))
    if square.shape[0]:
        _sum_squares(rows, weights, begin, end, node, means, scatter, four, square)
        return
    for i in range(begin, end):
        _difference(rows, weights, i, end, means, node, four, 0)
        _add_square(scatter, node, 1.0, four[0])


@kernel
def sum_up(
    rows: Any,  # IN  (N, D) in the order of the tree
    weights: Any,  # IN  (N,) or empty
    starts: Any,  # IN  (n_nodes,)
    ends: Any,  # IN  (n_nodes,)
    children: Any,  # IN  (n_nodes, 2)
    first: int,  # IN  nodes first … last − 1, all of whose children are among them or done
    last: int,  # IN
    sums: Any,  # OUT (n_nodes,) Σ w
    means: Any,  # OUT (n_nodes, D)
    scatter: Any,  # IN zeros, OUT (n_nodes, S) about the mean
    four: Any,  # scratch (4, D)
    square: Any,  # scratch (D, D) for matrices, else (0, 0)
) -> None:
    """Statistics from the leaves up: a parent is the sum of its children. O(rows·S + nodes·S)."""
    D, width = means.shape[1], scatter.shape[1]
    difference = four[0]
    for node in range(last - 1, first - 1, -1):
        a, b = children[node, 0], children[node, 1]
        if a < 0:
            _sum_rows(rows, weights, starts[node], ends[node], node, sums, means, scatter, four, square)
            continue
        total = sums[a] + sums[b]
        sums[node] = total
        part = sums[b] / total if total > 0.0 else (ends[b] - starts[b]) / (ends[node] - starts[node])
        for d in range(D):
            difference[d] = means[b, d] - means[a, d]
            means[node, d] = means[a, d] + part * difference[d]
        for s in range(width):
            scatter[node, s] = scatter[a, s] + scatter[b, s]
        _add_square(scatter, node, sums[a] * part, difference)


@kernel
def part_nodes(
    children: Any,  # IN  (n_nodes, 2)
    weights: Any,  # IN  (n_nodes,)
    gain: float,  # IN  what parting has to gain per unit of weight
    worth: Any,  # IN what each node is worth as a cluster, OUT what the best of its partitions is worth
    parted: Any,  # OUT (n_nodes,) whether that is one of its children's
) -> None:
    """The best partition that the tree contains, from the leaves up. O(nodes)."""
    for node in range(children.shape[0] - 1, -1, -1):
        a, b = children[node, 0], children[node, 1]
        parted[node] = a >= 0 and worth[a] + worth[b] > worth[node] + gain * weights[node]
        if parted[node]:
            worth[node] = worth[a] + worth[b]
