"""Labels for clusters of limited size: the least error that a limit allows, nearly.

To give every row a cluster that has room is a transport problem, and an auction solves it (Bertsekas 1988). Clusters
have prices, at first 0, and a row wants the one with the least d² + price. A cluster that more rows want than it has
room for keeps those to which the next best would be worst, and raises its price until the others are better off there.
Prices only rise, and a cluster with room has none, so in the end no two rows could gain by changing places.

Rows remember a few centres. Where these have become so dear that one beyond them may be cheaper, all are asked:
d² + price is the squared distance to the centre with √price as one coordinate more, where rows have 0.

Sizes are sums of weights. Rows whose weights differ cannot always be packed; what is left when the auction has gone on
for long takes the closest centre with room.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from globular.model.statistics import F64
from globular.seam.answers import Nearest
from globular.seam.passes import Labels
from globular.seam.shard import Shard, answer

REMEMBERED = 16
"""Centres that a row knows the distances of; larger = fewer rows ask all centres, for more memory."""
ROUNDS = 2000
"""Most rounds of an auction, each with higher prices; larger = more rows find the cheapest place."""
PRICED_AT_ONCE = 1 << 16


class Assignment:
    """Rows, the centres closest to each, and the cluster that each is in."""

    def __init__(self, shard: Shard, centers: F64, weights: F64) -> None:
        self.shard, self.centers, self.weights = shard, centers, weights
        found = answer(shard, Nearest(centers, min(len(centers), REMEMBERED)), "nearest")
        self.near, self.squares = found["center"].copy(), found["square"].copy()
        self.labels: Labels = self.near[:, 0].copy()
        self.own: F64 = self.squares[:, 0].copy()

    @property
    def sizes(self) -> F64:
        """Sums of the weights."""
        return np.asarray(np.bincount(self.labels, self.weights, minlength=len(self.centers)), dtype=np.float64)

    @property
    def error(self) -> float:
        """Σ w d²."""
        return float(self.weights @ self.own)

    def dissolve(self, least: float) -> NDArray[np.intp]:
        """Clusters that remain if, the smallest first, those of less than a size leave their rows to the closest other.

        The last one stays whatever its size.
        """
        alive, sizes = np.ones(len(self.centers), dtype=bool), self.sizes
        while alive.sum() > 1:
            smallest = int(np.where(alive, sizes, np.inf).argmin())
            if sizes[smallest] >= least:
                break
            alive[smallest] = False
            rows = np.flatnonzero(self.labels == smallest)
            known = alive[self.near[rows]]
            place = known.argmax(axis=1)
            self._move(rows, self.near[rows, place], self.squares[rows, place])
            beyond = rows[~known.any(axis=1)]
            if len(beyond):
                self._to_closest(beyond, alive)
            sizes += np.bincount(self.labels[rows], self.weights[rows], minlength=len(sizes))
            sizes[smallest] = 0.0
        return np.flatnonzero(alive)

    def limit(self, most: float) -> None:
        """Move rows until no cluster is larger than a size, at about the least error."""
        most *= 1.0 + 1e-12  # sums of weights are rounded
        prices = np.zeros(len(self.centers))
        gaps = self.squares[:, min(1, self.squares.shape[1] - 1)] - self.squares[:, 0]
        # what a price rises by at least grows with every round, which ends draws and searches for the last places
        rise = 0.05 * float(gaps.mean())
        rng = np.random.default_rng(0)
        for _ in range(ROUNDS):
            full = self.sizes > most
            if not full.any():
                return
            self._auction(np.flatnonzero(full[self.labels]), prices, most, rise, rng)
            rise *= 1.01
        self._place_rest(most)

    def _auction(self, rows: NDArray[np.intp], prices: F64, most: float, rise: float, rng: np.random.Generator) -> None:
        """One round: clusters that are too large, those of these rows, let go of the rows that lose least.

        No cluster raises its price while another sends rows to it that go by the old one: of two such clusters one
        waits for another round.
        """
        labels = self.labels[rows]
        wanted, square = self._next_best(rows, prices)
        regret = square + prices[wanted] - self.own[rows] - prices[labels]
        order = np.lexsort((-regret, labels))  # within a cluster those first that would lose most
        stays, last = self._within(rows[order], most)
        leaving, last = order[~stays], order[last]
        turn = rng.permutation(len(prices))
        turn[np.setdiff1d(np.arange(len(prices)), labels[last])] = -1  # clusters with room raise nothing
        rival, source, target = np.full(len(prices), -1), labels[leaving], wanted[leaving]
        np.maximum.at(rival, source, turn[target])
        np.maximum.at(rival, target, turn[source])
        acts = turn > rival
        leaving, last = leaving[acts[source]], last[acts[labels[last]]]
        self._move(rows[leaving], wanted[leaving], square[leaving])
        prices[labels[last]] += regret[last] + rise

    def _within(self, rows: NDArray[np.intp], most: float) -> tuple[NDArray[np.bool_], NDArray[np.intp]]:
        """Which of these rows, by cluster, fit in from the first of each on, and where the last of each is."""
        labels, running = self.labels[rows], np.cumsum(self.weights[rows])
        starts = np.flatnonzero(np.diff(labels, prepend=-1))
        before = np.repeat(running[starts] - self.weights[rows[starts]], np.diff(starts, append=len(rows)))
        stays = running - before <= most
        return stays, starts + np.add.reduceat(stays, starts, dtype=np.intp) - 1

    def _next_best(self, rows: NDArray[np.intp], prices: F64) -> tuple[Labels, F64]:
        """For every row the cheapest centre but its own, and d²."""
        near, squares, labels = self.near[rows], self.squares[rows], self.labels[rows]
        costs = np.where(near == labels[:, None], np.inf, squares + prices[near])
        place = costs.argmin(axis=1)[:, None]
        wanted = np.take_along_axis(near, place, axis=1)[:, 0]
        square = np.take_along_axis(squares, place, axis=1)[:, 0]
        if near.shape[1] < len(prices):
            dear = np.flatnonzero(np.take_along_axis(costs, place, axis=1)[:, 0] > squares[:, -1])
            for start in range(0, len(dear), PRICED_AT_ONCE):
                part = dear[start : start + PRICED_AT_ONCE]
                wanted[part], square[part] = self._ask_all(rows[part], labels[part], prices)
        return wanted, square

    def _ask_all(self, rows: NDArray[np.intp], labels: Labels, prices: F64) -> tuple[Labels, F64]:
        values = np.asarray(self.shard.take(rows), dtype=np.float64)
        lifted, centers = np.pad(values, ((0, 0), (0, 1))), np.column_stack([self.centers, np.sqrt(prices)])
        found = answer(self.shard.local(lifted), Nearest(centers, 2), "nearest")["center"]
        wanted = np.where(found[:, 0] == labels, found[:, 1], found[:, 0])
        return wanted, np.square(values - self.centers[wanted]).sum(axis=1)

    def _place_rest(self, most: float) -> None:
        """Those that are too many, one after the other, to the closest centre with room."""
        full = self.sizes > most
        rows = np.flatnonzero(full[self.labels])
        order = rows[np.lexsort((self.own[rows], self.labels[rows]))]
        rest = order[~self._within(order, most)[0]]
        sizes = self.sizes - np.bincount(self.labels[rest], self.weights[rest], minlength=len(full))
        for row in rest[np.argsort(-self.weights[rest], kind="stable")]:
            room = np.flatnonzero(sizes + self.weights[row] <= most)
            if len(room) == 0:
                raise ValueError(f"max_size: row {row} finds no cluster with room for its weight; raise max_size")
            squares = np.square(self.centers[room] - self.shard.take(np.array([row]))).sum(axis=1)
            closest = int(squares.argmin())
            self.labels[row], self.own[row] = room[closest], squares[closest]
            sizes[room[closest]] += self.weights[row]

    def _to_closest(self, rows: NDArray[np.intp], among: NDArray[np.bool_]) -> None:
        numbers = np.flatnonzero(among).astype(np.int32)
        local = self.shard.local(np.asarray(self.shard.take(rows), dtype=np.float64))
        found = answer(local, Nearest(self.centers[numbers], 1), "nearest")[:, 0]
        self._move(rows, numbers[found["center"]], found["square"])

    def _move(self, rows: NDArray[np.intp], labels: Labels, squares: F64) -> None:
        self.labels[rows], self.own[rows] = labels, squares

    def means(self, *, unit: bool) -> F64:
        """Means of the clusters, of unit length if `unit`; one without rows keeps its centre."""
        sums, counts = np.zeros_like(self.centers), self.sizes
        for start in range(0, len(self.labels), PRICED_AT_ONCE):
            part = slice(start, start + PRICED_AT_ONCE)
            rows = np.arange(len(self.labels))[part]
            order = np.argsort(self.labels[part], kind="stable")
            weighted = np.asarray(self.shard.take(rows))[order] * self.weights[part][order, None]
            starts = np.flatnonzero(np.diff(self.labels[part][order], prepend=-1))
            sums[self.labels[part][order[starts]]] += np.add.reduceat(weighted, starts, axis=0)
        divisors = np.linalg.norm(sums, axis=1) if unit else counts
        filled = (counts > 0) & (divisors > 0)
        centers = self.centers.copy()
        centers[filled] = sums[filled] / divisors[filled, None]
        return centers


def balanced(
    shard: Shard, centers: F64, weights: F64, most: float, least: float, max_iter: int, *, unit: bool
) -> Assignment:
    """Rows in clusters of at most a size; the centres follow their rows as long as that lowers the error.

    No cluster becomes smaller than `least` that was not before.
    """
    best = Assignment(shard, centers, weights)
    best.limit(most)
    for _ in range(max_iter):
        moved = Assignment(shard, best.means(unit=unit), weights)
        moved.limit(most)
        gain = best.error - moved.error
        if gain <= 0 or moved.sizes.min() < least:
            break
        best = moved
        if gain <= 1e-3 * moved.error:
            break
    return best
