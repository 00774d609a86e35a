"""Pairs (row, component): log-densities of a Gaussian mixture and its moments, where most pairs do not matter.

Pairs lie in the order of rows. Of the pairs of a block of rows those of a component are brought together, so that
differences from one mean are matrix products (`kernels.differences`); see `kernels.expect` for how spans and sums go.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from globular.jit import Queue, Scratch, inline, kernel, take_number
from globular.kernels.differences import TILE, add_moments, find_lengths, mirror, put_difference
from globular.kernels.expect import begin_sums, find_largest, weight_of
from globular.kernels.joint import exponential, joint_block, load_features

PAIRS_AT_ONCE = 1 << 14
"""Pairs of a block; one row has no more than there are components."""


class PairList(NamedTuple):
    """Pairs of some rows, by rows; each of these has one at least."""

    numbers: Any  # (R,) where the rows lie
    starts: Any  # (R + 1,) the pairs of the n-th row are starts[n] … starts[n + 1] − 1
    components: Any  # (P,) int32


class PairBlock(NamedTuple):
    """Scratch of a thread for some pairs."""

    values: Any  # (capacity,) log p(c, x), then w q
    owners: Any  # (capacity,) int64: the row of each, by its place in the list
    order: Any  # (capacity,) int64: pairs by component
    ends: Any  # (C + 1,) where the pairs of each component end
    differences: Any  # a `kernels.differences.Differences`


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
def load_pairs(x: Any, scales: Any, numbers: Any, block: Any, begin: int, m: int, form: Any, c: int) -> None:
    """x − μ_c of m pairs from the given one on. O(m·D)."""
    for k in range(m):
        i = numbers[block.owners[block.order[begin + k]]]
        scale = scales[i] if scales.shape[0] else 1.0
        for d in range(x.shape[1]):
            put_difference(block.differences, k, d, (scale * x[i, d] - form.offset[d]) - form.means[c, d])


@kernel
def share_pairs(
    x: Any,  # IN  (N, D)
    scales: Any,  # IN  (N,) or empty
    pairs: Any,  # IN
    first: int,  # IN
    last: int,  # IN  rows first … last − 1 of the list
    form: Any,  # IN  all components by differences
    block: Any,  # OUT values: q of the pairs, sorted by `sort_pairs`
    densities: Any,  # OUT (≥ last − first,) log Σ_c p(c, x) over the pairs of a row
) -> None:
    """Responsibilities within the pairs of each row. O(pairs·S)."""
    begin = 0
    for c in range(form.means.shape[0]):
        while begin < block.ends[c]:
            m = min(TILE, block.ends[c] - begin)
            load_pairs(x, scales, pairs.numbers, block, begin, m, form, c)
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
        densities[r - first] = largest
    for p in range(pairs.starts[last] - start):  # of all rows at once: it vectorises
        block.values[p] = exponential(block.values[p])
    for r in range(first, last):
        values = block.values[pairs.starts[r] - start : pairs.starts[r + 1] - start]
        total = 0.0
        for a in range(values.shape[0]):
            total += values[a]
        for a in range(values.shape[0]):
            values[a] /= total
        densities[r - first] += np.log(total)


@kernel
def add_pairs(
    x: Any,  # IN
    scales: Any,  # IN
    pairs: Any,  # IN
    form: Any,  # IN
    block: Any,  # IN  values: w q
    raw: Any,  # IN/OUT (C, W): Σ w q in the last column
    sums: Any,  # IN/OUT (C, D) Σ w q (x − μ)
    scatter: Any,  # IN/OUT (C, S), or (C, D²) of which upper triangles are written
) -> None:
    """Moments of a block about the means. O(pairs·S)."""
    weights, count, begin = block.differences.values, raw.shape[1] - 1, 0
    for c in range(form.means.shape[0]):
        while begin < block.ends[c]:
            m = min(TILE, block.ends[c] - begin)
            load_pairs(x, scales, pairs.numbers, block, begin, m, form, c)
            for k in range(m):
                weights[k] = block.values[block.order[begin + k]]
                raw[c, count] += weights[k]
            add_moments(block.differences, m, form.factors.shape[1] > 0, c, sums, scatter)
            begin += m


@kernel
def pair_spans(
    queue: Queue,  # IN/OUT spans not taken yet
    rows_per_span: int,  # IN
    x: Any,  # IN  (N, D)
    scales: Any,  # IN  (N,) or empty
    weights: Any,  # IN  (N,) or empty
    pairs: Any,  # IN
    form: Any,  # IN  all components by differences
    block: Scratch,  # scratch of this thread
    densities: Scratch,  # scratch (PAIRS_AT_ONCE,)
    q: Any,  # OUT (P,) responsibilities, or empty
    tally: Any,  # OUT a `kernels.expect.Tally`
) -> None:
    """An E-step that knows of these pairs alone, and what an M-step needs of it. O(P·S)."""
    n_rows, capacity = pairs.numbers.shape[0], block.values.shape[0]
    span = take_number(queue)
    while span < tally.raw.shape[0]:
        raw, sums, scatter = tally.raw[span], tally.tight_sums[span], tally.tight_scatter[span]
        totals = tally.totals[span]
        begin_sums(raw, sums, scatter, totals)
        first, end = span * rows_per_span, min(n_rows, (span + 1) * rows_per_span)
        while first < end:
            start, last = pairs.starts[first], first + 1
            while last < end and pairs.starts[last + 1] - start <= capacity:
                last += 1
            sort_pairs(pairs, first, last, block)
            share_pairs(x, scales, pairs, first, last, form, block, densities)
            if q.shape[0]:
                for p in range(start, pairs.starts[last]):
                    q[p] = block.values[p - start]
            for r in range(first, last):
                weight = weight_of(weights, pairs.numbers[r])
                totals[0] += weight * densities[r - first]
                totals[1] += weight
                for p in range(pairs.starts[r] - start, pairs.starts[r + 1] - start):
                    block.values[p] *= weight
            add_pairs(x, scales, pairs, form, block, raw, sums, scatter)
            first = last
        mirror(scatter, form.means.shape[1] if form.factors.shape[1] else 0)
        span = take_number(queue)


# Which pairs matter -----------------------------------------------------------------------------------------------


class Margin(NamedTuple):
    """What matters."""

    nats: float  # below the best component of a row, at which another no longer matters
    rounding: float  # many more nats than rounding makes bounds wrong by


@kernel
def exact_line(
    features: Any,  # IN  (B, ≥ D) rows about the offset
    chosen: Any,  # IN  (m,) some of them
    form: Any,  # IN  all components by differences, with whole matrices
    c: int,  # IN
    differences: Any,  # scratch
    out: Any,  # OUT (B,) log p(c, x) at their places
) -> None:
    """Log-densities of some rows. O(m·D²)."""
    for begin in range(0, chosen.shape[0], TILE):
        m = min(TILE, chosen.shape[0] - begin)
        for k in range(m):
            for d in range(form.means.shape[1]):
                put_difference(differences, k, d, features[chosen[begin + k], d] - form.means[c, d])
        find_lengths(differences, m, form.factors, form.precisions, c)
        for k in range(m):
            out[chosen[begin + k]] = form.constants[c] - 0.5 * differences.values[k]


@kernel
def settle_bounds(
    observed: Any,  # IN
    first: int,  # IN
    n: int,  # IN
    form: Any,  # IN
    margin: Any,  # IN
    block: Any,  # scratch, but for its joint
    joint: Any,  # IN  bounds from above, OUT log p(c, x) where it may matter, else −∞
    best: Any,  # scratch (B,) int64
    chosen: Any,  # scratch (B,) int64
) -> None:
    """Look closer at the most promising component of each row, then at those whose bounds are not below it.

    O(n·C + n·(components that matter)·D²)
    """
    load_features(observed, first, n, form.offset, False, block.features)
    find_largest(joint, n, block.largest, best)
    for step in range(2):  # one call for both: what it calls would be compiled twice
        for c in range(form.means.shape[0]):
            line, m = joint[c], 0
            for i in range(n):
                chosen[m] = i
                if step == 0:
                    m += best[i] == c
                else:
                    m += best[i] != c and line[i] >= block.densities[i] - (margin.nats + margin.rounding)
                    line[i] = block.densities[i] if best[i] == c else -np.inf
            exact_line(block.features, chosen[:m], form, c, block.differences, line if step else block.densities)


@kernel
def look_spans(
    queue: Queue,  # IN/OUT spans not taken yet
    rows_per_span: int,  # IN
    observed: Any,  # IN
    leading: Any,  # IN  a form of the first columns, or of all
    form: Any,  # IN  all components by differences, where the first columns are not all
    margin: Any,  # IN
    leading_block: Scratch,  # scratch for the form of the first columns
    block: Scratch,  # scratch for the other, which has no joint of its own
    best: Scratch,  # scratch (B,) int64
    chosen: Scratch,  # scratch (B,) int64
    masks: Any,  # IN  zeros, OUT (N, ⌈C / 64⌉) uint64: a bit for every component that matters
    sizes: Any,  # IN  zeros, OUT (spans, 4): pairs; rows that have several, and their pairs; rows that have none
) -> None:
    """Which components matter to each row. O(N·C·S)."""
    N, B = observed.x.shape[0], leading_block.features.shape[0]
    C = leading.coefficients.shape[0]
    span = take_number(queue)
    while span * rows_per_span < N:
        end = min(N, (span + 1) * rows_per_span)
        for first in range(span * rows_per_span, end, B):
            n = min(B, end - first)
            joint_block(observed, first, n, leading, True, leading_block, leading_block.joint)
            if leading.offset.shape[0] < form.offset.shape[0]:
                settle_bounds(observed, first, n, form, margin, block, leading_block.joint, best, chosen)
            find_largest(leading_block.joint, n, leading_block.largest, best)
            counts = chosen
            for i in range(n):
                counts[i] = 0
            for c in range(C):
                line, bit = leading_block.joint[c], np.uint64(1) << np.uint64(c & 63)
                for i in range(n):
                    if line[i] >= leading_block.largest[i] - margin.nats:
                        masks[first + i, c >> 6] |= bit
                        counts[i] += 1
            for i in range(n):
                sizes[span, 0] += counts[i]
                if counts[i] > 1:
                    sizes[span, 1] += 1
                    sizes[span, 2] += counts[i]
                sizes[span, 3] += counts[i] == 0
        span = take_number(queue)


@kernel
def list_pairs(
    queue: Queue,  # IN/OUT spans not taken yet
    rows_per_span: int,  # IN
    masks: Any,  # IN  (N, ⌈C / 64⌉), a bit at least for every row
    before: Any,  # IN  (spans, ≥ 3): pairs, rows that have several, and their pairs, of the spans before
    everyone: Any,  # OUT the pairs of all rows
    several: Any,  # OUT of those that have several
    single: Any,  # OUT of those that have one
) -> None:
    """Components that matter, ascending, one row after the other; the first of all starts is left to others. O(N·C)."""
    N = masks.shape[0]
    span = take_number(queue)
    while span * rows_per_span < N:
        p, r, at = before[span, 0], before[span, 1], before[span, 2]
        for i in range(span * rows_per_span, min(N, (span + 1) * rows_per_span)):
            begin = p
            for word in range(masks.shape[1]):
                bits, c = masks[i, word], 64 * word
                while bits:
                    if bits & np.uint64(1):
                        everyone.components[p] = c
                        p += 1
                    bits >>= np.uint64(1)
                    c += 1
            everyone.numbers[i], everyone.starts[i + 1] = i, p
            if p - begin > 1:
                for k in range(begin, p):
                    several.components[at] = everyone.components[k]
                    at += 1
                several.numbers[r], several.starts[r + 1] = i, at
                r += 1
            else:
                alone = i - r
                single.numbers[alone], single.starts[alone + 1] = i, alone + 1
                single.components[alone] = everyone.components[begin]
        span = take_number(queue)
