"""E-step of Gaussian mixtures on rows in memory: blocks of rows, float64, never an N×C array.

A row is a chunk without scatter, so the arithmetic is that of `chunk_blocks`: one matrix product each way, about the
mean of the mixture. What a block computes depends on the mixture alone, so every block and shard does the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from globular.backends.cpu.chunk_blocks import ChunkBlocks, block_size
from globular.backends.cpu.rows import DenseRows
from globular.backends.protocol import add_up
from globular.errors import UnsupportedPassError
from globular.kernels.soft import softmax_rows
from globular.model.chunks import Chunks
from globular.model.gaussian import GaussianParameters
from globular.model.statistics import F64, SoftStatistics
from globular.threads import even_ranges, map_all, ordered_map, run_all

if TYPE_CHECKING:
    from globular.backends.cpu.shard import CpuShard

_MAX_SPANS = 64
"""Statistics are C-sized; so few of them are added up, whatever the number of blocks."""

Span = tuple[int, int]
Result = TypeVar("Result")


class _Evaluator:
    """A mixture ready to be evaluated on the rows of a shard."""

    def __init__(self, shard: CpuShard, mixture: GaussianParameters) -> None:
        if not isinstance(shard.rows, DenseRows):
            raise UnsupportedPassError(f"soft_pass is not available here: {shard.passes['soft_pass']}")
        if shard.n_columns != mixture.n_features:
            raise ValueError(f"rows have {shard.n_columns} columns, the mixture {mixture.n_features}")
        self.shard, self.mixture = shard, mixture
        self.arithmetic = ChunkBlocks(mixture, mixture.offset)
        self.block_rows = block_size(self.arithmetic.width)

    def chunks(self, block: Span) -> Chunks:
        """Rows of a block in float64, as chunks without scatter."""
        rows = block_rows(self.shard, block)
        weights = self.shard.weights[slice(*block)] if len(self.shard.weights) else np.ones(len(rows))
        return Chunks(weights, rows, np.empty((len(rows), 0)), self.mixture.family.scatter)

    def log_joint(self, block: Span) -> F64:
        chunks = self.chunks(block)
        return self.arithmetic.log_joint(chunks, self.arithmetic.features(chunks))

    def span_statistics(self, span: Span) -> SoftStatistics:
        """Statistics of some blocks; one copy of the C-sized sums for all of them."""
        total = self.arithmetic.no_moments()
        for start, stop in even_ranges(span[1] - span[0], self.block_rows):
            self.arithmetic.e_step(total, self.chunks((span[0] + start, span[0] + stop)))
        return self.arithmetic.statistics(total, span[1] - span[0])

    def spans(self) -> list[Span]:
        """Whole blocks, several to a span; the same for any number of threads."""
        n_blocks = -(-self.shard.n_rows // self.block_rows)
        blocks_per_span = max(1, -(-n_blocks // _MAX_SPANS))
        return even_ranges(self.shard.n_rows, self.block_rows * blocks_per_span) or [(0, 0)]

    def write_rows(self, write: Callable[[Span, F64], None]) -> None:
        """Call `write` with every block and its log p(c, x)."""
        blocks = even_ranges(self.shard.n_rows, self.block_rows)
        run_all(lambda block: write(block, self.log_joint(block)), blocks, self.shard.n_threads)


def block_rows(shard: CpuShard, block: Span) -> F64:
    """Dense rows of a block in float64, as the passes see them; a copy."""
    assert isinstance(shard.rows, DenseRows)
    rows = shard.rows.block(*block).astype(np.float64)
    if len(shard.scales):
        rows *= shard.scales[slice(*block), None]
    return rows


def soft_pass(shard: CpuShard, mixture: GaussianParameters) -> SoftStatistics:
    """Sums weighted by the responsibilities. N·C distances; memory: the statistics and a few blocks per thread."""
    evaluator = _Evaluator(shard, mixture)
    return add_up(ordered_map(evaluator.span_statistics, evaluator.spans(), shard.n_threads))


def evaluate_blocks(
    shard: CpuShard, mixture: GaussianParameters, function: Callable[[Span, F64, F64], Result]
) -> list[Result]:
    """function(block, rows, log p(c, x)) of every block, in order."""
    evaluator = _Evaluator(shard, mixture)

    def evaluate(block: Span) -> Result:
        chunks = evaluator.chunks(block)
        return function(
            block, chunks.means, evaluator.arithmetic.log_joint(chunks, evaluator.arithmetic.features(chunks))
        )

    return map_all(evaluate, even_ranges(shard.n_rows, evaluator.block_rows), shard.n_threads)


def score_rows(shard: CpuShard, mixture: GaussianParameters) -> F64:
    """log p(x) of every row, (N,)."""
    scores = np.empty(shard.n_rows)

    def write(block: Span, joint: F64) -> None:
        softmax_rows(joint, np.empty(0), scores[slice(*block)])

    _Evaluator(shard, mixture).write_rows(write)
    return scores


def responsibilities(shard: CpuShard, mixture: GaussianParameters) -> F64:
    """p(c | x) of every row, (N, C)."""
    result = np.empty((shard.n_rows, mixture.n_components))

    def write(block: Span, joint: F64) -> None:
        softmax_rows(joint, np.empty(0), np.empty(len(joint)))
        result[slice(*block)] = joint

    _Evaluator(shard, mixture).write_rows(write)
    return result


def most_likely(shard: CpuShard, mixture: GaussianParameters) -> NDArray[np.int64]:
    """The component of largest p(c | x) of every row, lowest index on ties, (N,)."""
    labels = np.empty(shard.n_rows, dtype=np.int64)

    def write(block: Span, joint: F64) -> None:
        np.argmax(joint, axis=1, out=labels[slice(*block)])

    _Evaluator(shard, mixture).write_rows(write)
    return labels
