"""E-steps of many small mixtures on chunks of their own (`kernels.shares`): trials of splits and merges ask for them.

Components are few and chunks too, so densities come from differences: there is nothing to be made beforehand, and no
form that would cancel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from globular.jit import new_queue, share_kernel
from globular.kernels import shares as kernels
from globular.kernels.differences import new_differences
from globular.kernels.expect import Stretches, Tally, expect_or_answer
from globular.kernels.joint import Block, Observed
from globular.model.statistics import F64, I64, SoftStatistics, WithinStatistics
from globular.passes.cpu.expect.blocks import NO_ANSWERS, ChunkBlocks, block_size
from globular.passes.cpu.rows import read_only
from globular.passes.cpu.shard import CpuShard
from globular.seam.mixture_passes import ExpectShares
from globular.threads import SECONDS_PER_NUMBER, SECONDS_PER_PAIR, worth_waking

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
    kernels.add_stretches(stretches, bounds, found, total)
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
        n, n_sums = kernels.cut_stretches(*groups, CHUNKS_AT_ONCE, found)
    return found, n_sums
