"""Sample weights: which rows count, and in what unit.

Rows of weight 0 are no rows. They are left out before there is a shard, and so have no part in anything: not in sums,
samples, thresholds by the number of rows, ranges of columns or cells of a tree. What a fit finds is what it finds in
the other rows alone; where rows have labels, those left out get theirs from the centres.

Weights far from one are counted in a unit of their own, a power of two, so that squares of sums of them neither
overflow nor vanish. Nothing is rounded by that; sums that are told to the user are told in the user's unit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from globular.algorithms.kmeans.probing import find_labels
from globular.model.statistics import F64
from globular.seam.passes import Assign, Index, Labels
from globular.seam.shard import Shard

ORDINARY = 2.0**-64, 2.0**64
"""Where the largest weight lies between these the unit is one."""
TOTALS = 2.0**-1022, 2.0**1000
"""The least and the most that all weights may add up to."""
EXACT_BELOW = 500
"""Number of centres from which rows left out may look at the centres of a few cells alone."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The rows of weight 0."""

    rows: Index
    """Their numbers in X."""
    counted: Index
    """Those of the rows that a fit is made on."""
    open_rows: Callable[[Index], Shard]
    """A shard over rows of these numbers."""

    def join(self, labels: Labels, centers: F64, *, exact: bool) -> Labels:
        """The labels of all rows of X, from those of the rows that count; the others take the closest centre."""
        shard = self.open_rows(self.rows)
        if exact or len(centers) < EXACT_BELOW:
            shard.run(Assign(centers, want="labels"))
        else:
            find_labels(shard, centers, np.random.default_rng(0))
        return self.in_order(labels, shard.labels)

    def in_order(self, counted: Labels, others: Labels) -> Labels:
        """Labels of the rows that count and of the others, in the order of X."""
        joined = np.empty(1 + max(self.rows[-1], self.counted[-1]), dtype=np.int32)
        joined[self.rows], joined[self.counted] = others, counted
        return joined


@dataclass(frozen=True, slots=True)
class Weights:
    """Checked sample weights."""

    values: F64 | None
    """In units of `unit`, of the rows that count; None where all count alike."""
    unit: float = 1.0
    rows: Index | None = None
    """The numbers of the rows that count, ascending; None where these are all."""
    zeros: Index | None = None
    """Those of the others."""

    @classmethod
    def of(cls, given: F64 | None, at_least: int = 1, *, are_counts: bool = False) -> Weights:
        """From weights that are at least 0, and not all 0; those that are numbers of rows have the unit one.

        Where fewer rows than `at_least` count, though X has more, they are repeated and the copies share the weight:
        what wants more clusters than there are rows wants clusters of equal rows.
        """
        if given is None:
            return cls(None)
        weights, unit = (given, 1.0) if are_counts else _in_units(given)
        if (weights > 0).all():
            return cls(weights, unit)
        rows, zeros = np.flatnonzero(weights > 0), np.flatnonzero(weights == 0)
        wanted = min(at_least, len(weights))
        if len(rows) < wanted:
            rows = np.sort(np.resize(rows, wanted))
            weights = weights / np.bincount(rows, minlength=len(weights)).clip(min=1)
        return cls(weights[rows], unit, rows, zeros)

    def left_out(self, open_rows: Callable[[Index], Shard]) -> LeftOut | None:
        """The rows that do not count, opened by a function of their numbers when they are wanted."""
        return None if self.rows is None or self.zeros is None else LeftOut(self.zeros, self.rows, open_rows)


def _in_units(weights: F64) -> tuple[F64, float]:
    """The weights in a unit of their size, and that unit; one where they are of ordinary size."""
    with np.errstate(over="ignore"):
        total = float(weights.sum())
    if not TOTALS[0] <= total <= TOTALS[1]:
        raise ValueError(
            f"sample_weight adds up to {total:.3g}, beyond what float64 can count; scale it to about 1 per row"
        )
    largest = float(weights.max())
    if ORDINARY[0] <= largest <= ORDINARY[1]:
        return weights, 1.0
    exponent = int(np.frexp(largest)[1]) - 1
    return np.ldexp(weights, -exponent), float(np.ldexp(1.0, exponent))
