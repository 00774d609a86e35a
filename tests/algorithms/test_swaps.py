"""Swaps repair what seeds got wrong on data that fall into groups, and do no harm to others."""

from dataclasses import replace
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import pytest

from globular import KMeans, datasets
from globular.algorithms.kmeans import swaps
from globular.algorithms.kmeans.cells import draw_cells, label_by_cells
from globular.algorithms.kmeans.probing import ProbingOptions
from globular.algorithms.kmeans.swaps import swap_and_step, swap_seeds
from globular.algorithms.steps import Step, last_step, result_of
from globular.model.history import ITERATIONS, SWAPS
from globular.passes.cpu import CpuShard
from globular.seam.among import Probe
from globular.seam.passes import Assign
from reference import assign as hard
from split import SplitShard

ALL_SWAPS = ProbingOptions(min_gain=0.0)


def seeded(shard: Any, n_clusters: int, seed: int = 0) -> Any:
    random = np.random.default_rng(seed)
    centers = shard.take(np.sort(random.choice(shard.n_rows, n_clusters, replace=False)))
    label_by_cells(shard, centers, draw_cells(shard, centers, random))
    return centers, random


def test_every_group_of_a_grid_gets_its_center() -> None:
    grid = datasets.birch_grid(15, 40, random_state=0)
    shard = CpuShard(grid.X)
    centers, random = seeded(shard, 225)
    before = hard.squared_distances(grid.X, centers).min(axis=1).mean()
    swapped = result_of(swap_seeds(shard, centers, ALL_SWAPS, random))
    after = hard.squared_distances(grid.X, swapped.centers).min(axis=1).mean()
    assert swapped.n_swaps > 10 and after < 0.5 * before
    model = KMeans(225, algorithm="probing", random_state=0).fit(grid.X)
    assert model.inertia_ / len(grid.X) < 2.15  # the true centres leave 2


def test_labels_go_with_the_centers() -> None:
    grid = datasets.birch_grid(10, 30, random_state=1)
    shard = CpuShard(grid.X)
    centers, random = seeded(shard, 100)
    swapped = result_of(swap_seeds(shard, centers, ALL_SWAPS, random))
    assert swapped.centers.shape == (100, 2) and np.isfinite(swapped.centers).all()
    assert shard.labels.min() >= 0 and shard.labels.max() < 100


def test_rounds_that_look_at_all_centers_need_no_labels() -> None:
    grid = datasets.birch_grid(15, 40, random_state=0)
    before = hard.squared_distances(grid.X, grid.X[:225]).min(axis=1).mean()
    ends = []
    for labels in (0, np.arange(len(grid.X)) % 225):  # none of which is right
        shard = CpuShard(grid.X)
        shard.labels[:] = labels
        exactly = replace(ALL_SWAPS, swap_probes=0)
        swapped = result_of(swap_seeds(shard, grid.X[:225], exactly, np.random.default_rng(0)))
        ends.append(swapped.centers)
    np.testing.assert_array_equal(*ends)
    after = hard.squared_distances(grid.X, swapped.centers).min(axis=1).mean()
    assert swapped.n_swaps > 10 and after < 0.5 * before


def test_they_do_no_harm_where_there_are_no_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    X = np.random.default_rng(0).normal(size=(4000, 20))
    swapped = KMeans(100, algorithm="probing", init="hierarchical", random_state=0).fit(X)
    monkeypatch.setattr("globular.algorithms.kmeans.swaps.COST_SAFETY", np.inf)
    plain = KMeans(100, algorithm="probing", init="hierarchical", random_state=0).fit(X)
    assert swapped.inertia_ < 1.003 * plain.inertia_


def test_few_clusters_and_constant_data() -> None:
    for X, C in ((np.zeros((50, 2)), 5), (np.random.default_rng(0).normal(size=(30, 2)), 2)):
        shard = CpuShard(X)
        centers, random = seeded(shard, C)
        assert result_of(swap_seeds(shard, centers, ALL_SWAPS, random)).n_swaps == 0


def test_threads_and_splits_change_nothing() -> None:
    X = datasets.birch_grid(12, 50, random_state=2).X
    parts = [CpuShard(X[a:b], first_row=a) for a, b in ((0, 3000), (3000, 3007), (3007, len(X)))]
    results = []
    for shard in (CpuShard(X), CpuShard(X, n_threads=2), SplitShard(parts)):
        centers, random = seeded(shard, 144)
        results.append((result_of(swap_seeds(shard, centers, ALL_SWAPS, random)), shard.labels.copy()))
    for swapped, labels in results[1:]:
        np.testing.assert_allclose(swapped.centers, results[0][0].centers, rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(labels, results[0][1])
        assert swapped.n_swaps == results[0][0].n_swaps


def test_every_round_is_a_step_and_iterations_go_on_from_there() -> None:
    X = datasets.birch_grid(12, 50, random_state=2).X
    one, two = CpuShard(X), CpuShard(X)
    options = ProbingOptions(min_gain=0.005)
    centers, random = seeded(one, 144)
    swapped = result_of(swap_seeds(one, centers, options, random))
    centers, random = seeded(two, 144)
    steps = []
    for step in swap_and_step(two, centers, options, random):
        steps.append(step)
        # what is yielded stays as it was, and its objective is no lower than what it has
        assert hard.squared_distances(X, step.model).min(axis=1).sum() <= step.objective * (1 + 1e-12)
    assert [step.iteration for step in steps] == list(range(1, len(steps) + 1))
    assert [step.stage for step in steps[: swapped.n_rounds]] == [SWAPS] * swapped.n_rounds
    first, *others = steps[swapped.n_rounds :]
    assert {step.stage for step in (first, *others)} == {ITERATIONS}
    assert first.objective <= swapped.objective * (1 + 1e-12) and first.n_distances > swapped.n_distances
    last = last_step(iter(steps))
    assert last.model is steps[-1].model and last.n_distances == sum(step.n_distances for step in steps)
    assert last.stopped and not any(step.stopped for step in steps[:-1])


@pytest.mark.parametrize("max_iter", [1, 3, 1000])
def test_swaps_and_iterations_together_are_no_more_than_max_iter(max_iter: int) -> None:
    shard = CpuShard(datasets.birch_grid(12, 50, random_state=2).X)
    centers, random = seeded(shard, 144)
    steps = list(swap_and_step(shard, centers, ProbingOptions(max_iter=max_iter, min_gain=0.005), random))
    assert len(steps) == max_iter or (len(steps) < max_iter and steps[-1].stage == ITERATIONS)
    assert (steps[-1].stopped == "max_iter") == (len(steps) == max_iter)


def test_a_given_start_is_not_swapped() -> None:
    X = datasets.birch_grid(10, 30, random_state=3).X
    start = X[:100]
    model = KMeans(100, algorithm="probing", init=start, random_state=0)
    first = next(iter(model.fit_iter(X)))
    assert first.objective <= hard.squared_distances(X, start).min(axis=1).sum() * 1.05
    assert first.objective >= hard.squared_distances(X, start).min(axis=1).sum() * (1 - 1e-9)


def separate_groups(n_groups: int, n_columns: int, rows_each: int, seed: int = 0) -> Any:
    random = np.random.default_rng(seed)
    middles = 30 / np.sqrt(n_columns) * random.normal(size=(n_groups, n_columns))
    return np.repeat(middles, rows_each, axis=0) + random.normal(size=(n_groups * rows_each, n_columns))


@pytest.mark.parametrize("seed", range(3))
def test_every_one_of_many_separate_groups_gets_a_center_of_its_own(seed: int) -> None:
    X = separate_groups(600, 24, 20)
    model = KMeans(600, random_state=seed).fit(X)
    assert model.init_ == "hierarchical"
    assert [len(set(labels)) for labels in model.labels_.reshape(600, 20)] == [1] * 600


def test_what_a_split_gains_is_what_it_lowers_the_objective_by() -> None:
    X = separate_groups(8, 3, 30)
    shard = CpuShard(X)
    shard.labels[:] = np.repeat([0, 0, 1, 2, 3, 4, 5, 5], 30)
    for _ in range(20):  # to where Lloyd ends: some clusters are two groups
        labels = shard.labels.copy()
        centers = np.array([X[labels == c].mean(axis=0) for c in range(6)])
        statistics = shard.run(Assign(centers, Probe(draw_cells(shard, centers, np.random.default_rng(0)), 6)))
    np.testing.assert_array_equal(shard.labels, labels)
    splits = swaps._try_splits(shard, centers, statistics, np.random.default_rng(1))
    parts = shard.labels

    def error(named: Any) -> float:
        return sum(((X[named == c] - X[named == c].mean(axis=0)) ** 2).sum() for c in np.unique(named))

    gains = []
    for k, gain in enumerate(splits.gains):
        split = np.where(parts == 6 + k, 6 + k, labels)
        assert gain == pytest.approx(error(labels) - error(split), rel=1e-9, abs=1e-9)
        gains.append(gain / error(labels))
    assert max(gains) > 0.2


@pytest.mark.parametrize("max_iter", [1, 2, 3, 5, 60])
def test_iterations_may_come_before_swaps(max_iter: int, watch: Any) -> None:
    grid = datasets.birch_grid(15, 40, random_state=0)
    shard = CpuShard(grid.X)
    centers, random = seeded(shard, 225)
    options = ProbingOptions(4, max_iter, 1e-3, swap_probes=4, swap_gain=5e-3, settles=True)
    steps: list[Step[Any]] = []
    begun = watch(swaps, "swap_seeds", lambda *_, **__: len(steps))
    for step in swap_and_step(shard, centers, options, random):
        steps.append(step)
    assert [step.iteration for step in steps] == list(range(1, len(steps) + 1)) and len(steps) <= max_iter
    assert all((step.stopped != "") == (step is steps[-1]) for step in steps)
    gains = [1 - after.objective / before.objective for before, after in pairwise(steps)]
    n_before = begun[0] if begun else len(steps)
    assert n_before >= min(2, max_iter) and all(gain >= swaps.SETTLED_GAIN for gain in gains[: n_before - 2])
    if max_iter == 60:
        assert [stage for stage, _ in groupby(step.stage for step in steps)] == [SWAPS, ITERATIONS]
        assert gains[-1] < 1e-3


def test_swaps_after_iterations_are_left_out_where_nothing_is_left_to_gain() -> None:
    shard = CpuShard(np.repeat(np.arange(6.0)[:, None], 5, axis=0))
    steps = list(
        swap_and_step(
            shard, np.arange(6.0)[:, None], ProbingOptions(settles=True), np.random.default_rng(0), labelled=False
        )
    )
    assert [step.objective for step in steps] == [0.0] and steps[0].stopped
