"""The n closest centres of every row, and its distance from its own: N n numbers are kept, and never N k.

Products nominate. Of each row's scores ‖μ‖² − 2 x·μ the lowest of every few neighbours is kept, and among the groups
with the lowest ones there are the n lowest of all; these, and some more, are decided by differences in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.backends.cpu.shard import CpuShard
from globular.kernels.nearest import own_distances
from globular.model.statistics import F64
from globular.seam.answers import NEAREST, Answer, Nearest, Own
from globular.seam.passes import Labels
from globular.threads import even_ranges, run_all

GROUP = 16
"""Neighbouring centres of which the closest stands for all."""
SPARE = 4
"""More centres than asked for are decided by differences: rounded products may have their order wrong."""
NUMBERS_AT_ONCE = 1 << 20
"""Scores, or coordinates of rows, that a thread holds."""
ROWS_AT_ONCE = 8192


@CpuShard.implements(Answer, Own)
def squares(shard: CpuShard, work: Answer) -> list[Any]:
    """Squared distances of all rows to their own centres, (N,)."""
    decide, found = Decision(shard, work.model.centers), np.empty(shard.n_rows)

    def measure(span: tuple[int, int]) -> None:
        found[slice(*span)] = decide.squares(span, shard.labels[slice(*span)])

    run_all(measure, even_ranges(shard.n_rows, ROWS_AT_ONCE), shard.n_threads)
    return [found]


@CpuShard.implements(Answer, Nearest)
def nearest(shard: CpuShard, work: Answer) -> list[Any]:
    """The closest centres of all rows in ascending order, (N, n); of those equally far the first comes first."""
    C, n = len(work.model.centers), work.model.n
    decide, n_decided = Decision(shard, work.model.centers), min(C, n + SPARE)
    offset = work.model.centers.mean(axis=0)
    centers = work.model.centers - offset
    norms = np.full(-(-C // GROUP) * GROUP, np.inf)
    norms[:C] = np.square(centers).sum(axis=1)
    found = np.empty((shard.n_rows, n), dtype=NEAREST)

    def find(span: tuple[int, int]) -> None:
        scores = np.zeros((span[1] - span[0], len(norms)))
        np.matmul(shard.take(np.arange(*span)) - offset, -2.0 * centers.T, out=scores[:, :C])
        scores += norms
        numbers = np.sort(lowest_by_groups(scores, n_decided), axis=1).astype(np.int32)  # so that ties go to the first
        squares = np.stack([decide.squares(span, np.ascontiguousarray(each)) for each in numbers.T], axis=1)
        order = np.argsort(squares, axis=1, kind="stable")[:, :n]
        found["center"][slice(*span)] = np.take_along_axis(numbers, order, axis=1)
        found["square"][slice(*span)] = np.take_along_axis(squares, order, axis=1)

    rows_at_once = max(1, min(ROWS_AT_ONCE, NUMBERS_AT_ONCE // max(C, shard.n_columns)))
    run_all(find, even_ranges(shard.n_rows, rows_at_once), shard.n_threads)
    return [found]


class Decision:
    """Distances of some rows to one centre for each, by differences."""

    def __init__(self, shard: CpuShard, centers: F64) -> None:
        self.shard, self.centers = shard, np.ascontiguousarray(centers, dtype=np.float64)
        self.norms = np.einsum("ij,ij->i", self.centers, self.centers)

    def squares(self, span: tuple[int, int], labels: Labels) -> F64:
        """Squared distances of consecutive rows to the centres of these labels."""
        found, rows = np.empty(len(labels)), self.shard.rows.kernel_rows(*span)
        own_distances(rows, self.shard.scales[slice(*span)], self.centers, self.norms, labels, found)
        return found


def lowest_by_groups(scores: F64, n: int) -> NDArray[np.intp]:
    """Places of the n lowest scores of every row, in any order."""
    groups = scores.reshape(len(scores), -1, GROUP).min(axis=2)
    places = np.broadcast_to(np.arange(scores.shape[1]), scores.shape)
    if groups.shape[1] > n:
        chosen = np.argpartition(groups, n - 1, axis=1)[:, :n]
        places = (chosen[:, :, None] * GROUP + np.arange(GROUP)).reshape(len(scores), -1)
    some = np.take_along_axis(scores, places, axis=1)
    if some.shape[1] > n:
        places = np.take_along_axis(places, np.argpartition(some, n - 1, axis=1)[:, :n], axis=1)
    return places
