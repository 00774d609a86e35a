"""Sums of rows by cluster: as rows come, in the order of their clusters, and of those that have moved."""

from __future__ import annotations

from typing import Any

from globular.jit import Queue, kernel, take_number
from globular.kernels.ascending import count_up_to
from globular.kernels.rows import add_row, fetch

AHEAD = 4
"""Rows before its turn that the memory of one is asked for; larger = it has more time to come, and more may be driven
out again."""


@kernel
def sum_spans(
    queue: Queue,  # IN/OUT spans of rows
    length: int,  # IN  rows of a span
    rows: Any,  # IN
    weights: Any,  # IN  (N,) or empty
    scales: Any,  # IN  (N,) or empty
    offset: Any,  # IN  (D,) subtracted from dense rows
    labels: Any,  # IN  (N,)
    sums: Any,  # OUT (spans, C, D) Σ w s (x − offset)
    counts: Any,  # OUT (spans, C) Σ w
) -> None:
    """Add rows to their clusters as they come. O(N · D + spans · C · D)."""
    s = take_number(queue)
    while s < counts.shape[0]:
        sums[s] = 0.0
        counts[s] = 0.0
        for i in range(s * length, min((s + 1) * length, labels.shape[0])):
            weight = weights[i] if weights.shape[0] else 1.0
            counts[s, labels[i]] += weight
            add_row(rows, i, weight * (scales[i] if scales.shape[0] else 1.0), offset, sums[s], labels[i])
        s = take_number(queue)


@kernel
def cut_runs(
    starts: Any,  # IN  (C + 1,) where the rows of each cluster begin
    most: int,  # IN  rows of a run
    runs: Any,  # OUT (·, 3) where each run begins and ends; −1, or which piece of a cluster it is
    pieces: Any,  # OUT (·,) the clusters of the pieces
) -> tuple[int, int]:
    """Cut rows grouped by cluster into runs of whole clusters, and pieces of those that are too large for one.

    Returns the number of runs and of pieces: at most 3 n / most + 1 and 2 n / most for n rows. O(C)
    """
    n_runs, n_pieces, c = 0, 0, 0
    C = starts.shape[0] - 1
    while c < C:
        begin = starts[c]
        last = c
        while last < C and starts[last + 1] - begin <= most:
            last += 1
        if last > c:
            if starts[last] > begin:
                runs[n_runs, 0], runs[n_runs, 1], runs[n_runs, 2] = begin, starts[last], -1
                n_runs += 1
            c = last
            continue
        for first in range(begin, starts[c + 1], most):
            runs[n_runs, 0], runs[n_runs, 1], runs[n_runs, 2] = first, min(first + most, starts[c + 1]), n_pieces
            pieces[n_pieces] = c
            n_runs += 1
            n_pieces += 1
        c += 1
    return n_runs, n_pieces


@kernel
def sum_by_runs(
    queue: Queue,  # IN/OUT runs
    runs: Any,  # IN  (R, 3), see `cut_runs`
    rows: Any,  # IN
    places: Any,  # IN  (n,) where rows lie in `rows`, in cluster order from `base` on
    numbers: Any,  # IN  (n,) their numbers in the shard
    base: int,  # IN
    weights: Any,  # IN  (N,) or empty
    scales: Any,  # IN  (N,) or empty
    offset: Any,  # IN  (D,) subtracted from dense rows
    starts: Any,  # IN  (C + 1,) where each cluster's rows begin in the cluster order
    sums: Any,  # IN/OUT (C, D) Σ w s (x − offset)
    counts: Any,  # IN/OUT (C,) Σ w
    piece_sums: Any,  # IN/OUT (P, D)
    piece_counts: Any,  # IN/OUT (P,)
) -> None:
    """Add runs of rows in cluster order to their clusters, or to the pieces of these. O(N · D)."""
    r = take_number(queue)
    while r < runs.shape[0]:
        begin, last, piece = runs[r, 0] - base, runs[r, 1] - base - 1, runs[r, 2]
        c = count_up_to(starts, runs[r, 0]) - 1
        for k in range(begin, last + 1):
            while starts[c + 1] <= base + k:
                c += 1
            fetch(rows, places[min(k + AHEAD, last)])
            i = numbers[k]
            weight = weights[i] if weights.shape[0] else 1.0
            factor = weight * (scales[i] if scales.shape[0] else 1.0)
            if piece < 0:
                counts[c] += weight
                add_row(rows, places[k], factor, offset, sums, c)
            else:
                piece_counts[piece] += weight
                add_row(rows, places[k], factor, offset, piece_sums, piece)
        r = take_number(queue)


@kernel
def join_pieces(
    pieces: Any,  # IN  (P,)
    piece_totals: Any,  # IN  (P, ·)
    piece_sums: Any,  # IN  (P, D)
    totals: Any,  # IN/OUT (C, ·)
    sums: Any,  # IN/OUT (C, D)
) -> None:
    """Clusters from their pieces, in the order of these. O(P · D)."""
    for p in range(pieces.shape[0]):
        c = pieces[p]
        for a in range(totals.shape[1]):
            totals[c, a] += piece_totals[p, a]
        for j in range(sums.shape[1]):
            sums[c, j] += piece_sums[p, j]


@kernel
def sum_moved(
    queue: Queue,  # IN/OUT tasks
    bounds: Any,  # IN  (T + 1,) task t has order[bounds[t]:bounds[t + 1]], whole clusters
    order: Any,  # IN  (m,) moves by cluster
    rows: Any,  # IN
    are_gathered: bool,  # IN  whether `rows` are those of the moves, in that order, or all of the shard
    numbers: Any,  # IN  (·,) the rows of the moves
    clusters: Any,  # IN  (·,) which they join or leave
    n_joining: int,  # IN  those from there on leave
    weights: Any,  # IN  (N,) or empty
    scales: Any,  # IN  (N,) or empty
    origin: Any,  # IN  (D,)
    sums: Any,  # IN/OUT (C, D) + Σ ± w s (x − origin)
    counts: Any,  # IN/OUT (C,) + Σ ± w
) -> None:
    """Add rows to their new clusters, and take them out of their old ones. O(m · D)."""
    t = take_number(queue)
    while t < bounds.shape[0] - 1:
        for k in range(bounds[t], bounds[t + 1]):
            move = order[k]
            i, c = numbers[move], clusters[move]
            if not are_gathered:
                fetch(rows, numbers[order[min(k + AHEAD, bounds[t + 1] - 1)]])
            weight = weights[i] if weights.shape[0] else 1.0
            weight = weight if move < n_joining else -weight
            counts[c] += weight
            factor = weight * (scales[i] if scales.shape[0] else 1.0)
            add_row(rows, k if are_gathered else i, factor, origin, sums, c)
        t = take_number(queue)
