"""No dark stage: every stage of a fit gives records, and can be left with centres and labels."""

import time
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

import globular
from globular import GaussianMixture, KMeans, NestedMiniBatchKMeans, VariationalGaussianMixture, VariationalKMeans
from globular.algorithms.kmeans.pipeline import PipelineOptions, kmeans
from globular.algorithms.seeding.named import draw_seeds
from globular.callbacks import Checkpoint
from globular.estimators import running
from globular.estimators.running import Clock, Fit
from globular.jit import kernel
from globular.model.history import Record
from globular.passes.cpu import CpuShard
from reference import assign as hard

C = 20


def rows(n: int = 20_000, n_columns: int = 30) -> Any:
    """Clusters in a few of the columns, so that a fit begins in a subspace and on a part."""
    random = np.random.default_rng(0)
    middles = np.concatenate([random.normal(size=(C, 4)) * 9, np.zeros((C, n_columns - 4))], axis=1)
    return middles[random.integers(0, C, n)] + random.normal(size=(n, n_columns))


def many(**parameters: Any) -> KMeans:
    return KMeans(C, algorithm="probing", random_state=0, **parameters)


def test_every_stage_gives_records_with_all_centers_in_the_whole_space() -> None:
    X, model, stages = rows(), many(), []
    for record in model.fit_iter(X):
        stages.append(record.stage)
        assert model.cluster_centers_.shape == (C, 30) and np.isfinite(model.cluster_centers_).all()
        assert (record.iteration > 0) == record.labels_all_rows == hasattr(model, "labels_")
        assert model.n_iter_ == record.iteration
        error = hard.squared_distances(X, model.cluster_centers_).min(axis=1).sum()
        # the seeds, too, are drawn from the part
        assert error <= record.objective * (1 + 1e-9 if record.labels_all_rows else 1.1)
    assert model.subspace_dimension_ < 30
    assert [stage for stage, _ in groupby(stages)] == ["seeds", "part", "swaps", "iterations"]
    assert [record.stage for record in model.history_] == stages


@pytest.mark.parametrize("stage", ["seeds", "part", "swaps", "iterations"])
def test_a_fit_may_be_ended_in_any_stage(stage: str) -> None:
    X = rows()
    model = many(callbacks=lambda _, record: record.stage == stage).fit(X)
    assert model.stopped_ == "callback" and model.history_[-1].stage == stage
    assert model.n_iter_ == model.history_[-1].iteration
    distances = hard.squared_distances(X, model.cluster_centers_)
    assert (model.labels_ == distances.argmin(axis=1)).mean() > 0.97
    assert model.inertia_ == pytest.approx(distances[np.arange(len(X)), model.labels_].sum())


def test_nothing_is_done_before_the_first_step_is_asked_for() -> None:
    random_state = np.random.RandomState(0)
    asked = []

    def seed(shard: Any) -> Any:
        asked.append(shard)
        return (yield from draw_seeds(shard, "random", C, np.random.default_rng(0)))

    steps = kmeans(CpuShard(rows()), seed, PipelineOptions(C, "probing"), random_state)
    assert not asked and random_state.randint(100) == np.random.RandomState(0).randint(100)
    assert next(iter(steps)).model.shape[0] == 1 and not asked  # the mean of all rows, before directions are looked for
    next(iter(steps))
    assert asked


def killed_in(stage: str, model: Any, X: Any, folder: Path) -> Any:
    """What a checkpoint holds of a fit that dies after its first record of a stage."""

    def die(estimator: Any, record: Any) -> None:
        if record.stage == stage:
            raise MemoryError

    with pytest.raises(MemoryError):
        model.set_params(callbacks=[Checkpoint(folder, every_iterations=1), die]).fit(X)
    return globular.load(folder).set_params(warm_start=True)


@pytest.mark.parametrize("stage", ["seeds", "part", "swaps", "iterations"])
def test_a_killed_fit_goes_on_where_it_was(stage: str, tmp_path: Path) -> None:
    X = rows()
    whole = many().fit(X)
    resumed = killed_in(stage, many(), X, tmp_path / "run")
    before = resumed.history_[-1]
    assert before.stage == stage and hasattr(resumed, "labels_") == before.labels_all_rows
    resumed.fit(X)
    stages = {record.stage for record in resumed.history_}
    assert (
        stages
        == {
            "seeds": {"seeds", "part", "swaps", "iterations"},  # there is nothing yet to go on from
            "part": {"swaps", "iterations"},
            "swaps": {"swaps", "iterations"},
            "iterations": {"iterations"},
        }[stage]
    )
    assert resumed.inertia_ < 1.02 * whole.inertia_
    if stage != "seeds":
        assert resumed.history_[0].objective < 1.1 * before.objective


OTHERS = [
    VariationalKMeans(C, random_state=0), NestedMiniBatchKMeans(C, random_state=0, search="cells"),
    NestedMiniBatchKMeans(C, random_state=0, compute_labels=False),
    GaussianMixture(C, covariance_type="full", random_state=0),
    GaussianMixture(C, algorithm="variational", covariance_type="diag", random_state=0),
    VariationalGaussianMixture(C, random_state=0), VariationalGaussianMixture(C, search="neighbors", random_state=0),
]  # fmt: skip


@pytest.mark.parametrize("model", OTHERS, ids=repr)
def test_every_estimator_that_starts_by_kmeans_shows_its_start(model: Any, tmp_path: Path) -> None:
    X, model = rows(3000, 5), clone(model)
    for record in model.fit_iter(X):
        assert model.history_[-1] is record and model.n_distances_ >= 0
        if hasattr(model, "means_"):
            assert model.means_.shape == (C, 5)
            assert record.objective / len(X) <= model.score(X) + 1e-9  # a lower bound
        else:
            assert model.cluster_centers_.shape == (C, 5) and model.inertia_ == record.objective
        if record.stage != "iterations":
            assert record.iteration == model.n_iter_ == 0 and not hasattr(model, "labels_")
            assert model.predict(X[:9]).max() < C
    assert model.history_[0].stage == "seeds" and model.history_[-1].stage == "iterations"
    for stage in {record.stage for record in model.history_}:
        ended = clone(model).set_params(callbacks=partial(lambda at, _, record: record.stage == at, stage)).fit(X)
        assert ended.stopped_ == "callback" and ended.history_[-1].stage == stage
        assert np.isfinite(ended.score(X)) and hasattr(ended, "labels_") == hasattr(model, "labels_")
        resumed = killed_in(stage, clone(model), X, tmp_path / stage)
        assert resumed.fit(X).score(X) > model.score(X) - 0.05 * abs(model.score(X))
        assert ("seeds" in {record.stage for record in resumed.history_}) == (stage == "seeds")


def test_the_time_limit_counts_what_is_left_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    X = rows()
    monkeypatch.setattr(KMeans, "_labelling_seconds", lambda self, data: 40.0)
    late = many(max_time=50.0).fit(X)  # two passes over all rows do not fit
    assert late.stopped_ == "max_time" and late.history_[-1].stage == "part" and late.n_iter_ == 0
    monkeypatch.setattr(KMeans, "_labelling_seconds", lambda self, data: 60.0)
    later = many(max_time=50.0).fit(X)  # not even the labels do
    assert later.stopped_ == "max_time" and len(later.history_) == 1
    monkeypatch.setattr(KMeans, "_labelling_seconds", lambda self, data: 4.0)
    assert many(max_time=50.0).fit(X).stopped_ not in ("", "max_time")


@pytest.mark.parametrize("model", [KMeans(C), many(), many(exact_labels=True), *OTHERS[:3]], ids=repr)
def test_the_time_for_labels_is_foretold(model: Any) -> None:
    X = rows(3000, 5)
    model = clone(model).fit(X)
    seconds = model._labelling_seconds(model._open(X, None, reset=False))
    assert 0 <= seconds < 20 and (seconds > 0) == hasattr(model, "labels_")


def test_the_time_for_labels_of_few_rows_is_not_what_chance_makes_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hiccup of a hundredth of a second once counted as that of every row, and ended fits with a time limit."""
    X = rows(3000, 5)
    model = KMeans(C, random_state=0).fit(X)
    data = model._open(X, None, reset=False)
    now = iter([0.0, 0.0, 0.0, 0.001, 0.001, 0.002, 0.002, 0.018])
    monkeypatch.setattr("globular.estimators.centroids.time.perf_counter", lambda: next(now))
    assert 0 < model._labelling_seconds(data) < 0.5


def test_no_further_run_begins_when_the_time_is_over() -> None:
    X = rows(3000, 5)
    slow = KMeans(C, n_init=50, max_time=1.5, callbacks=lambda *_: time.sleep(0.02), random_state=0).fit(X)
    assert slow.stopped_ and slow.stopped_ not in ("callback", "interrupted")
    assert slow.inertia_ < 1.5 * KMeans(C, n_init=3, random_state=0).fit(X).inertia_


@pytest.mark.parametrize("init", ["random", "afk-mc2", "k-means||", "k-means++"])
def test_a_part_may_begin_without_labels(init: str) -> None:
    """Swaps once took labels for granted that these seeds do not leave, and wrote to places that were not theirs."""
    X = rows(20_000, 4)
    model = many(init=init).fit(X)
    assert "part" in {record.stage for record in model.history_}
    assert model.inertia_ < 1.3 * many().fit(X).inertia_


@pytest.mark.parametrize("n_clusters", [50, 1024])
def test_labels_are_rough_where_time_is_up_before_the_first_iteration(n_clusters, monkeypatch):
    monkeypatch.setattr(running, "GRACE", (1.0, 0.0))
    X = np.random.default_rng(0).normal(size=(10_000, 3)).astype(np.float32)
    with pytest.warns(ConvergenceWarning, match=r"closest centre of only \d+% of the rows.*'max_time'.*predict"):
        model = KMeans(n_clusters, algorithm="probing", random_state=0, max_time=1e-9).fit(X)
    assert model.stopped_ == "max_time" and model.n_iter_ == 0
    squared = hard.squared_distances(X, model.cluster_centers_)
    assert model.inertia_ == pytest.approx(squared[np.arange(len(X)), model.labels_].sum(), rel=1e-5)
    assert 0.3 < model.label_recall_ < 0.9 and model.inertia_ < 2.0 * squared.min(axis=1).sum()
    assert model.n_distances_ < len(X) * 3.5 * np.sqrt(n_clusters)


@pytest.mark.parametrize(("first_step", "is_late"), [(1.0, False), (10.0, True)])
def test_a_first_step_that_would_end_too_late_is_left_out(first_step: float, is_late: bool) -> None:
    fit = Fit(
        KMeans(3), 100, max_iter=None, max_time=10.0, clock=Clock(), foretell=lambda: 1.0,
        first_step=first_step,
    )  # fmt: skip
    prepared = Record(0, 0.0, 1.0, 0, None, stage="part")
    assert fit._asked_to_stop(None, prepared, 10) == ""  # another step on the part
    assert fit._asked_to_stop(prepared, prepared, None) == ("max_time" if is_late else "")


def test_seconds_of_compiling_are_counted_apart() -> None:
    """A callback compiles a kernel: the records after it know, and the seconds of the fit do not hold it."""
    X = np.random.default_rng(0).normal(size=(300, 3))

    def compiles(estimator: Any, record: Record) -> None:
        if record.iteration == 1:
            kernel(lambda x: x + 1.0)(0.5)

    begun = time.perf_counter()
    model = KMeans(5, algorithm="lloyd", tol=0, max_iter=4, random_state=0, callbacks=compiles).fit(X)
    took = time.perf_counter() - begun
    first, last = model.history_.iterations[0], model.history_[-1]
    assert last.iteration > 1 and last.compile_seconds - first.compile_seconds > 0.005
    assert 0 <= last.seconds <= last.wall_seconds <= took
    again = KMeans(5, algorithm="lloyd", max_iter=4, random_state=0).fit(X)
    assert again.history_[-1].compile_seconds == 0
    assert again.history_[-1].wall_seconds == again.history_[-1].seconds


def test_what_others_compile_is_time_of_the_fit() -> None:
    clock = Clock()
    numba.njit(lambda x: x + 1.0)(0.5)
    assert clock.compile_seconds == 0
    kernel(lambda x: x + 1.0)(0.5)
    assert 0 < clock.compile_seconds < clock.wall_seconds


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_few_clusters_first_show_the_mean_before_directions_and_parts_are_drawn(metric: str) -> None:
    X = rows() + 5.0
    seen = X / np.linalg.norm(X, axis=1, keepdims=True) if metric == "cosine" else X
    records = KMeans(C, metric=metric, random_state=0).fit_iter(X)
    first = next(records)
    center = seen.mean(axis=0) / (np.linalg.norm(seen.mean(axis=0)) if metric == "cosine" else 1.0)
    assert first.stage == "seeds" and first.iteration == 0
    assert first.objective == pytest.approx(np.sum((seen - center) ** 2), rel=1e-9)
