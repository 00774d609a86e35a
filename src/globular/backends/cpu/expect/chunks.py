"""E-steps on few chunks that many small mixtures are evaluated on: trials of splits ask for thousands of such steps.

Cells keep their features, which do not depend on the mixture: a step is a matrix product each way. Rows would need too
much memory for that.
"""

from __future__ import annotations

import numpy as np

from globular.backends.cpu.expect.blocks import ChunkBlocks
from globular.backends.cpu.shard import CpuShard
from globular.model.chunks import Chunks
from globular.model.gaussian import GaussianParameters
from globular.model.statistics import F64, SoftStatistics
from globular.seam.mixture_passes import ExpectChunks

SMALLEST_SHARE = float(np.exp(-16.0))
"""Smaller responsibilities count, but where rows are taken by differences they move nothing."""


class HeldChunks:
    """Chunks and what can be made of them beforehand, for the next mixture that is evaluated on them."""

    def __init__(self, chunks: Chunks) -> None:
        self.chunks = chunks
        total = float(chunks.weights.sum())
        self._offset = chunks.weights @ chunks.means / total if total > 0 else np.zeros(chunks.means.shape[1])
        self._features: dict[int, F64] = {}
        """By their width: mixtures of different families may look at the same cells."""

    def e_step(self, mixture: GaussianParameters, n_threads: int = 1) -> SoftStatistics:
        """Statistics of all chunks."""
        has_scatter = self.chunks.scatter.shape[1] > 0
        blocks = ChunkBlocks(mixture, self._offset, packed=has_scatter)
        width = blocks.coefficients.shape[1]
        if has_scatter and width not in self._features:
            self._features[width] = blocks.features(self.chunks)
        seen = blocks.observed(self.chunks, self._features.get(width))
        total = blocks.moments(seen, self.chunks.weights, n_threads, least=SMALLEST_SHARE)
        return blocks.statistics(total, len(self.chunks))


@CpuShard.implements(ExpectChunks)
def expect_chunks(shard: CpuShard, work: ExpectChunks) -> SoftStatistics:
    held = shard.recall(HeldChunks)
    if held is None or held.chunks is not work.chunks:
        held = HeldChunks(work.chunks)
        shard.keep(held)
    return held.e_step(work.mixture, shard.n_threads)
