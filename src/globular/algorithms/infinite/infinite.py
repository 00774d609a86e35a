"""Variational infinite mixtures: VIM, Fast-VIM (Kurihara, Welling and Vlassis 2006) and BJ (Blei and Jordan 2006).

    cycle     q(z_n = i) ∝ exp S_{n,i}, the tail beyond T as one more component          one pass, Eqs. 6 and 9
              φ^v, φ^η from counts and sums; components sorted by size                    Eqs. 17 and 18
    VIM       1. T = 1
              2. draw candidates by size, split each at the bisector of its principal component, update only the two
                 children, which share all the mass of the parent
              3. keep what lowers the free energy F, cycle until F settles
              4. halt when F no longer falls; else go to 2
    Fast-VIM  the same on the cells of a partition tree, expanded where it matters        Eqs. 19 to 22
    BJ        q(v_T = 1) = 1 at a fixed T; only cycles, from a given start, unsorted

The objective of a step is −F, a lower bound of the log-evidence. It belongs to the parameters that its pass was given,
and the step's model is what the pass made of them. While an attempt to grow is worse than the mixture before it, steps
show the mixture before.

Growth takes many cycles and trials of splits, and what it finds hardly depends on how many rows it looks at, once they
are enough. So of many rows a random part says which components there are (`infinite_from_part`). All rows go on from
there: they have a part in every parameter, and in splits that the part was too small for.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace

import numpy as np

from globular.algorithms.infinite.data import RowData
from globular.algorithms.infinite.polishing import PolishedRun
from globular.algorithms.infinite.run import VANISHED, InfiniteOptions, Mixture, State, VariationalRun
from globular.algorithms.infinite.splits import Trial
from globular.algorithms.mixtures.em import one_gaussian
from globular.algorithms.seeding.common import TAKEN_NUMBERS, evenly_spread_rows
from globular.algorithms.steps import Step
from globular.model.gaussian import isotropic_mixture
from globular.model.history import PART
from globular.model.observations import ObservedMoments, Prior
from globular.model.statistics import F64, I64
from globular.seam.among import Need
from globular.seam.shard import Shard

__all__ = ["CONVERGED", "GROWN", "InfiniteOptions", "Mixture", "components_at", "infinite", "one_component"]

GROWN = "no split lowers the free energy"
CONVERGED = "the free energy changed by less than tol"

_STALE = 0.05
"""A component is tried again when its weight, or the number of cells it is seen in, has changed by this share since a
split of it was given up."""
_COLD = 1e-6
"""Variance, relative to that of the data, at which rows go to the closest mean."""
PART_ROWS = 30_000
"""Rows of the part."""
WORTHWHILE = 3
"""How many times as many rows there have to be, for a part to save time."""


def infinite(
    data: RowData, prior: Prior, start: ObservedMoments, options: InfiniteOptions, rng: np.random.Generator
) -> Iterator[Step[Mixture]]:
    """Run from the components in `start`; one step per cycle. Only nested truncations grow."""
    run = PolishedRun(data, prior, options)
    state = run.arrange(start, 0.0, np.zeros((len(start), 2)))
    if options.closed:
        # Deviation: components that die out in BJ do so slowly, and F hardly falls meanwhile: merges take the way short
        state = yield from run.cycle(state, None, options.tol, refine=False)
        state = yield from _shrink(run, state, options)
        yield from run.cycle(state, None, options.tol, CONVERGED)
        return
    state = run.fit_prior(state, 20)  # by then it stays
    state = yield from run.cycle(state, None, options.tol)
    while True:
        state = yield from _grow(run, state, options, rng)
        state = yield from _shrink(run, state, options)
        before = run.prior
        if parts := run.better_parts(state):
            # Deviation: a partition of the tree that is better than what has grown; see `parts`
            attempt = yield from run.cycle(parts, state, options.tol)
            if attempt.F < state.F:
                state = yield from run.with_fitted_prior(attempt)
                continue
            run.prior = before
        if better := (yield from _sow(run, state, options, rng)):
            state = better
            continue
        # Deviation: a mixture that has stopped growing looks closer, and tries again what looks different then
        if run.ended or not run.refine(state, thorough=True):
            break
        state = yield from run.cycle(replace(state, F=np.inf), None, options.tol)
        state = _reconsider(run, state)
    if not run.ended:
        if not options.n_polishing:
            yield from run.cycle(state, None, options.tol, GROWN)
            return
        state = yield from run.cycle(state, None, options.tol, refine=False)
        while not run.ended and data.look_again():
            state = yield from run.cycle(state, None, options.tol, refine=False)
        yield from run.polish(state, GROWN, rng)


def _grow(
    run: VariationalRun, state: State, options: InfiniteOptions, rng: np.random.Generator
) -> Generator[Step[Mixture], None, State]:
    """Steps 2 to 4 until no split lowers F."""
    while not run.ended and options.T_max > state.mixture.T:
        candidates = _draw_candidates(state, options, rng)
        if not len(candidates):
            break
        trials = run.trials(state, candidates)
        promising = [trial for trial in trials if trial.gain > 0]
        state = _reject(state, [trial for trial in trials if trial.gain <= 0])
        while promising and not run.ended:
            # Deviation: the paper keeps the best split alone. Splits of different components hardly touch each other,
            # so all that lower F are kept at once; if that fails, the best one alone.
            kept = _affordable(promising, options.T_max - state.mixture.T, options.accept)
            if not kept:
                state, promising = _reject(state, promising), []
                continue
            attempt = yield from run.cycle(run.split(state, kept), state, options.tol)
            state = yield from run.compared(state, attempt)
            gain = state.F - attempt.F
            if gain > run.epsilon:
                state = yield from run.with_fitted_prior(attempt)
                break
            promising = promising[:1] if len(kept) > 1 else []
            state = _reject(state, [] if promising else kept)
    return state


def _shrink(run: VariationalRun, state: State, options: InfiniteOptions) -> Generator[Step[Mixture], None, State]:
    """Deviation: merge components that splits have made superfluous; accepted by the free energy as well."""
    state = run.without_vanished(state)
    enough = run.epsilon if options.closed else 0.0  # what is empty there may take a few rows again, and again
    while not run.ended and (pairs := run.superfluous(state, 0.0)):
        attempt = yield from run.cycle(run.merged(state, pairs), state, options.tol, refine=False)
        if options.closed and len(pairs) > 1 and attempt.F >= state.F:
            attempt = yield from run.cycle(run.merged(state, pairs[:1]), state, options.tol, refine=False)
        gained = state.F - attempt.F
        if gained > 0:
            state = run.without_vanished(attempt)
        if gained <= enough:
            break
    return state


def _sow(
    run: VariationalRun, state: State, options: InfiniteOptions, rng: np.random.Generator
) -> Generator[Step[Mixture], None, State | None]:
    """Deviation: another start with more components, merged until each is worth a split (see `sowing`).

    Returns what it leads to, if its F is lower by enough. Where F is lower, but by less, the components may still be
    too few for what is there, so that none of them has found its place: then come twice as many.
    """
    for n_times in (options.n_sown, 2 * options.n_sown):
        sown = run.sown(state, n_times, rng)
        if sown is None:
            return None
        sown = yield from run.cycle(sown, state, options.tol, hidden=True)
        while not run.ended and (pairs := run.superfluous(run.without_vanished(sown), options.gain)):
            sown = run.merged(run.without_vanished(sown), pairs)
            sown = yield from run.cycle(sown, state, np.inf, refine=False, hidden=True)
        sown = yield from run.cycle(run.without_vanished(sown), state, options.tol, refine=False, hidden=True)
        state = yield from run.compared(state, sown)
        T, more = sown.mixture.T, sown.mixture.T - state.mixture.T
        lower = (state.F - sown.F) / run.total_weight
        if run.ended or lower < options.tol:
            return None
        # components that it has more have to gain what as many splits of a mean parent would have to
        if lower >= options.gain * 2 * more / T:
            return (yield from run.with_fitted_prior(sown))
    return None


def one_component(data: RowData, prior: Prior) -> ObservedMoments:
    """Step 1, T = 1: all rows in one component."""
    whole = one_gaussian(data.shard, prior.covariance_type)
    return ObservedMoments.from_pass(whole, data.e_step(whole))


def components_at(data: RowData, means: F64, prior: Prior) -> ObservedMoments:
    """Every row to its closest mean, by the E-step of a mixture so cold that it is hard: the start of BJ."""
    variance = float(data.shard.column_moments()[1].mean())
    cold = isotropic_mixture(means, max(_COLD * variance, 1e-300), prior.covariance_type)
    return ObservedMoments.from_pass(cold, data.e_step(cold))


def _draw_candidates(state: State, options: InfiniteOptions, rng: np.random.Generator) -> I64:
    """Components drawn by size, without those whose split was given up and that are still what they were.

    Deviation: the paper draws from all components and halts as soon as none of those drawn is worth a split; here every
    component is tried before that.
    """
    counts = state.moments.counts
    rejected_at = state.rejected_at[:, 0]
    changed = np.abs(counts - rejected_at) > _STALE * rejected_at
    eligible = np.flatnonzero(changed & (counts > VANISHED))
    # Deviation: with ten at a time, thousands of components would take hundreds of rounds
    most = options.n_candidates if options.accept == "best" else max(options.n_candidates, len(counts) // 2)
    n = min(most, len(eligible))
    if n == 0:
        return eligible
    return rng.choice(eligible, size=n, replace=False, p=counts[eligible] / counts[eligible].sum())


def _affordable(trials: list[Trial], room: int, accept: str) -> list[Trial]:
    """The best trials, as many as there is room for their children; or the best one."""
    sizes = np.cumsum([len(trial.children) - 1 for trial in trials])
    n = int((sizes <= room).sum())
    return trials[: min(n, 1) if accept == "best" else n]


def _reconsider(run: VariationalRun, state: State) -> State:
    """Nothing is given up that is seen in other cells by now."""
    seen = state.rejected_at[:, 1]
    changed = np.abs(run.n_seen(state) - seen) > _STALE * seen
    return replace(state, rejected_at=np.where(changed[:, None], 0.0, state.rejected_at))


def _reject(state: State, trials: list[Trial]) -> State:
    """Remember that these components are not worth a split as they are."""
    rejected_at = state.rejected_at.copy()
    for trial in trials:
        rejected_at[trial.component] = state.moments.counts[trial.component], trial.n_seen
    return replace(state, rejected_at=rejected_at)


def draw_part(shard: Shard, rng: np.random.Generator) -> Shard:
    """Rows with their weights, one anywhere in each of some equal stretches; all of them if they are not many.

    They are copied, since hundreds of passes are made over them, unless they are too many numbers for that.
    """
    if shard.n_rows < WORTHWHILE * PART_ROWS:
        return shard
    chosen = evenly_spread_rows(shard.n_rows, PART_ROWS, rng)
    if Need.DENSE in shard.lacks or len(chosen) * shard.n_columns > TAKEN_NUMBERS:
        return shard.subset(chosen)
    return shard.local(shard.take(chosen), shard.take(chosen, "weights"))


def infinite_from_part(
    part: RowData, data: RowData, prior: Prior, options: InfiniteOptions, rng: np.random.Generator
) -> Iterator[Step[Mixture]]:
    """Grow on the part, then run on all data from there. Objectives of the part are estimates of those of all."""
    whole = data.shard.total_weight / part.shard.total_weight
    for step in infinite(part, prior, one_component(part, prior), replace(options, n_polishing=0), rng):
        yield replace(
            step, iteration=0, objective=whole * step.objective, stopped="", stage=PART, next_rows=part.shard.n_rows
        )
    found, fitted = step.model, step.model.tail.prior
    mixture = found.posterior.expected_mixture(found.sticks.log_weights)
    start = ObservedMoments.from_pass(mixture, data.e_step(mixture))
    yield from infinite(data, fitted, start, replace(options, n_sown=0), rng)
