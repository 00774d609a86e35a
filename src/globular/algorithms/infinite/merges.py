"""Proposals of merges: pairs of components that might lower the free energy as one.

Splits alone cannot take back a component that later ones have made superfluous. With everything else fixed, F of
components is −(log-evidence of what each holds) −(log-evidence of the sticks) −(entropy of the labels). The first two
follow from the moments of a pair; only the entropy that a merge loses is not known. So pairs are proposed as if none
were lost, and the free energy of all data decides.
"""

from __future__ import annotations

import numpy as np

from globular.model.observations import Moments, Prior
from globular.model.statistics import F64, I64
from globular.model.sticks import Sticks

_NEIGHBOURS = 4
"""Closest components that each is paired with."""


def propose_merges(moments: Moments, tail: float, prior: Prior, alpha: tuple[float, float]) -> list[tuple[int, int]]:
    """Pairs that share no component, the most promising first; none if nothing can lower F."""
    first, second = _close_pairs(moments)
    if not len(first):
        return []
    alone = prior.update(moments).log_evidences()
    gains = prior.update(moments.merged(first, second)).log_evidences() - alone[first] - alone[second]
    sticks = Sticks.from_counts(alpha, moments.counts, tail).log_evidence()
    gains += [_merged_sticks(moments.counts, tail, alpha, i, j) - sticks for i, j in zip(first, second, strict=True)]
    pairs: list[tuple[int, int]] = []
    taken: set[int] = set()
    for place in np.argsort(-gains, kind="stable"):
        i, j = int(first[place]), int(second[place])
        if gains[place] <= 0:
            break
        if not taken & {i, j}:
            taken |= {i, j}
            pairs.append((i, j))
    return pairs


def merge(moments: Moments, pairs: list[tuple[int, int]]) -> Moments:
    """The components, those of a pair as one; merged ones last."""
    first, second = (np.array(side) for side in zip(*pairs, strict=True))
    stays = np.ones(len(moments), dtype=bool)
    stays[first] = stays[second] = False
    return moments.take(stays).join(moments.merged(first, second))


def _merged_sticks(counts: F64, tail: float, alpha: tuple[float, float], i: int, j: int) -> float:
    joined = np.append(np.delete(counts, [i, j]), counts[i] + counts[j])
    return Sticks.from_counts(alpha, -np.sort(-joined), tail).log_evidence()


def _close_pairs(moments: Moments) -> tuple[I64, I64]:
    """Every component with its closest others, by distances in units of their own variances; i < j."""
    T = len(moments)
    counts = np.maximum(moments.counts, 1e-300)
    variances = np.maximum(moments.kind.diagonals(moments.scatter) / counts[:, None], 0.0)
    tiny = 1e-12 * variances.mean() + 1e-300
    pairs = set()
    for i in range(T):
        distances = ((moments.means - moments.means[i]) ** 2 / (variances + variances[i] + tiny)).sum(axis=1)
        distances[i] = np.inf
        pairs |= {
            (min(i, int(j)), max(i, int(j))) for j in np.argsort(distances, kind="stable")[:_NEIGHBOURS] if j != i
        }
    found = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]
