"""Nested mini-batches: which rows a batch has, what is known about their distances, what their votes add up to."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from globular.kernels.nested import move_centers, random_order
from globular.model.cells import CenterCells
from globular.model.groups import CenterGroups
from globular.model.statistics import F64, I64
from globular.threads import even_ranges, run_all

ENTRIES_PER_TASK = 2**18
"""Numbers of C × D that one thread handles at a time."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows by their position in a random order of the data, which is named by its seed and never stored.

    Batches of one seed nest; another seed is another random sample. Where rows are read from disk they stay together
    in runs, and it is the runs that are shuffled; a batch then has whole runs, and its size is rounded up to them.
    """

    seed: int
    size: int
    """Positions begin … size − 1."""
    n_rows: int
    """Rows of the whole data."""
    run: int = 1
    begin: int = 0
    first: int = 0
    """Number of the shard's row 0 in the whole data."""

    @property
    def is_full(self) -> bool:
        """Whether every row is in it."""
        return self.begin == 0 and self.size >= self.n_rows

    def after(self, begin: int) -> Batch:
        """What this batch has beyond its first `begin` positions."""
        return replace(self, begin=begin)

    def seen_from(self, first: int) -> Batch:
        """The same batch for a shard whose row 0 is row `first` of the whole data."""
        return replace(self, first=first)

    def rows(self, n: int) -> I64:
        """The rows of the batch among the shard's n rows, ascending, in the shard's own numbers."""
        if self.is_full:
            return np.arange(n, dtype=np.int64)
        n_runs = -(-self.n_rows // self.run)
        begin = -(-self.begin // self.run)
        runs = self._order(n_runs, begin, min(-(-self.size // self.run), n_runs))
        rows = runs if self.run == 1 else (runs[:, None] * self.run + np.arange(self.run)).ravel()
        rows = rows - self.first
        rows = rows[(rows >= 0) & (rows < min(n, self.n_rows - self.first))]
        if 16 * len(rows) < n:
            return np.sort(rows)
        among = np.zeros(n, dtype=np.bool_)  # sooner than sorting where the rows are many
        among[rows] = True
        return np.flatnonzero(among)

    def draw(self, n: int, rng: np.random.Generator) -> I64:
        """Some rows of the batch at random, in the numbers of the whole data."""
        rows = self.seen_from(0).rows(self.n_rows)
        return np.sort(rng.choice(rows, min(n, len(rows)), replace=False))

    def _order(self, n: int, begin: int, end: int) -> I64:
        half = max(1, -(-max(n - 1, 1).bit_length() // 2))
        out = np.empty(max(0, end - begin), dtype=np.int64)
        random_order(np.uint64(self.seed), n, begin, np.uint64(half), out)
        return out


@dataclass(frozen=True, slots=True)
class Bounds:
    """Which centres share a lower bound, and how far they have come since the first pass."""

    groups: CenterGroups
    """Groups of one are Elkan's bounds, larger ones yinyang's."""
    drift: F64
    """Length of every centre's path, (C,)."""
    group_drift: F64
    """Per group the sum of its largest steps, (n_groups,)."""

    @classmethod
    def start(cls, groups: CenterGroups) -> Bounds:
        return cls(groups, np.zeros(len(groups.order)), np.zeros(groups.n_groups))

    def after(self, shifts: F64) -> Bounds:
        """Alg. 5, line 10: l(i, j) ← l(i, j) − p(j), for all rows at once."""
        return Bounds(self.groups, self.drift + shifts, self.group_drift + self.groups.largest_shift(shifts))


@dataclass(frozen=True, slots=True)
class Candidates:
    """For very many centres: rows look at those of a few cells, and at their own."""

    cells: CenterCells
    n_probes: int


@dataclass(frozen=True, slots=True)
class NestedSearch:
    """How a pass finds the labels of a batch, and whose votes count."""

    bounds: Bounds | None = None
    candidates: Candidates | None = None
    """Instead of all centres; then there are no bounds."""
    remove_old: bool = True
    """Whether a row that comes again takes back its former vote."""
    restart: bool = False
    """Whether all that is known about the rows is forgotten first."""


@dataclass(slots=True)
class NestedStatistics:
    """How the votes of the batch changed: rows leave the clusters they were in and join those that they are in now."""

    sums: F64
    """Changes of Σ w (x − origin) per cluster, (C, D)."""
    counts: F64
    """Changes of Σ w, (C,)."""
    squares: F64
    """Changes of Σ w ‖x − origin‖², (C,)."""
    sizes: I64
    """Changes of the number of rows of positive weight, (C,)."""
    n_rows: int
    """Rows in the batch."""
    n_changed: int
    """Rows whose label differs from the one before the pass; all that are new."""
    n_distances: int

    def __add__(self, other: NestedStatistics) -> NestedStatistics:
        return NestedStatistics(
            self.sums + other.sums,
            self.counts + other.counts,
            self.squares + other.squares,
            self.sizes + other.sizes,
            self.n_rows + other.n_rows,
            self.n_changed + other.n_changed,
            self.n_distances + other.n_distances,
        )

    @classmethod
    def none(cls, n_clusters: int, n_columns: int) -> NestedStatistics:
        """Nobody has voted."""
        return cls(
            np.zeros((n_clusters, n_columns)), np.zeros(n_clusters), np.zeros(n_clusters),
            np.zeros(n_clusters, dtype=np.int64), 0, 0, 0,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Moved:
    """The centres after an M-step, and what the votes say about those before it."""

    centers: F64
    shifts: F64
    """How far each centre moved, (C,)."""
    sse: F64
    """Σ w ‖x − c‖² per cluster over all votes, about the centres before, (C,)."""
    batch_sse: F64
    """The same over what the last batch added."""


@dataclass(slots=True)
class Votes:
    """S, v and what sse needs: everything that the rows seen so far have to say about the centres."""

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
        return cls(origin, empty.sums, empty.counts, empty.squares, empty.sizes)

    @classmethod
    def resumed(cls, centers: F64, sums: F64, counts: F64) -> Votes:
        """Votes of an earlier fit, of which Σ w x and Σ w are known; nobody can take them back."""
        votes = cls.none(centers)
        votes.sums += sums - counts[:, None] * votes.origin
        votes.counts += counts
        votes.sizes += counts > 0
        return votes

    def move(self, change: NestedStatistics, old: F64, *, unit: bool, n_threads: int = 1) -> Moved:
        """Count the changes, and move the centres: c(j) ← S(j) / v(j), scaled to unit length if `unit`.

        A cluster without votes keeps its place, and has exactly no votes: weights that came and went leave a rounding
        error behind.
        """
        self.counts += change.counts
        self.squares += change.squares
        self.sizes += change.sizes
        empty = np.flatnonzero((self.sizes <= 0) & (change.sizes < 0))
        self.counts[empty] = 0.0
        centers, shifts, cross = np.empty_like(old), np.empty(len(old)), np.empty((len(old), 3))

        def move_some(span: tuple[int, int]) -> None:
            move_centers(
                change.sums, self.sums, self.counts, self.origin, old, unit, centers, shifts, cross, *span
            )  # fmt: skip

        run_all(move_some, even_ranges(len(old), max(1, ENTRIES_PER_TASK // old.shape[1])), n_threads)
        self.forget(empty)
        sse = self.squares - 2.0 * cross[:, 0] + self.counts * cross[:, 2]
        batch_sse = change.squares - 2.0 * cross[:, 1] + change.counts * cross[:, 2]
        return Moved(centers, shifts, np.maximum(sse, 0.0), np.maximum(batch_sse, 0.0))

    def forget(self, clusters: NDArray[np.intp]) -> None:
        """The votes for these clusters are void."""
        for array in (self.sums, self.counts, self.squares, self.sizes):
            array[clusters] = 0

    def whole_sums(self) -> F64:
        """Σ w x per cluster, (C, D); the sums themselves where they are taken about zero."""
        return self.sums + self.counts[:, None] * self.origin if self.origin.any() else self.sums
