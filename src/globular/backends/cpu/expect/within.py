"""Inside of components: which one a row belongs to, and the E-step of a mixture within each of them."""

from __future__ import annotations

import numpy as np

from globular.backends.cpu.expect.blocks import ABSENT
from globular.backends.cpu.rows import load_rows
from globular.backends.cpu.shard import CpuShard
from globular.kernels import within as kernels
from globular.model.groups import group_by
from globular.model.statistics import SoftStatistics, WithinStatistics
from globular.seam.mixture_passes import ExpectWithin, LabelByDensity
from globular.seam.shard import answer
from globular.threads import even_ranges, run_all

ROWS_PER_TASK = 4096
"""Rows of the components that go together, on average."""


@CpuShard.implements(LabelByDensity)
def label_by_density(shard: CpuShard, work: LabelByDensity) -> None:
    shard.labels[:] = answer(shard, work.mixture, "components")


@CpuShard.implements(ExpectWithin)
def expect_within(shard: CpuShard, work: ExpectWithin) -> WithinStatistics:
    mixture, n = work.mixture, shard.n_rows
    (CM, D), C = mixture.means.shape, mixture.n_components // work.n_parts
    bounds, order = group_by(shard.labels, C)
    found, gathered = load_rows(shard.rows, order)
    scales, weights = shard.scales, shard.weights
    if gathered:  # rows that cannot be used as they lie come in the order of the components
        scales, weights = (values[order] if len(values) else values for values in (scales, weights))
        order = np.arange(n, dtype=order.dtype)
    constants = np.maximum(mixture.log_constants, ABSENT)
    factors = np.ascontiguousarray(mixture.each(mixture.factors))
    counts, sums, scatter = np.zeros(CM), np.zeros((CM, D)), np.zeros(mixture.family.scatter.shape(CM, D))
    likelihoods = np.zeros(C)

    def look(span: tuple[int, int]) -> None:
        kernels.expect_within(
            found[0], scales, weights, order, bounds, span, mixture.means, factors, constants,
            counts, sums, scatter, likelihoods,
        )  # fmt: skip

    run_all(look, even_ranges(C, max(1, ROWS_PER_TASK * C // max(n, 1))), shard.n_threads)
    parts = SoftStatistics(counts, sums, scatter, float(likelihoods.sum()), shard.total_weight, n * work.n_parts)
    return WithinStatistics(parts, likelihoods)
