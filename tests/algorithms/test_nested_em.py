"""Nested EM: one batch is EM, batches nest and grow when they have no more to say, and the end is that of all rows."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from globular import GaussianMixture
from globular.algorithms.mixtures import nested, pipeline, starts
from globular.algorithms.mixtures.em import EMOptions, em
from globular.algorithms.mixtures.nested import ENOUGH, BatchOptions, nested_em
from globular.datasets import separated_mixture
from globular.model.gaussian import GaussianParameters
from globular.passes.cpu import CpuShard

OPTIONS = EMOptions(max_iter=60, tol=1e-3)


def rows_of(n: int = 20_000, dtype: Any = np.float64) -> Any:
    return separated_mixture(n, 6, 3, separation=1.5, random_state=0).X.astype(dtype)


def start(X: Any, kind: str = "diag", C: int = 6) -> GaussianParameters:
    model = GaussianMixture(C, covariance_type=kind, max_iter=0, init_params="random_from_data", random_state=0)
    return model.fit(X[:2000])._mixture()


def random() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize("kind", ["diag", "full", "tied"])
def test_one_batch_of_all_rows_is_em(kind: str) -> None:
    X = rows_of(3000)
    wanted = list(em(CpuShard(X), start(X, kind), OPTIONS))
    found = list(nested_em(CpuShard(X), start(X, kind), OPTIONS, BatchOptions(3000), random()))
    assert [(s.iteration, s.objective) for s in found] == [(s.iteration, s.objective) for s in wanted]
    assert found[-1].stopped == wanted[-1].stopped
    np.testing.assert_array_equal(found[-1].model.means, wanted[-1].model.means)
    np.testing.assert_array_equal(found[-1].model.covariances, wanted[-1].model.covariances)


def test_batches_grow_and_their_likelihood_does_not_fall(monkeypatch: pytest.MonkeyPatch) -> None:
    X, seen = rows_of(), []
    exact = nested.e_step
    monkeypatch.setattr(nested, "e_step", lambda part, mixture: seen.append(part) or exact(part, mixture))
    options = replace(OPTIONS, tol=1e-5, max_iter=200, reg_covar=0.0)
    steps = list(nested_em(CpuShard(X), start(X), options, BatchOptions(1000), random()))
    sizes = [part.n_rows for part in seen]
    assert sorted(set(sizes)) == [1250, 5000, 20_000] and sizes == sorted(sizes)
    for size in set(sizes):
        objectives = [step.objective for step, n in zip(steps, sizes, strict=True) if n == size]
        assert (np.diff(objectives) >= -1e-9 * abs(objectives[0])).all()
    parts = {part.n_rows: part for part in seen}
    smaller, larger = (set(map(tuple, parts[n].take(np.arange(n)).tolist())) for n in (1250, 5000))
    assert smaller < larger
    assert [step.iteration for step in steps] == list(range(1, len(steps) + 1))
    assert not any(step.stopped for step in steps[:-1]) and steps[-1].stopped


def test_it_ends_where_em_does_for_less() -> None:
    X = rows_of(40_000)
    whole = list(em(CpuShard(X), start(X), OPTIONS))
    found = list(nested_em(CpuShard(X), start(X), OPTIONS, BatchOptions(1000), random()))
    reached = GaussianMixture.from_parameters(*_parameters(found[-1].model), "diag").score(X)
    assert reached > whole[-1].objective / len(X) - 0.03
    assert sum(s.n_distances for s in found) < 0.5 * sum(s.n_distances for s in whole)


def test_a_batch_is_enough_where_more_rows_would_change_less_than_tol() -> None:
    X = rows_of(60_000)
    first = start(X)
    options = replace(OPTIONS, tol=0.002)
    steps = list(nested_em(CpuShard(X), first, options, BatchOptions(500), random()))
    assert steps[-1].stopped == ENOUGH
    assert first.n_parameters(learned_weights=True) == 41 and steps[-1].n_distances == 6 * 1025  # 10 tol = 41 / 2050
    full = list(em(CpuShard(X), first, replace(OPTIONS, tol=1e-4)))[-1]
    reached = GaussianMixture.from_parameters(*_parameters(steps[-1].model), "diag").score(X)
    assert reached > full.objective / len(X) - 0.06


def _parameters(mixture: GaussianParameters) -> tuple[Any, Any, Any]:
    return mixture.weights, mixture.means, mixture.covariances


@pytest.mark.parametrize("n", [0, 1, 2, 7])
def test_max_iter_counts_iterations_of_all_batches(n: int) -> None:
    X = rows_of()
    steps = list(nested_em(CpuShard(X), start(X), replace(OPTIONS, max_iter=n, tol=1e-9), BatchOptions(500), random()))
    assert len(steps) == n and (n == 0 or steps[-1].stopped == "max_iter")


@pytest.mark.parametrize("kind", ["full", "tied", "diag", "spherical", "tied_spherical"])
def test_the_estimator_ends_within_two_hundredths_of_em(kind: str) -> None:
    X = rows_of(30_000, np.float32)
    options: dict[str, Any] = {"covariance_type": kind, "random_state": 0}
    full = GaussianMixture(6, algorithm="em", **options).fit(X)
    model = GaussianMixture(6, algorithm="nested", **options).fit(X)
    assert model.algorithm_ == "nested" and model.converged_
    assert model.score(X) > full.score(X) - 0.02
    assert model.labels_.shape == (30_000,)
    rough = GaussianMixture(6, algorithm="nested", tol=0.05, **options).fit(X)
    assert rough.stopped_ == ENOUGH and rough.score(X) > full.score(X) - 0.05
    assert rough.n_distances_ <= model.n_distances_


def test_few_rows_are_one_batch() -> None:
    X = rows_of(2000)
    options: dict[str, Any] = {"covariance_type": "diag", "random_state": 0}
    full = GaussianMixture(6, algorithm="em", **options).fit(X)
    model = GaussianMixture(6, algorithm="nested", **options).fit(X)
    np.testing.assert_array_equal(model.means_, full.means_)


def test_the_start_is_rough_where_batches_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    X, told = rows_of(30_000), []
    searched = pipeline.search_start
    monkeypatch.setattr(
        starts, "search_start", lambda *given, rough: told.append(rough) or searched(*given, rough=rough)
    )
    for algorithm, n_rows in (("nested", 30_000), ("nested", 4000), ("em", 30_000)):
        GaussianMixture(6, algorithm=algorithm, covariance_type="diag", random_state=0).fit(X[:n_rows])
    assert told == [True, False, False]
    options = EMOptions(max_iter=20)
    monkeypatch.setattr(pipeline, "ROUGH_STEPS", 0)
    shard = CpuShard(X)
    rough, whole = (list(searched(shard, 6, "diag", options, random(), rough=rough)) for rough in (True, False))
    assert len(rough) < len(whole)
    assert [step.objective for step in rough] == [step.objective for step in whole[: len(rough)]]  # without moves


def test_a_warm_start_goes_on_over_all_rows() -> None:
    X = rows_of(20_000)
    model = GaussianMixture(6, algorithm="nested", covariance_type="diag", warm_start=True, random_state=0).fit(X)
    before = model.score(X)
    model.set_params(tol=1e-6).fit(X)
    assert model.score(X) >= before - 1e-6
    assert all(record.n_distances == 6 * 20_000 for record in model.history_)


def test_many_components_look_at_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("globular.estimators.mixture.VARIATIONAL_FROM", 40)
    X = separated_mixture(60_000, 40, 3, separation=2.0, random_state=0).X
    options: dict[str, Any] = {"covariance_type": "diag", "random_state": 0}
    model = GaussianMixture(40, algorithm="nested", **options).fit(X)
    full = GaussianMixture(40, algorithm="variational", **options).fit(X)
    assert model.score(X) > full.score(X) - 0.03
    assert model.n_distances_ < full.n_distances_
    again = GaussianMixture(40, algorithm="nested", n_threads=1, **options).fit(X)
    np.testing.assert_array_equal(again.means_, model.means_)
