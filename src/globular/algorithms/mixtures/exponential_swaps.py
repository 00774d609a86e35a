"""Swaps of components of an exponential family that EM cannot make: one becomes two, and two others one.

On a part of the rows:

1. what two components are worth apart: from the sums of one E-step, the fall of the expected log-likelihood if they
   were one, less what it gains that nobody has to tell their rows apart;
2. what a second component would gain in each: EM with two of them on the rows that are most likely of it;
3. the best pairs of both are swapped one by one, a few steps of EM follow, and what has raised the objective stays.

It ends when nothing is promising, or after a few failures one after the other. [Ueda et al. 2000]
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from globular.algorithms.mixtures.moves import MAX_FAILURES
from globular.algorithms.steps import Step
from globular.model.exponential import ExponentialMixture, LinearStatistics, PseudoRows
from globular.model.statistics import F64, I64
from globular.seam.mixture_passes import ExpectLinear
from globular.seam.shard import Shard, answer

MOST_SWAPS = 32
"""Most swaps in all; larger = longer searches of many components."""
LEAST_RATIO = 0.5
"""A swap is tried if its gain is at least this share of its loss: the components left make up for some of it."""
FEWEST_ROWS = 8
"""Rows that a component has to hold to become two."""

Fit = Callable[[Shard, ExponentialMixture | int], Step[ExponentialMixture]]
"""EM on some rows, from a mixture or from so many seeds."""


@dataclass(frozen=True, slots=True, eq=False)
class Halves:
    """A component as two."""

    gain: float
    mixture: ExponentialMixture


class Swap(NamedTuple):
    """A component that becomes two, and two that become one."""

    gain: float
    """What that is to gain, about."""
    split: int
    halves: Halves
    joined: tuple[int, int]


def search_by_swaps(
    part: Shard, best: Step[ExponentialMixture], prior: PseudoRows, fit: Fit
) -> Generator[Step[ExponentialMixture], None, Step[ExponentialMixture]]:
    """Swaps as long as they raise the objective; returns the best step."""
    n_swaps = n_failures = 0
    known: dict[bytes, Halves] = {}
    while n_swaps < MOST_SWAPS:
        found = part.run(ExpectLinear(best.model.linear))
        n_distances = found.n_distances
        for swap in _promising(part, best.model, found, prior, known, fit):
            n_swaps += 1
            tried = fit(part, _swapped(best.model, found, prior, swap))
            n_distances += tried.n_distances
            if tried.objective > best.objective:
                best, n_failures = replace(tried, n_distances=n_distances), 0
                yield best
                break
            n_failures += 1
            if n_failures == MAX_FAILURES or n_swaps == MOST_SWAPS:
                return best
        else:
            return best
    return best


def _promising(
    part: Shard,
    mixture: ExponentialMixture,
    found: LinearStatistics,
    prior: PseudoRows,
    known: dict[bytes, Halves],
    fit: Fit,
) -> list[Swap]:
    """The best swap for each component that gains as two, those first that gain most."""
    labels = np.asarray(answer(part, mixture, "components"))
    losses = _losses(type(mixture), found, prior)
    C = mixture.n_components
    pairs = [divmod(int(pair), C) for pair in np.argsort(losses, axis=None)]
    swaps = []
    for split in range(C):
        halves = _halves(part, np.flatnonzero(labels == split), known, fit)
        joined = next(pair for pair in pairs if split not in pair)
        if halves is not None and halves.gain > LEAST_RATIO * losses[joined]:
            swaps.append(Swap(halves.gain - float(losses[joined]), split, halves, joined))
    return sorted(swaps, key=lambda swap: -swap.gain)


def _losses(family: type[ExponentialMixture], found: LinearStatistics, prior: PseudoRows) -> F64:
    """What is lost if components a < b become one, (C, C); infinite elsewhere. One line at a time: O(C·D) of memory."""
    counts, sums = found.counts, found.sums
    C, alone = len(counts), _worth(family, counts, sums, prior)
    losses = np.full((C, C), np.inf)
    for a in range(C - 1):
        others = slice(a + 1, C)
        both, total = counts[a] + counts[others], np.maximum(counts[a] + counts[others], 1e-300)
        labels = sum(n * np.log(total / np.maximum(n, 1e-300)) for n in (counts[a], counts[others]))
        losses[a, others] = alone[a] + alone[others] - _worth(family, both, sums[a] + sums[others], prior) - labels
    return losses


def _worth(family: type[ExponentialMixture], counts: F64, sums: F64, prior: PseudoRows) -> F64:
    """θ · Σ q x − A Σ q of components with these sums, (C,)."""
    mixture = prior.m_step(family, counts, sums, learned_weights=True)
    return np.asarray((mixture.slopes * sums).sum(axis=1) - mixture.log_normalisers * counts)


def _halves(part: Shard, own: I64, known: dict[bytes, Halves], fit: Fit) -> Halves | None:
    """The rows of a component as two; what holds the same rows as before is not looked at again."""
    if len(own) < FEWEST_ROWS:
        return None
    key = own.tobytes()
    if key not in known:
        rows = part.subset(own)
        one, two = fit(rows, 1), fit(rows, 2)
        known[key] = Halves(two.objective - one.objective, two.model)
    return known[key]


def _swapped(mixture: ExponentialMixture, found: LinearStatistics, prior: PseudoRows, swap: Swap) -> ExponentialMixture:
    """The halves in the place of a component and of the second of two that become one in the place of the first."""
    pair, (a, b) = list(swap.joined), swap.joined
    counts, sums = found.counts[pair].sum(keepdims=True), found.sums[pair].sum(axis=0, keepdims=True)
    one, halves = prior.m_step(type(mixture), counts, sums, learned_weights=True), swap.halves.mixture
    arrays = {}
    for name, values in mixture.arrays.items():
        changed = values.copy()
        changed[a] = one.arrays[name][0]
        changed[[swap.split, b]] = halves.arrays[name]
        if name == "weights":
            changed[a] = values[pair].sum()
            changed[[swap.split, b]] *= values[swap.split]
            changed /= changed.sum()
        arrays[name] = changed
    return type(mixture)(**arrays)
