"""Swaps that are tried out: never a worse error, mostly that of the best of many starts, and exact at the end."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

from globular import KMeans, datasets
from globular.algorithms.kmeans import coreset, pipeline, trials
from globular.algorithms.kmeans.coreset import draw_parts
from globular.algorithms.kmeans.probing import ProbingOptions, probing_kmeans
from globular.algorithms.kmeans.trials import TrialOptions, search_by_trials
from globular.algorithms.steps import last_step, result_of
from globular.model.history import ITERATIONS, PART, SWAPS
from globular.passes.cpu import CpuShard
from reference import assign as hard
from split import SplitShard

EXACTLY = ProbingOptions(n_probes=0, min_gain=1e-4)


def groups(n: int = 3000, k: int = 30, d: int = 3, seed: int = 0) -> Any:
    random = np.random.default_rng(seed)
    return 6.0 * random.normal(size=(k, d))[np.arange(n) % k] + random.normal(size=(n, d))


def searched(shard: Any, k: int, seed: int = 0, options: ProbingOptions = EXACTLY) -> Any:
    random = np.random.default_rng(seed)
    centers = shard.take(np.sort(random.choice(shard.n_rows, k, replace=False)))
    return list(search_by_trials(shard, centers, options, TrialOptions(), random))


def test_groups_that_share_a_center_get_their_own() -> None:
    X = groups()
    steps = searched(CpuShard(X), 30)
    plain = KMeans(30, algorithm="lloyd", init=X[:30][::-1]).fit(X)
    assert steps[-1].objective < 1.01 * KMeans(30, n_init=20, algorithm="lloyd", random_state=0).fit(X).inertia_
    assert steps[-1].objective <= plain.inertia_
    assert {step.stage for step in steps} == {SWAPS, ITERATIONS}


@pytest.mark.parametrize("swaps_first", [False, True], ids=["trials", "swaps of many before trials"])
@pytest.mark.parametrize("form", ["dense", "float32", "csr", "weights", "split"])
def test_the_objective_never_rises_and_belongs_to_the_centers(form, swaps_first, monkeypatch):
    X, weights = groups(n=600, k=40), np.random.default_rng(1).uniform(0.0, 2.0, 600) if form == "weights" else None
    shard: Any = CpuShard(sparse.csr_array(X) if form == "csr" else X.astype("f4") if form == "float32" else X, weights)
    if form == "split":
        shard = SplitShard([CpuShard(X[:200]), CpuShard(X[200:], first_row=200)])
    monkeypatch.setattr(trials, "SWAPPED_FROM", 32)
    random = np.random.default_rng(0)
    swapped = trials.swap_and_search(shard, X[:32], EXACTLY, TrialOptions(), random)
    steps = list(swapped) if swaps_first else searched(shard, 8)
    objectives = np.array([step.objective for step in steps])
    assert (np.diff(objectives) <= 1e-9 * objectives[0]).all()
    np.testing.assert_array_equal([step.iteration for step in steps], np.arange(1, len(steps) + 1))
    assert [bool(step.stopped) for step in steps] == [False] * (len(steps) - 1) + [True]
    w = np.ones(600) if weights is None else weights
    error = float(w @ hard.squared_distances(hard.as_seen(X), steps[-1].model).min(axis=1))
    assert error <= objectives[-1] * (1 + 1e-6)


def test_all_iterations_together_are_limited() -> None:
    for limit in (1, 3, 12):
        steps = searched(CpuShard(groups()), 30, options=replace(EXACTLY, max_iter=limit, min_gain=0.0))
        assert steps[-1].iteration <= limit and steps[-1].stopped == "max_iter"


@pytest.mark.parametrize("k", [1, 2, 3])
def test_very_few_clusters(k: int) -> None:
    X = groups(n=500, k=5)
    steps = searched(CpuShard(X), k)
    lowest = min(KMeans(k, algorithm="lloyd", random_state=seed).fit(X).inertia_ for seed in range(5))
    assert steps[-1].objective <= 1.02 * lowest
    assert (steps[0].stage == SWAPS) and len(steps[-1].model) == k


def test_equal_rows_leave_nothing_to_swap() -> None:
    X = np.repeat(np.arange(4.0)[:, None], 50, axis=0)
    assert last_step(iter(searched(CpuShard(X), 8))).objective == 0.0
    with pytest.warns(ConvergenceWarning):
        assert KMeans(6, random_state=0).fit(np.ones((200, 2)) * 3.0).inertia_ == 0.0


def test_several_swaps_that_fail_together_are_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    plain = trials._Prospects.best_swaps

    def watched(self: Any, at_most: int, in_vain: Any) -> Any:
        swaps = plain(self, at_most, in_vain)
        tried.append(len(swaps))
        return swaps

    monkeypatch.setattr(trials._Prospects, "best_swaps", watched)
    monkeypatch.setattr(trials, "WORTH_KEEPING", np.inf)  # every trial fails
    searched(CpuShard(groups()), 30)
    limit = TrialOptions().max_failures + TrialOptions().more_failures // 30
    assert tried[0] > 1 and tried.count(1) <= limit and sorted(tried, reverse=True) == [*tried[:-1], tried[-1]]


@pytest.mark.parametrize("n_rows", [2 * 4096 * 2 - 1, 2 * 4096 * 2])
def test_parts_begin_where_they_are_a_quarter_of_the_rows(n_rows: int) -> None:
    assert coreset.FEWEST_PART_ROWS[0] * coreset.TIMES_MORE_ROWS == 2 * 4096 * 2
    parts = draw_parts(CpuShard(np.random.default_rng(0).normal(size=(n_rows, 2))), 8, np.random.default_rng(0))
    assert len(parts) == (n_rows >= coreset.FEWEST_PART_ROWS[0] * coreset.TIMES_MORE_ROWS)


@pytest.mark.parametrize("n_rows", [3 * 64 * 100 - 1, 3 * 64 * 100])
def test_parts_of_many_clusters_begin_where_they_are_a_third_of_the_rows(n_rows: int) -> None:
    assert (coreset.TIMES_MORE_FOR_TRIALS, coreset.LEAST_PER_CLUSTER) == (3, 64)
    parts = draw_parts(CpuShard(np.random.default_rng(0).normal(size=(n_rows, 2))), 100, np.random.default_rng(0))
    assert len(parts) == (n_rows >= 3 * 64 * 100)


@pytest.mark.parametrize(("n_columns", "n_rows"), [(16, 4096), (17, 17 * 256), (32, 8192), (40, 8192)])
def test_many_columns_ask_for_more_rows(n_columns: int, n_rows: int) -> None:
    X = np.random.default_rng(0).normal(size=(33_000, n_columns))
    (part,) = draw_parts(CpuShard(X), 8, np.random.default_rng(0))
    assert 0.9 * n_rows < part.n_rows <= n_rows


@pytest.mark.parametrize(("n_rows", "n_parts"), [(2 * 4096 * 8 - 8, 1), (2 * 4096 * 8 + 400, 2)])
def test_a_second_part_has_twice_the_rows(n_rows: int, n_parts: int) -> None:
    assert (coreset.LEAST_GROWTH, coreset.LAST_SHARE) == (2, 8)
    parts = draw_parts(CpuShard(np.random.default_rng(0).normal(size=(n_rows, 2))), 8, np.random.default_rng(0))
    assert len(parts) == n_parts


def test_parts_grow_and_stand_for_all_rows() -> None:
    X = groups(n=300_000, k=20, d=2)
    parts = draw_parts(CpuShard(X), 8, np.random.default_rng(0))
    sizes = [part.n_rows for part in parts]
    assert len(sizes) == 1 + (sizes[-1] >= coreset.TIMES_MORE_ROWS * sizes[0]) and sizes == sorted(sizes)
    centers = X[:8]
    whole = float(hard.squared_distances(X[:60_000], centers).min(axis=1).sum()) * 5
    for part in parts:
        error = part.take(np.arange(part.n_rows), "weights") @ hard.squared_distances(
            part.take(np.arange(part.n_rows)), centers
        ).min(axis=1)
        assert error == pytest.approx(whole, rel=0.05) and part.total_weight == pytest.approx(len(X), rel=0.03)


def test_no_worse_than_the_best_of_ten_starts() -> None:
    grid = datasets.birch_grid(7, 700, random_state=0)
    found = [KMeans(49, random_state=seed).fit(grid.X) for seed in range(3)]
    ten = [KMeans(49, algorithm="lloyd", random_state=seed).fit(grid.X).inertia_ for seed in range(10)]
    for model in found:
        assert model.algorithm_ == "exact" and PART in {record.stage for record in model.history_}
        assert model.inertia_ <= 1.001 * min(ten)
        distances = hard.squared_distances(grid.X[:2000], model.cluster_centers_)
        np.testing.assert_array_equal(model.labels_[:2000], distances.argmin(axis=1))


@pytest.mark.parametrize(("n_columns", "is_few"), [(64, True), (96, False)])
def test_a_first_part_of_few_rows_is_searched_from_every_start(n_columns, is_few, monkeypatch, watch):
    """A part of about 4,096 rows is few rows up to 64 columns; well beyond, only the best start is searched."""
    monkeypatch.setattr(coreset, "FEWEST_PART_ROWS", (4096, 4096))
    monkeypatch.setattr(pipeline, "ENDS_ALIKE", 9)
    monkeypatch.setattr(pipeline, "enter_subspace", lambda *_args, **_kwargs: None)
    searches = watch(pipeline, "search_few_rows", lambda part, *_: part.n_rows)
    X = groups(n=16_400, k=12, d=n_columns).astype(np.float32)
    model = KMeans(8, random_state=0).fit(X)
    assert len(searches) == (8 if is_few else 0) and all(n <= 4096 for n in searches)
    assert PART in {record.stage for record in model.history_}


@pytest.mark.parametrize(("k", "n_starts"), [(2, 4), (3, 6), (4, 8), (16, 4), (64, 1)])
def test_the_fewer_clusters_the_more_starts(k: int, n_starts: int, watch: Any) -> None:
    asked = watch(pipeline, "_best_start", lambda *given: given[2])
    KMeans(k, random_state=0).fit(groups(n=40_000, k=12, d=2))
    assert asked == [n_starts]


@pytest.mark.parametrize(("alike", "n_searches"), [(1e-4, 3), (-1.0, 8)])
def test_starts_end_when_three_searches_end_alike(alike, n_searches, monkeypatch, watch):
    assert (pipeline.ENDS_ALIKE, pipeline.SAME_ERROR) == (3, 1e-4)
    monkeypatch.setattr(pipeline, "SAME_ERROR", alike)
    searches = watch(pipeline, "search_few_rows")
    KMeans(4, random_state=0).fit(groups(n=40_000, k=4, d=2))
    assert len(searches) == n_searches


def test_quality_has_a_meaning_and_tol_zero_ends_at_a_fixed_point() -> None:
    X = groups(n=20_000, k=60, d=4)
    fast, best = (KMeans(24, quality=quality, random_state=0).fit(X) for quality in ("fast", "best"))
    assert fast.n_distances_ < best.n_distances_ and best.inertia_ <= 1.0001 * fast.inertia_
    fixed = KMeans(24, tol=0, random_state=0, max_iter=1000).fit(X)
    means = np.array([X[fixed.labels_ == c].mean(axis=0) for c in range(24)])
    np.testing.assert_allclose(fixed.cluster_centers_, means, atol=1e-6)


def test_text_is_searched_as_far_as_it_can_be_explained() -> None:
    """Nearly all of the error of sparse unit rows remains: gains are measured by the rest."""
    random = np.random.default_rng(0)
    topics = random.dirichlet(np.full(400, 0.02), size=8)
    counts = np.array([random.multinomial(30, topics[i % 8]) for i in range(1500)], dtype=np.float32)
    X = sparse.csr_array(counts / np.linalg.norm(counts, axis=1, keepdims=True))
    ten = [KMeans(8, algorithm="lloyd", random_state=seed).fit(X).inertia_ for seed in range(10)]
    assert KMeans(8, random_state=0).fit(X).inertia_ <= 1.0005 * min(ten)


def test_centers_that_are_given_are_not_swapped() -> None:
    X = groups()
    given = KMeans(30, init=X[:30], algorithm="exact", random_state=0).fit(X)
    assert {record.stage for record in given.history_} == {ITERATIONS}
    assert KMeans(30, init=X[:30]).fit(X).algorithm_ == "lloyd"
    few, many = pipeline.PROBING_FROM - 1, pipeline.PROBING_FROM
    assert [KMeans(k, random_state=0).fit(X).algorithm_ for k in (few, many)] == ["exact", "probing"]


@pytest.mark.parametrize("quality", pipeline.QUALITIES)
def test_a_fit_ends_ever_earlier_between_few_and_many_clusters(quality: str) -> None:
    least, most = pipeline.FADING
    chosen = pipeline.QUALITIES[quality]
    few, many = chosen.least_gains
    gains = [chosen.least_gain(k) for k in (2, least, least + 1, 499, 500, most - 1, most, 10**6)]
    assert gains == sorted(gains)
    assert gains[:2] == [few, few] and few < gains[2] < 1.05 * few
    assert gains[4] < 1.02 * gains[3]  # where probing begins
    assert 0.98 * many < gains[5] < many and gains[6:] == pytest.approx([many, many])


def test_more_clusters_have_fewer_trials() -> None:
    X = np.random.default_rng(0).normal(size=(3000, 2))

    def n_steps(k: int, max_trials: int) -> int:
        options, rng = ProbingOptions(n_probes=0, min_gain=0.1), np.random.default_rng(0)
        tried = TrialOptions(max_failures=10**6, max_trials=max_trials)
        return sum(1 for _ in search_by_trials(CpuShard(X), X[:k].copy(), options, tried, rng))

    assert n_steps(trials.CLUSTERS_TRIED, 1) > n_steps(trials.CLUSTERS_TRIED, 0)
    assert n_steps(trials.CLUSTERS_TRIED + 1, 1) == n_steps(trials.CLUSTERS_TRIED + 1, 0)


@pytest.mark.parametrize(("growth", "share"), [(2, 1 / 3), (3, 2 / 3), (4, 1.0), (16, 1.0)])
def test_trials_are_left_to_a_next_part_that_is_hardly_larger(growth: int, share: float, watch: Any) -> None:
    assert pipeline.LEFT_TO_NEXT == (1.0, 4.0)
    asked = watch(pipeline, "search_by_trials", lambda shard, centers, options, tried, rng: tried.max_trials)
    X, rng = groups(n=200 * growth), np.random.default_rng(0)
    best = last_step(probing_kmeans(CpuShard(X), X[:30].copy(), EXACTLY, rng))
    parts: list[Any] = [CpuShard(X[:200]), CpuShard(X)]
    found = result_of(pipeline._search_parts(parts, best, EXACTLY, TrialOptions(), rng))
    assert asked == [round(share * TrialOptions().max_trials), TrialOptions().max_trials]
    assert parts == [] and found.stage == PART


@pytest.mark.parametrize(("k", "factor"), [(191, 1.0), (192, 1.0), (288, 1.5), (384, 2.0), (450, 2.0)])
def test_after_swaps_of_many_iterations_have_to_gain_more(k: int, factor: float, watch: Any) -> None:
    asked = watch(trials, "search_by_trials", lambda shard, centers, options, tried, rng: options.min_gain)
    X, rng = groups(n=1000, k=500), np.random.default_rng(0)
    last_step(trials.swap_and_search(CpuShard(X), X[:k].copy(), EXACTLY, TrialOptions(), rng))
    assert asked == pytest.approx([factor * EXACTLY.min_gain])


@pytest.mark.parametrize("limit", [1, 3, 6])
def test_swaps_and_trials_together_are_limited(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "SWAPPED_FROM", 30)
    X, options = groups(), replace(EXACTLY, max_iter=limit, min_gain=0.0)
    steps = list(trials.swap_and_search(CpuShard(X), X[:30], options, TrialOptions(), np.random.default_rng(0)))
    assert [step.iteration for step in steps] == list(range(1, limit + 1)) and steps[-1].stopped == "max_iter"


@pytest.mark.parametrize("k", [191, 192])
def test_labels_are_exact_on_either_side_of_swaps_of_many(k: int) -> None:
    assert trials.SWAPPED_FROM == 192
    X = groups(n=4000, k=300, d=4)
    model = KMeans(k, random_state=0).fit(X)
    squared = hard.squared_distances(X, model.cluster_centers_)
    assert model.label_recall_ == 1.0 and (squared.argmin(axis=1) == model.labels_).all()
    assert model.inertia_ == pytest.approx(squared.min(axis=1).sum(), rel=1e-9)
    assert (np.diff(model.history_.iterations.column("objective")) <= 1e-9 * model.inertia_).all()
