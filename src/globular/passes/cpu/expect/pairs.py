"""E-steps of rows that look at some components each: pairs (row, component), listed by rows.

Pairs lie in the order of rows. Of the pairs of a block of rows those of a component are brought together, so that
differences from one mean are matrix products (`engine.densities`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from globular.jit import Queue, Scratch, inline, kernel, new_queue, share_kernel, take_number
from globular.model.cells import starts_of
from globular.model.gaussian import GaussianParameters
from globular.model.statistics import F64, I64, SoftStatistics
from globular.passes.cpu.engine.densities import (
    DENSITY_TILE,
    add_moments,
    exponential,
    find_lengths,
    mirror,
    new_differences,
    put_difference,
    weight_of,
)
from globular.passes.cpu.engine.moments import Tally, begin_sums
from globular.passes.cpu.expect.blocks import ChunkBlocks
from globular.passes.cpu.rows import read_only
from globular.passes.cpu.shard import CpuShard
from globular.passes.host import NONE
from globular.threads import run_all

PAIRS_AT_ONCE = 1 << 14
"""Pairs of a block; one row has no more than there are components."""


class PairedRows(NamedTuple):
    """Rows that pairs point to."""

    x: Any  # (N, D)
    scales: Any  # (N,) or empty
    weights: Any  # (N,) or empty


class PairBlock(NamedTuple):
    """Scratch of a thread for some pairs."""

    values: Any  # (capacity,) log p(c, x), then w q
    owners: Any  # (capacity,) int64: the row of each, by its place in the list
    order: Any  # (capacity,) int64: pairs by component
    ends: Any  # (C + 1,) where the pairs of each component end
    densities: Any  # (capacity,) log Σ_c p(c, x) over the pairs of a row
    differences: Any  # a `Differences`


@kernel
def sort_pairs(
    pairs: Any,  # IN
    first: int,  # IN
    last: int,  # IN  rows first … last − 1 of the list
    block: Any,  # OUT owners, order, ends
) -> None:
    """The pairs of some rows by component. O(pairs + C)."""
    begin, ends = pairs.starts[first], block.ends
    ends[:] = 0
    for p in range(begin, pairs.starts[last]):
        ends[pairs.components[p] + 1] += 1
    for c in range(1, ends.shape[0]):
        ends[c] += ends[c - 1]
    for r in range(first, last):
        for p in range(pairs.starts[r], pairs.starts[r + 1]):
            c = pairs.components[p]
            block.owners[p - begin] = r
            block.order[ends[c]] = p - begin
            ends[c] += 1


@inline
def load_pairs(rows: Any, numbers: Any, block: Any, begin: int, m: int, form: Any, c: int) -> None:
    """x − μ_c of m pairs from the given one on. O(m·D)."""
    x, scales, _ = rows
    for k in range(m):
        i = numbers[block.owners[block.order[begin + k]]]
        scale = scales[i] if scales.shape[0] else 1.0
        for d in range(x.shape[1]):
            put_difference(block.differences, k, d, (scale * x[i, d] - form.offset[d]) - form.means[c, d])


@kernel
def share_pairs(
    rows: Any,  # IN
    pairs: Any,  # IN
    first: int,  # IN
    last: int,  # IN  rows first … last − 1 of the list
    form: Any,  # IN  all components by differences
    block: Any,  # OUT values: q of the pairs, sorted by `sort_pairs`; densities
) -> None:
    """Responsibilities within the pairs of each row. O(pairs·S)."""
    begin = 0
    for c in range(form.means.shape[0]):
        while begin < block.ends[c]:
            m = min(DENSITY_TILE, block.ends[c] - begin)
            load_pairs(rows, pairs.numbers, block, begin, m, form, c)
            find_lengths(block.differences, m, form.factors, form.precisions, c)
            for k in range(m):
                block.values[block.order[begin + k]] = form.constants[c] - 0.5 * block.differences.values[k]
            begin += m
    start = pairs.starts[first]
    for r in range(first, last):
        values = block.values[pairs.starts[r] - start : pairs.starts[r + 1] - start]
        largest = values[0]
        for a in range(1, values.shape[0]):
            largest = max(largest, values[a])
        for a in range(values.shape[0]):
            values[a] -= largest
        block.densities[r - first] = largest
    for p in range(pairs.starts[last] - start):  # of all rows at once: it vectorises
        block.values[p] = exponential(block.values[p])
    for r in range(first, last):
        values = block.values[pairs.starts[r] - start : pairs.starts[r + 1] - start]
        total = 0.0
        for a in range(values.shape[0]):
            total += values[a]
        for a in range(values.shape[0]):
            values[a] /= total
        block.densities[r - first] += np.log(total)


@kernel
def add_pairs(
    rows: Any,  # IN
    pairs: Any,  # IN
    form: Any,  # IN
    block: Any,  # IN  values: w q
    sums: Any,  # IN/OUT a `Tally` of one span; of whole matrices upper triangles are written
) -> None:
    """ObservedMoments of a block about the means. O(pairs·S)."""
    weights, count, begin = block.differences.values, sums.raw.shape[1] - 1, 0
    for c in range(form.means.shape[0]):
        while begin < block.ends[c]:
            m = min(DENSITY_TILE, block.ends[c] - begin)
            load_pairs(rows, pairs.numbers, block, begin, m, form, c)
            for k in range(m):
                weights[k] = block.values[block.order[begin + k]]
                sums.raw[c, count] += weights[k]
            add_moments(block.differences, m, form.factors.shape[1] > 0, c, sums.tight_sums, sums.tight_scatter)
            begin += m


@kernel
def pair_spans(
    queue: Queue,  # IN/OUT spans not taken yet
    rows_per_span: int,  # IN
    rows: Any,  # IN  a `PairedRows`
    pairs: Any,  # IN
    form: Any,  # IN  all components by differences
    block: Scratch,  # scratch of this thread
    q: Any,  # OUT (P,) responsibilities, or empty
    tally: Any,  # OUT a `Tally`
) -> None:
    """An E-step that knows of these pairs alone, and what an M-step needs of it. O(P·S)."""
    n_rows, capacity = pairs.numbers.shape[0], block.values.shape[0]
    span = take_number(queue)
    while span < tally.raw.shape[0]:
        sums = Tally(tally.raw[span], tally.tight_sums[span], tally.tight_scatter[span], tally.totals[span])
        totals = sums.totals
        begin_sums(sums)
        first, end = span * rows_per_span, min(n_rows, (span + 1) * rows_per_span)
        while first < end:
            start, last = pairs.starts[first], first + 1
            while last < end and pairs.starts[last + 1] - start <= capacity:
                last += 1
            sort_pairs(pairs, first, last, block)
            share_pairs(rows, pairs, first, last, form, block)
            if q.shape[0]:
                for p in range(start, pairs.starts[last]):
                    q[p] = block.values[p - start]
            for r in range(first, last):
                weight = weight_of(rows.weights, pairs.numbers[r])
                totals[0] += weight * block.densities[r - first]
                totals[1] += weight
                for p in range(pairs.starts[r] - start, pairs.starts[r + 1] - start):
                    block.values[p] *= weight
            add_pairs(rows, pairs, form, block, sums)
            first = last
        mirror(sums.tight_scatter, form.means.shape[1] if form.factors.shape[1] else 0)
        span = take_number(queue)


# --- drivers ---------------------------------------------------------------------------------------------------------


class Pairs(NamedTuple):
    """Pairs of some rows, by rows, as kernels take them; each of these rows has one at least."""

    numbers: I64
    """Where the rows lie, (R,), ascending."""
    starts: I64
    """The pairs of the n-th row are starts[n] … starts[n + 1] − 1, (R + 1,)."""
    components: NDArray[np.int32]
    """(P,)."""

    def pick(self, rows: I64) -> Pairs:
        """The pairs of some of the rows, given by their places in the list."""
        sizes = self.starts[rows + 1] - self.starts[rows]
        starts = starts_of(sizes)
        places = np.arange(starts[-1]) + np.repeat(self.starts[rows] - starts[:-1], sizes)
        return Pairs(self.numbers[rows], starts, self.components[places])

    def e_step(self, shard: CpuShard, mixture: GaussianParameters, q: F64 = NONE) -> SoftStatistics:
        """Sums about the means of the mixture; `q` becomes the responsibilities of the pairs. O(P·S)."""
        blocks = ChunkBlocks(mixture, np.zeros(mixture.n_features), by_differences=True)
        spans = blocks.spans(len(self.numbers), len(self.components))
        tally, form, all_rows = blocks.new_tally(spans.n), blocks.form, shard.dense_rows
        capacity = max(PAIRS_AT_ONCE, mixture.n_components)

        def call(queue: NDArray[np.int64], rows: PairedRows, pairs: Pairs, q: F64, sums: Tally) -> None:
            owners, order = np.empty((2, capacity), dtype=np.int64)
            ends, differences = np.empty(mixture.n_components + 1, dtype=np.int64), new_differences(mixture.n_features)
            block = PairBlock(np.empty(capacity), owners, order, ends, np.empty(capacity), differences)
            pair_spans(queue, spans.rows, rows, pairs, form, block, q, sums)

        def convert(span: int) -> None:
            places = np.arange(span * spans.rows, min(len(self.numbers), (span + 1) * spans.rows))
            some, held = self.pick(places), slice(self.starts[places[0]], self.starts[places[-1] + 1])
            of_rows = (each[some.numbers] if len(each) else each for each in (shard.scales, shard.weights))
            rows = PairedRows(all_rows.gather(some.numbers), *map(read_only, of_rows))
            sums = Tally(*(each[span : span + 1] for each in tally))
            call(new_queue(), rows, some._replace(numbers=np.arange(len(places))), q[held], sums)

        if all_rows.is_direct():
            queue, n_threads = new_queue(), min(shard.n_threads, max(1, spans.n))
            everyone = PairedRows(all_rows.block(0, shard.n_rows), read_only(shard.scales), read_only(shard.weights))
            share_kernel(lambda: call(queue, everyone, self, q, tally), queue, n_threads)
        else:
            run_all(convert, range(spans.n), shard.n_threads)
        found = blocks.statistics(blocks.total(tally, shard.n_threads), len(self.numbers))
        found.n_distances = len(self.components)
        return found
