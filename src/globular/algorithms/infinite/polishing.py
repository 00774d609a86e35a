"""The end of an infinite mixture, told by its rows: how strong the prior is to be, and whether EM knows better.

F is a bound, and looser the fewer rows a component holds for its parameters. It prefers a wide S₀, which inflates the
directions in which single components are thin; and cycles that it accepts keep components where EM, with as many of
them, would move some elsewhere. Both are settled by densities here, not by F.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from globular.algorithms.infinite.run import Mixture, State, VariationalRun
from globular.algorithms.mixtures.em import EMOptions
from globular.algorithms.mixtures.pipeline import rows_of_part, search_start
from globular.algorithms.seeding.common import evenly_spread_rows
from globular.algorithms.steps import Step
from globular.model.dirichlet import InfiniteMixture, StickPrior
from globular.model.gaussian import GaussianParameters
from globular.model.observations import ObservedMoments, Prior
from globular.model.statistics import SoftStatistics
from globular.seam.answers import Answer
from globular.seam.mixture_passes import Expect
from globular.seam.shard import Shard

_LAST = 0.3
"""Polishing goes on until a step adds less than this part of `tol`: under a prior EM takes smaller steps."""
_STRENGTHS = 1.0, 0.3, 0.1, 0.03, 0.01
"""Shares of the fitted S₀ that are tried, as long as each is better than the one before."""
_LEFT_OUT, _MOST_LEFT_OUT = 0.2, 4000
"""Share of the rows that are left out to tell which is best, and how many at most."""
FEWEST_POLISHED, _USUAL = 1000, 0.3
"""Fewest rows of which some are left out; with fewer S₀ is as weak as usual, and there is no search."""
_MOST_DENSITIES = 2**23
"""The search is done where a step of it takes no more densities."""


class Strength(NamedTuple):
    """A prior, and what speaks for it."""

    prior: Prior
    log_density: float
    """Mean log-density of rows that were left out."""


class PolishedRun(VariationalRun):
    """Cycles over the data, and steps by predictive densities after the last of them."""

    def polish(self, state: State, reason: str, rng: np.random.Generator) -> Generator[Step[Mixture], None, State]:
        """Steps of EM in which a row belongs to components by their predictive densities; they end the run.

        Deviation: F is a bound, and where components hold few rows for their parameters it is far from the evidence by
        different amounts: it prefers few wide components to many narrow ones, and a large S₀ with them. The density is
        better by what the posteriors predict. F is not looked at any more; steps show what it was before.
        """
        if self.ended or _predictive(state) is None:
            return state
        fitted = self.prior
        state, density = self._weakened(state)
        state = self._searched(state, density, fitted, rng)
        before = -np.inf
        for left in reversed(range(self._options.n_polishing)):
            predictive, statistics = self._expected(state)
            state = self._after(state, predictive, statistics)
            self._iteration += 1
            settled = statistics.log_likelihood - before < _LAST * self._options.tol * self.total_weight
            before = statistics.log_likelihood
            stopped = (
                reason if left == 0 or settled else "max_iter" if self._iteration == self._options.max_iter else ""
            )
            self.ended = bool(stopped)
            if stopped:
                state = replace(self.arrange(state.moments, state.tail, state.rejected_at), F=state.F)
            n_distances, self._n_distances = self._n_distances, 0
            yield Step(self._iteration, -state.F, n_distances, None, state.mixture, stopped)
        return state

    def _expected(self, state: State) -> tuple[GaussianParameters, SoftStatistics]:
        """Predictive densities, and what an E-step by them sums up."""
        predictive = _predictive(state)
        assert predictive is not None
        statistics = self._data.e_step(predictive, state.arrangement)
        self._n_distances += statistics.n_distances
        return predictive, statistics

    def _after(self, state: State, predictive: GaussianParameters, statistics: SoftStatistics) -> State:
        """The state after the M-step that belongs to it, under the prior as it is."""
        moments = ObservedMoments.from_pass(predictive, statistics)
        return self._state(moments, 0.0, state.rejected_at, state.arrangement, state.F)

    def _weakened(self, state: State) -> tuple[State, float]:
        """One step under the prior that rows left out speak for, and their density."""
        predictive, statistics = self._expected(state)
        chosen = best_strength(self._data.shard, predictive, statistics, self.prior, self._alpha)
        self.prior = chosen.prior
        return self._after(state, predictive, statistics), chosen.log_density

    def _searched(self, state: State, density: float, fitted: Prior, rng: np.random.Generator) -> State:
        """The state, or one from where EM would begin with as many components, if rows left out are denser there.

        They have to be denser by what a split has to gain.
        """
        T = state.mixture.T
        for step in searched_mixture(self._data.shard, T, fitted.covariance_type, self._options.tol, rng):
            self._n_arrangements += 1
            statistics = self._data.e_step(step.model, self._n_arrangements)
            self._n_distances += step.n_distances + statistics.n_distances
            moments = ObservedMoments.from_pass(step.model, statistics)
            begun = self._state(moments, 0.0, np.zeros((T, 2)), self._n_arrangements, state.F)
            begun, chosen = self._settled(begun, fitted)
            if chosen.log_density > density + self._options.gain:
                self.prior = chosen.prior
                return begun
        return state

    def _settled(self, state: State, fitted: Prior) -> tuple[State, Strength]:
        """Where steps of EM lead from a start that is to be compared with what has settled, and the prior there.

        A start is compared by what becomes of it: the mixture beside it had all cycles of the fit to settle in.
        """
        before = -np.inf
        for _ in range(self._options.n_polishing):
            predictive, statistics = self._expected(state)
            state = self._after(state, predictive, statistics)
            if statistics.log_likelihood - before < _LAST * self._options.tol * self.total_weight:
                break
            before = statistics.log_likelihood
        return state, best_strength(self._data.shard, predictive, statistics, fitted, self._alpha)


def searched_mixture(
    shard: Shard, n_components: int, covariance_type: str, tol: float, rng: np.random.Generator
) -> Iterator[Step[GaussianParameters]]:
    """Steps to a mixture of as many components as `GaussianMixture` would begin with; none where they would be dear."""
    n_rows = min(shard.n_rows, rows_of_part(shard, n_components, covariance_type))
    if n_components < 2 or shard.n_rows < FEWEST_POLISHED or n_rows * n_components > _MOST_DENSITIES:
        return
    search = search_start(shard, n_components, covariance_type, EMOptions(tol=tol), rng)
    n_distances = 0
    while True:
        try:
            n_distances += next(search).n_distances
        except StopIteration as end:
            yield Step(0, -np.inf, n_distances, None, end.value)
            return


def best_strength(
    shard: Shard, mixture: GaussianParameters, found: SoftStatistics, prior: Prior, alpha: StickPrior
) -> Strength:
    """The prior with that share of its scale under which rows are most likely that had no part in the posteriors.

    `found` are the statistics of all rows under `mixture`. Those of rows that are left out are taken away from them, so
    that it takes no other pass over all rows.
    """
    if shard.n_rows < FEWEST_POLISHED:
        return Strength(prior.weakened(_USUAL), -np.inf)
    n = min(math.ceil(_LEFT_OUT * shard.n_rows), _MOST_LEFT_OUT)
    index = evenly_spread_rows(shard.n_rows, n, np.random.default_rng(0))
    left_out = shard.local(shard.take(index), shard.take(index, "weights"))
    rest = _difference(
        ObservedMoments.from_pass(mixture, found), ObservedMoments.from_pass(mixture, left_out.run(Expect(mixture)))
    )

    def tried(share: float) -> Strength:
        weaker = prior.weakened(share)
        totals = left_out.run(Answer(InfiniteMixture.update(weaker, alpha, rest, 0.0), "total"))
        return Strength(weaker, float(sum(totals)) / left_out.total_weight)

    best = tried(_STRENGTHS[0])
    for share in _STRENGTHS[1:]:
        weaker = tried(share)
        if weaker.log_density <= best.log_density:
            break
        best = weaker
    return best


def _difference(whole: ObservedMoments, part: ObservedMoments) -> ObservedMoments:
    """What is left of every component without a part of its rows."""
    counts, sums, scatter = (a - b for a, b in zip(whole.about(whole.means), part.about(whole.means), strict=True))
    counts = np.maximum(counts, 0.0)
    shifts = np.divide(sums, counts[:, None], out=np.zeros_like(sums), where=counts[:, None] > 0)
    return ObservedMoments(counts, whole.means + shifts, scatter - whole.kind.outer(counts, shifts), whole.kind)


def _predictive(state: State) -> GaussianParameters | None:
    """Gaussians in the place of the predictive densities; None where there are none."""
    return state.mixture.posterior.predictive_mixture(state.mixture.sticks.weights)
