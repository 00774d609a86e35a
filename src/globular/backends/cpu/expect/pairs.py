"""Pairs (row, component) that matter, of a Gaussian mixture: their log-densities, responsibilities and moments.

Pairs lie in the order of rows, so that a row's responsibilities are normalised side by side, with a second order by
component, in which differences from one mean are matrix products.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from globular.backends.cpu.expect.blocks import ABSENT
from globular.backends.cpu.rows import Floats, Rows, load_rows, read_only
from globular.kernels import pairs as kernels
from globular.model.gaussian import GaussianParameters
from globular.model.groups import group_by
from globular.model.statistics import F64, I64
from globular.threads import even_ranges, run_all

_COMPONENTS_PER_TASK = 4
_NONE = np.empty(0)

Lying: TypeAlias = tuple[Floats, F64, NDArray[np.integer]]
"""Rows as they lie somewhere, their scales (or none), and the numbers there of those asked for."""
Source: TypeAlias = Callable[[NDArray[np.integer]], Lying]


def lying(rows: F64) -> Source:
    """Rows of an array."""
    return lambda numbers: (read_only(rows), _NONE, numbers)


def held_by(rows: Rows, scales: F64) -> Source:
    """Rows of a shard; gathered if they cannot be used as they lie."""

    def load(numbers: NDArray[np.integer]) -> Lying:
        found, gathered = load_rows(rows, numbers)
        if not gathered:
            return found[0], scales, numbers
        return found[0], scales[numbers] if len(scales) else _NONE, np.arange(len(numbers))

    return load


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Pairs of some rows, by rows; each of these has one at least."""

    rows: NDArray[np.integer]
    """(P,), ascending."""
    components: NDArray[np.int32]
    """(P,)."""
    starts: I64
    """The pairs of the n-th row are starts[n] … starts[n + 1] − 1, (rows + 1,)."""
    by_component: NDArray[np.integer]
    """Numbers of the pairs, sorted by component, (P,)."""
    bounds: I64
    """Component c has by_component[bounds[c]:bounds[c + 1]], (C + 1,)."""

    @classmethod
    def from_rows(cls, counts: I64, components: NDArray[np.int32], n_components: int) -> Pairs:
        """From the components of all rows one after the other, counts[n] of them for row n."""
        starts = np.append(0, np.cumsum(counts))
        bounds, by_component = group_by(components, n_components)
        return cls(np.repeat(np.arange(len(counts)), counts), components, starts, by_component, bounds)

    @classmethod
    def from_table(cls, wanted: NDArray[np.bool_]) -> Pairs:
        """From a table of rows and components, (N, C)."""
        components = np.nonzero(wanted)[1].astype(np.int32)
        return cls.from_rows(np.count_nonzero(wanted, axis=1), components, wanted.shape[1])

    def of_rows(self, chosen: NDArray[np.bool_]) -> Pairs:
        """The pairs of some rows."""
        sizes = np.diff(self.starts)
        held = np.repeat(chosen, sizes)
        bounds, by_component = group_by(self.components[held], self.n_components)
        starts = np.append(0, np.cumsum(sizes[chosen]))
        return Pairs(self.rows[held], self.components[held], starts, by_component, bounds)

    def __len__(self) -> int:
        return len(self.components)

    @property
    def n_components(self) -> int:
        return len(self.bounds) - 1

    def of(self, component: int) -> NDArray[np.integer]:
        """Numbers of the pairs of a component, rows ascending."""
        return self.by_component[self.bounds[component] : self.bounds[component + 1]]

    def normalise(self, joint: F64) -> tuple[F64, F64]:
        """q of every pair, (P,), and log Σ_c exp log p(c, x) over the pairs of every row, (rows,)."""
        starts, sizes = self.starts[:-1], np.diff(self.starts)
        if not len(starts):
            return np.empty(0), np.empty(0)
        if not sizes.all():  # densities that are not numbers keep no pair
            raise np.linalg.LinAlgError("a row has no density under any component")
        largest = np.maximum.reduceat(joint, starts)
        q = np.exp(joint - np.repeat(largest, sizes))
        norms = np.add.reduceat(q, starts)
        return q / np.repeat(norms, sizes), largest + np.log(norms)

    def joint(self, source: Source, mixture: GaussianParameters, n_threads: int) -> F64:
        """log p(c, x) of every pair, (P,). O(P·S)."""
        constants, factors = np.maximum(mixture.log_constants, ABSENT), mixture.each(mixture.factors)
        factors = np.ascontiguousarray(factors)
        joint = np.empty(len(self))

        def evaluate(span: tuple[int, int]) -> None:
            some, (x, scales, numbers), places, bounds = self._of_span(span, source)
            away = np.empty((2, kernels.PAIRS_AT_ONCE, x.shape[1]))
            kernels.pair_joint(
                x, scales, numbers, places, bounds, mixture.means[some], factors[some], constants[some], away, joint
            )

        run_all(evaluate, even_ranges(self.n_components, _COMPONENTS_PER_TASK), n_threads)
        return joint

    def moments(self, source: Source, mixture: GaussianParameters, shares: F64, n_threads: int) -> tuple[F64, F64, F64]:
        """counts, sums and scatter about the means, as in `SoftStatistics`. O(P·S)."""
        C, D = mixture.means.shape
        counts, sums, scatter = np.zeros(C), np.zeros((C, D)), np.zeros(mixture.family.scatter.shape(C, D))

        def add(span: tuple[int, int]) -> None:
            some, (x, scales, numbers), places, bounds = self._of_span(span, source)
            away, product = np.empty((kernels.PAIRS_AT_ONCE, D)), np.empty((D, D))
            kernels.pair_moments(
                x, scales, numbers, places, bounds, mixture.means[some], shares, away, product,
                counts[some], sums[some], scatter[some],
            )  # fmt: skip

        run_all(add, even_ranges(self.n_components, _COMPONENTS_PER_TASK), n_threads)
        return counts, sums, scatter

    def _of_span(self, span: tuple[int, int], source: Source) -> tuple[slice, Lying, NDArray[np.integer], I64]:
        """Pairs of some components as kernels take them: which, their rows, their places and where components begin."""
        bounds = self.bounds[span[0] : span[1] + 1]
        places = self.by_component[bounds[0] : bounds[-1]]
        return slice(*span), source(self.rows[places]), places, bounds - bounds[0]
