"""Trials of merges: pairs of components that are not worth being two.

Splits alone cannot take back a component that later ones have made superfluous. The trial of a merge is that of a split
undone: on what two components hold, everything else fixed, F of the pair is compared with F of both as one. By how
much F rises is exactly what a split of the one would lower it by, so that both ask for the same gain.
"""

from __future__ import annotations

import numpy as np

from globular.algorithms.infinite.data import Shares
from globular.algorithms.infinite.energies import Energies, Groups
from globular.algorithms.infinite.splits import SplitRules
from globular.algorithms.mixtures.moves import close_pairs
from globular.model.cells import starts_of
from globular.model.observations import ObservedMoments, Prior
from globular.model.statistics import F64, I64

Pair = tuple[int, int]


def superfluous_pairs(
    shares: Shares, moments: ObservedMoments, behind: F64, prior: Prior, rules: SplitRules
) -> list[Pair]:
    """Pairs whose split would not be worth it by the rules, those first that F rises least by; none shares a component.

    `shares` and `behind` are those of all components, see `try_splits`.
    """
    close = _close_pairs(moments)
    close = _in_question(close[(moments.counts[close] > 0).all(axis=1)], moments, prior, rules.gain)
    if not len(close):
        return []
    i, j = close.T
    one, two = moments.merged(i, j), moments.take(close.ravel())
    bounds, twice = starts_of([1] * len(close) + [2] * len(close)), np.tile(close, (2, 1))
    left = np.tile(behind[i] - moments.counts[j], 2)
    groups = Groups(one.join(two), bounds, twice, twice[:, 0], left)
    as_one, as_two = Energies(shares, prior, rules.alpha).measure(groups).free_energies.reshape(2, -1)
    rises = (as_one - as_two) / moments.counts[close].sum(axis=1) - rules.gain
    pairs: list[Pair] = []
    taken: set[int] = set()
    for rise, first, second in sorted(zip(rises.tolist(), i.tolist(), j.tolist(), strict=True)):
        if rise < 0 and not taken & {first, second}:
            taken |= {first, second}
            pairs.append((first, second))
    return pairs


def _in_question(close: I64, moments: ObservedMoments, prior: Prior, gain: float) -> I64:
    """The pairs without those of which it is plain that F would rise by more than a split has to gain."""
    if not len(close):
        return close
    i, j = close.T
    alone = prior.update(moments).log_evidences()
    counts = moments.counts
    weights = counts[i] + counts[j]
    apart = alone[i] + alone[j] - prior.update(moments.merged(i, j)).log_evidences()
    labels = sum(counts[k] * np.log(weights / np.maximum(counts[k], 1e-300)) for k in (i, j))
    # F would rise by at least that, and by what rows shared by the two add to it
    plain = apart - labels - np.log(len(moments) * weights) > gain * weights
    return close[~plain]


def merge(moments: ObservedMoments, pairs: list[Pair]) -> ObservedMoments:
    """The components, those of a pair as one; merged ones last."""
    first, second = (list(side) for side in zip(*pairs, strict=True))
    stays = np.ones(len(moments), dtype=bool)
    stays[first + second] = False
    return moments.take(stays).join(moments.merged(first, second))


def _close_pairs(moments: ObservedMoments) -> I64:
    """Every component with its closest others, by distances in units of their own variances; (n, 2), i < j."""
    counts = np.maximum(moments.counts, 1e-300)
    variances = np.maximum(moments.kind.diagonals(moments.scatter) / counts[:, None], 0.0)
    apart = np.ptp(moments.means, axis=0) ** 2  # where components are single rows, the scale is how far they lie apart
    return close_pairs(moments.means, variances, 1e-12 * float(variances.mean() + apart.mean()) + 1e-150)
