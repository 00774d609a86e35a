"""A tree over centres: which clusters become one first where there shall be fewer (Ward 1963).

Two clusters of weights a and b whose means are d apart raise the error of k-means by a b / (a + b) d² when they are
joined; the tree joins those that raise it least. Pairs that are each other's cheapest partner are joined in any order
(Murtagh 1983): a join is nobody's cheaper partner than the cheaper of its two was, so a round joins all such pairs
at once, and only clusters that have lost their partner look for another. O(C² D) or little more, and O(C D) memory.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from globular.model.cells import median_center
from globular.model.statistics import F64, I64
from globular.threads import single_threaded_blas

NUMBERS_AT_ONCE = 1 << 18
"""Costs that are held at a time."""
SOON = 0.1
"""Share of the clusters, by their cheapest join, that look for a partner in a round; larger = fewer, longer rounds."""


@single_threaded_blas  # the same bits for any number of threads
def ward_linkage(centers: F64, weights: F64) -> F64:
    """The joins in ascending order as SciPy has them, (C − 1, 4): two numbers, a height and how many centres.

    Half the square of a height is what the join adds to the error; with equal weights of one it is SciPy's "ward".
    """
    # a cluster without rows weighs next to nothing, and joins the closest at next to no cost
    joins = _Joins(centers - median_center(centers), np.maximum(weights, 1e-9 * weights.mean()))
    joins.join_equal()
    while len(joins.weights) > 1:
        joins.look()
        joins.join(joins.pairs())
    return joins.in_order()


class _Joins:
    """The clusters that are left, the cheapest partner of each, and the joins so far."""

    def __init__(self, means: F64, weights: F64) -> None:
        C = len(means)
        self.means, self.weights, self.names = means, weights, np.arange(C)
        self.heights = np.zeros(C)
        self.partner, self.cost = np.full(C, -1), np.zeros(C)
        self.made: list[tuple[int, int, float]] = []
        self.C = C

    def join_equal(self) -> None:
        """Centres at the same place: all are each other's cheapest partners, and would be joined one in a round."""
        while True:
            order = np.lexsort(self.means.T)
            same = np.flatnonzero((self.means[order[1:]] == self.means[order[:-1]]).all(axis=1))
            if len(same) == 0:
                return
            same = same[np.diff(same, prepend=-2) > 1]  # pairs that share no centre
            self.join(np.sort(np.stack([order[same], order[same + 1]], axis=1), axis=1))

    def look(self) -> None:
        """Find the cheapest partner of clusters that have none; what the last one cost is the least of another."""
        lost = np.flatnonzero((self.partner < 0) & (self.cost <= np.quantile(self.cost, SOON)))
        squares = np.einsum("ij,ij->i", self.means, self.means)
        step = max(1, NUMBERS_AT_ONCE // len(self.means))
        for start in range(0, len(lost), step):
            rows = lost[start : start + step]
            costs = self.means[rows] @ (-2.0 * self.means.T)
            costs += squares
            costs += squares[rows, None]
            costs *= self.weights
            costs /= self.weights + self.weights[rows, None]
            costs[np.arange(len(rows)), rows] = np.inf
            self.partner[rows] = costs.argmin(axis=1)
        self.cost[lost] = self._costs(lost, self.partner[lost])

    def _costs(self, one: I64, other: I64) -> F64:
        apart = self.means[one] - self.means[other]
        a, b = self.weights[one], self.weights[other]
        return np.asarray(a * b / (a + b) * np.einsum("ij,ij->i", apart, apart))

    def pairs(self) -> NDArray[np.intp]:
        """Those that are each other's partners; where rounding leaves none, the cheapest two of all, once known."""
        numbers = np.arange(len(self.partner))
        first = np.flatnonzero((self.partner[self.partner] == numbers) & (numbers < self.partner))
        if len(first) == 0 and self.partner[self.cost.argmin()] >= 0:
            first = np.array([self.cost.argmin()])
        return np.sort(np.stack([first, self.partner[first]], axis=1), axis=1)

    def join(self, pairs: NDArray[np.intp]) -> None:
        """Make one of each pair, in the place of the first."""
        one, other = pairs.T
        joined = self.weights[one] + self.weights[other]
        # a rounded cost must not bring a join before those that it is made of
        heights = np.sqrt(2.0 * self._costs(one, other))
        heights = np.maximum(heights, np.maximum(self.heights[one], self.heights[other]))
        n_made = len(self.made)
        self.made += zip(self.names[one].tolist(), self.names[other].tolist(), heights.tolist(), strict=True)
        share = (self.weights[other] / joined)[:, None]
        self.means[one] += share * (self.means[other] - self.means[one])
        self.weights[one], self.heights[one] = joined, heights
        self.names[one] = self.C + n_made + np.arange(len(one))
        gone = np.zeros(len(self.names), dtype=bool)
        gone[pairs] = True
        self.partner[gone | gone[self.partner]] = -1
        left = np.ones(len(gone), dtype=bool)
        left[other] = False
        places = np.cumsum(left) - 1
        self.partner = np.where(self.partner < 0, -1, places[self.partner])[left]
        self.means, self.weights, self.names = self.means[left], self.weights[left], self.names[left]
        self.heights, self.cost = self.heights[left], self.cost[left]

    def in_order(self) -> F64:
        """The joins by height, each with the numbers that SciPy gives to those below it."""
        order = np.argsort([height for *_, height in self.made], kind="stable")
        numbers = np.arange(2 * self.C - 1)
        numbers[self.C + order] = self.C + np.arange(len(order))
        counts, linkage = np.ones(2 * self.C - 1), np.empty((len(order), 4))
        for place, made in enumerate(order):
            one, other, height = self.made[made]
            below = sorted((int(numbers[one]), int(numbers[other])))
            counts[self.C + place] = counts[below[0]] + counts[below[1]]
            linkage[place] = *below, height, counts[self.C + place]
        return linkage
