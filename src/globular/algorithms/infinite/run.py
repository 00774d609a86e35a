"""Cycles of infinite mixtures: one pass over the data, and the parameters that follow from it (Kurihara 2006).

    q(z_n = i) ∝ exp S_{n,i}, the tail beyond T as one more component                    one pass, Eqs. 6 and 9
    φ^v, φ^η from counts and sums; components sorted by size                              Eqs. 17 and 18

`VariationalRun` keeps the books: it counts cycles and evaluations, expands the tree, knows the prior, and says when to
end.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from globular.algorithms.infinite.data import RowData, Shares
from globular.algorithms.infinite.merges import Pair, merge, superfluous_pairs
from globular.algorithms.infinite.sowing import sow
from globular.algorithms.infinite.splits import SplitRules, Trial, try_splits
from globular.algorithms.infinite.tree_partition import best_partition, hard_free_energy
from globular.algorithms.steps import Step
from globular.model.dirichlet import ONE_EACH, InfiniteMixture, StickPrior
from globular.model.observations import ObservedMoments, Posterior, Prior
from globular.model.statistics import F64, I64
from globular.threads import single_threaded_blas

Mixture = InfiniteMixture[Posterior]

VANISHED = 1e-3
"""A component with less weight than this is left to the tail."""
_ENOUGH = 0.03
"""Share of the gain over the mixture before that a cycle of an attempt has to add."""
_MANY_MORE = 2
"""How many times the components that splits have found the tree must see to have a say: it cuts clusters of odd shape
to pieces, and what is odd about a few of them splits see better."""
_MERGED_ROWS = 1000
"""Rows of a component that trials of merges look at: a rise per row that counts is seen in these."""
_COMPONENT_ROWS_PER_COLUMN = 2
"""Rows a column that components of another start hold in the mean, at least."""
_REFINE_EVERY = 3
"""Cycles from one expansion of the tree to the next, as in the paper."""


@dataclass(frozen=True, slots=True)
class InfiniteOptions:
    """How to run an infinite mixture."""

    alpha: StickPrior = ONE_EACH
    """The prior of the sticks."""
    T_max: int = 1000
    n_candidates: int = 10
    """Components that one round tries to split; a round that may keep all splits tries half of the components, if that
    is more."""
    accept: Literal["all", "best"] = "all"
    """Whether a round keeps every split that lowers F, or only the best one as in the paper."""
    smallest: float = 10.0
    """Weight that every component has to hold when it is split off."""
    gain: float = 0.02
    """What a split has to lower F by, per row of the component that it splits."""
    n_sown: int = 0
    """A mixture that has stopped growing is held against one from this multiple of its clusters by k-means; 0 does
    without."""
    max_trial_rows: float = 5_000
    """Where the data are rows, those of a component that the trial of a split copies out and looks at, drawn at random
    if it holds more; infinity is all of them, as in the paper."""
    tol: float = 1e-3
    """F has settled when a cycle lowers it by less than this per row; ε of step 4 is a tenth of that of all rows."""
    max_iter: int = 1000
    """Most cycles."""
    closed: bool = False
    """Truncation by q(v_T = 1) = 1."""
    n_polishing: int = 0
    """Most steps of EM by predictive densities at the end."""


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """A mixture between two passes."""

    mixture: Mixture
    moments: ObservedMoments
    """What the mixture was made from."""
    tail: float
    """Σ_n q(z_n > T)."""
    rejected_at: F64
    """Weight of every component, and cells or rows that it was seen in, when a split of it was last given up, (T, 2);
    zeros if none was."""
    arrangement: int
    """Changes with the components or their order."""
    F: float = np.inf
    """Free energy before the last update: an upper bound of that of `mixture`."""


class VariationalRun:
    """Cycles over the data, and their bookkeeping."""

    def __init__(self, data: RowData, prior: Prior, options: InfiniteOptions) -> None:
        self._data, self.prior, self._options = data, prior, options
        self.total_weight = data.shard.total_weight
        self._row_constant = prior.row_constant(self.total_weight, *data.shard.column_moments())
        self._iteration = 0
        self._n_distances = 0
        self._n_arrangements = 0
        self.epsilon = 0.1 * options.tol * self.total_weight
        self._alpha = StickPrior(*options.alpha)
        self._rules = SplitRules(self._alpha, self.epsilon, options.gain, options.smallest)
        self.ended = options.max_iter == 0
        self._opened = False
        self._asked_tree = False
        self.refined = False
        """Whether the last cycles have changed the tree, so that free energies before and after do not compare."""

    def arrange(self, moments: ObservedMoments, tail: float, rejected_at: F64) -> State:
        """New components, or a new order of them: the largest first, which no other order betters (section 5)."""
        self._n_arrangements += 1
        order = np.arange(len(moments)) if self._options.closed else np.argsort(-moments.counts, kind="stable")
        return self._state(moments.take(order), tail, rejected_at[order], self._n_arrangements)

    def _state(
        self, moments: ObservedMoments, tail: float, rejected_at: F64, arrangement: int, F: float = np.inf
    ) -> State:
        """The parameters that belong to these responsibilities (Eqs. 17 and 18)."""
        mixture = InfiniteMixture.update(self.prior, self._alpha, moments, tail, closed=self._options.closed)
        return State(mixture, moments, tail, rejected_at, arrangement, F)

    def cycle(
        self,
        state: State,
        kept: State | None,
        tol: float,
        reason: str = "",
        *,
        refine: bool = True,
        hidden: bool = False,
    ) -> Generator[Step[Mixture], None, State]:
        """Cycles until F settles; yields them, showing `kept` while it is better, or `hidden` throughout.

        `reason` ends the whole run.

        Against `kept` F counts as settled, too, when a cycle adds little to what has been gained already.

        While the mixture grows the tree is expanded every third cycle.
        """
        self.refined, self._opened = self._opened, False
        settled = False
        while not (settled or self.ended):
            before = state.F
            state = self._update(state)
            gained = 0.0 if kept is None else kept.F - state.F
            settled = before - state.F < max(tol * self.total_weight, _ENOUGH * (gained - self.epsilon))
            if settled and reason and self._data.look_again():
                settled = False
            self._iteration += 1
            if refine and self._iteration % _REFINE_EVERY == 0 and not reason and self.refine(state, thorough=False):
                settled = False
            stopped = reason if settled else ""
            if not stopped and self._iteration == self._options.max_iter:
                stopped = "max_iter"
            self.ended = bool(stopped)
            if stopped and not self._options.closed:
                state = replace(self.arrange(state.moments, state.tail, state.rejected_at), F=state.F)
            shown = kept if kept is not None and (hidden or kept.F < state.F) else state
            n_distances, self._n_distances = self._n_distances, 0
            yield Step(self._iteration, -shown.F, n_distances, None, shown.mixture, stopped)
        return state

    @single_threaded_blas  # on matrices this small threads only wait for each other
    def _update(self, state: State) -> State:
        """One pass, and the parameters that follow from it."""
        local = state.mixture.local
        statistics = self._data.e_step(local, state.arrangement)
        self._n_distances += statistics.n_distances
        F = state.mixture.free_energy(statistics.log_likelihood + self._row_constant)
        moments, tail = ObservedMoments.from_pass(local, statistics), 0.0
        if not self._options.closed:
            tail = float(moments.counts[-1])
            moments = moments.take(slice(0, -1))
        if self._options.closed or self._data.truncated:
            # Deviation: where cells remember components by number, those are sorted from round to round only
            return self._state(moments, tail, state.rejected_at, state.arrangement, F)
        return replace(self.arrange(moments, tail, state.rejected_at), F=F)

    def compared(self, state: State, attempt: State) -> Generator[Step[Mixture], None, State]:
        """The state with an F that compares with that of the attempt: one more cycle if the tree has changed."""
        if not self.refined or self.ended:
            return state
        return (yield from self.cycle(replace(state, F=np.inf), attempt, np.inf, refine=False))

    def fit_prior(self, state: State, n_updates: int) -> State:
        """Turns of fitting the prior to the components and the components to the prior, responsibilities fixed."""
        for _ in range(n_updates):
            self.prior = self.prior.fitted(state.mixture.posterior)
            state = self._state(state.moments, state.tail, state.rejected_at, state.arrangement)
        return state

    def with_fitted_prior(self, state: State) -> Generator[Step[Mixture], None, State]:
        """The state under a prior fitted to it, unless the free energy (in which the tail has a part) would rise.

        Deviation: the paper's prior is given. Where ours follows from the data, its scale is one more parameter that F
        is minimised over, between rounds so that F compares within them.
        """
        before = self.prior
        changed = self.fit_prior(state, 1)
        if self.prior is before or self.ended:
            return state
        changed = yield from self.cycle(changed, state, np.inf, refine=False)
        if changed.F > state.F:
            self.prior = before
            return state
        return changed

    def refine(self, state: State, *, thorough: bool) -> bool:
        """Expand the tree; whether it has."""
        n_distances = self._data.refine(state.mixture.local, thorough=thorough)
        self._n_distances += n_distances
        self.refined |= n_distances > 0
        return n_distances > 0

    def better_parts(self, state: State) -> State | None:
        """The best partition of the tree as components, if its F is below that of the state; once in a run.

        The prior is one fitted to them: one that belongs to wide components would hide narrow ones.
        """
        if self.ended or self._asked_tree:
            return None
        self._asked_tree = True
        least = _MANY_MORE * state.mixture.T + 1
        found = best_partition(self._data, self.prior, self._options.smallest, self._options.gain, least)
        if found is None:
            return None
        moments, prior = found
        too_many = len(moments) > self._options.T_max
        if too_many or hard_free_energy(moments, prior, self._alpha) > state.F - self.epsilon:
            return None
        self._data.open_parts()
        self._opened, self.prior = True, prior
        return self.arrange(moments, 0.0, np.zeros((len(moments), 2)))

    def trials(self, state: State, candidates: I64) -> list[Trial]:
        """Step 2: try to split the candidates; the best first."""
        counts = state.moments.counts
        behind = state.tail + counts.sum() - np.cumsum(counts)
        found = self._data.shares(state.mixture.local, candidates, counts[candidates])
        rules = replace(self._rules, alpha=state.mixture.sticks.alpha)
        trials = try_splits(found, candidates, state.moments, behind[candidates].tolist(), self.prior, rules)
        self._n_distances += found.n_distances + sum(trial.n_distances for trial in trials)
        self._opened |= found.refined
        return sorted(trials, key=lambda trial: -trial.gain)

    def sown(self, state: State, n_times: int, rng: np.random.Generator) -> State | None:
        """Another start with `n_times` as many components (see `sowing`); None if there is room for no more."""
        options = self._options
        # fewer rows than that, and any covariance fits them
        smallest = max(options.smallest, _COMPONENT_ROWS_PER_COLUMN * self._data.shard.n_columns)
        room = min(options.T_max, int(self.total_weight / smallest))
        n = min(n_times * state.mixture.T, room)
        unit = self.prior.expected_covariance()
        if self.ended or n <= state.mixture.T or unit is None:
            return None
        self._n_arrangements += 1
        moments = sow(self._data, unit, self.prior.covariance_type, n, self._n_arrangements, rng)
        moments = moments.take(moments.counts > VANISHED)
        return self.arrange(moments, 0.0, np.zeros((len(moments), 2)))

    def superfluous(self, state: State, gain: float) -> list[Pair]:
        """Pairs of components that are worth less than `gain` per row as two, some at a time."""
        found = self._all_shares(state, _MERGED_ROWS)
        counts = state.moments.counts
        behind = state.tail + counts.sum() - np.cumsum(counts)
        rules = replace(self._rules, gain=gain, alpha=state.mixture.sticks.alpha)
        return superfluous_pairs(found, state.moments, behind, self.prior, rules)

    def _all_shares(self, state: State, most: float = np.inf) -> Shares:
        found = self._data.shares(state.mixture.local, np.arange(state.mixture.T), state.moments.counts, most)
        self._n_distances += found.n_distances
        self._opened |= found.refined
        return found

    def n_seen(self, state: State) -> I64:
        """Cells or rows that every component has a noticeable share of, (T,)."""
        return self._all_shares(state).sizes

    def split(self, state: State, trials: list[Trial]) -> State:
        """Children in the places of their parents; components that have vanished are left to the tail."""
        stays = state.moments.counts > VANISHED
        stays[[trial.component for trial in trials]] = False
        moments, rejected_at = state.moments.take(stays), state.rejected_at[stays]
        for trial in trials:
            moments = moments.join(trial.children)
        fresh = np.zeros((len(moments) - len(rejected_at), 2))
        return self.arrange(moments, state.tail, np.concatenate([rejected_at, fresh]))

    def without_vanished(self, state: State) -> State:
        """Components that have lost their weight are what the tail is, and left to it; a closed mixture has none."""
        stays = state.moments.counts > VANISHED
        if self._options.closed or stays.all() or not stays.any():
            return state
        arranged = self.arrange(state.moments.take(stays), state.tail, state.rejected_at[stays])
        return replace(arranged, F=state.F)

    def merged(self, state: State, pairs: list[Pair]) -> State:
        """Pairs of components as one, which is not to be split again at once."""
        moments = merge(state.moments, pairs)
        n_stay = len(moments) - len(pairs)
        stays = np.delete(state.rejected_at, np.ravel(pairs), axis=0)
        merged = np.column_stack([moments.counts[n_stay:], np.zeros(len(pairs))])
        if self._options.closed:  # as many components as before in the same order, the second of a pair empty
            first, second = np.transpose(pairs)
            left = state.moments.take(second)
            moments = moments.join(ObservedMoments(0.0 * left.counts, left.means, 0.0 * left.scatter, left.kind))
            places = np.concatenate([np.delete(np.arange(len(moments)), np.ravel(pairs)), first, second])
            return self.arrange(moments.take(np.argsort(places)), state.tail, np.zeros_like(state.rejected_at))
        return self.arrange(moments, state.tail, np.concatenate([stays, merged]))
