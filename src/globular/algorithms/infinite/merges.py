"""Trials of merges: pairs of components that are not worth being two.

Splits alone cannot take back a component that later ones have made superfluous. The trial of a merge is that of a split
undone: on what two components hold, everything else fixed, F of the pair is compared with F of both as one. By how
much F rises is exactly what a split of the one would lower it by, so that both ask for the same gain.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from globular.algorithms.infinite.data import Shares
from globular.algorithms.infinite.energies import Energies, Group
from globular.algorithms.infinite.splits import SplitRules
from globular.model.observations import Moments, Prior
from globular.model.statistics import F64

_NEIGHBOURS = 4
"""Closest components that each is paired with."""

Pair = tuple[int, int]


def superfluous_pairs(shares: Shares, moments: Moments, behind: F64, prior: Prior, rules: SplitRules) -> list[Pair]:
    """Pairs whose split would not be worth it by the rules, those first that F rises least by; none shares a component.

    `shares` and `behind` are those of all components, see `try_splits`.
    """
    close = _in_question(_close_pairs(moments), moments, prior, rules.gain)
    both = [moments.take([i, j]) for i, j in close]
    if not both:
        return []
    energies = Energies(shares, prior, rules.alpha)
    two = [
        Group(pair, (i, j), i, float(behind[i] - moments.counts[j])) for pair, (i, j) in zip(both, close, strict=True)
    ]
    one = [replace(group, moments=group.moments.merged([0], [1])) for group in two]
    rises = [
        (as_one.free_energy - as_two.free_energy) / float(pair.counts.sum()) - rules.gain
        for pair, as_one, as_two in zip(both, energies.measure(one), energies.measure(two), strict=True)
    ]
    pairs: list[Pair] = []
    taken: set[int] = set()
    for rise, found in sorted(zip(rises, close, strict=True)):
        if rise < 0 and not taken & set(found):
            taken |= set(found)
            pairs.append(found)
    return pairs


def _in_question(close: list[Pair], moments: Moments, prior: Prior, gain: float) -> list[Pair]:
    """The pairs without those of which it is plain that F would rise by more than a split has to gain."""
    if not close:
        return []
    i, j = np.array(close).T
    alone = prior.update(moments).log_evidences()
    counts = moments.counts
    weights = counts[i] + counts[j]
    apart = alone[i] + alone[j] - prior.update(moments.merged(i, j)).log_evidences()
    labels = sum(counts[k] * np.log(weights / np.maximum(counts[k], 1e-300)) for k in (i, j))
    # F would rise by at least that, and by what rows shared by the two add to it
    plain = apart - labels - np.log(len(moments) * weights) > gain * weights
    return [pair for pair, is_plain in zip(close, plain.tolist(), strict=True) if not is_plain]


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
