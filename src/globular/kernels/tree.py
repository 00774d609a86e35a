"""Kernels of the partition tree: splitting nodes in place, across their first principal components."""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.jit import inline, kernel
from globular.jit.memory import bits_float, float_bits

SAMPLE = (64, 256)
"""Least and most rows of a node from which its first principal component is found, an eighth of them in between; larger
= better directions, for more time."""
LOPSIDED = 32  # a side with less than this fraction of the rows is too small: split at the median instead


@inline
def weight_of(weights: Any, i: int) -> float:
    """Of a row; one if there are no weights."""
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
        total += weight_of(weights, begin + k * step)
    center[:] = 0.0
    for k in range(n):
        i = begin + k * step
        share = weight_of(weights, i) / total if total > 0.0 else 1.0 / n
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
    n = min(n_rows, SAMPLE[1], max(n_rows // 8, SAMPLE[0]))
    step = max(1, n_rows // n)
    counted = _sample_mean(rows, weights, begin, step, n, center)
    if not _farthest_direction(rows, begin, step, n, center, direction):
        return False
    for _ in range(10):  # the direction needs to be good, not exact
        turned[:] = 0.0
        for k in range(n):
            i = begin + k * step
            share = _project(rows, i, center, direction)
            share *= weight_of(weights, i) if counted > 0.0 else 1.0
            for d in range(center.shape[0]):
                turned[d] += share * (rows[i, d] - center[d])
        largest = 0.0
        for d in range(center.shape[0]):
            largest = max(largest, abs(turned[d]))
        if largest <= 0.0:  # the rows that count are a single place, some that do not are elsewhere
            return True
        exponent = min(float_bits(largest) >> 52, 2044)  # biased by 1023
        size = bits_float((2045 - exponent) << 52)  # a power of two near its inverse: squares of any size are as exact
        squared = 0.0
        for d in range(center.shape[0]):
            turned[d] *= size
            squared += turned[d] * turned[d]
        change = 0.0
        for d in range(center.shape[0]):
            difference = turned[d] / np.sqrt(squared) - direction[d]
            change += difference * difference
            direction[d] = turned[d] / np.sqrt(squared)
        if change < 1e-4 * 1e-4:
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
        total += weight_of(weights, i)
        moment += weight_of(weights, i) * projections[i]
    cut = moment / total if total > 0.0 else 0.0
    middle = _partition(rows, order, weights, projections, begin, end, cut)
    if LOPSIDED * min(middle - begin, end - middle) < end - begin:
        middle = _halve(rows, order, weights, projections, begin, end)
    return middle


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
def grow_nodes(
    rows: Any,  # IN/OUT see `split_node`
    order: Any,  # IN/OUT
    weights: Any,  # IN/OUT
    largest: float,  # IN  nodes of more rows are split …
    deepest: int,  # IN  … where planes are wanted, down to this depth
    starts: Any,  # IN the root's at 0, OUT (capacity,) of all nodes
    ends: Any,  # the same
    children: Any,  # OUT (capacity, 2), −1 for leaves
    planes: Any,  # OUT (capacity, D) normals of planes between the children, of leaves as they were; or empty
    cuts: Any,  # OUT (capacity,) and where the planes lie
    depths: Any,  # OUT (capacity,) or empty
    projections: Any,  # scratch (N,)
    center: Any,  # scratch (D,)
    direction: Any,  # scratch (D,)
    turned: Any,  # scratch (D,)
) -> int:
    """Split a node and its children until all have at most `largest` rows; the number of nodes. O(n·D·log n).

    Children come after their parents. A tree over n rows has at most 2n − 1 nodes. Where planes are wanted a node that
    none parts stays whole: they split all rows about as they split a sample of them.
    """
    n_nodes, node, parted = 1, 0, cuts.shape[0] > 0
    if parted:
        depths[0] = 0
    while node < n_nodes:
        children[node, 0] = children[node, 1] = -1
        begin, end = starts[node], ends[node]
        if end - begin > largest and (not parted or depths[node] < deepest):
            middle = split_node(rows, order, weights, begin, end, projections, center, direction, turned)
            if middle > begin and parted:
                depths[n_nodes] = depths[n_nodes + 1] = depths[node] + 1
                if not _set_plane(projections, begin, middle, end, center, direction, planes, cuts, node):
                    middle = begin
            if middle > begin:
                children[node, 0], children[node, 1] = n_nodes, n_nodes + 1
                starts[n_nodes], ends[n_nodes] = begin, middle
                starts[n_nodes + 1], ends[n_nodes + 1] = middle, end
                n_nodes += 2
        node += 1
    return n_nodes
