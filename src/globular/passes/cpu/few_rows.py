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
from globular.jit.tiles import ROWS, lowest_of_rows, tile_for
from globular.model.statistics import F64
from globular.passes.cpu.grouped import count_up_to
from globular.passes.host import HostShard
from globular.seam.center_passes import Found, SearchFew, SeedFew
from globular.seam.passes import SeedRows


class Few(NamedTuple):
    """Rows, and the arrays that a search works on; N′ = N + ROWS, K is C rounded up to whole tiles."""

    x: Any  # (N, D) about `offset`
    columns: Any  # (D, N), the same numbers
    weights: Any  # (N,)
    squares: Any  # (N′,) ‖x‖²
    places: Any  # (N,) 0, 1, …
    offset: Any  # (D,) the mean of the rows, or zeros
    labels: Any  # (N′,) int32, the closest centre
    closest: Any  # (N′,) squared distance to it
    second: Any  # (N′,) and to the second closest
    running: Any  # (N,) running sum of w d²
    apart: Any  # (N,) squared distance to a place
    centers: Any  # (C, D)
    means: Any  # (C, D) of the rows that are closest to these
    best: Any  # (C, D) the best centres so far
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
    """From one centre, 256 rows at a time, which stay in the cache, and four columns. O(N · D)."""
    D, N = columns.shape
    for first in range(0, N, 256):
        stop = min(N, first + 256)
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
def two_closest_of_all(few: Any) -> float:
    """The closest centre of every row, and squared distances to it and to the second closest; returns Σ w d².

    O(N · C · D)
    """
    (C, D), width, objective = few.centers.shape, few.factors.shape[2], 0.0
    for c in range(C):
        norm = 0.0
        for j in range(D):
            few.factors[c // width, j, c % width] = -2.0 * few.centers[c, j]
            norm += few.centers[c, j] * few.centers[c, j]
        few.norms[c] = norm
    for at in range(0, few.x.shape[0], ROWS):
        lowest_of_rows(
            few.x, few.places, at, few.squares, few.factors, few.norms, 0, few.norms.shape[0], few.mask[0],
            few.nobody, few.no_scores, few.closest, few.second, few.labels,
        )  # fmt: skip
    for i in range(few.x.shape[0]):
        few.closest[i], few.second[i] = max(0.0, few.closest[i]), max(0.0, few.second[i])
        objective += few.weights[i] * few.closest[i]
    return objective


@inline
def copy(source: Any, target: Any) -> None:
    """An array of two dimensions into another. O(C · D)."""
    for c in range(source.shape[0]):
        copy_row(source, c, target, c)


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
    few: Any,  # IN  the rows; the rest is scratch
    draws: Any,  # IN  (C, T) numbers in [0, 1): T draws for each seed, of which the best is taken
    seeds: Any,  # OUT (C,) rows
) -> tuple[int, float]:
    """k-means++, greedy with more than one draw; returns the number of seeds, at most the distinct rows, and Σ w d².

    O(N · C · T · D)
    """
    N, (C, T) = few.weights.shape[0], draws.shape
    d2, trial, best, lowest = few.closest[:N], few.second[:N], few.apart, np.inf
    for i in range(N):
        d2[i], best[i] = np.inf, 1.0
    for k in range(C):
        if add_up(few.weights, d2 if k > 0 else best, few.running) <= 0.0:
            return k, lowest
        lowest = np.inf
        for t in range(T if k > 0 else 1):
            row, potential = draw_row(few.running, draws[k, t]), 0.0
            squared_distances(few.columns, few.x[row], trial)
            for i in range(N):
                trial[i] = min(d2[i], trial[i])
                potential += few.weights[i] * trial[i]
            if potential < lowest:
                lowest, seeds[k] = potential, row
                best, trial = trial, best
        d2, best = best, d2
    return C, lowest


@inline
def take_means(few: Any, unit: bool) -> None:
    """The M-step: means of the clusters; one without rows goes to the row that is farthest off. O(N · D)."""
    C, D = few.means.shape
    for c in range(C):
        few.counts[c] = 0.0
        for j in range(D):
            few.means[c, j] = 0.0
    for i in range(few.x.shape[0]):
        c, w = few.labels[i], few.weights[i]
        few.counts[c] += w
        for j in range(D):
            few.means[c, j] += w * few.x[i, j]
    for c in range(C):
        divisor, far = few.counts[c], 0
        if unit:
            divisor = 0.0
            for j in range(D):
                divisor += few.means[c, j] * few.means[c, j]
            divisor = np.sqrt(divisor)
        if few.counts[c] > 0.0 and divisor > 0.0:
            for j in range(D):
                few.means[c, j] /= divisor
            continue
        copy_row(few.centers, c, few.means, c)
        if few.counts[c] <= 0.0:
            for i in range(few.x.shape[0]):
                far = i if few.closest[i] > few.closest[far] else far
            if few.closest[far] > 0.0:
                copy_row(few.x, far, few.means, c)
                few.closest[far] = 0.0


@inline
def go_beyond(few: Any, limits: Any, fresh: bool) -> None:
    """Momentum: the centres move to their means and on, see `algorithms.kmeans.momentum`. O(C · D)."""
    C, D = few.means.shape
    for c in range(C):
        moved, led, speed = 0.0, 0.0, 0.0
        for j in range(D):
            shift, ahead = few.means[c, j] - few.centers[c, j], few.means[c, j] - few.last[c, j]
            velocity = shift if fresh else limits.decay * few.velocity[c, j] + shift
            velocity = velocity if few.counts[c] > 0.0 else 0.0  # it has jumped
            few.velocity[c, j] = velocity
            moved, led, speed = moved + shift * shift, led + ahead * ahead, speed + velocity * velocity
        radius = np.sqrt(moved) if fresh else min(np.sqrt(moved), limits.lead * np.sqrt(led))
        factor = limits.reach * radius / np.sqrt(speed) if speed > 0.0 else 0.0
        for j in range(D):
            few.last[c, j] = few.means[c, j]
            few.centers[c, j] = few.means[c, j] + factor * few.velocity[c, j]


@inline
def at_stake(objective: float, limits: Any) -> float:
    """See `ProbingOptions.at_stake`."""
    return min(objective, max(limits.total - objective, limits.least_stake * objective))


@kernel
def step_few(
    few: Any,  # IN/OUT centers; OUT means, labels, closest and second
    limits: Any,  # IN  see `seam.center_passes.Limits`
    goal: float,  # IN  steps end below this objective, or when they will hardly reach it; −∞: there is none
) -> tuple[float, int]:
    """Iterations with momentum; returns the last objective and their number. O(N · C · D) each."""
    before, n_steps = np.inf, 0
    while True:
        n_steps += 1
        objective = limits.unexplained + two_closest_of_all(few)
        take_means(few, limits.unit)
        gain, before = before - objective, objective
        hopeless = goal > -np.inf and objective - (limits.max_steps - n_steps) * gain > goal
        is_last = n_steps >= limits.max_steps or gain <= limits.min_gain * at_stake(objective, limits)
        if objective < goal or hopeless or is_last:
            return objective, n_steps
        if n_steps == 1 or limits.unit:
            copy(few.means, few.centers)
            copy(few.means, few.last)
        else:
            go_beyond(few, limits, n_steps == 2)


@inline
def weigh_place(few: Any) -> float:
    """What a centre at the place gains; the losses are then what each other centre is worth beside it, and the place
    is the mean of the rows that it wins. O(N · D)."""
    N, D = few.x.shape
    gain, won = 0.0, 0.0
    squared_distances(few.columns, few.place[0], few.apart)
    for c in range(few.losses.shape[0]):
        few.losses[c] = 0.0
    for j in range(D):
        few.place[0, j] = 0.0
    for i in range(N):
        own, new, w = few.closest[i], few.apart[i], few.weights[i]
        few.losses[few.labels[i]] += w * (min(few.second[i], new) - min(own, new))
        if new < own:
            gain, won = gain + w * (own - new), won + w
            for j in range(D):
                few.place[0, j] += w * few.x[i, j]
    for j in range(D):
        few.place[0, j] /= max(won, 1e-300)
    return gain


@kernel
def try_few(
    few: Any,  # IN/OUT best; centers, where there is no round
    limits: Any,  # IN
    draws: Any,  # IN  (R, T) numbers in [0, 1): of T rows in each of R rounds, the best is tried
    n_failures: int,  # IN  since the last success
) -> tuple[float, int, int]:
    """Rounds of swaps that are tried out; returns the objective, the number of steps, and of failures at the end.

    Without a round it takes steps from the centres; as a kernel of their own, these would be compiled twice.
    O(N · (C · steps + T) · D) each
    """
    objective, n_steps, moved, C = 0.0, 0, True, few.losses.shape[0]
    if draws.shape[0] == 0:
        objective, n_steps = step_few(few, limits, -np.inf)
        copy(few.means, few.best)
    for r in range(draws.shape[0]):
        if moved:
            copy(few.best, few.centers)
            objective = limits.unexplained + two_closest_of_all(few)
            add_up(few.weights, few.closest, few.running)
            n_steps += 1
        promise, seat = -np.inf, -1
        for t in range(draws.shape[1]):
            copy_row(few.x, draw_row(few.running, draws[r, t]), few.place, 0)
            weigh_place(few)
            copy_row(few.place, 0, few.last, 0)
            gain, spare = weigh_place(few), 0
            for c in range(C):
                spare = c if few.losses[c] < few.losses[spare] else spare
            loss = few.losses[spare]
            if gain - loss > promise and gain > limits.least_ratio * loss:
                promise, seat = gain - loss, spare
                copy_row(few.last, 0, few.place, 1)
        moved = seat >= 0
        # where there is nothing to try, there will hardly be; unless clusters are many for so few draws
        n_failures += 1 if moved or 2 * draws.shape[1] < C else 2
        if moved:
            copy(few.best, few.centers)
            copy_row(few.place, 1, few.centers, seat)
            goal = objective - limits.worth * at_stake(objective, limits)
            reached, n_tried = step_few(few, limits, goal)
            n_steps += n_tried
            if reached < goal:
                objective, n_failures = reached, 0
                moved = n_tried > 1  # else the rows know their two closest of these centres already
                copy(few.means if moved else few.centers, few.best)
                if not moved:
                    add_up(few.weights, few.closest, few.running)
        if n_failures >= limits.max_failures or n_steps >= limits.max_in_trials:
            break
    return objective, n_steps, n_failures


@HostShard.implements(SeedFew)
def seed(shard: HostShard, work: SeedFew) -> SeedRows:
    seeds = np.empty(len(work.draws), dtype=np.intp)
    n, potential = seed_few(few_of(shard, len(seeds), work.unit_centers), work.draws, seeds)
    return SeedRows(seeds[:n], potential)


@HostShard.implements(SearchFew)
def search(shard: HostShard, work: SearchFew) -> Found:
    few = few_of(shard, len(work.centers), work.limits.unit)
    np.subtract(work.centers, few.offset, out=few.centers)
    np.copyto(few.best, few.centers)
    objective, n_steps, n_failures = try_few(few, work.limits, work.draws, work.n_failures)
    return Found(few.best + few.offset, objective, n_steps, n_failures)


def few_of(shard: HostShard, C: int, unit: bool) -> Few:
    """The rows of a shard, which keeps them for the next pass: about their mean unless centres shall be `unit`."""
    if shard.few is None or shard.few[0] != (C, unit):
        everyone = np.arange(shard.n_rows)
        rows, weights = (np.asarray(shard.take(everyone, what)) for what in ("rows", "weights"))
        offset = np.zeros(shard.n_columns) if unit else weights @ rows / weights.sum()
        shard.few = (C, unit), _new(rows - offset, weights, offset, C)
    few: Few = shard.few[1]
    return few


def _new(x: F64, weights: F64, offset: F64, C: int) -> Few:
    n, D = x.shape
    tile, nobody = tile_for(C, D, 8), 0.0625 / np.finfo(np.float64).tiny  # a norm that no centre has
    K = -(-C // tile.step) * tile.step
    squares, closest, second = np.zeros((3, n + ROWS))
    np.einsum("ij,ij->i", x, x, out=squares[:n])
    return Few._make((
        x, np.ascontiguousarray(x.T), weights, squares, np.arange(n), offset, np.empty(n + ROWS, dtype=np.int32),
        closest, second, *np.empty((2, n)), *np.empty((5, C, D)), *np.empty((2, C)), np.empty((2, D)),
        np.zeros((K // tile.width, D, tile.width)), np.full(K, nobody), np.array([-1 << (K - 1).bit_length()]),
        int(np.array(nobody).view(np.int64)), np.empty((0, K)),
    ))  # fmt: skip
