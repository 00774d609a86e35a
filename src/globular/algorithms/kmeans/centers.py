"""The M-step of every hard algorithm: means of the clusters, and a new place for clusters that ran empty."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from globular.model.statistics import F64, HardStatistics
from globular.seam.passes import Farthest
from globular.seam.shard import Shard
from globular.threads import SECONDS_PER_NUMBER, even_ranges, run_all

NUMBERS_PER_PART = 1 << 16
"""Numbers of centres that are worked on at once: they stay in the cache."""


@dataclass(frozen=True, slots=True)
class CenterUpdate:
    """The centres after an M-step."""

    centers: F64
    relocated: tuple[tuple[int, int], ...] = ()
    """Clusters that had run empty, each with the cluster of the row it was put on."""

    @property
    def n_relocated(self) -> int:
        return len(self.relocated)

    @property
    def rounding(self) -> float:
        """A sum of squared shifts that is mere rounding of the centres."""
        return 1e-30 * float(np.einsum("ij,ij->", self.centers, self.centers))  # BLAS would wake its threads

    def shifts(self, old: F64) -> F64:
        """How far each centre moved, (C,)."""
        moves = self.centers - old
        return np.sqrt(np.einsum("ij,ij->i", moves, moves))


def update_centers(
    shard: Shard, statistics: HardStatistics, old: F64, *, unit: bool, relocate: bool = True, rows_follow: bool = True
) -> CenterUpdate:
    """Means of the clusters, scaled to unit length if `unit` (spherical k-means).

    A cluster that lost all its weight moves to the row farthest from its own centre, which leaves its old cluster; rows
    at the same place are used once. So k clusters asked are k clusters given while there are k distinct rows.
    Where it is not sure that the row finds its new cluster in the next pass (`rows_follow` is False) its old cluster
    keeps it for now: only then can the objective not rise.
    """
    sums, counts = statistics.sums, statistics.counts
    all_filled = bool((counts > 0).all())
    relocated: list[tuple[int, int]] = []
    if relocate and not all_filled:
        empty = np.asarray(np.flatnonzero(counts <= 0))
        sums, counts = sums.copy(), counts.copy()
        relocated = place_empty(shard, empty, sums, counts, old, unit, rows_follow)
    filled, divisors = counts > 0, counts
    if unit:
        divisors = np.sqrt(np.einsum("ij,ij->i", sums, sums))
        filled &= divisors > 0  # where opposite rows cancel, the cluster keeps its direction
    centers = means_of(sums, np.where(filled, divisors, 1.0), shard.n_threads)
    if unit or not all_filled:
        centers[~filled] = old[~filled]
    return CenterUpdate(centers, tuple(relocated))


def means_of(sums: F64, divisors: F64, n_threads: int) -> F64:
    """Sums (C, D) by divisors (C,)."""
    if type(sums) is not np.ndarray:  # it lies on a card
        return sums / divisors[:, None]
    means = np.empty_like(sums)
    by_parts(lambda part: np.divide(sums[part], divisors[part, None], out=means[part]), sums.shape, n_threads)
    return means


def by_parts(work: Callable[[slice], object], shape: tuple[int, ...], n_threads: int) -> None:
    """Do something to all rows of arrays of this shape, (C, D), on our threads."""
    C, D = shape
    spans, seconds = even_ranges(C, 1 + NUMBERS_PER_PART // max(1, D)), SECONDS_PER_NUMBER * C * D
    run_all(lambda span: work(slice(*span)), spans, n_threads, seconds=seconds, calls_blas=False)


def place_empty(
    shard: Shard, empty: np.ndarray, sums: F64, counts: F64, old: F64, unit: bool, rows_follow: bool
) -> list[tuple[int, int]]:
    """Give each empty cluster one far row; returns who found one, and where. Changes sums and counts in place."""
    # Duplicates share a place, so look at more rows than are needed; what is missed is found in the next iteration.
    far = shard.run(Farthest(old, 4 * len(empty) + 16))
    scale = float(np.abs(old).max(initial=0.0)) ** 2 * old.shape[1]
    taken: set[bytes] = set()
    waiting, held = list(empty[::-1]), np.array(counts)
    relocated: list[tuple[int, int]] = []
    chosen: list[int] = []
    for at, (row, distance, weight, label) in enumerate(
        zip(far.rows, far.squared_distances, far.weights, far.labels, strict=True)
    ):
        place = row.tobytes()
        if not waiting or distance <= 1e-28 * scale:
            break
        if place in taken or held[label] <= weight * (1 + 1e-12):  # its old cluster would run empty
            continue
        if unit and not row.any():  # has no direction: equally far from every centre
            continue
        taken.add(place)
        if rows_follow:
            sums[label] -= weight * row
            counts[label] -= weight
            held[label] -= weight
        relocated.append((int(waiting.pop()), int(label)))
        chosen.append(at)
    if chosen:  # all at once: arrays may lie on a card, where every change of a row is a message
        clusters, weights = np.array([cluster for cluster, _ in relocated]), far.weights[chosen]
        sums[clusters], counts[clusters] = weights[:, None] * far.rows[chosen], weights
    return relocated
