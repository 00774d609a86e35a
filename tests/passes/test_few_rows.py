"""Few rows beside the algorithm: seeds, steps and swaps without a pass, against plain NumPy."""

from typing import Any

import numpy as np
import pytest

from globular.passes.cpu import CpuShard
from globular.passes.cpu import few_rows as kernels
from globular.seam.center_passes import Found, Limits, SearchFew, SeedFew
from reference import assign as hard

from globular.algorithms.seeding.common import (  # isort: skip
    MOST_CLUSTERS, MOST_DISTANCES, MOST_NUMBERS, MOST_ROWS, SEED_DISTANCES, are_few, are_few_to_seed,
)  # fmt: skip

NO_END = Limits(
    max_steps=1, min_gain=0.0, total=np.inf, unexplained=0.0, unit=False, least_stake=1e-3, decay=0.9, reach=0.95,
    lead=5.0, least_ratio=0.4, worth=1e-5, max_failures=8, max_in_trials=300,
)  # fmt: skip


def stepped(rows: CpuShard, centers: Any, limits: Limits) -> Found:
    """Steps, without a trial."""
    return rows.run(SearchFew(centers, limits, np.empty((0, 1))))


def some_rows(N: int, D: int, *, weighted: bool = True) -> tuple[Any, Any]:
    random = np.random.default_rng(N + D)
    x = random.normal(size=(N, D)) * 3 + random.integers(0, 3, (N, 1)) * 9 + 100
    return x, random.integers(1, 5, N).astype(float) if weighted else np.ones(N)


def test_few_is_said_of_numbers_products_and_clusters() -> None:
    assert are_few(MOST_ROWS, 1, 2) and not are_few(MOST_ROWS + 1, 1, 2)
    assert are_few(MOST_NUMBERS // 64, 64, 2) and not are_few(MOST_NUMBERS // 64 + 1, 64, 2)
    assert are_few(MOST_DISTANCES // 64, 2, 64) and not are_few(MOST_DISTANCES // 64 + 1, 2, 64)
    assert are_few(500, 2, MOST_CLUSTERS) and not are_few(500, 2, MOST_CLUSTERS + 1)


def test_rows_are_few_to_seed_whatever_the_number_of_clusters() -> None:
    assert are_few_to_seed(MOST_ROWS, 1, 64) and not are_few_to_seed(MOST_ROWS + 1, 1, 64)
    assert are_few_to_seed(MOST_NUMBERS // 64, 64, 2) and not are_few_to_seed(MOST_NUMBERS // 64 + 1, 64, 2)
    n = SEED_DISTANCES // 512
    assert are_few_to_seed(n, 2, 512) and not are_few_to_seed(n + 1, 2, 512) and not are_few(n, 2, 512)


@pytest.mark.parametrize(("N", "D", "C"), [(1, 1, 1), (7, 3, 2), (300, 4, 3), (1000, 2, 9), (513, 17, 40), (90, 64, 5)])
def test_one_step_is_a_lloyd_step(N: int, D: int, C: int) -> None:
    x, weights = some_rows(N, D)
    centers = x[:: max(1, N // C)][:C].copy() + 0.01
    found = stepped(CpuShard(x, weights), centers, NO_END)
    squared = hard.squared_distances(x, centers)
    labels = squared.argmin(axis=1)
    assert found.objective == pytest.approx(weights @ squared.min(axis=1), rel=1e-9) and found.n_steps == 1
    for c in set(labels.tolist()):
        mean = np.average(x[labels == c], axis=0, weights=weights[labels == c])
        np.testing.assert_allclose(found.centers[c], mean, rtol=1e-9)


def test_a_cluster_without_rows_goes_to_the_farthest_row() -> None:
    x = np.array([[0.0], [1.0], [9.0], [2.0]])
    found = stepped(CpuShard(x), np.array([[1.0], [50.0]]), NO_END)
    np.testing.assert_allclose(found.centers, [[3.0], [9.0]])


@pytest.mark.parametrize("unit", [False, True])
def test_objectives_never_rise(unit: bool) -> None:
    x, weights = some_rows(500, 6)
    if unit:
        x = x / np.linalg.norm(x, axis=1, keepdims=True)
    rows, centers = CpuShard(x, weights), x[:12].copy()
    objectives = [stepped(rows, centers, NO_END._replace(max_steps=n, unit=unit)).objective for n in range(1, 25)]
    assert np.all(np.diff(objectives) <= 1e-9 * objectives[0]) and objectives[-1] < 0.9 * objectives[0]
    ended = stepped(rows, centers, NO_END._replace(max_steps=24, unit=unit)).centers
    assert not unit or np.allclose(np.linalg.norm(ended, axis=1), 1.0)


def test_seeds_are_drawn_greedily_by_squared_distance() -> None:
    x, weights = some_rows(300, 3)
    draws = np.random.default_rng(1).random((8, 3))
    found = CpuShard(x, weights).run(SeedFew(draws))
    squared, chosen = np.ones(300), list[int]()
    for line in draws:
        running = np.cumsum(weights * squared)
        trials = np.searchsorted(running, line[: 3 if chosen else 1] * running[-1], side="right")
        lower = [np.minimum(squared if chosen else np.inf, ((x - x[row]) ** 2).sum(axis=1)) for row in trials]
        best = int(np.argmin([weights @ each for each in lower]))
        chosen.append(int(trials[best]))
        squared = lower[best]
    assert found.indices.tolist() == chosen and found.potential == pytest.approx(weights @ squared)


def test_seeds_are_fewer_where_rows_are_repeated() -> None:
    x = np.repeat(np.arange(3.0)[:, None], 20, axis=0)
    found = CpuShard(x).run(SeedFew(np.random.default_rng(0).random((5, 2))))
    assert sorted(x[found.indices, 0].tolist()) == [0.0, 1.0, 2.0] and found.potential == 0.0


def test_what_a_place_gains_and_what_centres_are_worth_beside_it() -> None:
    x, weights = some_rows(200, 4)
    desk = kernels.few_of(CpuShard(x, weights), 5, False)
    x, centers = desk.x, desk.centers
    centers[:] = x[:5]
    kernels.two_closest_of_all(desk)
    place = x[77] + 0.5
    desk.place[0] = place
    gain = kernels.weigh_place(desk)
    error = weights @ hard.squared_distances(x, centers).min(axis=1)
    both = hard.squared_distances(x, np.vstack([centers, place]))
    assert gain == pytest.approx(error - weights @ both.min(axis=1))
    for c in range(5):
        without = np.delete(both, c, axis=1).min(axis=1)
        assert desk.losses[c] == pytest.approx(weights @ without - weights @ both.min(axis=1), abs=1e-6)
    won = both.argmin(axis=1) == 5
    np.testing.assert_allclose(desk.place[0], np.average(x[won], axis=0, weights=weights[won]), rtol=1e-9)


def test_swaps_carry_a_centre_across_a_gap() -> None:
    random = np.random.default_rng(0)
    middles = random.normal(size=(10, 2)) * 100
    x = np.repeat(middles, 30, axis=0) + random.normal(size=(300, 2))
    start = np.vstack([x[:3], middles[2:9]])  # three centres in the first group, none in the second and in the last
    rows, limits = CpuShard(x), NO_END._replace(max_steps=5, min_gain=1e-5)
    stuck = stepped(rows, start, limits._replace(max_steps=100)).objective
    found = rows.run(SearchFew(start, limits, random.random((60, 4))))
    ideal = 300 * 2.0
    assert found.objective < 1.2 * ideal < 0.1 * stuck and found.n_failures >= 8
    assert found.objective >= (hard.squared_distances(x, found.centers).min(axis=1)).sum() * (1 - 1e-9)
