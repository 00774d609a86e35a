"""Additive statistics: what a pass over a shard returns, and all that an M-step needs.

Every record adds (`a + b` is the statistics of both sets of rows together), so a pass over shards is map and add.
Arrays are float64 whatever the rows are. `n_distances` counts data-to-cluster distances, each pair once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
Floats: TypeAlias = NDArray[np.floating[Any]]
I64 = NDArray[np.int64]
Record = TypeVar("Record")


class Additive:
    """A record of numbers and arrays whose fields add up one by one; what is None stays so."""

    __slots__ = ()

    def __add__(self, other: Self) -> Self:
        pairs = ((getattr(self, item.name), getattr(other, item.name)) for item in fields(self))  # type: ignore[arg-type]
        return type(self)(*(None if one is None else one + two for one, two in pairs))


@cache
def _names(record: type) -> tuple[str, ...]:
    return tuple(item.name for item in fields(record))


def joined(parts: Sequence[Record]) -> Record:
    """A record with the arrays of all parts, one below the other; what is not an array is that of the first."""
    kind = type(parts[0])
    columns = ([getattr(part, name) for part in parts] for name in _names(kind))  # type: ignore[arg-type]
    return kind(*[np.concatenate(of) if isinstance(of[0], np.ndarray) else of[0] for of in columns])


def picked(record: Record, which: Any) -> Record:
    """A record with those entries of every array; what is not an array stays."""
    values = [getattr(record, name) for name in _names(type(record))]  # type: ignore[arg-type]
    return type(record)(*[value[which] if isinstance(value, np.ndarray) else value for value in values])


class PairStatistics:
    """Sums of Eq. 8 as triples; the same pair may occur several times, so adding is joining.

    Joining is put off until somebody looks: the triples of many parts are copied once, not at every sum on the way.
    """

    __slots__ = ("_joined", "pieces")

    def __init__(self, pairs: NDArray[np.int32], sums: NDArray[np.float32]) -> None:
        self.pieces: list[tuple[NDArray[Any], ...]] = [(*pairs, *sums)]
        """c, c̃, Σ w d and Σ w of every part, perhaps in narrower types."""
        self._joined: tuple[NDArray[np.int32], NDArray[np.float32]] | None = (pairs, sums)

    @property
    def pairs(self) -> NDArray[np.int32]:
        """(2, n): c, the closest cluster of some rows, and c̃, another one they looked at."""
        return self._whole()[0]

    @property
    def sums(self) -> NDArray[np.float32]:
        """(2, n): Σ w d_c̃ and Σ w over those rows."""
        return self._whole()[1]

    def _whole(self) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        if self._joined is None:
            n = sum(len(piece[0]) for piece in self.pieces)
            pairs, sums = np.empty((2, n), dtype=np.int32), np.empty((2, n), dtype=np.float32)
            for row, values in zip((*pairs, *sums), zip(*self.pieces, strict=True), strict=True):
                np.concatenate(values, out=row)
            self._joined, self.pieces = (pairs, sums), [(*pairs, *sums)]
        return self._joined

    def __add__(self, other: PairStatistics) -> PairStatistics:
        return PairStatistics.of_pieces(self.pieces + other.pieces)

    @classmethod
    def of_pieces(cls, pieces: list[tuple[NDArray[Any], ...]]) -> PairStatistics:
        """All of them in order."""
        found = cls(np.empty((2, 0), dtype=np.int32), np.empty((2, 0), dtype=np.float32))
        found.pieces, found._joined = pieces or found.pieces, None
        return found


NO_PAIRS = PairStatistics(np.empty((2, 0), dtype=np.int32), np.empty((2, 0), dtype=np.float32))
"""The pairs of a pass that comes across none."""


@dataclass(slots=True)
class HardStatistics(Additive):
    """Sums of a hard assignment: each row votes for the closest of the centres that it has looked at."""

    sums: F64
    """Σ w x per cluster, (C, D); shape (0, D) when a pass was asked not to accumulate."""
    counts: F64
    """Σ w per cluster, (C,); shape (0,) when a pass was asked not to accumulate."""
    objective: float
    """Σ w ‖x − μ_label‖², at the centres that the pass was given."""
    n_changed: int
    """Rows whose label differs from the one before the pass."""
    n_distances: int
    pairs: PairStatistics = NO_PAIRS
    """Distances between clusters that a search of neighbourhoods came across; none from other searches."""
    errors: F64 = field(default_factory=lambda: np.empty(0))
    """Σ w ‖x − μ_label‖² per cluster, (C,), from a search down a tree; else (0,)."""


@dataclass(slots=True)
class SoftStatistics(Additive):
    """Responsibility-weighted sums of a Gaussian mixture's E-step."""

    counts: F64
    """Σ w q(c), (C,)."""
    sums: F64
    """Σ w q(c) (x − μ_c), (C, D): about the means the pass was given, so that nothing cancels."""
    scatter: F64
    """Second moment about the same means: Σ w q ‖x−μ‖² (C, 1), Σ w q (x−μ)² (C, D) or Σ w q (x−μ)(x−μ)ᵀ (C, D, D)."""
    log_likelihood: float
    """Σ w log p(x)."""
    total_weight: float
    n_distances: int
    pairs: PairStatistics = NO_PAIRS
    """Distances between components that a search of neighbourhoods came across; none from other searches."""
    gain: float = 0.0
    """How much higher the free energy is than with the K(n) of before, at the same parameters, after probing."""

    @property
    def filled(self) -> NDArray[np.bool_]:
        """Components with weight, (C,); a share of less than 1e-200 is rounding, and has no mean."""
        return self.counts > 1e-200 * self.total_weight

    @property
    def shifts(self) -> F64:
        """How far the rows of every component are from the means on average, (C, D); 0 without weight."""
        filled = self.filled
        if filled.all():
            return self.sums / self.counts[:, None]
        return np.where(filled[:, None], self.sums / np.where(filled, self.counts, 1.0)[:, None], 0.0)


@dataclass(slots=True)
class WithinStatistics(Additive):
    """An E-step inside every component of a mixture."""

    parts: SoftStatistics
    """Sums of the parts of all components."""
    log_likelihoods: F64
    """Σ w log p(x) over the rows of each component, p the density of its parts, (C,)."""


@dataclass(slots=True)
class SpareCenters(Additive):
    """What it costs to do without each of the centres."""

    losses: F64
    """Σ w (d² to the second closest − d² to the closest) over the rows of each centre, (C,)."""
    objective: float
    n_distances: int


@dataclass(slots=True)
class PotentialStatistics(Additive):
    """The potential Σ w d² that k-means++ and its relatives draw from."""

    potential: float
    """Σ w d(x, S)², with d the distance to the closest centre given so far."""
    n_distances: int


@dataclass(frozen=True, slots=True)
class ColumnMoments:
    """Weighted means and variances of columns, for each of several sets of rows."""

    pieces: tuple[tuple[float, F64, F64], ...]
    """Σ w, means and variances of every set."""

    def __add__(self, other: ColumnMoments) -> ColumnMoments:
        return ColumnMoments(self.pieces + other.pieces)

    @property
    def mean(self) -> F64:
        """Means of the columns over all rows, (D,)."""
        if len(self.pieces) == 1:
            return self.pieces[0][1]
        return np.sum([weight * mean for weight, mean, _ in self.pieces], axis=0) / self._total

    @property
    def variance(self) -> F64:
        """Variances of the columns over all rows, (D,)."""
        if len(self.pieces) == 1:
            return self.pieces[0][2]
        mean = self.mean
        spread = [weight * (variance + (own - mean) ** 2) for weight, own, variance in self.pieces]
        return np.sum(spread, axis=0) / self._total

    @property
    def _total(self) -> float:
        return sum(weight for weight, _, _ in self.pieces)


@dataclass(slots=True)
class FarRows:
    """Rows far from their own centre, farthest first: the places for clusters that ran empty."""

    rows: F64
    """(m, D), as the passes see them."""
    squared_distances: F64
    weights: F64
    labels: I64

    def __add__(self, other: FarRows) -> FarRows:
        both = joined([self, other])
        return picked(both, np.argsort(-both.squared_distances, kind="stable"))

    def first(self, n: int) -> FarRows:
        """The n farthest of them."""
        return picked(self, slice(n))


@dataclass(frozen=True, slots=True)
class TruncatedPosterior:
    """What is known of every row from its K(n) alone."""

    members: NDArray[np.int32]
    """K(n), the most likely component first, (N, C′); −1 where there is none."""
    probabilities: F64
    """The posterior renormalised over K(n), Eq. 5, (N, C′); 0 where there is no member."""
    log_densities: F64
    """log Σ_{c∈K(n)} p(c, x) ≤ log p(x), (N,)."""
