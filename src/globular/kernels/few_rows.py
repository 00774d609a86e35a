"""K-means on rows that are few enough to lie in the cache: seeds, steps and swaps without a word of Python between.

A pass over a thousand rows takes microseconds, and ten times as long to be called. So all that a search repeats is in
here, on one thread and in float64. Rows lie twice: as they are, and by columns, so that vectors run over rows whatever
the number of columns. Steps score rows by tiles of centres, as passes do, and believe the scores: a search need not be
exact to the last bit, and what follows it is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from globular.jit import inline, kernel
from globular.jit.tiles import ROWS, lowest_of_rows
from globular.kernels.ascending import count_up_to

AT_ONCE = 256
"""Rows whose distances to all centres are taken before the next ones."""
DECAY = 0.9
"""Share of a centre's velocity that an iteration keeps, see `algorithms.kmeans.momentum`; larger = a longer memory."""
REACH = 0.95
"""Share of the way beyond its mean that the objective allows a centre; 0 is Lloyd, and 1 would gain nothing."""
LEAD = 5.0
"""The same as a multiple of what its mean has just moved by; larger = settled centres go farther."""
LEAST_STAKE = 1e-3
"""Least share of the objective that gains are measured by, see `ProbingOptions.at_stake`; smaller = longer fits of rows
of which clusters explain little."""


@inline
def add_squares(
    a: Any, b: Any, c: Any, d: Any,  # IN  (n,) columns of some rows
    at: Any,  # IN  (D,) a centre
    j: int,  # IN  the first of the columns
    out: Any,  # IN/OUT (n,)
) -> None:  # fmt: skip
    """Add four columns to squared distances. O(n)."""
    p, q, r, s = at[j], at[j + 1], at[j + 2], at[j + 3]
    for i in range(out.shape[0]):
        e, f, g, h = a[i] - p, b[i] - q, c[i] - r, d[i] - s
        out[i] += e * e + f * f + (g * g + h * h)


@inline
def add_square(a: Any, value: float, out: Any) -> None:
    """Add a column to squared distances. O(n)."""
    for i in range(out.shape[0]):
        e = a[i] - value
        out[i] += e * e


@kernel
def squared_distances(
    columns: Any,  # IN  (D, N)
    center: Any,  # IN  (D,)
    out: Any,  # OUT (N,) ‖x − m‖²
) -> None:
    """From one centre, some rows at a time and four columns. O(N · D)."""
    D, N = columns.shape
    for first in range(0, N, AT_ONCE):
        stop = min(N, first + AT_ONCE)
        some = out[first:stop]  # pieces are counted from 0: that vectorises
        for i in range(some.shape[0]):
            some[i] = 0.0
        for j in range(0, D - 3, 4):
            add_squares(
                columns[j, first:stop], columns[j + 1, first:stop], columns[j + 2, first:stop],
                columns[j + 3, first:stop], center, j, some,
            )  # fmt: skip
        for j in range(D - D % 4, D):
            add_square(columns[j, first:stop], center[j], some)


@kernel
def two_closest_of_all(
    x: Any,  # IN  (N, D)
    weights: Any,  # IN  (N,)
    centers: Any,  # IN  (C, D)
    desk: Any,  # OUT labels, closest and second
) -> float:
    """The closest centre of every row, and squared distances to it and to the second closest; returns Σ w d².

    O(N · C · D)
    """
    (C, D), width, objective = centers.shape, desk.factors.shape[2], 0.0
    for c in range(C):
        tile, lane, norm = c // width, c % width, 0.0
        for j in range(D):
            desk.factors[tile, j, lane] = -2.0 * centers[c, j]
            norm += centers[c, j] * centers[c, j]
        desk.norms[c] = norm
    for at in range(0, x.shape[0], ROWS):
        lowest_of_rows(
            x, desk.places, at, desk.squares, desk.factors, desk.norms, 0, desk.norms.shape[0], desk.mask[0],
            desk.nobody, desk.no_scores, desk.closest, desk.second, desk.labels,
        )  # fmt: skip
    for i in range(x.shape[0]):
        desk.closest[i], desk.second[i] = max(0.0, desk.closest[i]), max(0.0, desk.second[i])
        objective += weights[i] * desk.closest[i]
    return objective


@inline
def copy(source: Any, target: Any) -> None:
    """An array of two dimensions into another. O(C · D)."""
    for c in range(source.shape[0]):
        for j in range(source.shape[1]):
            target[c, j] = source[c, j]


@inline
def copy_row(source: Any, row: int, target: Any, place: int) -> None:
    """A row into another. O(D)."""
    for j in range(source.shape[1]):
        target[place, j] = source[row, j]


@inline
def draw_row(running: Any, share: float) -> int:
    """The row at which the running sum first exceeds a share of its end. O(log N)."""
    return min(count_up_to(running, share * running[-1]), running.shape[0] - 1)


@inline
def add_up(weights: Any, d2: Any, running: Any) -> float:
    """The running sum of w d²; returns its end. O(N)."""
    total = 0.0
    for i in range(running.shape[0]):
        total += weights[i] * d2[i]
        running[i] = total
    return total


@kernel
def seed_few(
    x: Any,  # IN  (N, D)
    columns: Any,  # IN  (D, N)
    weights: Any,  # IN  (N,)
    draws: Any,  # IN  (C, T) numbers in [0, 1): T draws for each seed, of which the best is taken
    seeds: Any,  # OUT (C,) rows
    potentials: Any,  # OUT (C,) Σ w d² after each seed
    scratch: Any,  # (4, N)
) -> int:
    """k-means++, greedy with more than one draw; returns the number of seeds: all, or as many as distinct rows.

    O(N · C · T · D)
    """
    N, (C, T) = len(weights), draws.shape
    d2, trial, best, running, lowest = scratch[0], scratch[1], scratch[2], scratch[3], np.inf
    for i in range(N):
        d2[i], best[i] = np.inf, 1.0
    for k in range(C):
        if add_up(weights, d2 if k > 0 else best, running) <= 0.0:
            return k
        lowest = np.inf
        for t in range(T if k > 0 else 1):
            row, potential = draw_row(running, draws[k, t]), 0.0
            squared_distances(columns, x[row], trial)
            for i in range(N):
                trial[i] = min(d2[i], trial[i])
                potential += weights[i] * trial[i]
            if potential < lowest:
                lowest, seeds[k] = potential, row
                best, trial = trial, best
        potentials[k] = lowest
        d2, best = best, d2
    return C


@inline
def take_means(
    x: Any,  # IN  (N, D)
    weights: Any,  # IN  (N,)
    labels: Any,  # IN  (N,)
    closest: Any,  # IN/OUT (N,) squared distances; 0 for a row that becomes a centre
    unit: bool,  # IN  whether centres have unit length
    old: Any,  # IN  (C, D)
    means: Any,  # OUT (C, D)
    counts: Any,  # OUT (C,) Σ w
) -> None:
    """The M-step: means of the clusters; one without rows goes to the row that is farthest off. O(N · D)."""
    C, D = means.shape
    for c in range(C):
        counts[c] = 0.0
        for j in range(D):
            means[c, j] = 0.0
    for i in range(x.shape[0]):
        c, w = labels[i], weights[i]
        counts[c] += w
        for j in range(D):
            means[c, j] += w * x[i, j]
    for c in range(C):
        divisor, far = counts[c], -1
        if unit:
            divisor = 0.0
            for j in range(D):
                divisor += means[c, j] * means[c, j]
            divisor = np.sqrt(divisor)
        if counts[c] <= 0.0:
            far = 0
            for i in range(x.shape[0]):
                far = i if closest[i] > closest[far] else far
            far = far if closest[far] > 0.0 else -1
        for j in range(D):
            if far >= 0:
                means[c, j] = x[far, j]
            elif divisor > 0.0:
                means[c, j] /= divisor
            else:
                means[c, j] = old[c, j]
        if far >= 0:
            closest[far] = 0.0


@inline
def go_beyond(means: Any, counts: Any, fresh: bool, centers: Any, last: Any, velocity: Any) -> None:
    """Momentum: the centres move to their means and on. O(C · D)."""
    C, D = means.shape
    for c in range(C):
        moved, led, speed = 0.0, 0.0, 0.0
        for j in range(D):
            shift, ahead = means[c, j] - centers[c, j], means[c, j] - last[c, j]
            velocity[c, j] = shift if fresh else DECAY * velocity[c, j] + shift
            if counts[c] <= 0.0:  # it has jumped
                velocity[c, j] = 0.0
            moved, led, speed = moved + shift * shift, led + ahead * ahead, speed + velocity[c, j] * velocity[c, j]
        radius = np.sqrt(moved) if fresh else min(np.sqrt(moved), LEAD * np.sqrt(led))
        factor = REACH * radius / np.sqrt(speed) if speed > 0.0 else 0.0
        for j in range(D):
            last[c, j] = means[c, j]
            centers[c, j] = means[c, j] + factor * velocity[c, j]


class Desk(NamedTuple):
    """The arrays that a search works on; N′ = N + ROWS, K is C rounded up to whole tiles."""

    labels: Any  # (N′,) int32, the closest centre
    closest: Any  # (N′,) squared distance to it
    second: Any  # (N′,) and to the second closest
    squares: Any  # (N′,) ‖x‖²
    running: Any  # (N,) running sum of w d²
    apart: Any  # (N,) squared distance to a place
    places: Any  # (N,) 0, 1, …
    centers: Any  # (C, D)
    means: Any  # (C, D) of the rows that are closest to these
    last: Any  # (C, D) means of the last step
    velocity: Any  # (C, D)
    counts: Any  # (C,) Σ w
    losses: Any  # (C,) what each centre is worth beside one at `place`
    place: Any  # (2, D) where a centre may go, and the best of these
    factors: Any  # (K / width, D, width) −2 m
    norms: Any  # (K,) ‖m‖², and numbers too large for any centre
    mask: Any  # (1,) see `tiles`
    nobody: int  # the bits of such a number
    no_scores: Any  # (0, K)


class StepLimits(NamedTuple):
    """When steps end: see `ProbingOptions`."""

    max_steps: int
    min_gain: float
    total: float
    unexplained: float
    unit: bool


class TrialLimits(NamedTuple):
    """When a swap is tried, when it has failed, and when trials end."""

    least_ratio: float  # of its gain and its loss
    worth: float  # share of what is at stake that it has to gain
    max_failures: int  # one after the other
    max_steps: int  # in all


@inline
def at_stake(objective: float, total: float) -> float:
    """See `ProbingOptions.at_stake`."""
    return min(objective, max(total - objective, LEAST_STAKE * objective))


@kernel
def step_few(
    x: Any,  # IN  (N, D)
    weights: Any,  # IN  (N,)
    limits: Any,  # IN  StepLimits
    goal: float,  # IN  steps end below this objective, or when they will hardly reach it; −∞: there is none
    desk: Any,  # IN/OUT centers; OUT means, labels, closest and second
) -> tuple[float, int]:
    """Iterations with momentum; returns the last objective and their number. O(N · C · D) each."""
    before, n_steps = np.inf, 0
    while True:
        n_steps += 1
        objective = limits.unexplained + two_closest_of_all(x, weights, desk.centers, desk)
        take_means(x, weights, desk.labels, desk.closest, limits.unit, desk.centers, desk.means, desk.counts)
        gain, before = before - objective, objective
        hopeless = goal > -np.inf and objective - (limits.max_steps - n_steps) * gain > goal
        is_last = n_steps >= limits.max_steps or gain <= limits.min_gain * at_stake(objective, limits.total)
        if objective < goal or hopeless or is_last:
            return objective, n_steps
        if n_steps == 1 or limits.unit:
            copy(desk.means, desk.centers)
            copy(desk.means, desk.last)
        else:
            go_beyond(desk.means, desk.counts, n_steps == 2, desk.centers, desk.last, desk.velocity)


@inline
def weigh_place(x: Any, columns: Any, weights: Any, desk: Any) -> float:
    """What a centre at the place gains; the losses are then what each other centre is worth beside it, and the place
    is the mean of the rows that it wins. O(N · D)."""
    N, D = x.shape
    gain, won = 0.0, 0.0
    squared_distances(columns, desk.place[0], desk.apart)
    for c in range(desk.losses.shape[0]):
        desk.losses[c] = 0.0
    for j in range(D):
        desk.place[0, j] = 0.0
    for i in range(N):
        own, new, w = desk.closest[i], desk.apart[i], weights[i]
        desk.losses[desk.labels[i]] += w * (min(desk.second[i], new) - min(own, new))
        if new < own:
            gain, won = gain + w * (own - new), won + w
            for j in range(D):
                desk.place[0, j] += w * x[i, j]
    for j in range(D):
        desk.place[0, j] /= max(won, 1e-300)
    return gain


@kernel
def try_few(
    x: Any,  # IN  (N, D)
    columns: Any,  # IN  (D, N)
    weights: Any,  # IN  (N,)
    draws: Any,  # IN  (R, T) numbers in [0, 1): of T rows in each of R rounds, the best is tried
    of_steps: Any,  # IN  StepLimits of a trial, or of the steps where there is no round
    of_trials: Any,  # IN  TrialLimits
    n_failures: int,  # IN  since the last success
    best: Any,  # IN/OUT (C, D) the best centres so far
    desk: Any,  # OUT; IN/OUT centers where there is no round
) -> tuple[float, int, int]:
    """Rounds of swaps that are tried out; returns the objective, the number of steps, and of failures at the end.

    Without a round it takes steps from the desk's centres; as a kernel of their own, these would be compiled twice.
    O(N · (C · steps + T) · D) each
    """
    objective, n_steps, moved = 0.0, 0, True
    if draws.shape[0] == 0:
        objective, n_steps = step_few(x, weights, of_steps, -np.inf, desk)
    for r in range(draws.shape[0]):
        if moved:
            objective = of_steps.unexplained + two_closest_of_all(x, weights, best, desk)
            add_up(weights, desk.closest, desk.running)
            n_steps += 1
        promise, seat = -np.inf, -1
        for t in range(draws.shape[1]):
            copy_row(x, draw_row(desk.running, draws[r, t]), desk.place, 0)
            weigh_place(x, columns, weights, desk)
            copy_row(desk.place, 0, desk.last, 0)
            gain, spare = weigh_place(x, columns, weights, desk), 0
            for c in range(desk.losses.shape[0]):
                spare = c if desk.losses[c] < desk.losses[spare] else spare
            loss = desk.losses[spare]
            if gain - loss > promise and gain > of_trials.least_ratio * loss:
                promise, seat = gain - loss, spare
                copy_row(desk.last, 0, desk.place, 1)
        moved = seat >= 0
        # where there is nothing to try, there will hardly be; unless clusters are many for so few draws
        n_failures += 1 if moved or best.shape[0] > 2 * draws.shape[1] else 2
        if moved:
            copy(best, desk.centers)
            copy_row(desk.place, 1, desk.centers, seat)
            goal = objective - of_trials.worth * at_stake(objective, of_steps.total)
            reached, n_tried = step_few(x, weights, of_steps, goal, desk)
            n_steps += n_tried
            if reached < goal:
                objective, n_failures = reached, 0
                moved = n_tried > 1  # else the rows know their two closest of these centres already
                copy(desk.means if moved else desk.centers, best)
                if not moved:
                    add_up(weights, desk.closest, desk.running)
        if n_failures >= of_trials.max_failures or n_steps >= of_trials.max_steps:
            break
    return objective, n_steps, n_failures
