"""The n closest centres of every row, and its distance from its own: N n numbers are kept, and never N k.

Products nominate. Of each row's scores ‖μ‖² − 2 x·μ the lowest of every few neighbours is kept, and among the groups
with the lowest ones there are the n lowest of all; these, and some more, are decided by differences in float64.

Scores are lower bounds: rounding changes them by at most γ (‖μ‖² + 2 ‖x‖ ‖μ‖) ≤ γ (2 ‖μ‖² + ‖x‖²) with γ of some D + 16
units of rounding. Where the highest score of a row's nominees does not rule out all other centres, more are nominated.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.jit import kernel
from globular.kernels.rows import squared_distance
from globular.model.centers import median_center
from globular.model.statistics import F64, FarRows
from globular.passes.cpu.rows import KernelRows, gather_rows
from globular.passes.cpu.shard import CpuShard
from globular.passes.host import ROWS_AT_ONCE
from globular.seam.answers import NEAREST, Answer, Nearest, Own
from globular.seam.passes import Farthest, Labels
from globular.threads import even_ranges, map_all, run_all

GROUP = 16
"""Neighbouring centres of which the closest stands for all."""
SPARE = 4
"""Centres decided by differences beyond those asked for; more of them leave fewer rows in doubt."""
NUMBERS_AT_ONCE = 1 << 20
"""Scores, or coordinates of rows, that a thread holds."""


@kernel
def own_distances(
    rows: Any,  # IN
    scales: Any,  # IN  (n,) or empty
    centers: Any,  # IN  (C, D) float64
    norms: Any,  # IN  (C,) float64
    labels: Any,  # IN  (n,)
    out: Any,  # OUT (n,) ‖x − m_label‖²
) -> None:
    """Squared distance of every row to the centre of its label. O(n · D)."""
    for i in range(labels.shape[0]):
        scale = scales[i] if scales.shape[0] else 1.0
        out[i] = squared_distance(rows, i, scale, centers, labels[i], norms)


@CpuShard.implements(Answer, Own)
def squares(shard: CpuShard, work: Answer) -> list[Any]:
    """Squared distances of all rows to their own centres, (N,)."""
    decide, found = Decision(shard, work.model.centers), np.empty(shard.n_rows)

    def measure(span: tuple[int, int]) -> None:
        here = slice(*span)
        found[here] = decide.squares(shard.rows.kernel_rows(*span), here, shard.labels[here])

    run_all(measure, even_ranges(shard.n_rows, ROWS_AT_ONCE), shard.n_threads)
    return [found]


@CpuShard.implements(Answer, Nearest)
def nearest(shard: CpuShard, work: Answer) -> list[Any]:
    """The closest centres of all rows in ascending order, (N, n); of those equally far the first comes first."""
    C, n = len(work.model.centers), work.model.n
    decide = Decision(shard, work.model.centers)
    gamma = (shard.n_columns + 16) * float(np.finfo(np.float64).eps)  # roundings of a score: its products, and some
    offset = median_center(work.model.centers)
    centers = work.model.centers - offset
    norms = np.full(-(-C // GROUP) * GROUP, np.inf)
    norms[:C] = (1.0 - 2.0 * gamma) * np.square(centers).sum(axis=1)
    found = np.empty((shard.n_rows, n), dtype=NEAREST)

    @np.errstate(over="ignore", invalid="ignore")  # scores that overflow rule nothing out
    def find(chosen: NDArray[np.intp], n_decided: int) -> None:
        rows = shard.take(chosen) - offset
        scores = np.zeros((len(rows), len(norms)))
        np.matmul(rows, -2.0 * centers.T, out=scores[:, :C])
        scores += norms
        numbers = np.sort(lowest_by_groups(scores, n_decided), axis=1).astype(np.int32)  # so that ties go to the first
        kernel_rows = gather_rows(shard.rows, chosen)
        squares = np.stack([decide.squares(kernel_rows, chosen, each) for each in numbers.T], axis=1)
        order = np.argsort(squares, axis=1, kind="stable")[:, :n]
        found["center"][chosen] = np.take_along_axis(numbers, order, axis=1)
        found["square"][chosen] = np.take_along_axis(squares, order, axis=1)
        others = np.take_along_axis(scores, numbers, axis=1).max(axis=1) + (1.0 - 2.0 * gamma) * (rows**2).sum(axis=1)
        doubtful = ~((found["square"][chosen, -1] * (1.0 + gamma) < others) & (others < np.inf))
        if n_decided < C and doubtful.any():
            find(chosen[doubtful], min(C, 8 * n_decided))  # doubtful rows are few

    rows_at_once = max(1, min(ROWS_AT_ONCE, NUMBERS_AT_ONCE // max(C, shard.n_columns)))
    spans = even_ranges(shard.n_rows, rows_at_once)
    run_all(lambda span: find(np.arange(*span), min(C, n + SPARE)), spans, shard.n_threads)
    return [found]


@CpuShard.implements(Farthest)
def farthest(shard: CpuShard, work: Farthest) -> FarRows:
    n, decide = work.n, Decision(shard, work.centers)

    def block(span: tuple[int, int]) -> tuple[F64, NDArray[np.intp]]:
        here = slice(*span)
        distances = decide.squares(shard.rows.kernel_rows(*span), here, shard.labels[here])
        if len(shard.weights):
            distances[shard.weights[here] == 0] = -1.0
        chosen = np.argsort(-distances, kind="stable")[:n]
        return distances[chosen], chosen + span[0]

    found = map_all(block, even_ranges(shard.n_rows, 8192), shard.n_threads)
    distances = np.concatenate([np.empty(0), *(d for d, _ in found)])
    indices = np.concatenate([np.empty(0, dtype=np.intp), *(i for _, i in found)])
    best = np.argsort(-distances, kind="stable")[:n]
    best = best[distances[best] >= 0]
    chosen = indices[best]
    weights, labels = shard.take(chosen, "weights"), shard.labels[chosen].astype(np.int64)
    return FarRows(shard.take(chosen), distances[best], weights, labels)


class Decision:
    """Distances of some rows to one centre for each, by differences."""

    def __init__(self, shard: CpuShard, centers: F64) -> None:
        self.scales, self.centers = shard.scales, np.ascontiguousarray(centers, dtype=np.float64)
        self.norms = np.einsum("ij,ij->i", self.centers, self.centers)

    def squares(self, rows: KernelRows, chosen: NDArray[np.intp] | slice, labels: Labels) -> F64:
        """Squared distances of `rows`, the chosen ones of the shard, to the centres of these labels."""
        found, scales = np.empty(len(labels)), self.scales[chosen] if len(self.scales) else self.scales
        own_distances(rows, scales, self.centers, self.norms, np.ascontiguousarray(labels), found)
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
