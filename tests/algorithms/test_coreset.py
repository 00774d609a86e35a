"""K-means on a part first: the part stands for all rows, and a fit that begins with it ends no worse."""

import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from globular import KMeans, datasets
from globular.algorithms.kmeans import coreset
from globular.algorithms.kmeans.coreset import draw_part, draw_parts, swap_and_step_from_part
from globular.algorithms.kmeans.probing import ProbingOptions
from globular.algorithms.seeding import hierarchical
from globular.algorithms.steps import result_of
from globular.model.history import ITERATIONS, PART
from globular.passes.cpu import CpuShard
from reference import assign as hard
from split import SplitShard

C = 20


def many_rows(n: int = 12_000, dtype: Any = np.float64) -> Any:
    return datasets.many_blobs(n, 60, 3, random_state=0).X.astype(dtype)


def exact_error(X: Any, centers: Any, weights: Any = None) -> float:
    distances = hard.squared_distances(X, centers).min(axis=1)
    return float(distances.sum() if weights is None else weights @ distances)


def test_there_is_no_part_of_few_rows_nor_of_too_many_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    shard = CpuShard(many_rows(coreset.TIMES_MORE_ROWS * coreset.PART_ROWS_PER_CLUSTER * C))
    assert draw_part(shard, C + 1, rng) is None
    drawn = draw_part(shard, C, rng)
    assert drawn is not None and drawn.n_rows <= coreset.PART_ROWS_PER_CLUSTER * C
    monkeypatch.setattr(coreset, "TAKEN_NUMBERS", 1000)
    assert draw_part(shard, C, rng) is None


@pytest.mark.parametrize("weighted", [False, True])
def test_the_error_of_any_centers_on_the_part_is_that_of_all_rows(weighted: bool) -> None:
    X, random = many_rows(), np.random.default_rng(1)
    weights = random.gamma(1.0, size=len(X)) if weighted else None
    drawn = draw_part(CpuShard(X, weights), C, random)
    assert drawn is not None
    everyone = np.arange(drawn.n_rows)
    rows, share = drawn.take(everyone), drawn.take(everyone, "weights")
    assert share.sum() == pytest.approx(len(X) if weights is None else weights.sum(), rel=0.03)
    for _ in range(5):
        centers = X[random.choice(len(X), C, replace=False)]
        assert exact_error(rows, centers, share) == pytest.approx(exact_error(X, centers, weights), rel=0.1)


def test_a_remote_group_of_few_rows_is_in_the_part() -> None:
    X = many_rows()
    X[:5] += 1000.0
    drawn = draw_part(CpuShard(X), C, np.random.default_rng(0))
    assert drawn is not None
    rows = drawn.take(np.arange(drawn.n_rows))
    assert np.count_nonzero(rows[:, 0] > 500) == 5


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_a_fit_that_begins_with_a_part_ends_as_low(metric: str, monkeypatch: pytest.MonkeyPatch) -> None:
    X = many_rows(40_000, np.float32)
    monkeypatch.setattr("globular.algorithms.kmeans.pipeline.FADING", (1, 2))  # these clusters count as many
    options: dict[str, Any] = {"algorithm": "probing", "metric": metric, "exact_labels": True}
    begun = [KMeans(C, random_state=seed, **options).fit(X) for seed in range(3)]
    monkeypatch.setattr("globular.algorithms.kmeans.pipeline.draw_part", lambda *arguments: None)
    whole = [KMeans(C, random_state=seed, **options).fit(X) for seed in range(3)]
    assert np.mean([m.inertia_ for m in begun]) < 1.02 * np.mean([m.inertia_ for m in whole])
    assert min(m.n_distances_ for m in begun) < min(m.n_distances_ for m in whole)
    for model in begun:
        assert {"part", "iterations"} <= {record.stage for record in model.history_}
        falling = [record.objective for record in model.history_ if record.stage == "iterations"]
        assert (np.diff(falling) <= 1e-9 * model.inertia_).all()
        estimates = [record.objective for record in model.history_ if record.stage == "part"]
        assert estimates[-1] == pytest.approx(model.inertia_, rel=0.1)


def test_all_rows_are_swapped_where_the_part_was_misleading() -> None:
    random = np.random.default_rng(0)
    X = many_rows()
    part = CpuShard(X[X[:, 0] < np.median(X[:, 0])])  # knows one half of the space only
    shard = CpuShard(X)
    seeds = result_of(hierarchical(part, C, random, 0))
    options = ProbingOptions(min_gain=0.005)
    steps = swap_and_step_from_part(shard, part, seeds.centers, options, random, labelled=True)
    first = next(step for step in steps if step.stage == ITERATIONS)
    good = exact_error(X, KMeans(C, algorithm="probing", random_state=0).fit(X).cluster_centers_)
    assert exact_error(X, first.model) < 1.25 * good < 0.6 * exact_error(X, seeds.centers)


def test_threads_splits_and_streams_change_nothing(tmp_path: Path) -> None:
    X = many_rows(12_000, np.float32)
    np.save(tmp_path / "rows.npy", X)
    options: dict[str, Any] = {"algorithm": "probing", "random_state": 0}
    one = KMeans(C, n_threads=1, **options).fit(X)
    for source, n_threads in ((X, 2), (np.load(tmp_path / "rows.npy", mmap_mode="r"), 2)):
        other = KMeans(C, n_threads=n_threads, **options).fit(source)
        np.testing.assert_array_equal(other.cluster_centers_, one.cluster_centers_)
        np.testing.assert_array_equal(other.labels_, one.labels_)
    whole = draw_part(CpuShard(X), C, np.random.default_rng(0))
    split = SplitShard([CpuShard(X[a:b], first_row=a) for a, b in ((0, 7000), (7000, 12_000))])
    drawn = draw_part(split, C, np.random.default_rng(0))
    assert whole is not None and drawn is not None
    np.testing.assert_array_equal(drawn.take(np.arange(drawn.n_rows)), whole.take(np.arange(whole.n_rows)))


def test_the_part_is_given_up_before_the_steps_over_all_rows() -> None:
    shard, random = CpuShard(many_rows()), np.random.default_rng(0)
    part = draw_part(shard, C, random)
    assert part is not None
    steps = swap_and_step_from_part(
        shard, part, result_of(hierarchical(part, C, random, 0)).centers, ProbingOptions(min_gain=0.005), random,
        labelled=True,
    )  # fmt: skip
    gone = weakref.ref(part)
    del part
    assert (first := next(steps)).stage == PART and gone() is not None
    assert first.iteration == 0 and first.model.shape == (C, shard.n_columns)
    assert next(step for step in steps if step.stage != PART).iteration == 1
    assert gone() is None


def test_the_smallest_part_keeps_the_few_remote_rows_of_the_larger_one() -> None:
    random = np.random.default_rng(0)
    X = random.normal(size=(200_000, 4))
    X[::10_000] = 300 * random.normal(size=(20, 4))
    parts = draw_parts(CpuShard(X), 4, np.random.default_rng(0))
    assert len(parts) == 2
    for part in parts:
        rows, weights = part.take(np.arange(part.n_rows)), part.take(np.arange(part.n_rows), "weights")
        far = np.abs(rows).max(axis=1) > 20
        assert far.sum() == 20
        np.testing.assert_allclose(weights[far].sum(), 20, rtol=0.05)
        np.testing.assert_allclose(weights.sum(), len(X), rtol=0.1)


def test_few_clusters_are_searched_on_all_rows_where_the_part_was_misleading() -> None:
    random = np.random.default_rng(0)
    X = random.normal(size=(100_000, 4))
    for scale, n in ((10, 1000), (100, 200), (1e3, 60), (1e4, 20), (1e5, 8)):
        X[random.choice(len(X), n, replace=False)] = scale * random.normal(size=(n, 4))
    model = KMeans(50, random_state=0).fit(X)
    assert {record.stage for record in model.history_} == {"seeds", "part", "swaps", "iterations"}
    assert [record.iteration for record in model.history_ if record.iteration] == list(range(1, model.n_iter_ + 1))
    plain = [KMeans(50, algorithm="lloyd", random_state=s).fit(X).inertia_ for s in (0, 1)]
    assert model.inertia_ < 0.95 * np.mean(plain)
