"""E-steps that remember which components matter to which row.

In many columns a row has noticeable responsibilities for one or two components, whatever their number. A pass that
looks at all components keeps the *pairs* (row, component) within `MARGIN` nats of the row's best; the passes after it
evaluate those pairs alone, until somebody asks to look again. Their responsibilities are truncated to the pairs, so the
bound they report is never above that of all components: what is left out was below e^−16 when it was looked at.

Pairs lie in the order of rows, so that a row's responsibilities are normalised side by side, with a second order by
component, in which differences from one mean are matrix products.
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
from globular.model.statistics import F64, I64, SoftStatistics
from globular.threads import even_ranges, run_all

if TYPE_CHECKING:
    from globular.backends.cpu.shard import CpuShard

MARGIN = 16.0
"""Nats below the best component of a row at which another no longer matters to it."""
_DENSE = 0.3
"""With more than this share of all pairs, remembering them does not pay."""
_PAIRS_AT_ONCE = 4096
_COMPONENTS_PER_TASK = 4


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Pairs (row, component), by rows; every row has one at least."""

    rows: NDArray[np.integer]
    """(P,), ascending."""
    components: NDArray[np.int32]
    """(P,)."""
    starts: I64
    """The pairs of row n are starts[n] … starts[n + 1] − 1, (N + 1,)."""
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

    def __len__(self) -> int:
        return len(self.components)

    @property
    def n_components(self) -> int:
        return len(self.bounds) - 1

    def of(self, component: int) -> NDArray[np.integer]:
        """Numbers of the pairs of a component, rows ascending."""
        return self.by_component[self.bounds[component] : self.bounds[component + 1]]

    def normalise(self, joint: F64) -> tuple[F64, F64]:
        """q of every pair, (P,), and log Σ_c exp log p(c, x) over the pairs of every row, (N,)."""
        starts, sizes = self.starts[:-1], np.diff(self.starts)
        largest = np.maximum.reduceat(joint, starts)
        q = np.exp(joint - np.repeat(largest, sizes))
        norms = np.add.reduceat(q, starts)
        return q / np.repeat(norms, sizes), largest + np.log(norms)


def kept_pass(shard: CpuShard, mixture: GaussianParameters, renew: bool) -> SoftStatistics:
    """See `Shard.kept_pass`."""
    if renew:
        shard.pairs, joint = _look_at_all(shard, mixture)
        n_distances = shard.n_rows * mixture.n_components
    elif shard.pairs is not None:
        joint, n_distances = pair_joint(shard, shard.pairs, mixture), len(shard.pairs)
    if shard.pairs is None:
        return soft_pass(shard, mixture)
    q, densities = shard.pairs.normalise(joint)
    weights = shard.weights if len(shard.weights) else np.ones(shard.n_rows)
    q *= weights[shard.pairs.rows]
    moments = _moments(shard, shard.pairs, mixture, q)
    return SoftStatistics(*moments, float(weights @ densities), shard.total_weight, n_distances)


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
