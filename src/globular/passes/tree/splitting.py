"""Kernels of the partition tree: nodes split in place across their first principal components, and rows sent down."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from globular.jit import inline, kernel
from globular.jit.memory import bits_float, float_bits
from globular.passes.cpu.engine.densities import weight_of

SAMPLE = (64, 256)
"""Least and most rows of a node from which its first principal component is found, an eighth of them in between; larger
= better directions, for more time."""
LOPSIDED = 32
"""A side with less than this fraction of the rows is too small: the node is split at the median instead."""


class Held(NamedTuple):
    """Rows that splitting reorders, and its workspace."""

    rows: Any  # (N, D)
    order: Any  # (N,) row numbers
    weights: Any  # (N,) or empty
    projections: Any  # (N,) float64
    center: Any  # (D,) mean of a sample of a node
    direction: Any  # (D,) unit vector
    turned: Any  # (D,)


class Shape(NamedTuple):
    """Nodes, parents before children: node i holds the rows starts[i] … ends[i] − 1."""

    starts: Any  # (n_nodes,)
    ends: Any  # (n_nodes,)
    children: Any  # (n_nodes, 2), −1 for leaves


class Planes(NamedTuple):
    """Planes between the children of nodes, and how deep nodes are; all empty where nobody wants them."""

    normals: Any  # (n_nodes, D), of leaves as they were
    cuts: Any  # (n_nodes,) where the planes lie
    depths: Any  # (n_nodes,)


@inline
def _swap(held: Any, i: int, j: int) -> None:
    for d in range(held.rows.shape[1]):
        held.rows[i, d], held.rows[j, d] = held.rows[j, d], held.rows[i, d]
    held.order[i], held.order[j] = held.order[j], held.order[i]
    held.projections[i], held.projections[j] = held.projections[j], held.projections[i]
    if held.weights.shape[0]:
        held.weights[i], held.weights[j] = held.weights[j], held.weights[i]


@inline
def _project(held: Any, i: int) -> float:
    total = 0.0
    for d in range(held.center.shape[0]):
        total += (held.rows[i, d] - held.center[d]) * held.direction[d]
    return total


@kernel
def _sample_mean(held: Any, begin: int, step: int, n: int) -> float:
    """Weighted mean of a sample to the centre; returns its weight, 0 if none of it counts (the mean is then plain)."""
    center, total = held.center, 0.0
    for k in range(n):
        total += weight_of(held.weights, begin + k * step)
    center[:] = 0.0
    for k in range(n):
        i = begin + k * step
        share = weight_of(held.weights, i) / total if total > 0.0 else 1.0 / n
        for d in range(center.shape[0]):
            center[d] += share * held.rows[i, d]
    return total


@kernel
def _farthest_direction(held: Any, begin: int, step: int, n: int) -> bool:
    """Direction of the sampled row farthest from the centre; whether there is one that is not the centre itself."""
    rows, center = held.rows, held.center
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
        held.direction[d] = (rows[farthest, d] - center[d]) / np.sqrt(largest)
    return True


@kernel
def principal_direction(held: Any, begin: int, end: int) -> bool:
    """First principal component of a sample of a node, by power iteration; False if that is a single place. O(S·D)."""
    rows, center, direction, turned = held.rows, held.center, held.direction, held.turned
    n_rows = end - begin
    n = min(n_rows, SAMPLE[1], max(n_rows // 8, SAMPLE[0]))
    step = max(1, n_rows // n)
    counted = _sample_mean(held, begin, step, n)
    if not _farthest_direction(held, begin, step, n):
        return False
    for _ in range(10):  # the direction needs to be good, not exact
        turned[:] = 0.0
        for k in range(n):
            i = begin + k * step
            share = _project(held, i)
            share *= weight_of(held.weights, i) if counted > 0.0 else 1.0
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
def _partition(held: Any, begin: int, end: int, cut: float) -> int:
    """Rows below the cut to the left; returns where the others begin. O(n·D)."""
    left, right = begin, end - 1
    while True:
        while left <= right and held.projections[left] < cut:
            left += 1
        while left <= right and held.projections[right] >= cut:
            right -= 1
        if left > right:
            return left
        _swap(held, left, right)
        left += 1
        right -= 1


@kernel
def _halve(held: Any, begin: int, end: int) -> int:
    """Rows with the lower half of the projections to the left, ties as they come: quickselect. O(n·D) on average."""
    projections, middle = held.projections, begin + (end - begin) // 2
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
                _swap(held, left, right)
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
def split_node(held: Any, begin: int, end: int) -> int:
    """Split a node at the bisector of its first principal component; returns where the second half begins.

    That is `begin` if all rows are alike: there is nothing to split. O(n·D).
    """
    if not principal_direction(held, begin, end) and _all_alike(held.rows, begin, end, held.direction):
        return begin
    total, moment = 0.0, 0.0
    for i in range(begin, end):
        held.projections[i] = _project(held, i)
        total += weight_of(held.weights, i)
        moment += weight_of(held.weights, i) * held.projections[i]
    cut = moment / total if total > 0.0 else 0.0
    middle = _partition(held, begin, end, cut)
    if LOPSIDED * min(middle - begin, end - middle) < end - begin:
        middle = _halve(held, begin, end)
    return middle


@kernel
def _set_plane(held: Any, begin: int, middle: int, end: int, planes: Any, node: int) -> bool:
    """A plane x · direction = cut with the two parts of a split on its two sides; False if ties leave none."""
    below, above = held.projections[begin], held.projections[middle]
    for i in range(begin, middle):
        below = max(below, held.projections[i])
    for i in range(middle, end):
        above = min(above, held.projections[i])
    if below >= above:
        return False
    planes.cuts[node] = 0.5 * (below + above)
    for d in range(held.center.shape[0]):
        planes.normals[node, d] = held.direction[d]
        planes.cuts[node] += held.center[d] * held.direction[d]
    return True


@kernel
def grow_nodes(
    held: Any,  # IN/OUT
    largest: float,  # IN  nodes of more rows are split …
    deepest: int,  # IN  … where planes are wanted, down to this depth
    shape: Any,  # IN the root's rows, OUT all nodes
    planes: Any,  # OUT
) -> int:
    """Split a node and its children until all have at most `largest` rows; the number of nodes. O(n·D·log n).

    Children come after their parents. A tree over n rows has at most 2n − 1 nodes. Where planes are wanted a node that
    none parts stays whole: they split all rows about as they split a sample of them.
    """
    starts, ends, children, depths = shape.starts, shape.ends, shape.children, planes.depths
    n_nodes, node, parted = 1, 0, depths.shape[0] > 0
    if parted:
        depths[0] = 0
    while node < n_nodes:
        children[node, 0] = children[node, 1] = -1
        begin, end = starts[node], ends[node]
        if end - begin > largest and (not parted or depths[node] < deepest):
            middle = split_node(held, begin, end)
            if middle > begin and parted:
                depths[n_nodes] = depths[n_nodes + 1] = depths[node] + 1
                if not _set_plane(held, begin, middle, end, planes, node):
                    middle = begin
            if middle > begin:
                children[node, 0], children[node, 1] = n_nodes, n_nodes + 1
                starts[n_nodes], ends[n_nodes] = begin, middle
                starts[n_nodes + 1], ends[n_nodes + 1] = middle, end
                n_nodes += 2
        node += 1
    return n_nodes


@kernel
def route_rows(
    rows: Any,  # IN  (n, D)
    children: Any,  # IN  (n_nodes, 2); a leaf's are itself
    planes: Any,  # IN
    labels: Any,  # OUT (n,) the leaf of every row
) -> None:
    """Send rows down the planes. O(n·D·depth)."""
    (n, D), normals, cuts = rows.shape, planes.normals, planes.cuts
    for first in range(0, n, 4):
        # four rows at a time: a step of one need not wait for those of the others; the last rows go twice
        i = min(first, max(n - 4, 0))
        j, k, m = min(i + 1, n - 1), min(i + 2, n - 1), min(i + 3, n - 1)
        a = b = c = e = 0
        while children[a, 0] != a or children[b, 0] != b or children[c, 0] != c or children[e, 0] != e:
            of_a = of_b = of_c = of_e = 0.0
            for d in range(D):
                of_a += rows[i, d] * normals[a, d]
                of_b += rows[j, d] * normals[b, d]
                of_c += rows[k, d] * normals[c, d]
                of_e += rows[m, d] * normals[e, d]
            a = children[a, 1 if of_a >= cuts[a] else 0]
            b = children[b, 1 if of_b >= cuts[b] else 0]
            c = children[c, 1 if of_c >= cuts[c] else 0]
            e = children[e, 1 if of_e >= cuts[e] else 0]
        labels[i], labels[j], labels[k], labels[m] = a, b, c, e
