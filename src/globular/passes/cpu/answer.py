"""What fitted centres and infinite mixtures say of every row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.model.cells import median_center
from globular.model.dirichlet import InfiniteMixture
from globular.model.observations import Students
from globular.model.statistics import F64
from globular.passes.cpu.expect.all import weighted_total
from globular.passes.cpu.expect.blocks import BLOCK_ENTRIES, ChunkBlocks
from globular.passes.cpu.rows import CSRRows, read_only
from globular.passes.cpu.shard import CpuShard
from globular.passes.host import RUN
from globular.seam.answers import Answer, Centers
from globular.threads import SECONDS_PER_PAIR, even_ranges, run_all

PREDICTIVE_AT_ONCE = 1 << 17
"""Numbers of all differences of rows from components that a thread holds at once, about."""
TABLE_NUMBERS = 1 << 21
"""Densities of rows and components that are held at once: 16 MB."""
_CANCELLED = 1e-4
"""Squared distances below this share of the squares that they come from are computed again as differences."""


@CpuShard.implements(Answer, Centers)
def distances(shard: CpuShard, work: Answer) -> list[Any]:
    """Distances of every row to all centres, (N, k); cosine distances if asked for."""
    centers, by_angle = work.model.centers, work.model.metric == "cosine"
    dtype = np.result_type(shard.rows.dtype, centers.dtype) if by_angle else shard.rows.dtype
    found = np.empty((shard.n_rows, len(centers)), dtype=dtype)
    euclidean = _Euclidean(centers.astype(np.float64), sparse=isinstance(shard.rows, CSRRows))

    def write(span: tuple[int, int]) -> None:
        rows = shard.rows.block(*span)
        found[slice(*span)] = _cosine(rows, centers) if by_angle else euclidean.distances(rows)

    run_all(write, even_ranges(shard.n_rows, RUN), shard.n_threads)
    return [found]


def _cosine(rows: Any, centers: NDArray[Any]) -> NDArray[Any]:
    """Rows are first brought to a largest entry of one: the square of a length may leave the range of floats."""
    if isinstance(rows, np.ndarray):
        largest = np.abs(rows).max(axis=1, keepdims=True)
        rows = rows / np.where(largest > 0, largest, 1)
    else:
        largest = abs(rows).max(axis=1).toarray().ravel()
        rows.data = rows.data / np.repeat(np.where(largest > 0, largest, 1), np.diff(rows.indptr))
    from sklearn.metrics.pairwise import cosine_distances  # takes long to import, and few ask for it

    return cosine_distances(rows, centers)


class _Euclidean:
    """By products in float64, and by differences where those cancel."""

    def __init__(self, centers: F64, *, sparse: bool) -> None:
        self.offset = 0.0 if sparse else median_center(centers)  # sparse rows would not stay sparse
        self.centers, self.shifted = centers, centers - self.offset
        self.norms = (self.shifted**2).sum(axis=1)

    def distances(self, block: Any) -> F64:
        """Distances of a block of rows to all centres."""
        dense = isinstance(block, np.ndarray)
        rows = block.astype(np.float64)
        shifted = rows - self.offset if dense else rows
        lengths = (shifted**2).sum(axis=1) if dense else np.asarray(rows.multiply(rows).sum(axis=1)).ravel()
        scale = lengths[:, None] + self.norms
        squared = scale - 2.0 * np.asarray(shifted @ self.shifted.T)
        cancelled = squared < _CANCELLED * scale
        for c in np.flatnonzero(cancelled.any(axis=0)):
            near = rows[np.flatnonzero(cancelled[:, c])]
            squared[cancelled[:, c], c] = (((near if dense else near.toarray()) - self.centers[c]) ** 2).sum(axis=1)
        return np.sqrt(squared)


@CpuShard.implements(Answer, InfiniteMixture)
def predictive(shard: CpuShard, work: Answer) -> list[Any]:
    """The "log_densities" log p(x | X) of every row, (N,), or their weighted "total"."""
    scores, students = np.empty(shard.n_rows), work.model.students()
    if students is not None:
        blocks = ChunkBlocks(students.mixture, students.mixture.offset, by_differences=True)
        for block in even_ranges(shard.n_rows, max(1, TABLE_NUMBERS // len(students.constants))):
            rows = blocks.rows(read_only(shard.take(np.arange(*block))), np.empty(0))
            joint = blocks.log_joint(rows, shard.n_threads)
            _finish(joint, blocks.constants, students, scores[slice(*block)], shard.n_threads)
    else:
        sparse = isinstance(shard.rows, CSRRows)
        n_at_once = RUN if sparse else max(1, PREDICTIVE_AT_ONCE // (len(work.model.posterior) * shard.n_columns))

        def score(block: tuple[int, int]) -> None:
            rows = shard.rows.block(*block) if sparse else shard.take(np.arange(*block))
            scores[slice(*block)] = work.model.log_predictive(rows)

        run_all(score, even_ranges(shard.n_rows, n_at_once), shard.n_threads)
    return [weighted_total(shard, scores)] if work.want == "total" else [scores]


def _finish(joint: F64, constants: F64, students: Students, densities: F64, n_threads: int) -> None:
    """Student-t densities from what a Gaussian mixture says of rows: its squares are in it."""

    def finish(span: tuple[int, int]) -> None:
        some = slice(*span)
        squares = np.subtract(constants, joint[some], out=joint[some])
        squares *= 2.0
        densities[some] = students.log_density(squares)

    n_at_once, seconds = max(1, BLOCK_ENTRIES // joint.shape[1]), SECONDS_PER_PAIR * joint.size
    run_all(finish, even_ranges(len(joint), n_at_once), n_threads, seconds=seconds, calls_blas=False)
