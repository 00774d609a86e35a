"""Rows of which some entries are not known: their part in EM, and what a mixture makes of them (Ghahramani 1994).

A row counts with the columns o that are known of it. Under a component these are Gaussian with μ_o and Σ_oo, which
gives responsibilities and likelihood; and the E-step completes the row by its conditional moments,

    E[x − μ | x_o] = Σ P (x − μ),    cov(x | x_o) = Σ − Σ P Σ,    P = Σ_oo⁻¹ with zeros in place of the other columns,

which the M-step of complete rows takes as it is: the log-likelihood of the known entries never falls. It is the right
one wherever entries are missing at random, that is, for reasons that have nothing to do with what they would have been.

P is the same for all rows with the same known columns, so rows are sorted by them. Σ_oo is the D×D matrix Σ with the
rows and columns that are not known taken from the identity: matrices of one size, factored many at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from globular.algorithms.mixtures.em import EMOptions, em_by
from globular.algorithms.mixtures.starts import StartOptions, starting_mixture
from globular.algorithms.steps import Finding, Run, Step, last_step
from globular.model.covariances import CovarianceLimits
from globular.model.gaussian import GaussianParameters
from globular.model.history import PART
from globular.model.statistics import F64, I64, SoftStatistics
from globular.seam.shard import Shard
from globular.threads import even_ranges, ordered_map

NUMBERS_PER_BLOCK = 1 << 20
"""Entries of matrices that a block of rows may take."""
N_DRAWN = 2
"""How often rows are filled in by draws from the best mixture so far to find a better start."""
ENOUGH_ROWS = 10
"""Complete rows for each component and parameter of a mean that are enough to find a start on."""
TOL_SHARE = 0.1
"""Steps of EM are shorter the more is missing: the last run ends at this share of the tolerance of complete rows."""


class Completed(NamedTuple):
    """A block of n rows with p kinds of known columns, under every component."""

    joint: F64
    """log p(c, x_o), (n, C)."""
    away: F64
    """E[x − μ_c | x_o], (C, n, D)."""
    spreads: F64
    """cov(x | x_o), (C, p, D, D), or its diagonal, (C, p, D), in families without correlations."""


@dataclass(frozen=True, eq=False)
class IncompleteRows:
    """Rows sorted by what is known of them."""

    rows: F64
    """(N, D); zero where an entry is not known."""
    weights: F64
    """(N,)."""
    known: NDArray[np.bool_]
    """Which columns are known, for every kind of row, (kinds, D)."""
    kinds: I64
    """The kind of every row, (N,), ascending."""
    order: I64
    """The numbers that the rows had before they were sorted, (N,)."""
    dtype: np.dtype[Any]
    """The type that the rows had."""
    n_threads: int = 1

    @classmethod
    def of(cls, X: NDArray[Any], weights: F64 | None = None, n_threads: int = 1) -> IncompleteRows:
        """From rows with NaN where an entry is not known."""
        X, dtype = np.asarray(X, dtype=np.float64), X.dtype
        known = ~np.isnan(X)
        packed, kinds = np.unique(np.packbits(known, axis=1), axis=0, return_inverse=True)
        order = np.argsort(kinds.ravel(), kind="stable")
        weights = np.ones(len(X)) if weights is None else weights
        masks = np.unpackbits(packed, axis=1, count=X.shape[1]).astype(bool)
        return cls(np.where(known, X, 0.0)[order], weights[order], masks, kinds.ravel()[order], order, dtype, n_threads)

    def limits(self, reg_covar: float | F64 | str) -> CovarianceLimits:
        """What keeps covariances invertible, from the moments of the known entries of every column."""
        return CovarianceLimits.for_data(reg_covar, *self.column_moments())

    def column_moments(self) -> tuple[F64, F64]:
        """Means and variances of the known entries of every column."""
        weights = self.weights[:, None] * self.known[self.kinds]
        totals = weights.sum(axis=0)
        means = (weights * self.rows).sum(axis=0) / totals
        return means, (weights * (self.rows - means) ** 2).sum(axis=0) / totals

    def expect(self, mixture: GaussianParameters) -> SoftStatistics:
        """The E-step: the statistics of rows completed by their conditional moments."""
        return reduce(
            add, ordered_map(lambda span: self._statistics(mixture, span), self._spans(mixture), self.n_threads)
        )

    def extremes(self) -> F64:
        """Smallest and largest known entry of every column, (2, D)."""
        rows = np.where(self.known[self.kinds], self.rows, np.nan)
        return np.stack([np.nanmin(rows, axis=0), np.nanmax(rows, axis=0)])

    def log_joint(self, mixture: GaussianParameters) -> F64:
        """log p(c, x_o) in the order that the rows had, (N, C), and a column more for noise where there is any."""
        joint = np.concatenate([completed.joint for completed in self._completed(mixture)])
        if mixture.noise is not None:
            joint = np.column_stack([joint, mixture.noise.log_joint_of(self.known)[self.kinds]])
        return self.in_order(joint)

    def probabilities(self, mixture: GaussianParameters) -> F64:
        """p(c | x_o) in the same order and columns."""
        joint = self.log_joint(mixture)
        return np.exp(joint - np.logaddexp.reduce(joint, axis=1, keepdims=True))

    def filled(self, mixture: GaussianParameters) -> F64:
        """The rows in the order that they had, with expected values where an entry is not known, (N, D)."""
        expected = [_expected(mixture, completed) for completed in self._completed(mixture)]
        return self.in_order(np.where(self.known[self.kinds], self.rows, np.concatenate(expected)))

    def by_kind(self) -> Iterator[tuple[I64, I64, F64]]:
        """For every kind of row the numbers that its rows had, the columns that are known, and their values."""
        ends = np.searchsorted(self.kinds, np.arange(len(self.known)), side="right")
        for begin, end, known in zip([0, *ends[:-1]], ends, self.known, strict=True):
            columns = np.flatnonzero(known)
            yield self.order[begin:end], columns, np.ascontiguousarray(self.rows[begin:end, columns])

    def drawn(self, mixture: GaussianParameters, random: np.random.RandomState) -> F64:
        """The same with draws from the distribution, without noise, of the entries given those that are known."""
        mixture = mixture.without_noise()
        cumulated = self.probabilities(mixture).cumsum(axis=1)
        components = (random.uniform(size=(len(self.rows), 1)) * cumulated[:, -1:] >= cumulated[:, :-1]).sum(axis=1)
        found = np.empty_like(self.rows)
        for c in np.unique(components):
            of_component = self._some(np.flatnonzero(components == c))
            one = replace(mixture.pick([int(c)]), weights=np.ones(1))
            found[components == c] = of_component._drawn_from(one, random)
        return found

    def _drawn_from(self, one: GaussianParameters, random: np.random.RandomState) -> F64:
        """Draws of one component: a row drawn as a whole is off its expected values as the entries are off theirs."""
        whole = one.sample(len(self.rows), random)[0]
        return self.filled(one) + (whole - self._some(slice(None), whole).filled(one))

    def _some(self, which: Any, values: F64 | None = None) -> IncompleteRows:
        """Some of the rows, by their numbers in the order that they had; or others with the same known entries."""
        known = self.in_order(self.known[self.kinds])
        values = self.in_order(self.rows) if values is None else values
        return IncompleteRows.of(np.where(known, values, np.nan)[which], n_threads=self.n_threads)

    def in_order(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values of the sorted rows in the order that the rows had."""
        found = np.empty_like(values)
        found[self.order] = values
        return found

    def one_gaussian(self) -> GaussianParameters:
        """One component with all correlations, by EM."""
        mean, variance = self.column_moments()
        limits = self.limits("auto")
        start = GaussianParameters(np.ones(1), mean[None], np.diag(np.maximum(variance, limits.smallest))[None], "full")
        # one Gaussian needs few steps, and fills entries in only until there is a mixture
        return last_step(em_by(self.expect, start, EMOptions(max_iter=30), limits)).model

    def _spans(self, mixture: GaussianParameters) -> list[tuple[int, int]]:
        C, D = mixture.means.shape
        width = C * D if mixture.family.scatter.separable else C * D * D
        return even_ranges(len(self.rows), max(1, NUMBERS_PER_BLOCK // width))

    def _completed(self, mixture: GaussianParameters) -> Iterator[Completed]:
        return ordered_map(lambda span: self._complete(mixture, span), self._spans(mixture), self.n_threads)

    def _statistics(self, mixture: GaussianParameters, span: tuple[int, int]) -> SoftStatistics:
        joint, away, spreads = self._complete(mixture, span)
        weights, kinds = self.weights[slice(*span)], self.kinds[slice(*span)]
        log_densities = np.logaddexp.reduce(joint, axis=1)
        if mixture.noise is not None:
            log_densities = np.logaddexp(log_densities, mixture.noise.log_joint_of(self.known)[kinds])
        shares = np.exp(joint - log_densities[:, None]) * weights[:, None]
        begins = np.searchsorted(kinds, np.arange(kinds[0], kinds[-1] + 1))
        of_kinds = np.add.reduceat(shares, begins, axis=0)  # (p, C)
        weighted = away * shares.T[:, :, None]
        kind = mixture.family.scatter
        if kind.separable:
            within = np.einsum("pc,cpd->cd", of_kinds, spreads)
            scatter = kind.from_squares((weighted * away).sum(axis=1) + within)
        else:
            scatter = np.swapaxes(weighted, 1, 2) @ away + np.einsum("pc,cpde->cde", of_kinds, spreads)
        return SoftStatistics(
            shares.sum(axis=0), weighted.sum(axis=1), scatter, float(weights @ log_densities), float(weights.sum()),
            joint.size,
        )  # fmt: skip

    def _complete(self, mixture: GaussianParameters, span: tuple[int, int]) -> Completed:
        C, D = mixture.means.shape
        inside = slice(*span)
        kinds = self.kinds[inside] - self.kinds[span[0]]
        masks = self.known[self.kinds[span[0]] : self.kinds[span[1] - 1] + 1]
        known = masks[kinds]
        away = np.where(known, self.rows[inside] - mixture.means[:, None], 0.0)  # (C, n, D)
        if mixture.family.scatter.separable:
            variances = np.broadcast_to(mixture.variances(), (C, D))
            squares = (away**2 / variances[:, None]).sum(axis=2)
            halves = 0.5 * np.log(variances) @ masks.T  # (C, p)
            spreads = np.where(masks, 0.0, variances[:, None])
        else:
            matrices = mixture.family.scatter.stacked(mixture.covariances, D)  # one where all components share it
            pairs = masks[:, :, None] & masks[:, None, :]
            lower = np.linalg.cholesky(np.where(pairs, matrices[:, None], np.eye(D)))  # (C, p, D, D)
            halves = np.log(np.diagonal(lower, axis1=2, axis2=3)).sum(axis=2)
            inverse = np.linalg.inv(lower)
            whitened = (inverse[:, kinds] @ away[:, :, :, None])[..., 0]
            squares = (whitened**2).sum(axis=2)
            # Σ U with U Uᵀ = P
            reach = (matrices[:, None] * masks[:, None, :]) @ np.swapaxes(inverse, 2, 3)
            away = np.where(known, away, (reach[:, kinds] @ whitened[..., None])[..., 0])
            unknown = ~masks[:, :, None] & ~masks[:, None, :]
            spreads = np.where(unknown, matrices[:, None] - reach @ np.swapaxes(reach, 2, 3), 0.0)
            spreads = np.broadcast_to(spreads, (C, *spreads.shape[1:]))
        constants = mixture.log_shares[:, None] - halves - 0.5 * float(np.log(2 * np.pi)) * masks.sum(axis=1)
        return Completed((constants[:, kinds] - 0.5 * squares).T, away, spreads)


def _expected(mixture: GaussianParameters, completed: Completed) -> F64:
    """E[x | x_o], (n, D)."""
    joint, away, _ = completed
    shares = np.exp(joint - np.logaddexp.reduce(joint, axis=1, keepdims=True))
    return shares @ mixture.means + np.einsum("nc,cnd->nd", shares, away)


def incomplete_mixture(
    rows: IncompleteRows,
    shard: Shard,
    options: EMOptions,
    how: StartOptions,
    start: Callable[..., Finding[GaussianParameters]] = starting_mixture,
) -> Finding[Run]:
    """EM of incomplete rows from a start on filled ones, those of `shard`, or from a search on several of them."""
    limits = rows.limits(options.reg_covar)
    begin = partial(start, options=replace(options, limits=limits), how=how)
    if how.searches and how.n_components > 1 and options.max_iter > 0:
        found = yield from search_start(rows, shard, how.n_components, begin, options, limits, how.random_state)
    else:
        found = yield from begin(shard)
    return Run(em_by(rows.expect, found, replace(options, tol=TOL_SHARE * options.tol), limits), found)


def search_start(
    rows: IncompleteRows,
    shard: Shard,
    n_components: int,
    begin: Callable[[Shard], Finding[GaussianParameters]],
    options: EMOptions,
    limits: CovarianceLimits,
    random: np.random.RandomState,
) -> Finding[GaussianParameters]:
    """Starts found on several sets of complete rows, and EM of all rows from each; returns the best mixture.

    These are the rows of which everything is known, if they are enough; rows filled in by draws from one Gaussian,
    which `shard` has, and which blur what tells components apart; and rows filled in by draws from the best mixture.
    (Expected values in place of draws would put rows onto planes, which components would then be fitted to.)
    """
    whole = np.flatnonzero(rows.in_order(rows.known[rows.kinds]).all(axis=1))
    weights = rows.in_order(rows.weights)
    shards, n_drawn = [shard], N_DRAWN
    if ENOUGH_ROWS * n_components * shard.n_columns <= len(whole):
        shards.insert(0, shard.local(shard.take(whole), weights[whole]))
    best: Step[GaussianParameters] | None = None
    while shards or n_drawn:
        if not shards:
            assert best is not None
            shards, n_drawn = [shard.local(rows.drawn(best.model, random), weights)], n_drawn - 1
        start = yield from begin(shards.pop(0))
        for step in em_by(rows.expect, start, options, limits):
            yield replace(step, iteration=0, stopped="", stage=PART)
        if best is None or step.objective > best.objective:
            best = step
    assert best is not None
    return best.model
