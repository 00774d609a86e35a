"""Nested mini-batches: which rows a batch has, what is known about their distances, what their votes add up to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from globular.model.cells import CenterCells
from globular.model.columns import Ballots
from globular.model.random import random_order
from globular.model.statistics import F64, I64, Additive

DRAWN_AT_ONCE = 1 << 15
"""Positions of a random order that are looked up at once: their numbers stay in the cache."""


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

    def rows(self, n: int, each: Callable[..., Iterable[I64]] = map) -> I64:
        """The rows of the batch among the shard's n rows, ascending, in the shard's own numbers.

        `each` may be a `map` by several threads.
        """
        if self.is_full:
            return np.arange(n, dtype=np.int64)
        n_runs = -(-self.n_rows // self.run)
        begin = -(-self.begin // self.run)
        end = min(-(-self.size // self.run), n_runs)
        spans = [(first, min(first + DRAWN_AT_ONCE, end)) for first in range(begin, end, DRAWN_AT_ONCE)]
        drawn = list(each(partial(random_order, self.seed, n_runs), spans))
        runs = np.concatenate(drawn) if drawn else np.empty(0, dtype=np.int64)
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


@dataclass(frozen=True, slots=True)
class CenterGroups:
    """A partition of the C centres into groups that share a bound."""

    order: NDArray[np.intp]
    """Centres sorted by group (ascending index within a group), (C,)."""
    starts: NDArray[np.intp]
    """Group g is order[starts[g]:starts[g + 1]], (n_groups + 1,)."""

    @property
    def n_groups(self) -> int:
        return len(self.starts) - 1

    def largest_shift(self, shifts: F64) -> F64:
        """How far the bounds of each group may have shrunk, (n_groups,)."""
        return np.maximum.reduceat(shifts[self.order], self.starts[:-1])


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
class NestedStatistics(Additive):
    """How the votes of the batch changed: rows leave the clusters they were in and join those that they are in now."""

    sums: F64
    """Changes of Σ w (x − origin) per cluster, (C, D); none where there are ballots."""
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
    ballots: Ballots | None = None
    """The rows that make up the sums, where centres are kept column by column; such statistics are of one shard."""

    def __add__(self, other: NestedStatistics) -> NestedStatistics:
        if self.ballots is not None or other.ballots is not None:
            raise TypeError("ballots are of one shard and do not add up; give the centres as an array")
        return Additive.__add__(self, other)

    @classmethod
    def none(cls, n_clusters: int, n_columns: int) -> NestedStatistics:
        """Nobody has voted."""
        return cls(
            np.zeros((n_clusters, n_columns)), np.zeros(n_clusters), np.zeros(n_clusters),
            np.zeros(n_clusters, dtype=np.int64), 0, 0, 0,
        )  # fmt: skip
