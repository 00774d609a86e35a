"""No dark stage: every stage of a fit gives records, and can be left with centres and labels."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np
import pytest

from globular import KMeans
from globular.algorithms.kmeans.pipeline import PipelineOptions, kmeans
from globular.algorithms.seeding.named import draw_seeds
from globular.backends.cpu import CpuShard
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
    assert (model.labels_ == distances.argmin(axis=1)).mean() > 0.99
    assert model.inertia_ == pytest.approx(distances[np.arange(len(X)), model.labels_].sum())


def test_nothing_is_done_before_the_first_step_is_asked_for() -> None:
    random_state = np.random.RandomState(0)
    asked = []

    def seed(shard: Any) -> Any:
        asked.append(shard)
        return (yield from draw_seeds(shard, "random", C, np.random.default_rng(0)))

    steps = kmeans(CpuShard(rows()), seed, PipelineOptions(C, "probing"), random_state)
    assert not asked and random_state.randint(100) == np.random.RandomState(0).randint(100)
    next(iter(steps))
    assert asked
