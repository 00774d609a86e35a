"""Centres prepared for nominating by matrix products: blocks of rows are multiplied with chunks of centres by BLAS.

For passes that go block by block; those that are one compiled call per thread have products of their own (`settled`,
`cells`).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from globular.kernels import nearest as kernels
from globular.kernels.centers import prepare_centers
from globular.model.centers import by_blocks
from globular.model.statistics import F64, Floats
from globular.passes.cpu.rows import CSRRows, KernelRows, read_only
from globular.passes.cpu.shard import CpuShard
from globular.passes.host import NONE, ROWS_PER_PRODUCT

SCORES_PER_BLOCK = 1 << 19
THIN = 8
"""Columns up to which rows are multiplied by our own kernel: BLAS would mostly pack and unpack."""
AS_THEY_ARE = np.empty(0, dtype=np.intp)
"""An order of centres."""


@dataclass(frozen=True, slots=True)
class ScoreChunk:
    """Some of the centres, ready for the product with a block of rows."""

    members: NDArray[np.intp]
    """Their indices, ascending."""
    factors: Floats
    """−2 (m − offset)ᵀ, (D, chunk)."""
    norms: Floats
    """‖m − offset‖², (chunk,)."""
    longest: float
    """The largest ‖m − offset‖."""


def prepared(
    centers: F64, factor: float, dtype: np.dtype, n_threads: int, members: NDArray[np.intp] = AS_THEY_ARE,
    offset: F64 = NONE,
) -> tuple[F64, Floats, Floats]:  # fmt: skip
    """‖m‖² of the centres; ‖m − offset‖² and factor · (m − offset) in the order of `members`, in another precision."""
    norms, score_norms, factors = np.empty(len(centers)), np.empty(len(centers), dtype), np.empty(centers.shape, dtype)
    by_blocks(
        lambda queue, size: prepare_centers(queue, size, centers, members, offset, factor, norms, score_norms, factors),
        centers.shape, n_threads,
    )  # fmt: skip
    return norms, score_norms, factors


class CenterProduct:
    """Centres prepared for nominating by matrix products, and the scratch memory of each thread.

    `members` says which centres go together into one product.
    """

    def __init__(self, shard: CpuShard, centers: F64, members: list[NDArray[np.intp]]) -> None:
        self.rows = shard.rows
        self.scales = shard.scales
        self.offset = shard.offset
        self.centers = np.ascontiguousarray(centers, dtype=np.float64)
        self.norms: F64 = np.einsum("ij,ij->i", self.centers, self.centers)
        self.unit = float(np.finfo(self.rows.dtype).eps) / 2
        self.tiny = float(np.finfo(self.rows.dtype).tiny)
        self.chunks = [self._chunk(indices) for indices in members]
        self._scratch = threading.local()

    def _chunk(self, members: NDArray[np.intp]) -> ScoreChunk:
        shifted = self.centers[members] if self.offset is None else self.centers[members] - self.offset
        norms = np.einsum("ij,ij->i", shifted, shifted)
        dtype = self.rows.dtype
        with np.errstate(over="ignore"):  # kernels see by themselves where scores overflow
            factors = np.ascontiguousarray((-2.0 * shifted).T, dtype=dtype)
            return ScoreChunk(members, factors, norms.astype(dtype), float(np.sqrt(norms.max())))

    @property
    def is_thin(self) -> bool:
        """Whether rows are dense and have few columns."""
        return not isinstance(self.rows, CSRRows) and 0 < self.centers.shape[1] <= THIN

    @property
    def rows_per_block(self) -> int:
        """Rows to be handled at once, from the number of centres alone: blocks never depend on threads."""
        return min(8192, max(ROWS_PER_PRODUCT, SCORES_PER_BLOCK // len(self.centers)))

    def scores(self, seen: KernelRows, chosen: NDArray[np.intp] | None, chunk: ScoreChunk) -> Floats:
        """−2 x·(m − offset) of the chosen rows (None: all) with the chunk's centres, in this thread's scratch."""
        if len(seen) == 3:
            chosen = np.arange(len(seen[2]) - 1) if chosen is None else chosen
            out = self._buffer(len(chosen), len(chunk.members))
            kernels.csr_scores(seen, chosen, chunk.factors, out)
            return out
        block = seen[0] if chosen is None else np.take(seen[0], chosen, axis=0)
        if self.is_thin:
            out = self._buffer(len(block), len(chunk.members))
            kernels.thin_scores(block, chunk.factors, out)
            return out
        with np.errstate(over="ignore", invalid="ignore"):
            return np.matmul(block, chunk.factors, out=self._buffer(len(block), len(chunk.members)))

    def _buffer(self, n: int, width: int) -> Floats:
        size = n * width
        held = getattr(self._scratch, "scores", None)
        if held is None or held.size < size:
            self._scratch.scores = np.empty(size, dtype=self.rows.dtype)
        return self._scratch.scores[:size].reshape(n, width)

    def load(self, start: int, stop: int) -> tuple[KernelRows, KernelRows, F64]:
        """Rows start..stop, the same as the product wants them, and their scales."""
        rows = self.rows.kernel_rows(start, stop)
        return rows, self.seen(rows), self.scales[start:stop]

    def seen(self, rows: KernelRows) -> KernelRows:
        """Rows about the offset, if there is one."""
        if self.offset is None:
            return rows
        return (read_only((rows[0] - self.offset).astype(rows[0].dtype, copy=False)),)
