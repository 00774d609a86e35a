"""E-step of Gaussian mixtures on rows in memory: one compiled call per thread, float64, never an N×C array.

A row is a chunk without scatter, so the arithmetic is that of `ChunkBlocks`: one matrix product each way, about the
mean of the mixture.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from globular.jit import new_queue
from globular.model.gaussian import GaussianParameters
from globular.model.statistics import F64, I64, SoftStatistics
from globular.passes.cpu.engine.densities import Observed
from globular.passes.cpu.expect.blocks import Answers, ChunkBlocks, RawMoments, Spans, Tally
from globular.passes.cpu.rows import read_only
from globular.passes.cpu.shard import CpuShard
from globular.seam.among import All
from globular.seam.answers import Answer
from globular.seam.mixture_passes import Expect, ExpectTied
from globular.threads import run_all

Span = tuple[int, int]


class Cut(NamedTuple):
    """Some of the rows, and how all are cut."""

    spans: Spans
    rows: slice
    """Which rows these are."""
    which: slice
    """Which spans."""


def blocks_for(shard: CpuShard, mixture: GaussianParameters) -> ChunkBlocks:
    """A mixture ready to be evaluated on the rows of a shard."""
    check_columns(shard, mixture)
    return ChunkBlocks(mixture, mixture.offset)


def check_columns(shard: CpuShard, mixture: GaussianParameters) -> None:
    """Refuse a mixture of other columns than the rows have."""
    if shard.n_columns != mixture.n_features:
        raise ValueError(f"rows have {shard.n_columns} columns, the mixture {mixture.n_features}")


def on_rows(shard: CpuShard, blocks: ChunkBlocks, work: Callable[[NDArray[np.int64], Observed, Cut], object]) -> None:
    """Call a kernel with all rows at once, or span by span where they have to be converted: the same bits."""
    rows, n = shard.dense_rows, shard.n_rows
    if rows.is_direct():
        seen = blocks.rows(rows.block(0, n), shard.scales)
        everyone = slice(None)
        blocks.on_threads(n, shard.n_threads, lambda queue, spans: work(queue, seen, Cut(spans, everyone, everyone)))
        return
    spans = blocks.spans(n)

    def convert(span: int) -> None:
        some = slice(span * spans.rows, min(n, (span + 1) * spans.rows))
        seen = blocks.rows(rows.block(some.start, some.stop), shard.scales[some])
        work(new_queue(), seen, Cut(spans, some, slice(span, span + 1)))

    run_all(convert, range(spans.n), shard.n_threads)


@CpuShard.implements(Expect, All)
def expect_all(shard: CpuShard, work: Expect) -> SoftStatistics:
    """Sums weighted by the responsibilities. N·C distances; memory: sums of spans and a block per thread."""
    blocks = blocks_for(shard, work.mixture)
    return blocks.statistics(moments_of_rows(shard, blocks), shard.n_rows)


@CpuShard.implements(ExpectTied)
def expect_tied(shard: CpuShard, work: ExpectTied) -> SoftStatistics:
    """The same as products with the rows alone."""
    check_columns(shard, work.mixture)
    blocks = ChunkBlocks(work.mixture, work.offset, linear=True)
    return blocks.linear_statistics(moments_of_rows(shard, blocks), shard.n_rows)


def moments_of_rows(shard: CpuShard, blocks: ChunkBlocks) -> RawMoments:
    """Sums over all rows, weighted by the responsibilities."""
    form, tally = blocks.form, blocks.new_tally(blocks.spans(shard.n_rows).n)

    def expect(queue: NDArray[np.int64], rows: Observed, cut: Cut) -> None:
        blocks.expect(
            queue, cut.spans, rows, read_only(shard.weights[cut.rows]), 0.0, form,
            blocks.block(cut.spans.rows_per_block), Tally(*(each[cut.which] for each in tally)),
        )  # fmt: skip

    on_rows(shard, blocks, expect)
    return blocks.total(tally, shard.n_threads)


@CpuShard.implements(Answer, GaussianParameters)
def answer(shard: CpuShard, work: Answer) -> list[Any]:
    """What a mixture says of every row.

    "log_densities": log p(x), (N,); "total": their weighted sum; "probabilities": p(c | x), (N, C), or (N, C + 1) with
    noise; "components": the one of largest p(c | x), lowest index on ties, −1 for noise, (N,).
    """
    blocks, n = blocks_for(shard, work.model), shard.n_rows
    components: I64 = np.empty(n if work.want == "components" else 0, dtype=np.int64)
    densities: F64 = np.empty(0 if work.want == "components" else n)
    C, noisy = work.model.n_components, work.model.noise is not None
    table: F64 = np.empty((n, C + noisy) if work.want == "probabilities" else (0, 0))
    write_answers(shard, blocks, components, densities, table)
    if noisy and len(table):
        table[:, C] = np.exp(work.model.background - densities)
    if work.want == "total":
        return [weighted_total(shard, densities)]
    return [{"components": components, "probabilities": table}.get(work.want, densities)]


def write_answers(shard: CpuShard, blocks: ChunkBlocks, components: I64, densities: F64, table: F64) -> None:
    """Write what a mixture says of every row; see `Answers`."""
    form = blocks.form

    def write(queue: NDArray[np.int64], rows: Observed, cut: Cut) -> None:
        answers = Answers(components[cut.rows], densities[cut.rows], table[cut.rows])
        blocks.tell(queue, cut.spans, rows, form, blocks.block(cut.spans.rows_per_block), answers)

    on_rows(shard, blocks, write)


def weighted_total(shard: CpuShard, values: F64) -> float:
    """Σ w v of one value a row."""
    return float(shard.weights @ values if len(shard.weights) else values.sum())


def block_rows(shard: CpuShard, block: Span) -> F64:
    """Dense rows of a block in float64, as the passes see them; a copy that nobody may write to."""
    rows = shard.dense_rows.block(*block).astype(np.float64)
    if len(shard.scales):
        rows *= shard.scales[slice(*block), None]
    return read_only(rows)
