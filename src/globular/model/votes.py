"""S, v and what sse needs: everything that the rows seen so far have to say about the centres, and the M-step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from globular.jit import kernel
from globular.model.columns import ColumnMeans, transpose_back
from globular.model.nested import NestedStatistics
from globular.model.statistics import F64, I64, Floats
from globular.threads import even_ranges, run_all, to_the_end

ENTRIES_PER_TASK = 2**18  # numbers of C × D that one thread handles at a time
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


@kernel
def move_centers(
    sums: Any,  # IN  (C, D) Σ w (x − origin) before the last batch
    change: Any,  # IN/OUT (C, D) what the last batch adds to the sums; on return the sums with it
    counts: Any,  # IN  (C,) Σ w, the last batch included
    origin: Any,  # IN  (D,)
    old: Any,  # IN  (C, D) the centres
    unit: bool,  # IN  whether centres have unit length
    centers: Any,  # OUT (C, D) the means; a cluster without votes keeps its place
    shifts: Any,  # OUT (C,) ‖centers − old‖
    cross: Any,  # OUT (C, 3) (old − origin) · sums, (old − origin) · change, ‖old − origin‖²
    first: int,  # IN  clusters first … last − 1
    last: int,  # IN
) -> None:
    """Everything that touches C × D numbers in an M-step, in one go. O(clusters · D)."""
    D = old.shape[1]
    for c in range(first, last):
        with_sums, with_change, squared, norm = 0.0, 0.0, 0.0, 0.0
        for j in range(D):
            added = change[c, j]
            total = sums[c, j] + added
            change[c, j] = total
            step = old[c, j] - origin[j]
            with_sums += step * total
            with_change += step * added
            squared += step * step
            whole = total + counts[c] * origin[j]
            norm += whole * whole
        cross[c, 0], cross[c, 1], cross[c, 2] = with_sums, with_change, squared
        divisor = np.sqrt(norm) if unit else counts[c]
        shift = 0.0
        # opposite rows may cancel: such a cluster keeps its direction
        if counts[c] <= 0.0 or (unit and divisor <= 1e-12 * counts[c]):
            for j in range(D):
                centers[c, j] = old[c, j]
        elif unit:
            for j in range(D):
                centers[c, j] = (change[c, j] + counts[c] * origin[j]) / divisor
                shift += (centers[c, j] - old[c, j]) ** 2
        else:
            for j in range(D):
                centers[c, j] = origin[j] + change[c, j] / divisor
                shift += (centers[c, j] - old[c, j]) ** 2
        shifts[c] = np.sqrt(shift)


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

    def move(self, change: NestedStatistics, *, unit: bool, n_threads: int = 1) -> Moved:
        """Count the changes, and move the centres: c(j) ← S(j) / v(j), scaled to unit length if `unit`.

        What changes is used up. Afterwards all is changed, or nothing if Ctrl-C came in between.
        A cluster without votes keeps its place, and has exactly no votes: weights that came and went leave a rounding
        error behind.
        """
        sums, old = change.sums, self.centers
        counts, squares, sizes = self.counts + change.counts, self.squares + change.squares, self.sizes + change.sizes
        empty = np.flatnonzero((sizes <= 0) & (change.sizes < 0))
        counts[empty] = 0.0
        centers, shifts, cross = np.empty_like(old), np.empty(len(old)), np.empty((len(old), 3))

        def move_some(span: tuple[int, int]) -> None:
            move_centers(self.sums, sums, counts, self.origin, old, unit, centers, shifts, cross, *span)

        run_all(move_some, even_ranges(len(old), max(1, ENTRIES_PER_TASK // old.shape[1])), n_threads)
        for array in (sums, squares, sizes):
            array[empty] = 0
        # all at once and at last: after Ctrl-C centres, sums and counts belong together
        self.centers, self.sums, self.counts, self.squares, self.sizes = centers, sums, counts, squares, sizes
        sse = squares - 2.0 * cross[:, 0] + counts * cross[:, 2]
        batch_sse = change.squares - 2.0 * cross[:, 1] + change.counts * cross[:, 2]
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
    def none(cls, centers: F64, n_threads: int = 1) -> ColumnVotes:
        """No votes; see `suit`."""
        k, D = centers.shape
        means = ColumnMeans.of(np.ascontiguousarray(centers), n_threads)
        return cls(means, np.zeros(D), np.zeros(k), np.zeros(k), np.zeros(k, dtype=np.int64))

    @staticmethod
    def suit(centers: F64) -> bool:
        """Whether squares about zero leave enough digits: no common offset dwarfs what these centres differ by."""
        some = centers[:: -(-len(centers) // 8)]
        mean = some.mean(axis=0)
        spread = np.einsum("ij,ij->", some, some) / len(some) - mean @ mean
        return bool(mean @ mean <= LARGEST_OFFSET * spread)

    def move(self, change: NestedStatistics, *, unit: bool, n_threads: int = 1) -> Moved:
        assert not unit  # it would need a place beside the sum, for rows may cancel
        return to_the_end(lambda: self._move(change, n_threads))  # sums change in place: half of it would be wrong

    def _move(self, change: NestedStatistics, n_threads: int) -> Moved:
        ballots, means = change.ballots, self.centers
        assert ballots is not None
        had, sizes = self.sizes > 0, self.sizes + change.sizes
        voted = sizes > 0
        f, S_squared, norms = means.factors.copy(), means.squares.copy(), means.norms
        self._begin(np.flatnonzero(voted & ~had))
        gains = means.add(ballots, had & ~voted, n_threads)
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
        centers: Floats = np.empty(self.centers.shape, dtype=dtype)
        transpose_back(self.centers.places, self.centers.factors, centers)
        return centers

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
