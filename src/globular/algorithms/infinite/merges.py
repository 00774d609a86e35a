"""Trials of merges: pairs of components that are not worth being two.

Splits alone cannot take back a component that later ones have made superfluous. The trial of a merge is that of a split
undone: on what two components hold, everything else fixed, F of the pair is compared with F of both as one. By how
much F rises is exactly what a split of the one would lower it by, so that both ask for the same gain.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from globular.algorithms.infinite.data import Share
from globular.algorithms.infinite.splits import LocalRun, SplitRules
from globular.model.observations import Moments, Prior
from globular.model.statistics import F64
from globular.threads import map_all

_NEIGHBOURS = 4
"""Closest components that each is paired with."""

Pair = tuple[int, int]


def superfluous_pairs(
    shares: Sequence[Share], moments: Moments, behind: F64, prior: Prior, rules: SplitRules, n_threads: int = 1
) -> list[Pair]:
    """Pairs whose split would not be worth it by the rules, those first that F rises least by; none shares a component.

    `shares` and `behind` are those of all components, see `try_splits`.
    """
    alone = prior.update(moments).log_evidences()

    def excess(pair: Pair) -> float:
        """By how much more F would rise per row than a split has to gain; infinite where that is plain."""
        i, j = pair
        both = moments.take(np.array([i, j]))
        weight = float(both.counts.sum())
        apart = alone[i] + alone[j] - float(prior.update(both.merged([0], [1])).log_evidences()[0])
        labels = float((both.counts * np.log(weight / np.maximum(both.counts, 1e-300))).sum())
        if apart - labels - np.log(len(moments) * weight) > rules.gain * weight:
            return np.inf  # F would rise by at least that, and by what rows shared by the two add to it
        alpha, mass = rules.alpha.behind(i), float(behind[i] - moments.counts[j])
        local = LocalRun(shares[i].join(shares[j]), alpha, mass, prior)
        as_two = local.free_energy(both)
        return (local.free_energy(both.merged([0], [1])) - as_two) / weight - rules.gain

    close = _close_pairs(moments)
    pairs: list[Pair] = []
    taken: set[int] = set()
    for found, pair in sorted(zip(map_all(excess, close, n_threads), close, strict=True)):
        if found < 0 and not taken & set(pair):
            taken |= set(pair)
            pairs.append(pair)
    return pairs


def merge(moments: Moments, pairs: list[Pair]) -> Moments:
    """The components, those of a pair as one; merged ones last."""
    first, second = (list(side) for side in zip(*pairs, strict=True))
    stays = np.ones(len(moments), dtype=bool)
    stays[first + second] = False
    return moments.take(stays).join(moments.merged(first, second))


def _close_pairs(moments: Moments) -> list[Pair]:
    """Every component with its closest others, by distances in units of their own variances; i < j."""
    T = len(moments)
    counts = np.maximum(moments.counts, 1e-300)
    variances = np.maximum(moments.kind.diagonals(moments.scatter) / counts[:, None], 0.0)
    apart = np.ptp(moments.means, axis=0) ** 2  # where components are single rows, the scale is how far they lie apart
    tiny = 1e-12 * (variances.mean() + apart.mean()) + 1e-150
    pairs = set()
    for i in range(T):
        distances = ((moments.means - moments.means[i]) ** 2 / (variances + variances[i] + tiny)).sum(axis=1)
        distances[i] = np.inf
        pairs |= {
            (min(i, int(j)), max(i, int(j))) for j in np.argsort(distances, kind="stable")[:_NEIGHBOURS] if j != i
        }
    return sorted(pairs)
