"""E-step of Gaussian mixtures on rows in memory: one compiled call per thread, float64, never an N×C array.

A row is a chunk without scatter, so the arithmetic is that of `ChunkBlocks`: one matrix product each way, about the
mean of the mixture.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from globular.model.gaussian import GaussianParameters
from globular.model.statistics import F64, SoftStatistics
from globular.passes.cpu.engine.moments import Answers
from globular.passes.cpu.expect.blocks import ChunkBlocks
from globular.passes.cpu.shard import CpuShard
from globular.seam.among import All
from globular.seam.answers import Answer
from globular.seam.mixture_passes import Expect


def blocks_for(shard: CpuShard, mixture: GaussianParameters) -> ChunkBlocks:
    """A mixture ready to be evaluated on the rows of a shard."""
    check_columns(shard, mixture.n_features)
    return ChunkBlocks(mixture, mixture.offset)


def check_columns(shard: CpuShard, n_columns: int) -> None:
    """Refuse a mixture of other columns than the rows have."""
    if shard.n_columns != n_columns:
        raise ValueError(f"rows have {shard.n_columns} columns, the mixture {n_columns}")


@CpuShard.implements(Expect, All)
def expect_all(shard: CpuShard, work: Expect) -> SoftStatistics:
    """Sums weighted by the responsibilities. N·C distances; memory: sums of spans and a block per thread."""
    check_columns(shard, work.mixture.n_features)
    offset = work.mixture.offset if work.offset is None else work.offset
    blocks = ChunkBlocks(work.mixture, offset, linear=work.offset is not None)
    return blocks.statistics(blocks.moments(shard, shard.weights, shard.n_threads), shard.n_rows)


@CpuShard.implements(Answer, GaussianParameters)
def answer(shard: CpuShard, work: Answer) -> list[Any]:
    """What a mixture says of every row; with noise "probabilities" have one more column, and "components" −1."""
    blocks, mixture = blocks_for(shard, work.model), work.model
    C, noisy = mixture.n_components, mixture.noise is not None

    def write(answers: Answers) -> None:
        blocks.answer(shard, shard.n_threads, answers)
        if noisy and len(answers.table):
            answers.table[:, C] = np.exp(mixture.background - answers.densities)

    return answered(shard, work.want, C + noisy, write)


def answered(shard: CpuShard, want: str, width: int, write: Callable[[Answers], None]) -> list[Any]:
    """What a mixture says of every row, which `write` puts into arrays.

    "log_densities": log p(x), (N,); "total": their weighted sum; "probabilities": p(c | x), (N, width); "components":
    the one of largest p(c | x), lowest index on ties, −1 for noise, (N,).
    """
    n = shard.n_rows
    if want == "components":
        answers = Answers(components=np.empty(n, dtype=np.int64))
    else:
        answers = Answers(densities=np.empty(n), table=np.empty((n, width) if want == "probabilities" else (0, 0)))
    write(answers)
    if want == "total":
        return [weighted_total(shard, answers.densities)]
    return [{"components": answers.components, "probabilities": answers.table}.get(want, answers.densities)]


def weighted_total(shard: CpuShard, values: F64) -> float:
    """Σ w v of one value a row."""
    return float(shard.weights @ values if len(shard.weights) else values.sum())
