"""E-steps of many small mixtures, each on chunks of its own: trials of splits ask for hundreds of them at a time.

All components lie in one form, one mixture behind the other, and all chunks in one list. What one thread does at once
is a *stretch*: some chunks under one mixture. Stretches do not depend on the number of threads, and the sums of a
mixture are added in the order of its stretches.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from globular.kernels.compile import kernel
from globular.kernels.expect import expect_some
from globular.kernels.joint import Block, Form
from globular.kernels.queue import Queue, Scratch, take_number


class Stretches(NamedTuple):
    """What is to be done, by mixtures."""

    mixture: Any  # (I,) ascending
    first: Any  # (I,) chunks first … end − 1
    end: Any  # (I,)
    place: Any  # (I,) where the sums of its first component go, in those of all stretches


class ShareSums(NamedTuple):
    """Sums over chunks weighted by responsibilities, of the components of all stretches, or of all mixtures."""

    counts: Any  # (P, 1)
    sums: Any  # (P, D) about the means
    scatter: Any  # (P, S), or (P, D²) where it is whole matrices
    totals: Any  # (I, 2) Σ w log p(x), Σ w; of stretches, or of mixtures


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
def expect_stretches(
    queue: Queue,  # IN/OUT stretches not taken yet
    stretches: Any,  # IN
    bounds: Any,  # IN  (G + 1,) the components of mixture g are bounds[g] … bounds[g + 1] − 1
    observed: Any,  # IN  all chunks
    least: float,  # IN  chunks with a smaller share of a component count, but move nothing
    form: Any,  # IN  all components by differences
    block: Scratch,  # scratch of this thread, for the largest mixture
    found: Any,  # OUT of stretches
) -> None:
    """O(chunks · components · S) of all stretches."""
    item = take_number(queue)
    while item < stretches.first.shape[0]:
        begin, end = bounds[stretches.mixture[item]], bounds[stretches.mixture[item] + 1]
        C, place = end - begin, stretches.place[item]
        mixture = Form(
            form.offset, form.coefficients[begin:end], form.tight[:C], form.means[begin:end], form.factors[begin:end],
            form.precisions[begin:end], form.constants[begin:end], form.background, form.triangular, form.symmetric,
        )  # fmt: skip
        scratch = Block(
            block.features, block.joint[:C], block.bare, block.largest, block.densities, block.totals, block.differences
        )
        expect_some(
            observed, observed.weights, stretches.first[item], stretches.end[item], least, mixture, scratch,
            found.counts[place : place + C], found.sums[place : place + C], found.scatter[place : place + C],
            found.totals[item],
        )  # fmt: skip
        item = take_number(queue)


@kernel
def add_stretches(
    stretches: Any,  # IN
    bounds: Any,  # IN
    found: Any,  # IN  of stretches
    total: Any,  # OUT of mixtures
) -> None:
    """Sums of mixtures, in the order of their stretches; zeros where there is none. O(numbers)."""
    total.counts[:] = 0.0
    total.sums[:] = 0.0
    total.scatter[:] = 0.0
    total.totals[:] = 0.0
    for item in range(stretches.first.shape[0]):
        g = stretches.mixture[item]
        for c in range(bounds[g], bounds[g + 1]):
            from_ = stretches.place[item] + c - bounds[g]
            total.counts[c, 0] += found.counts[from_, 0]
            for d in range(total.sums.shape[1]):
                total.sums[c, d] += found.sums[from_, d]
            for s in range(total.scatter.shape[1]):
                total.scatter[c, s] += found.scatter[from_, s]
        for k in range(2):
            total.totals[g, k] += found.totals[item, k]
