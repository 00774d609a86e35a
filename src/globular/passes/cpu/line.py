"""Rows of one column: the k-means optimum by dynamic programming.

On a line every cluster of an optimum is a stretch of the sorted values, and prefix sums give the error of a stretch.
Charge a penalty for every cluster: the best partition then ends each prefix after the best one of a shorter prefix.
What begins later catches up with what began earlier and never falls behind again (the quadrangle inequality), so a
queue of beginnings, each with the first prefix that it is best for, finds the best partition of all prefixes in O(M
log M) for M distinct values [Hirschberg and Larmore 1987].

A higher penalty gives fewer clusters, and the error is convex in their number: a search over the penalty comes to k
clusters, or to two partitions, with fewer and with more, that are best for one penalty. Then a stretch of the second
lies inside one of the first; the first up to there and the second from there on are a best partition into k [Aggarwal,
Schieber and Tokuyama 1994]. The search begins on a coarse set of prefixes; for all, one or two penalties mostly
suffice.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from globular.jit import inline, kernel
from globular.model.statistics import F64
from globular.passes.cpu.shard import CpuShard
from globular.seam.center_passes import Found, SolveLine

FEW, FEW_PER_CLUSTER = 1 << 16, 64
"""Prefixes of the coarse search, and the least for each cluster; larger = a better first penalty, at more time."""
RESOLVED = 1e-6
"""Share of the error by which prefix sums may miss it; beyond, the values have too many scales for float64."""


class Line(NamedTuple):
    """What a search works on, each (M + 1,) for M values."""

    errors: Any  # of the best partition of each prefix, with penalties
    before: Any  # int32, where the last stretch of that begins
    queue: Any  # int32, beginnings of stretches that may be best for longer prefixes
    since: Any  # int32, the first prefix that each of them is best for
    fewer: Any  # int32, the partition with at most k stretches, by their ends
    more: Any  # int32, the one with at least k


@inline
def stretch_error(sums: Any, i: int, j: int) -> float:
    """Σ w (x − mean)² of the values i … j − 1."""
    weight, total = sums[j, 0] - sums[i, 0], sums[j, 1] - sums[i, 1]
    return sums[j, 2] - sums[i, 2] - (total * total / weight if weight > 0.0 else 0.0)


@inline
def is_better(sums: Any, line: Any, i: int, other: int, j: int) -> bool:
    """Whether the prefix of j values is partitioned better with a last stretch from i than from `other`."""
    return line.errors[i] + stretch_error(sums, i, j) < line.errors[other] + stretch_error(sums, other, j)


@inline
def overtakes(sums: Any, line: Any, i: int, other: int, start: int, M: int) -> int:
    """The first prefix after `start` for which i is better than `other`, or M + 1. O(log of its distance)."""
    low, step = start, 1
    high = min(start + step, M)
    while not is_better(sums, line, i, other, high):
        if high == M:
            return M + 1
        low, step = high, 2 * step
        high = min(high + step, M)
    while high - low > 1:
        middle = (low + high) // 2
        if is_better(sums, line, i, other, middle):
            high = middle
        else:
            low = middle
    return high


@kernel
def partition(sums: Any, line: Any, penalty: float) -> tuple[int, float]:
    """The best partition with a penalty for every stretch: how many there are, and their error. O(M log M)."""
    M, head, tail = sums.shape[0] - 1, 0, 1
    line.errors[0], line.queue[0], line.since[0] = 0.0, 0, 1
    for j in range(1, M + 1):
        while head + 1 < tail and line.since[head + 1] <= j:
            head += 1
        i = line.queue[head]
        line.before[j] = i
        line.errors[j] = line.errors[i] + stretch_error(sums, i, j) + penalty
        if j == M:
            break
        while tail > head and is_better(sums, line, j, line.queue[tail - 1], max(line.since[tail - 1], j + 1)):
            tail -= 1
        start = j + 1
        if tail > head:
            start = overtakes(sums, line, j, line.queue[tail - 1], max(line.since[tail - 1], j + 1), M)
        if start <= M:
            line.queue[tail], line.since[tail] = j, start
            tail += 1
    n, error, j = 0, 0.0, M
    while j > 0:
        i = line.before[j]
        error += stretch_error(sums, i, j)
        n, j = n + 1, i
    return n, error


@inline
def write_ends(line: Any, M: int, n: int, ends: Any) -> None:
    """The partition that was found last, by the ends of its n stretches. O(n)."""
    j = M
    for c in range(n, -1, -1):
        ends[c] = j
        j = line.before[j]


@kernel
def find_partition(
    sums: Any,  # IN  (M + 1, 3) Σ w, Σ w x and Σ w x² of every prefix
    line: Any,  # IN/OUT
    k: int,  # IN  stretches, fewer than M
    penalty: float,  # IN  to begin with, or 0
) -> tuple[float, int]:
    """The best partition into k stretches goes into `line.fewer`; returns its error and how many were tried."""
    M, n_tried, n_fewer, n_more = sums.shape[0] - 1, 0, 1, sums.shape[0] - 1
    error_fewer, error_more, closest = stretch_error(sums, 0, M), 0.0, np.inf
    line.fewer[0], line.fewer[1] = 0, M
    for i in range(M + 1):
        line.more[i] = i
    if penalty <= 0.0:
        penalty = 2.0 * error_fewer / (np.float64(k) * k * k)  # of even rows
    is_equal = False
    while True:
        n, error = partition(sums, line, penalty)
        n_tried += 1
        if n_fewer < n <= k:
            n_fewer, error_fewer = n, error
            write_ends(line, M, n, line.fewer)
        elif k < n < n_more:
            n_more, error_more = n, error
            write_ends(line, M, n, line.more)
        elif is_equal:  # nothing lies between the two: both are the best for this penalty
            c, surplus = 0, n_more - k
            while line.more[c + 1 + surplus] > line.fewer[c + 1]:
                c += 1
            for following in range(c + 1, k + 1):
                line.fewer[following] = line.more[following + surplus]
            return error_fewer - (k - n_fewer) * penalty, n_tried
        if n == k:
            return error, n_tried
        ratio = np.float64(n) / k
        is_equal = bool(max(ratio, 1.0 / ratio) >= closest)
        if is_equal:  # the penalty for which both are equally good
            penalty = (error_fewer - error_more) / (n_more - n_fewer)
        else:  # as for even rows, from the closest yet
            closest = max(ratio, 1.0 / ratio)
            penalty *= ratio * ratio * ratio


def prefix_sums(values: F64, weights: F64) -> F64:
    """Σ w, Σ w x and Σ w x² of all prefixes, but for constants: from the middle outwards, where all digits count."""
    middle, sums = len(values) // 2, np.zeros((len(values) + 1, 3))
    for power in range(3):
        terms = weights * values**power
        np.cumsum(terms[middle:], out=sums[middle + 1 :, power])
        np.cumsum(-terms[:middle][::-1], out=sums[:middle, power][::-1])
    return sums


@CpuShard.implements(SolveLine)
def solve(shard: CpuShard, work: SolveLine) -> Found:
    rows = shard.dense_rows.block(0, shard.n_rows)[:, 0]
    order = np.argsort(rows) if len(shard.weights) else None
    rows = np.sort(rows) if order is None else rows[order]
    firsts = np.flatnonzero(np.append(True, rows[1:] != rows[:-1]))
    values, M = rows[firsts].astype(np.float64), len(firsts)
    weights = np.diff(firsts, append=len(rows)).astype(np.float64)
    if order is not None:
        weights = np.add.reduceat(shard.weights[order], firsts)
    offset, k, n_tried = values[M // 2], min(work.n_clusters, M), 0
    values -= offset
    ends = np.arange(M + 1) if k == M else np.array([0, M])
    if 1 < k < M:
        sums, penalty, n_few = prefix_sums(values, weights), 0.0, max(FEW, FEW_PER_CLUSTER * k, M >> 6)
        line = Line(np.empty(M + 1), *np.empty((5, M + 1), dtype=np.int32))
        if 2 * n_few < M:
            some = np.append(np.arange(0, M, -(-M // n_few)), M)
            errors = [find_partition(sums[some], line, each, 0.0)[0] for each in (k - 1, k + 1)]
            penalty = (errors[0] - errors[1]) / 2.0
        n_tried, ends = find_partition(sums, line, k, penalty)[1], line.fewer[: k + 1]
        stretches = np.diff(sums[ends], axis=0)
        by_sums = float((stretches[:, 2] - stretches[:, 1] ** 2 / stretches[:, 0]).sum())
    means = np.add.reduceat(weights * values, ends[:-1]) / np.add.reduceat(weights, ends[:-1])
    values -= np.repeat(means, np.diff(ends))
    error = float(weights @ values**2)
    if 1 < k < M and not abs(error - by_sums) <= RESOLVED * error:
        return Found(np.empty((0, 1)), error, n_tried)
    return Found((means + offset)[np.minimum(np.arange(work.n_clusters), k - 1), None], error, n_tried)
