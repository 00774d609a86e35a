"""E-step of Gaussian mixtures on rows in memory: blocks of rows, float64, never an N×C array.

A row is a chunk without scatter, so the arithmetic is that of `chunk_blocks`: one matrix product each way, about the
mean of the mixture. What a block computes depends on the mixture alone, so every block and shard does the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import add
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from globular.backends.cpu.expect.blocks import ChunkBlocks, block_size
from globular.backends.cpu.shard import CpuShard
from globular.kernels.expect import softmax_rows
from globular.model.chunks import Chunks
from globular.model.gaussian import GaussianParameters
from globular.model.statistics import F64, SoftStatistics
from globular.seam.among import All
from globular.seam.passes import Answer, Expect
from globular.threads import even_ranges, map_all, ordered_map, run_all

_MAX_SPANS = 64
"""Statistics are C-sized; so few of them are added up, whatever the number of blocks."""

Span = tuple[int, int]
Result = TypeVar("Result")


class _Evaluator:
    """A mixture ready to be evaluated on the rows of a shard."""

    def __init__(self, shard: CpuShard, mixture: GaussianParameters) -> None:
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


def block_rows(shard: CpuShard, block: Span) -> F64:
    """Dense rows of a block in float64, as the passes see them; a copy."""
    rows = shard.dense_rows.block(*block).astype(np.float64)
    if len(shard.scales):
        rows *= shard.scales[slice(*block), None]
    return rows


@CpuShard.implements(Expect, All)
def expect_all(shard: CpuShard, work: Expect) -> SoftStatistics:
    """Sums weighted by the responsibilities. N·C distances; memory: the statistics and a few blocks per thread."""
    evaluator = _Evaluator(shard, work.mixture)
    return reduce(add, ordered_map(evaluator.span_statistics, evaluator.spans(), shard.n_threads))


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


@CpuShard.implements(Answer, GaussianParameters)
def answer(shard: CpuShard, work: Answer) -> list[Any]:
    """What a mixture says of every row.

    "log_densities": log p(x), (N,); "total": their weighted sum; "probabilities": p(c | x), (N, C); "components": the
    one of largest p(c | x), lowest index on ties, (N,).
    """
    evaluator, n = _Evaluator(shard, work.model), shard.n_rows
    found: NDArray[Any] = np.empty((n, evaluator.mixture.n_components) if work.want == "probabilities" else n)
    if work.want == "components":
        found = np.empty(n, dtype=np.int64)

    def write(block: Span) -> None:
        joint, part = evaluator.log_joint(block), slice(*block)
        if work.want == "components":
            np.argmax(joint, axis=1, out=found[part])
            return
        by_probability = work.want == "probabilities"
        softmax_rows(joint, np.empty(0), np.empty(len(joint)) if by_probability else found[part])
        if by_probability:
            found[part] = joint

    run_all(write, even_ranges(n, evaluator.block_rows), shard.n_threads)
    return [weighted_total(shard, found)] if work.want == "total" else [found]


def weighted_total(shard: CpuShard, values: F64) -> float:
    """Σ w v of one value a row."""
    return float(shard.weights @ values if len(shard.weights) else values.sum())
