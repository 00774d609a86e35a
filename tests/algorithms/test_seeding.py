"""Seeding: what every method promises, the distributions they draw from, and the public face."""

import sys
from collections.abc import Callable
from importlib import import_module
from itertools import pairwise as successive
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse, stats

from globular import KMeans, seeding
from globular.algorithms import seeding as methods
from globular.algorithms.seeding.hierarchical import level_sizes
from globular.algorithms.seeding.named import draw_seeds
from globular.algorithms.seeding.plus_plus import extend, plus_plus, plus_plus_of_few
from globular.algorithms.seeding.shares import apportion, hubness, reach
from globular.algorithms.steps import result_of
from globular.data.open import as_source
from globular.passes.cpu import CpuShard
from globular.passes.many import StreamShard
from globular.seam.passes import AddSeeds
from reference.assign import squared_distances
from split import SplitShard

Method = Callable[..., Any]


def greedy(X: Any, n_clusters: int, **options: Any) -> Any:
    return seeding.kmeans_plus_plus(X, n_clusters, n_local_trials="greedy", **options)


def hierarchical_centers(X: Any, n_clusters: int, **options: Any) -> Any:
    return seeding.hierarchical(X, n_clusters, **options).centers


ROW_METHODS: dict[str, Method] = {
    "random": seeding.random, "plain": seeding.kmeans_plus_plus, "greedy": greedy, "afk_mc2": seeding.afk_mc2,
    "parallel": seeding.kmeans_parallel,
}  # fmt: skip
METHODS: dict[str, Method] = ROW_METHODS | {"hierarchical": hierarchical_centers}


def blobs(n: int = 3000, n_blobs: int = 60, seed: int = 0) -> np.ndarray:
    """Well separated groups of very uneven size; a third of the entries are zero."""
    rng = np.random.default_rng(seed)
    middles = rng.normal(scale=20.0, size=(n_blobs, 6))
    middles[:, ::3] = 0.0
    chance = rng.exponential(size=n_blobs) ** 2
    rows = middles[rng.choice(n_blobs, n, p=chance / chance.sum())] + rng.normal(size=(n, 6))
    rows[:, ::3] = 0.0
    return rows


def potential(X: np.ndarray, centers: np.ndarray) -> float:
    return float(squared_distances(np.asarray(X, float), np.asarray(centers, float)).min(axis=1).sum())


def as_set(rows: np.ndarray) -> set[bytes]:
    return {row.tobytes() for row in np.ascontiguousarray(rows) + 0.0}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ROW_METHODS)
def test_seeds_are_distinct_rows_in_the_dtype_of_x(name: str, dtype: type) -> None:
    X = np.repeat(blobs(400).astype(dtype), 3, axis=0)
    centers = ROW_METHODS[name](X, 90, random_state=0)
    assert centers.shape == (90, 6) and centers.dtype == dtype
    assert len(as_set(centers)) == 90
    assert as_set(centers) <= as_set(X)


@pytest.mark.parametrize("name", METHODS)
def test_same_seed_same_centers_whatever_the_threads(name: str) -> None:
    X = blobs(9000).astype(np.float32)
    one = METHODS[name](X, 70, random_state=3, n_threads=1)
    two = METHODS[name](X, 70, random_state=3, n_threads=2)
    np.testing.assert_array_equal(one, two)
    assert not np.array_equal(one, METHODS[name](X, 70, random_state=4))


@pytest.mark.parametrize("layout", ["split", "stream"])
@pytest.mark.parametrize(
    "method", [methods.random, methods.plus_plus, methods.afk_mc2, methods.parallel, methods.hierarchical]
)
def test_ragged_shards_and_streamed_rows_change_nothing(method: Method, layout: str) -> None:
    X = blobs()
    weights = np.random.default_rng(1).random(len(X))
    parts: Any = StreamShard(as_source(X), weights, rows_per_part=777)
    if layout == "split":
        cuts = np.array([0, 1, 2, 700, 701, 1500, 2999, 3000])
        parts = SplitShard([CpuShard(X[a:b], weights[a:b]) for a, b in successive(cuts)])
    shards = CpuShard(X, weights), parts
    whole, found = (result_of(method(shard, 80, np.random.default_rng(0))) for shard in shards)
    if method is methods.hierarchical:
        np.testing.assert_array_equal(found.labels, whole.labels)
        np.testing.assert_array_equal(found.neighbors, whole.neighbors)
        np.testing.assert_allclose(found.centers, whole.centers, rtol=1e-12, atol=1e-12)
    else:
        np.testing.assert_array_equal(found, whole)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("name", METHODS)
def test_dense_equals_sparse(name: str, metric: str) -> None:
    X = blobs(1500)
    dense = METHODS[name](X, 60, random_state=0, metric=metric)
    np.testing.assert_allclose(
        METHODS[name](sparse.csr_matrix(X), 60, random_state=0, metric=metric), dense, rtol=1e-9, atol=1e-12
    )
    if metric == "cosine":
        np.testing.assert_allclose(np.linalg.norm(dense, axis=1), 1.0)


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float16])
@pytest.mark.parametrize("name", METHODS)
def test_other_dtypes_are_converted_without_loss(name: str, dtype: type) -> None:
    X = np.random.default_rng(0).integers(0, 100, size=(500, 4)).astype(dtype)
    centers = METHODS[name](X, 40, random_state=0)
    expected = METHODS[name](X.astype(centers.dtype), 40, random_state=0)
    np.testing.assert_array_equal(centers, expected)


@pytest.mark.parametrize("name", ["plain", "greedy", "afk_mc2", "parallel", "hierarchical"])
def test_weight_n_equals_n_copies(name: str) -> None:
    X = blobs(500)
    weights = np.random.default_rng(1).integers(0, 4, len(X))
    weighted = METHODS[name](X, 40, sample_weight=weights, random_state=0)
    copied = METHODS[name](np.repeat(X, weights, axis=0), 40, random_state=0)
    np.testing.assert_allclose(weighted, copied, rtol=1e-9)


def test_random_draws_by_weight() -> None:
    X, weights = np.arange(4.0)[:, None], np.array([1.0, 2.0, 0.0, 5.0])
    first = [seeding.random(X, 1, sample_weight=weights, random_state=seed)[0, 0] for seed in range(800)]
    counts = np.bincount(np.array(first, dtype=int), minlength=4)
    assert counts[2] == 0
    assert stats.chisquare(counts[[0, 1, 3]], 100 * weights[[0, 1, 3]]).pvalue > 1e-3


@pytest.mark.parametrize("name", METHODS)
def test_better_than_random_rows(name: str) -> None:
    X = blobs()
    by_chance = np.mean([potential(X, seeding.random(X, 60, random_state=seed)) for seed in range(5)])
    found = np.mean([potential(X, METHODS[name](X, 60, random_state=seed)) for seed in range(5)])
    if name == "random":
        assert found == by_chance
    else:
        assert found < 0.5 * by_chance


@pytest.mark.parametrize("name", METHODS)
def test_as_many_distinct_centers_as_there_are_distinct_rows(name: str) -> None:
    rng = np.random.default_rng(0)
    distinct = rng.normal(size=(30, 3))
    # nearly all rows are the same, so a sample or a chain may well miss the others
    X = np.concatenate([np.repeat(distinct[:1], 4000, axis=0), distinct[1:], distinct[1:]])
    X = X[rng.permutation(len(X))]
    for n_clusters in (30, 45):
        centers = METHODS[name](X, n_clusters, random_state=0)
        assert centers.shape == (n_clusters, 3)
        assert squared_distances(distinct, centers).min(axis=1).max() < 1e-25  # a mean of equal rows is rounded
        assert squared_distances(centers, distinct).min(axis=1).max() < 1e-25


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(
    "X",
    [np.ones((1, 2)), np.zeros((7, 3)), np.arange(40.0)[:, None], 1e8 + blobs(40)],
    ids=["one row", "constant", "n = k", "offset"],
)
def test_extreme_data(name: str, X: np.ndarray) -> None:
    centers = METHODS[name](X, len(X), random_state=0)
    assert as_set(centers) == as_set(X)


def enumerate_draws(X: np.ndarray, weights: np.ndarray, seeds: list[int], n_more: int) -> dict[tuple[int, ...], float]:
    """Probability of every sequence of k-means++ draws, by the definition."""
    if n_more == 0:
        return {(): 1.0}
    shares = weights * squared_distances(X, X[seeds]).min(axis=1)
    out = {}
    for i in np.flatnonzero(shares):
        for rest, chance in enumerate_draws(X, weights, [*seeds, int(i)], n_more - 1).items():
            out[int(i), *rest] = chance * shares[i] / shares.sum()
    return out


def agreement(drawn: list[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> float:
    """p-value of a chi-square test; outcomes expected fewer than five times are put together."""
    n = len(drawn)
    observed = dict.fromkeys(expected, 0)
    for outcome in drawn:
        observed[outcome] += 1
    common = [o for o in expected if n * expected[o] >= 5]
    counts = [observed[o] for o in common]
    chances = [n * expected[o] for o in common]
    counts.append(n - sum(counts))
    chances.append(n - sum(chances))
    return float(stats.chisquare(counts, chances).pvalue)


def test_batches_of_plus_plus_follow_d2_sampling_exactly() -> None:
    """Rejection inside a batch: the joint distribution of two draws after four seeds is that of the definition."""
    rng = np.random.default_rng(0)
    X, weights = rng.normal(size=(10, 2)), rng.integers(1, 4, 10).astype(float)
    shard = CpuShard(X, weights)
    drawn = []
    for _ in range(2500):
        start = shard.run(AddSeeds(X[:4]))
        rows = result_of(extend(shard, X[:4], 2, start.potential, rng))[4:]
        drawn.append(tuple(int(np.flatnonzero((row == X).all(axis=1))[0]) for row in rows))
    expected = enumerate_draws(X, weights, [0, 1, 2, 3], 2)
    assert agreement(drawn, expected) > 1e-3
    independent = dict.fromkeys(product(range(4, 10), repeat=2), 0.0)
    shares = weights * squared_distances(X, X[:4]).min(axis=1)
    for i, j in independent:
        independent[i, j] = shares[i] * shares[j] / shares.sum() ** 2
    assert agreement(drawn, independent) < 1e-6  # the test can tell the difference


def test_afk_mc2_approaches_d2_sampling_as_the_chain_grows() -> None:
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(size=(6, 2)), [[9.0, 0.0], [0.0, 7.0]]])
    weights = np.array([1.0, 2.0, 1.0, 3.0, 1.0, 1.0, 1.0, 2.0])
    expected: dict[tuple[int, ...], float] = {}
    for first in range(8):
        for rest, chance in enumerate_draws(X, weights, [first], 2).items():
            expected[rest[-1:]] = expected.get(rest[-1:], 0.0) + chance * weights[first] / weights.sum()
    shard = CpuShard(X, weights)

    def third_seeds(chain_length: int) -> list[tuple[int, ...]]:
        generator = np.random.default_rng(1)
        seeds = [result_of(methods.afk_mc2(shard, 3, generator, chain_length))[2] for _ in range(2000)]
        return [tuple(np.flatnonzero((seed == X).all(axis=1))) for seed in seeds]

    short, long = third_seeds(2), third_seeds(60)
    assert agreement(short, expected) < 1e-6
    assert agreement(long, expected) > 1e-3


def test_parallel_gives_k_centers_even_from_too_few_candidates() -> None:
    X = blobs(300)
    centers = seeding.kmeans_parallel(X, 50, n_rounds=1, oversampling=0.1, random_state=0)
    assert len(as_set(centers)) == 50


def test_more_local_trials_lower_the_potential() -> None:
    X = blobs()
    plain, tried = (
        np.mean(
            [
                potential(X, seeding.kmeans_plus_plus(X, 60, n_local_trials=trials, random_state=seed))
                for seed in range(4)
            ]
        )
        for trials in (None, 8)
    )
    assert tried < plain


@pytest.mark.parametrize("three_levels", [False, True])
def test_hierarchical_record(three_levels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if three_levels:
        module = sys.modules["globular.algorithms.seeding.hierarchical"]  # the function of that name hides it
        monkeypatch.setattr(module, "THREE_LEVELS_FROM", 100)
        assert len(level_sizes(200)) == 3
    X = blobs(8000, n_blobs=150)
    seeds = seeding.hierarchical(X, 200, n_neighbors=7, random_state=0)
    assert np.array_equal(np.unique(seeds.labels), np.arange(200))  # no centre is without rows
    assert seeds.neighbors.shape == (200, 7) and seeds.neighbors.dtype == np.int32
    np.testing.assert_array_equal(seeds.neighbors[:, 0], np.arange(200))
    between = squared_distances(seeds.centers, seeds.centers)
    own = np.take_along_axis(between, seeds.neighbors, axis=1)
    assert (np.diff(own, axis=1) >= -1e-9).all()
    assert all(len(set(row)) == 7 for row in seeds.neighbors.tolist())
    exact = np.sort(between, axis=1)[:, :7]
    assert np.isclose(own, exact).mean() > 0.8
    distances = squared_distances(X, seeds.centers)
    assert (distances.argmin(axis=1) == seeds.labels).mean() > 0.8
    assert distances[np.arange(8000), seeds.labels].sum() < 1.3 * distances.min(axis=1).sum()


def test_hierarchical_leaves_no_remote_group_without_a_center() -> None:
    rng = np.random.default_rng(0)
    remote = rng.normal(scale=1000.0, size=(25, 3))
    X = np.concatenate([rng.normal(size=(20_000, 3)), np.repeat(remote, 4, axis=0) + rng.normal(size=(100, 3))])
    seeds = seeding.hierarchical(X, 100, random_state=0)
    assert squared_distances(remote, seeds.centers).min(axis=1).max() < 50.0


def test_hierarchical_gives_all_neighbors_there_are() -> None:
    seeds = seeding.hierarchical(blobs(500), 5, n_neighbors=16, random_state=0)
    assert (np.sort(seeds.neighbors, axis=1) == np.arange(5)).all()


def test_hierarchical_seeds_of_many_columns_share_the_rows() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 200)) * rng.lognormal(0.0, 0.2, size=(4000, 1))
    sizes = np.bincount(seeding.hierarchical(X, 200, random_state=0).labels, minlength=200)
    # rows as seeds: the few that lie near the middle would have hundreds of rows each, and most others only themselves
    assert sizes.max() < 150
    assert np.median(sizes) >= 10


@pytest.mark.parametrize("unit", [False, True])
def test_hierarchical_seeds_of_separate_groups_are_not_drawn_in(unit: bool) -> None:
    rng = np.random.default_rng(0)
    groups = 100.0 * rng.normal(size=(30, 64))
    X = np.repeat(groups, 20, axis=0) + rng.normal(size=(600, 64))
    if unit:
        X /= np.linalg.norm(X, axis=1, keepdims=True)
    found = result_of(methods.hierarchical(CpuShard(X), 30, np.random.default_rng(0), unit_centers=unit))
    errors = ((X - found.centers[found.labels]) ** 2).sum(axis=1)
    assert np.mean(errors < 0.1 * np.median((X**2).sum(axis=1))) > 0.6  # so many groups have a centre of their own
    if unit:
        assert np.linalg.norm(found.centers, axis=1) == pytest.approx(np.ones(30))


def test_hubness_counts_pairs_of_rows() -> None:
    labels = np.random.default_rng(0).integers(0, 7, 50) ** 2 // 7
    sizes = np.bincount(labels, minlength=8)
    pairs = [labels[i] == labels[j] for i in range(50) for j in range(50) if i != j]
    assert hubness(sizes) == pytest.approx(8 * np.mean(pairs))
    assert hubness(np.array([1, 0, 0])) == hubness(np.zeros(3, dtype=np.int64)) == 0.0


@pytest.mark.parametrize("times", [0.99, 1.01])
def test_seeds_may_be_drawn_in_from_a_hubness_on(times: float, monkeypatch: pytest.MonkeyPatch, watch: Any) -> None:
    module = import_module("globular.algorithms.seeding.shares")
    asked = watch(module, "reach")
    monkeypatch.setattr(module, "hubness", lambda sizes: times * module.HUBS)
    X = np.random.default_rng(0).normal(size=(2000, 50))
    result_of(methods.hierarchical(CpuShard(X), 12, np.random.default_rng(0)))
    assert bool(asked) == (times > 1)


def test_automatic_seeds_are_drawn_in_where_rows_are_hubs() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 200)) * rng.lognormal(0.0, 0.4, size=(4000, 1))
    as_rows, automatic = (
        KMeans(100, algorithm="lloyd", init=init, random_state=0).fit(X) for init in ("plain k-means++", "auto")
    )
    assert automatic.inertia_ < 0.99 * as_rows.inertia_
    assert np.bincount(automatic.labels_).max() < np.bincount(as_rows.labels_).max()


def test_automatic_seeds_of_separate_groups_are_rows() -> None:
    rng = np.random.default_rng(0)
    X = np.repeat(100.0 * rng.normal(size=(100, 200)), 40, axis=0) + rng.normal(size=(4000, 200))
    start = result_of(draw_seeds(CpuShard(X), "auto", 100, np.random.default_rng(0)))
    assert start.labelled and squared_distances(start.centers, X).min(axis=1).max() == 0.0


@pytest.mark.parametrize("n_columns", [100, 101])
def test_automatic_seeds_of_very_many_columns_are_rows(n_columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("globular.algorithms.seeding.named"), "JUDGED_NUMBERS", 90 * 100)
    X = np.random.default_rng(0).normal(size=(30_000, n_columns))
    X *= np.random.default_rng(1).lognormal(0.0, 0.4, size=(30_000, 1))
    start = result_of(draw_seeds(CpuShard(X), "auto", 90, np.random.default_rng(0)))
    assert start.labelled == (n_columns == 101)


@pytest.mark.parametrize("dimension", [1.0, 2.0, 50.0, 1000.0])
def test_reach_is_that_of_what_centers_explain(dimension: float) -> None:
    quotas = np.array([1, 2, 10, 10_000])
    found = reach(quotas, dimension)
    assert found[0] == 0.0  # a single centre is the mean
    assert (np.diff(found) > 0).all() and (found <= 1.0).all()
    assert 1.0 - found**2 == pytest.approx(quotas ** (-2.0 / dimension), abs=1e-12)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1e12), st.integers(1, 50)), min_size=1, max_size=30), st.floats(0, 1))
def test_apportion(cells: list[tuple[float, int]], fraction: float) -> None:
    shares = np.array([share for share, _ in cells])
    capacities = np.array([capacity for _, capacity in cells], dtype=float)
    total = len(cells) + int(fraction * (capacities.sum() - len(cells)))
    quotas = apportion(shares, total, capacities)
    assert ((quotas >= 1) & (quotas <= capacities)).all()
    assert quotas.sum() <= total
    if (shares > 1e-3).all():
        assert quotas.sum() == total
        free = (quotas > 1) & (quotas < capacities)
        if free.sum() > 1:  # in proportion, up to rounding
            factors = np.outer(quotas[free], shares[free])
            slack = shares[free][:, None] + shares[free][None, :]
            assert (np.abs(factors - factors.T) <= 1.001 * slack).all()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"n_clusters": 0}, "n_clusters"), ({"n_clusters": 2.5}, "n_clusters"), ({"n_clusters": 31}, "n_clusters"),
        ({"metric": "manhattan"}, "metric"), ({"sample_weight": -np.ones(30)}, "sample_weight"),
        ({"sample_weight": np.ones(3)}, "sample_weight"), ({"sample_weight": np.zeros(30)}, "sample_weight"),
        ({"n_threads": 0}, "n_threads"), ({"random_state": "seven"}, "seed"), ({"X": np.full((30, 2), np.nan)}, "NaN"),
        ({"X": np.ones(30)}, "2D"), ({"X": np.full((30, 2), "text")}, "convert"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", METHODS)
def test_bad_input_is_named(name: str, options: dict[str, Any], word: str) -> None:
    arguments: dict[str, Any] = {"X": np.random.default_rng(0).normal(size=(30, 2)), "n_clusters": 3} | options
    with pytest.raises((ValueError, TypeError), match=word):
        METHODS[name](arguments.pop("X"), arguments.pop("n_clusters"), **arguments)


@pytest.mark.parametrize(
    ("method", "option", "value"),
    [
        (seeding.kmeans_plus_plus, "n_local_trials", 0), (seeding.kmeans_plus_plus, "n_local_trials", "many"),
        (seeding.afk_mc2, "chain_length", 0), (seeding.kmeans_parallel, "n_rounds", 0),
        (seeding.kmeans_parallel, "oversampling", 0.0), (seeding.kmeans_parallel, "oversampling", np.inf),
        (seeding.hierarchical, "n_neighbors", 0),
    ],
)  # fmt: skip
def test_bad_options_are_named(method: Method, option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=option):
        method(np.eye(4), 2, **{option: value})


def test_random_state_of_every_kind() -> None:
    X = blobs(200)
    by_number = seeding.random(X, 5, random_state=7)
    by_state = seeding.random(X, 5, random_state=np.random.RandomState(7))
    np.testing.assert_array_equal(by_number, by_state)
    generators = [np.random.default_rng(7), np.random.default_rng(7)]
    np.testing.assert_array_equal(*(seeding.random(X, 5, random_state=g) for g in generators))


@pytest.mark.parametrize("method", [methods.plus_plus, methods.afk_mc2, methods.parallel, methods.hierarchical])
@pytest.mark.parametrize("n_clusters", [1, 30, 300])
def test_seeds_are_shown_as_they_come_with_what_they_leave(method: Method, n_clusters: int) -> None:
    X = blobs()
    steps = list(method(CpuShard(X), n_clusters, np.random.default_rng(0)))
    assert {step.stage for step in steps} == {"seeds"} and {step.iteration for step in steps} == {0}
    sizes = [len(step.model) for step in steps]
    assert sizes == sorted(sizes) and sizes[0] >= 1 and sizes[-1] <= n_clusters
    for step in steps:
        assert potential(X, step.model) <= step.objective * (1 + 1e-9)
    if method is methods.plus_plus:
        assert sizes[-1] == n_clusters and potential(X, steps[-1].model) == pytest.approx(steps[-1].objective)


@pytest.mark.parametrize("unit", [False, True])
def test_a_tree_first_shows_the_mean_of_all_rows(unit: bool) -> None:
    """Before a row has gone down it, so that a fit that has no time for a tree can end there."""
    X = np.random.default_rng(0).normal(size=(400, 5)) + 2
    X /= np.linalg.norm(X, axis=1, keepdims=True) if unit else 1.0
    shard = CpuShard(X)
    first = next(methods.hierarchical(shard, 80, np.random.default_rng(0), unit_centers=unit))
    mean = X.mean(axis=0) / (np.linalg.norm(X.mean(axis=0)) if unit else 1.0)
    np.testing.assert_allclose(first.model, [mean], rtol=1e-12)
    assert first.objective == pytest.approx(potential(X, first.model)) and first.stage == "seeds"


@pytest.mark.parametrize("weighted", [False, True])
def test_few_rows_have_the_same_greedy_seeds_without_a_pass(weighted: bool) -> None:
    X = np.random.default_rng(0).normal(size=(700, 5)) + 30
    weights = np.random.default_rng(1).integers(1, 6, 700).astype(float) if weighted else None
    shard = CpuShard(X, weights)
    by_passes = result_of(plus_plus(shard, 12, np.random.default_rng(2), 4))
    at_once = result_of(plus_plus_of_few(shard, 12, np.random.default_rng(2)))
    np.testing.assert_array_equal(at_once, by_passes)
    for n_clusters in (12, 150):
        start = result_of(draw_seeds(shard, "k-means++", n_clusters, np.random.default_rng(2)))
        assert shard.few is not None and not start.labelled and start.name == "k-means++"


def test_many_rows_are_seeded_by_passes() -> None:
    shard = CpuShard(np.random.default_rng(0).normal(size=(40_000, 7)))
    start = result_of(draw_seeds(shard, "k-means++", 3, np.random.default_rng(0)))
    assert shard.few is None and start.labelled
