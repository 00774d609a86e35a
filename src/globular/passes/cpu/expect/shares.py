"""E-steps of many small mixtures, each on rows or chunks of its own: trials of splits ask for hundreds at a time.

Components are few and chunks too, so densities come from differences: there is nothing to be made beforehand, and no
form that would cancel. All components lie in one form, one mixture behind the other, and all chunks in one list. What
one thread does at once is a *stretch*: some chunks under one mixture (`blocks.expect_or_answer`). Stretches do not
depend on the number of threads, and the sums of a mixture are added in the order of its stretches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from globular.jit import kernel, new_queue, share_kernel
from globular.model.groups import group_by
from globular.model.statistics import F64, I64, SoftStatistics, WithinStatistics
from globular.passes.cpu.engine.densities import Block, Observed, new_differences
from globular.passes.cpu.expect.blocks import NO_ANSWERS, ChunkBlocks, Stretches, Tally, block_size, expect_or_answer
from globular.passes.cpu.rows import read_only
from globular.passes.cpu.shard import CpuShard
from globular.seam.mixture_passes import ExpectShares, ExpectWithin, LabelByDensity
from globular.seam.shard import answer
from globular.threads import SECONDS_PER_NUMBER, SECONDS_PER_PAIR, worth_waking


@kernel
def cut_stretches(
    starts: Any,  # IN  (shares + 1,) chunks of share i are starts[i] … starts[i + 1] − 1
    seen: Any,  # IN  (G, n) shares that each mixture sees
    bounds: Any,  # IN  (G + 1,) its components
    most: int,  # IN  chunks of a stretch
    stretches: Any,  # OUT as many as there is room for
) -> tuple[int, int]:
    """Chunks of the shares that every mixture sees, cut where they are many; how many stretches and sums. O(both)."""
    item = place = 0
    for g in range(seen.shape[0]):
        for i in seen[g]:
            for first in range(starts[i], starts[i + 1], most):
                if item < stretches.first.shape[0]:
                    stretches.mixture[item], stretches.place[item] = g, place
                    stretches.first[item], stretches.end[item] = first, min(first + most, starts[i + 1])
                item += 1
                place += bounds[g + 1] - bounds[g]
    return item, place


@kernel
def add_stretches(
    stretches: Any,  # IN
    bounds: Any,  # IN
    found: Any,  # IN  a `Tally` of stretches
    total: Any,  # IN/OUT of mixtures
) -> None:
    """Sums of mixtures, in the order of their stretches. O(numbers)."""
    for item in range(stretches.first.shape[0]):
        g = stretches.mixture[item]
        for c in range(bounds[g], bounds[g + 1]):
            from_ = stretches.place[item] + c - bounds[g]
            total.raw[c, 0] += found.raw[from_, 0]
            for d in range(total.tight_sums.shape[1]):
                total.tight_sums[c, d] += found.tight_sums[from_, d]
            for s in range(total.tight_scatter.shape[1]):
                total.tight_scatter[c, s] += found.tight_scatter[from_, s]
        for k in range(2):
            total.totals[g, k] += found.totals[item, k]


# --- drivers ---------------------------------------------------------------------------------------------------------


SMALLEST_SHARE = float(np.exp(-24.0))
"""Smaller responsibilities count, but move nothing."""
CHUNKS_AT_ONCE = 512
"""Most chunks of a stretch."""


@CpuShard.implements(ExpectShares)
def expect_shares(shard: CpuShard, work: ExpectShares) -> WithinStatistics:
    blocks = ChunkBlocks(work.mixture, np.zeros(work.mixture.n_features), by_differences=True)
    observed = blocks.observed(work.chunks)
    groups = Groups(work.starts, work.seen, work.bounds)
    return expect_groups(blocks, observed, observed.weights, groups, SMALLEST_SHARE, shard.n_threads)


class Groups(NamedTuple):
    """Which mixture looks at which rows or chunks; see `ExpectShares`."""

    starts: I64
    seen: I64
    bounds: I64


def expect_groups(
    blocks: ChunkBlocks, observed: Observed, counted: F64, groups: Groups, least: float, n_threads: int
) -> WithinStatistics:
    """E-steps of mixtures whose components are evaluated by differences."""
    (C, D), bounds = blocks.means.shape, groups.bounds
    has_scatter = observed.scatter.shape[1] > 0
    # Read-only like all of a form: its functions are compiled once for this pass and others.
    form = (blocks.form_for_cells if has_scatter else blocks.form)._replace(coefficients=read_only(np.zeros((C, 1))))
    sizes = bounds[1:] - bounds[:-1]
    stretches, n_sums = _stretches(groups)
    found = _new_sums(np.empty, (n_sums, len(stretches.first)), D, blocks)
    total = _new_sums(np.zeros, (C, len(sizes)), D, blocks)
    queue = new_queue()

    def call() -> None:
        block = _scratch(int(sizes.max()), D)
        expect_or_answer(queue, stretches, bounds, observed, counted, least, form, block, found, NO_ANSWERS)

    n_distances = int(((stretches.end - stretches.first) * sizes[stretches.mixture]).sum())
    seconds = n_distances * (SECONDS_PER_PAIR + SECONDS_PER_NUMBER * found.tight_scatter.shape[1])
    share_kernel(call, queue, min(worth_waking(n_threads, seconds), max(1, len(stretches.first))))
    add_stretches(stretches, bounds, found, total)
    likelihoods, weights = total.totals[:, 0], total.totals[:, 1]
    scatter = total.tight_scatter.reshape(blocks.kind.shape(C, D))
    parts = SoftStatistics(
        total.raw[:, 0], total.tight_sums, scatter, float(likelihoods.sum()), float(weights.sum()), n_distances
    )
    return WithinStatistics(parts, likelihoods)


def _scratch(C: int, D: int) -> Block:
    """Of a thread, for mixtures of up to C components."""
    n = min(CHUNKS_AT_ONCE, block_size(max(C, D + 1)))
    largest, densities, totals = np.empty((3, n))
    return Block(
        np.empty((n, D + 1)), np.empty((C, n)), np.empty((0, 0)), largest, densities, totals, new_differences(D)
    )


def _new_sums(new: Callable[[tuple[int, int]], F64], n: tuple[int, int], D: int, blocks: ChunkBlocks) -> Tally:
    """Of so many components, and stretches or mixtures."""
    S = blocks.kind.width(D) if blocks.kind.separable else D * D
    return Tally(new((n[0], 1)), new((n[0], D)), new((n[0], S)), new((n[1], 2)))


def _stretches(groups: Groups) -> tuple[Stretches, int]:
    """What threads take, and how many sums it leaves."""
    n = n_sums = 0
    for _ in range(2):  # they are counted first
        found = Stretches(*np.empty((4, n), dtype=np.int64))
        n, n_sums = cut_stretches(*groups, CHUNKS_AT_ONCE, found)
    return found, n_sums


@CpuShard.implements(LabelByDensity)
def label_by_density(shard: CpuShard, work: LabelByDensity) -> None:
    shard.labels[:] = answer(shard, work.mixture, "components")


@CpuShard.implements(ExpectWithin)
def expect_within(shard: CpuShard, work: ExpectWithin) -> WithinStatistics:
    """Every component is a mixture of its parts, for which its rows are brought together: a copy of all of them."""
    C = work.mixture.n_components // work.n_parts
    starts, order = group_by(shard.labels, C, shard.n_threads)
    blocks = ChunkBlocks(work.mixture, np.zeros(work.mixture.n_features), by_differences=True)
    scales, weights = (values[order] if len(values) else values for values in (shard.scales, shard.weights))
    rows = blocks.rows(shard.dense_rows.gather(order), scales)
    groups = Groups(starts, np.arange(C)[:, None], np.arange(0, len(blocks.means) + 1, work.n_parts))
    return expect_groups(blocks, rows, read_only(weights), groups, 0.0, shard.n_threads)
