"""E-steps that remember which components matter to which row.

In many columns a row has noticeable responsibilities for one or two components, whatever their number. A pass that
looks at all components keeps the *pairs* (row, component) within `MARGIN` nats of the row's best; the passes after it
evaluate those pairs alone, until somebody asks to look again. Their responsibilities are truncated to the pairs, so the
bound they report is never above that of all components: what is left out was below e^−10 when it was looked at.

Pairs lie in the order of rows, so that a row's responsibilities are normalised side by side, with a second order by
component, in which differences from one mean are matrix products. Of rows with one component alone the responsibility
is one whatever the mixture does: they are summed up once, and enter as one chunk for each component.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from globular.backends.cpu.chunk_blocks import ABSENT
from globular.backends.cpu.direct import add_moments, no_moments, per_component, squared
from globular.backends.cpu.soft import Span, evaluate_blocks, soft_pass
from globular.model.gaussian import GaussianParameters
from globular.model.groups import group_by
from globular.model.observations import Moments
from globular.model.statistics import F64, I64, SoftStatistics
from globular.threads import even_ranges, run_all

if TYPE_CHECKING:
    from globular.backends.cpu.shard import CpuShard

MARGIN = 10.0
"""Nats below the best component of a row at which another no longer matters to it."""
_DENSE = 0.3
"""With more than this share of all pairs, remembering them does not pay."""
_PAIRS_AT_ONCE = 4096
_COMPONENTS_PER_TASK = 4


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Pairs (row, component) of some rows, by rows; each of these has one at least."""

    rows: NDArray[np.integer]
    """(P,), ascending."""
    components: NDArray[np.int32]
    """(P,)."""
    starts: I64
    """The pairs of the n-th row are starts[n] … starts[n + 1] − 1, (rows + 1,)."""
    by_component: NDArray[np.integer]
    """Numbers of the pairs, sorted by component, (P,)."""
    bounds: I64
    """Component c has by_component[bounds[c]:bounds[c + 1]], (C + 1,)."""

    @classmethod
    def from_rows(cls, counts: I64, components: NDArray[np.int32], n_components: int) -> Pairs:
        """From the components of all rows one after the other, counts[n] of them for row n."""
        starts = np.append(0, np.cumsum(counts))
        bounds, by_component = group_by(components, n_components)
        return cls(np.repeat(np.arange(len(counts)), counts), components, starts, by_component, bounds)

    def of_rows(self, chosen: NDArray[np.bool_]) -> Pairs:
        """The pairs of some rows."""
        sizes = np.diff(self.starts)
        held = np.repeat(chosen, sizes)
        bounds, by_component = group_by(self.components[held], self.n_components)
        starts = np.append(0, np.cumsum(sizes[chosen]))
        return Pairs(self.rows[held], self.components[held], starts, by_component, bounds)

    def __len__(self) -> int:
        return len(self.components)

    @property
    def n_components(self) -> int:
        return len(self.bounds) - 1

    def of(self, component: int) -> NDArray[np.integer]:
        """Numbers of the pairs of a component, rows ascending."""
        return self.by_component[self.bounds[component] : self.bounds[component + 1]]

    def normalise(self, joint: F64) -> tuple[F64, F64]:
        """q of every pair, (P,), and log Σ_c exp log p(c, x) over the pairs of every row, (rows,)."""
        starts, sizes = self.starts[:-1], np.diff(self.starts)
        if not len(starts):
            return np.empty(0), np.empty(0)
        largest = np.maximum.reduceat(joint, starts)
        q = np.exp(joint - np.repeat(largest, sizes))
        norms = np.add.reduceat(q, starts)
        return q / np.repeat(norms, sizes), largest + np.log(norms)


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """What rows remember."""

    pairs: Pairs
    """Of all rows."""
    doubtful: Pairs
    """Of the rows that have several."""
    certain: Moments
    """Of the rows that have one, by component."""

    @classmethod
    def sum_up(cls, shard: CpuShard, pairs: Pairs, mixture: GaussianParameters) -> Kept:
        """Sums of the certain rows, about the means of `mixture`."""
        alone = np.diff(pairs.starts) == 1
        counts, sums, scatter = _moments(
            shard, pairs.of_rows(alone), mixture, shard.take_weights(np.flatnonzero(alone))
        )
        statistics = SoftStatistics(counts, sums, scatter, 0.0, shard.total_weight, 0)
        return cls(pairs, pairs.of_rows(~alone), Moments.from_pass(mixture, statistics))


def kept_pass(shard: CpuShard, mixture: GaussianParameters, renew: bool) -> SoftStatistics:
    """See `Shard.kept_pass`."""
    n_distances = shard.n_rows * mixture.n_components
    if renew:
        pairs, joint = _look_at_all(shard, mixture)
        shard.kept = None if pairs is None else Kept.sum_up(shard, pairs, mixture)
        if shard.kept is not None:
            joint = joint[np.repeat(np.diff(shard.kept.pairs.starts) > 1, np.diff(shard.kept.pairs.starts))]
    elif shard.kept is not None:
        joint = pair_joint(shard, shard.kept.doubtful, mixture)
        n_distances = len(shard.kept.doubtful) + mixture.n_components
    if shard.kept is None:
        return soft_pass(shard, mixture)
    doubtful = shard.kept.doubtful
    q, densities = doubtful.normalise(joint)
    weights = shard.take_weights(np.asarray(doubtful.rows, dtype=np.intp))
    likelihood = float(weights[doubtful.starts[:-1]] @ densities)
    found = _moments(shard, doubtful, mixture, q * weights)
    certain = shard.kept.certain.about(mixture.means)
    # Σ log p(c, x) of rows that are of c alone: linear in their moments
    squares = (np.broadcast_to(mixture.precisions, certain[2].shape) * certain[2]).sum()
    likelihood += float(certain[0] @ np.maximum(mixture.log_constants, ABSENT) - 0.5 * squares)
    counts, sums, scatter = (a + b for a, b in zip(found, certain, strict=True))
    return SoftStatistics(counts, sums, scatter, likelihood, shard.total_weight, n_distances)


def _look_at_all(shard: CpuShard, mixture: GaussianParameters) -> tuple[Pairs | None, F64]:
    """The pairs that matter and their log p(c, x); None if most do."""

    def keep(block: Span, rows: F64, joint: F64) -> tuple[I64, NDArray[np.int32], F64]:
        close = joint >= joint.max(axis=1, keepdims=True) - MARGIN
        return close.sum(axis=1), np.nonzero(close)[1].astype(np.int32), joint[close]

    found = evaluate_blocks(shard, mixture, keep)
    if not found or sum(len(components) for _, components, _ in found) > _DENSE * shard.n_rows * mixture.n_components:
        return None, np.empty(0)
    counts, components, joint = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return Pairs.from_rows(counts, components, mixture.n_components), joint


def pair_joint(shard: CpuShard, pairs: Pairs, mixture: GaussianParameters) -> F64:
    """log p(c, x) of every pair, (P,). O(P·S)."""
    constants = np.maximum(mixture.log_constants, ABSENT)
    factors = per_component(mixture)
    joint = np.empty(len(pairs))

    def evaluate(span: Span) -> None:
        for c in range(*span):
            for chosen, differences in _differences(shard, pairs, mixture, c):
                joint[chosen] = constants[c] - 0.5 * squared(differences, factors[c])

    run_all(evaluate, even_ranges(pairs.n_components, _COMPONENTS_PER_TASK), shard.n_threads)
    return joint


def _moments(shard: CpuShard, pairs: Pairs, mixture: GaussianParameters, shares: F64) -> tuple[F64, F64, F64]:
    """counts, sums and scatter about the means, as in `SoftStatistics`. O(P·S)."""
    counts, sums, scatter = no_moments(mixture)

    def add(span: Span) -> None:
        for c in range(*span):
            for chosen, differences in _differences(shard, pairs, mixture, c):
                add_moments(differences, shares[chosen], counts[c : c + 1], sums[c : c + 1], scatter[c : c + 1])

    run_all(add, even_ranges(pairs.n_components, _COMPONENTS_PER_TASK), shard.n_threads)
    return counts, sums, scatter


def _differences(
    shard: CpuShard, pairs: Pairs, mixture: GaussianParameters, c: int
) -> Iterator[tuple[NDArray[np.integer], F64]]:
    """Pairs of a component in blocks, and x − μ of them."""
    held = pairs.of(c)
    for block in even_ranges(len(held), _PAIRS_AT_ONCE):
        chosen = held[slice(*block)]
        differences = shard.take(pairs.rows[chosen])
        differences -= mixture.means[c]
        yield chosen, differences
