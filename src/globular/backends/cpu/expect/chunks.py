"""E-steps on few chunks that many small mixtures are evaluated on: trials of splits ask for thousands of such steps.

Cells keep their features, which do not depend on the mixture: a step is a matrix product each way. Rows would need too
much memory for that; theirs come from differences, as pairs.
"""

from __future__ import annotations

import numpy as np

from globular.backends.cpu.expect.blocks import ChunkBlocks
from globular.backends.cpu.expect.pairs import Pairs, lying
from globular.backends.cpu.shard import CpuShard
from globular.kernels.expect import softmax_rows
from globular.model.chunks import Chunks
from globular.model.gaussian import GaussianParameters
from globular.model.statistics import F64, SoftStatistics
from globular.seam.passes import ExpectChunks

SMALLEST_SHARE = float(np.exp(-16.0))
"""Smaller responsibilities count, but move nothing."""


class HeldChunks:
    """Chunks and what can be made of them beforehand, for the next mixture that is evaluated on them."""

    def __init__(self, chunks: Chunks) -> None:
        self.chunks = chunks
        total = float(chunks.weights.sum())
        self._offset = chunks.weights @ chunks.means / total if total > 0 else np.zeros(chunks.means.shape[1])
        self._features: dict[int, F64] = {}
        """By their width: mixtures of different families may look at the same cells."""

    def e_step(self, mixture: GaussianParameters) -> SoftStatistics:
        """Statistics of all chunks."""
        if self.chunks.scatter.shape[1] == 0:
            return _rows_step(self.chunks, mixture)
        blocks = ChunkBlocks(mixture, self._offset, packed=True)
        width = blocks.coefficients.shape[1]
        if width not in self._features:
            self._features[width] = blocks.features(self.chunks)
        total = blocks.no_moments()
        blocks.e_step(total, self.chunks, features=self._features[width])
        return blocks.statistics(total, len(self.chunks))


def _rows_step(rows: Chunks, mixture: GaussianParameters) -> SoftStatistics:
    """Rows alone. O(M·C·S)."""
    weights, shape = rows.weights, (len(rows), mixture.n_components)
    source, densities = lying(rows.means), np.empty(len(rows))
    q = Pairs.from_table(np.ones(shape, dtype=bool)).joint(source, mixture, 1).reshape(shape)
    softmax_rows(q, weights, densities)
    held = q > SMALLEST_SHARE * weights[:, None]
    _, sums, scatter = Pairs.from_table(held).moments(source, mixture, q[held], 1)
    return SoftStatistics(q.sum(axis=0), sums, scatter, float(weights @ densities), float(weights.sum()), q.size)


@CpuShard.implements(ExpectChunks)
def expect_chunks(shard: CpuShard, work: ExpectChunks) -> SoftStatistics:
    held = shard.recall(HeldChunks)
    if held is None or held.chunks is not work.chunks:
        held = HeldChunks(work.chunks)
        shard.keep(held)
    return held.e_step(work.mixture)
