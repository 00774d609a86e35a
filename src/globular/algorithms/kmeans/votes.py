"""S, v and what sse needs: everything that the rows seen so far have to say about the centres, and the M-step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from globular.algorithms.kmeans.centers import by_parts
from globular.model.columns import ColumnMeans
from globular.model.nested import NestedStatistics
from globular.model.statistics import F64, I64, Floats
from globular.seam.passes import ByColumn, CastBallots
from globular.seam.shard import Shard
from globular.threads import to_the_end

TINY = float(np.finfo(np.float64).tiny)
LARGEST_OFFSET = 2.0**20
"""Squared offset of centres, in mean squares of their differences, up to which sums may be taken about zero."""


@dataclass(frozen=True, slots=True)
class Moved:
    """An M-step, and what the votes say about the centres before it."""

    shifts: F64
    """p(j): how far each centre moved, (C,)."""
    sse: F64
    """Σ w ‖x − c‖² per cluster over all votes, about the centres before, (C,)."""
    batch_sse: F64
    """The same over what the last batch added."""


@dataclass(slots=True)
class Votes:
    """Votes beside dense centres."""

    centers: F64
    origin: F64
    """What sums and squares are taken about, (D,)."""
    sums: F64
    """Σ w (x − origin), (C, D)."""
    counts: F64
    squares: F64
    """Σ w ‖x − origin‖², (C,)."""
    sizes: I64
    """Rows of positive weight, (C,)."""

    @classmethod
    def none(cls, centers: F64) -> Votes:
        """No votes, about the mean of the centres where a common offset would cancel otherwise.

        Deviation: Alg. 2 lets the rows that the centres start from vote; they would have two votes once in a batch.
        """
        empty = NestedStatistics.none(*centers.shape)
        mean = centers.mean(axis=0)
        spread = np.einsum("ij,ij->", centers, centers) / len(centers) - mean @ mean
        origin = mean if mean @ mean > 4.0 * spread else np.zeros_like(mean)
        return cls(centers, origin, np.zeros_like(centers), empty.counts, empty.squares, empty.sizes)

    @classmethod
    def resumed(cls, centers: F64, sums: F64, counts: F64) -> Votes:
        """Votes of an earlier fit, of which Σ w x and Σ w are known; nobody can take them back."""
        votes = cls.none(centers)
        votes.sums += sums - counts[:, None] * votes.origin
        votes.counts += counts
        votes.sizes += counts > 0
        return votes

    def move(self, shard: Shard, change: NestedStatistics, *, unit: bool) -> Moved:
        """Count the changes, and move the centres: c(j) ← S(j) / v(j), scaled to unit length if `unit`.

        What changes is used up. Afterwards all is changed, or nothing if Ctrl-C came in between.
        A cluster without votes keeps its place, and has exactly no votes: weights that came and went leave a rounding
        error behind.
        """
        sums, old = change.sums, self.centers
        counts, squares, sizes = self.counts + change.counts, self.squares + change.squares, self.sizes + change.sizes
        empty = np.flatnonzero((sizes <= 0) & (change.sizes < 0))
        counts[empty] = 0.0
        centers, shifts, cross = np.empty_like(old), np.empty(len(old)), np.empty((3, len(old)))

        def move_some(part: slice) -> None:
            step, total, weights = old[part] - self.origin, sums[part], counts[part]
            np.einsum("ij,ij->i", step, total, out=cross[1, part])
            total += self.sums[part]
            np.einsum("ij,ij->i", step, total, out=cross[0, part])
            np.einsum("ij,ij->i", step, step, out=cross[2, part])
            divisors, kept, origin = weights, weights <= 0.0, self.origin
            means = total
            if unit:
                means, origin = total + weights[:, None] * origin, np.zeros_like(origin)
                divisors = np.sqrt(np.einsum("ij,ij->i", means, means))
                kept = kept | (divisors <= 1e-12 * weights)  # opposite rows may cancel: it keeps its direction
            means = means / np.where(kept, 1.0, divisors)[:, None]
            means += origin
            means[kept] = old[part][kept]
            np.subtract(means, old[part], out=step)
            shifts[part] = np.sqrt(np.einsum("ij,ij->i", step, step))
            centers[part] = means

        by_parts(move_some, old.shape, shard.n_threads)
        for array in (sums, squares, sizes):
            array[empty] = 0
        # all at once and at last: after Ctrl-C centres, sums and counts belong together
        self.centers, self.sums, self.counts, self.squares, self.sizes = centers, sums, counts, squares, sizes
        sse = squares - 2.0 * cross[0] + counts * cross[2]
        batch_sse = change.squares - 2.0 * cross[1] + change.counts * cross[2]
        return Moved(shifts, np.maximum(sse, 0.0), np.maximum(batch_sse, 0.0))

    def place(self, clusters: NDArray[np.intp], rows: F64) -> F64:
        """Put centres elsewhere; the votes for them are void. Returns how far every centre moved, (C,)."""
        shifts = np.zeros(len(self.centers))
        shifts[clusters] = np.linalg.norm(rows - self.centers[clusters], axis=1)
        self.centers = self.centers.copy()
        self.centers[clusters] = rows
        for array in (self.sums, self.counts, self.squares, self.sizes):
            array[clusters] = 0
        return shifts

    def dense_centers(self) -> F64:
        """The centres, (C, D)."""
        return self.centers

    def centers_as(self, dtype: np.dtype) -> Floats:
        """A copy of them in another precision."""
        return self.centers.astype(dtype)

    def whole_sums(self) -> F64:
        """Σ w x per cluster, (C, D); not to be written to, it may be what the votes are kept as."""
        return self.sums + self.counts[:, None] * self.origin if self.origin.any() else self.sums


@dataclass(slots=True)
class ColumnVotes:
    """Votes of sparse rows, about the origin 0: the centres are the sums, see `ColumnMeans`; methods as in `Votes`."""

    centers: ColumnMeans
    origin: F64
    counts: F64
    squares: F64
    sizes: I64

    @classmethod
    def none(cls, shard: Shard, centers: F64) -> ColumnVotes:
        """No votes; see `suit`."""
        k, D = centers.shape
        return cls(shard.run(ByColumn(centers)), np.zeros(D), np.zeros(k), np.zeros(k), np.zeros(k, dtype=np.int64))

    @staticmethod
    def suit(centers: F64) -> bool:
        """Whether squares about zero leave enough digits: no common offset dwarfs what these centres differ by."""
        some = centers[:: -(-len(centers) // 8)]
        mean = some.mean(axis=0)
        spread = np.einsum("ij,ij->", some, some) / len(some) - mean @ mean
        return bool(mean @ mean <= LARGEST_OFFSET * spread)

    def move(self, shard: Shard, change: NestedStatistics, *, unit: bool) -> Moved:
        assert not unit  # it would need a place beside the sum, for rows may cancel
        return to_the_end(lambda: self._move(shard, change))  # sums change in place: half of it would be wrong

    def _move(self, shard: Shard, change: NestedStatistics) -> Moved:
        ballots, means = change.ballots, self.centers
        assert ballots is not None
        had, sizes = self.sizes > 0, self.sizes + change.sizes
        voted = sizes > 0
        f, S_squared, norms = means.factors.copy(), means.squares.copy(), means.norms
        self._begin(np.flatnonzero(voted & ~had))
        gains = shard.run(CastBallots(means, ballots, had & ~voted))
        self.sizes, self.counts = sizes, np.where(voted, np.maximum(self.counts + change.counts, TINY), 0.0)
        self.squares = np.where(voted, self.squares + change.squares, 0.0)
        means.factors[voted] = 1.0 / self.counts[voted]
        share = (2.0 * change.n_rows + means.shape[1] + 16.0) * 2.0**-52
        near = _near_shift(f, means.factors, S_squared, ballots.products / f, gains, share)
        far = _far_shift(norms, means.norms, means.factors * ballots.products, share)
        shifts = np.where(voted, np.where(had, near, far), 0.0)
        with_sums = np.where(had, f * S_squared, 0.0) + ballots.products
        sse = np.where(voted, self.squares - 2.0 * with_sums + self.counts * norms, 0.0)
        batch_sse = change.squares - 2.0 * ballots.products + change.counts * norms
        return Moved(shifts, np.maximum(sse, 0.0), np.maximum(batch_sse, 0.0))

    def _begin(self, clusters: NDArray[np.intp]) -> None:
        """Their first votes come: what is kept becomes a sum."""
        means = self.centers
        if len(clusters) == len(means.factors):
            means.places[:] = 0.0
        elif len(clusters):
            means.places[:, clusters] = 0.0
        means.squares[clusters] = means.errors[clusters] = 0.0

    def place(self, clusters: NDArray[np.intp], rows: F64) -> F64:
        shifts = np.zeros(len(self.counts))
        before = (self.centers.places[:, clusters] * self.centers.factors[clusters]).T
        shifts[clusters] = np.linalg.norm(rows - before, axis=1)
        self.centers.place(clusters, rows)
        for array in (self.counts, self.squares, self.sizes):
            array[clusters] = 0
        return shifts

    def dense_centers(self) -> F64:
        return self.centers.times(self.centers.factors)

    def centers_as(self, dtype: np.dtype) -> Floats:
        return self.centers.times_as(dtype, self.centers.factors)

    def whole_sums(self) -> F64:
        return self.centers.times((self.sizes > 0).astype(np.float64))


AnyVotes: TypeAlias = Votes | ColumnVotes


def _near_shift(f: F64, f_new: F64, S_squared: F64, product: F64, gain: F64, share: float) -> F64:
    """‖f' (S + Δ) − f S‖, rounded up: small terms for a small change, unlike the difference of lengths."""
    step = f_new - f
    p_squared = step * step * S_squared + 2.0 * f_new * step * product + f_new * f_new * (gain - 2.0 * product)
    sizes = step * step * S_squared + f_new * (2.0 * abs(step * product) + f_new * (abs(gain) + 2.0 * abs(product)))
    return np.sqrt(np.maximum(p_squared, 0.0) + share * sizes)


def _far_shift(old_norms: F64, new_norms: F64, product: F64, share: float) -> F64:
    """‖new − old‖, rounded up."""
    p_squared = old_norms - 2.0 * product + new_norms
    return np.sqrt(np.maximum(p_squared, 0.0) + share * (old_norms + new_norms))
