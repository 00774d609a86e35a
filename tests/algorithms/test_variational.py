"""Truncated variational EM: its exact limits, its guarantees, and the edges."""

from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from globular.algorithms.kmeans.lloyd import KMeansOptions, lloyd
from globular.algorithms.mixtures.em import EMOptions, covariance_limits, em, start_from_means
from globular.algorithms.mixtures.variational import SearchByNeighborhoods, SoftModel, truncated_em, warm_up_mixture
from globular.algorithms.steps import Step
from globular.datasets import birch_grid
from globular.model.gaussian import GaussianParameters, isotropic_mixture
from globular.model.graph import Search, random_graph
from globular.passes.cpu import CpuShard
from globular.seam.among import Neighbors
from globular.seam.mixture_passes import Expect
from globular.seam.passes import Assign, ScatterLabels
from globular.seam.shard import Shard
from makers import Rows, blobs, lattice, weights_for
from reference.variational import Algorithm

from globular.algorithms.kmeans.variational import (  # isort: skip
    CONVERGED, HardModel, VariationalOptions, start_rows, variational_kmeans,
)  # fmt: skip

TYPES = ("tied_spherical", "spherical", "diag")
NEIGHBORHOODS: tuple[Literal["estimated", "exhaustive"], ...] = ("estimated", "exhaustive")


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def labelled(shard: Shard, centers: Rows) -> Shard:
    """Every row at its exactly closest centre."""
    shard.run(Assign(centers, want="labels"))
    return shard


def hard_steps(shard: Shard, centers: Rows, options: VariationalOptions, seed: int = 0) -> list[Step[HardModel]]:
    return list(variational_kmeans(shard, centers, options, rng(seed)))


def soft_steps(
    shard: Shard, mixture: GaussianParameters, options: VariationalOptions, *, learned: bool = False,
    keep: bool = False, seed: int = 0,
) -> list[Step[SoftModel]]:  # fmt: skip
    limits = covariance_limits(shard, EMOptions(reg_covar=0.0))
    random = rng(seed)
    start = warm_up_mixture(shard, mixture, options, random, limits=limits, keep_covariances=keep)
    search = SearchByNeighborhoods(shard, start.graph, options, random)
    return list(truncated_em(shard, start, search, options, limits=limits, learned_weights=learned))


@pytest.mark.parametrize("C_prime", [1, 12], ids=["C'=1", "C'=C"])
@pytest.mark.parametrize("neighborhoods", NEIGHBORHOODS)
@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_whole_neighborhoods_are_lloyd(neighborhoods: Any, C_prime: int, metric: str) -> None:
    rows, weights = blobs(n=300, D=4), weights_for(300)
    unit = metric == "cosine"
    exact, shard = (CpuShard(rows, weights, unit_rows=unit) for _ in range(2))
    start = exact.take(np.arange(0, 300, 25))
    options = VariationalOptions(
        C_prime, 12, n_random=0, neighborhoods=neighborhoods, tol=0.0, unit_centers=unit, relocate_empty=True
    )
    random = rng()
    labelled(shard, start)
    steps = variational_kmeans(shard, start, options, random)
    for expected, found in zip(lloyd(exact, start, KMeansOptions(unit_centers=unit)), steps, strict=False):
        np.testing.assert_array_equal(shard.labels, exact.labels)
        np.testing.assert_allclose(found.model.centers, expected.model, rtol=1e-10, atol=1e-12)
        assert found.objective == pytest.approx(expected.objective, rel=1e-12)
        assert expected.n_distances <= found.n_distances == 300 * 12
        assert found.stopped in (expected.stopped, "")
        if found.iteration > 1:
            assert found.n_changed == expected.n_changed
    assert expected.iteration == found.iteration > 3 and expected.stopped


@pytest.mark.parametrize("learned", [False, True], ids=["equal", "learned"])
@pytest.mark.parametrize("neighborhoods", NEIGHBORHOODS)
@pytest.mark.parametrize("covariance_type", TYPES)
def test_whole_neighborhoods_and_candidates_are_em(covariance_type: str, neighborhoods: Any, learned: bool) -> None:
    rows, weights = blobs(n=300, D=3), weights_for(300)
    shard = CpuShard(rows, weights)
    exact = EMOptions(max_iter=8, tol=0.0, reg_covar=0.0, learned_weights=learned)
    start = start_from_means(shard, rows[:7], covariance_type, exact)
    labelled(shard, start.means)
    options = VariationalOptions(7, 7, n_random=0, neighborhoods=neighborhoods, tol=0.0, max_iter=8)
    found = soft_steps(shard, start, options, learned=learned, keep=True)
    for ours, theirs in zip(found, em(CpuShard(rows, weights), start, exact), strict=True):
        assert ours.objective == pytest.approx(theirs.objective, rel=1e-10)
        for name in ("weights", "means", "covariances"):
            mine, his = getattr(ours.model.mixture, name), getattr(theirs.model, name)
            np.testing.assert_allclose(mine, his, rtol=1e-7, atol=1e-10, err_msg=name)
    assert found[1].n_distances == 300 * 7


def assert_never(direction: Literal["falls", "rises"], objectives: list[float], tolerance: float) -> None:
    change = np.diff(objectives) * (1 if direction == "falls" else -1)
    assert (change >= -tolerance * np.maximum(1.0, np.abs(objectives[1:]))).all(), objectives


def some_rows(random: np.random.Generator, n: int, D: int, single: bool) -> Any:
    rows = lattice(n, D, seed=int(random.integers(100))) if random.random() < 0.3 else random.normal(size=(n, D))
    rows = rows * 10.0 ** random.integers(-3, 4) + random.choice([0.0, 0.0, 100.0])
    return rows.astype(np.float32 if single else np.float64)


@given(
    seed=st.integers(0, 2**32 - 1), n=st.integers(1, 60), D=st.integers(1, 15), C=st.integers(1, 15),
    C_prime=st.integers(1, 6), G=st.integers(1, 8), n_random=st.integers(0, 2), single=st.booleans(),
    neighborhoods=st.sampled_from(NEIGHBORHOODS), weighted=st.booleans(),
    n_warmup=st.integers(0, 2), unit=st.booleans(), relocate=st.booleans(),
)  # fmt: skip
def test_objective_of_kmeans_never_rises(
    seed: int, n: int, D: int, C: int, C_prime: int, G: int, n_random: int, single: bool, neighborhoods: Any,
    weighted: bool, n_warmup: int, unit: bool, relocate: bool,
) -> None:  # fmt: skip
    random = np.random.default_rng(seed)
    C = min(n, C)
    shard = CpuShard(some_rows(random, n, D, single), weights_for(n) if weighted and n > 1 else None, unit_rows=unit)
    centers = shard.take(random.choice(n, C, replace=False))
    if unit:  # a row of zeros has no direction; estimators give it one
        centers[~centers.any(axis=1), 0] = 1.0
    shard.run(ScatterLabels(C, seed))
    options = VariationalOptions(
        min(C_prime, C), G, n_random, neighborhoods, n_warmup=n_warmup, tol=0.0, max_iter=15,
        unit_centers=unit, relocate_empty=relocate,
    )  # fmt: skip
    steps = list(variational_kmeans(shard, centers, options, random))
    seen = shard.take(np.arange(n))
    scale = shard.total_weight * D * max(float(seen.var()), 1e-18 * float((seen**2).mean()), 1e-300)
    assert_never("rises", [step.objective / scale for step in steps], 1e-5 if single else 1e-9)


@given(
    seed=st.integers(0, 2**32 - 1), n=st.integers(2, 60), D=st.integers(1, 15), C=st.integers(1, 15),
    C_prime=st.integers(1, 6), G=st.integers(1, 8), n_random=st.integers(0, 2), single=st.booleans(),
    neighborhoods=st.sampled_from(NEIGHBORHOODS), weighted=st.booleans(), learned=st.booleans(),
    covariance_type=st.sampled_from(TYPES),
)  # fmt: skip
def test_free_energy_never_falls_and_never_exceeds_the_log_likelihood(
    seed: int, n: int, D: int, C: int, C_prime: int, G: int, n_random: int, single: bool, neighborhoods: Any,
    weighted: bool, learned: bool, covariance_type: str,
) -> None:  # fmt: skip
    random = np.random.default_rng(seed)
    C = min(n, C)
    rows, weights = some_rows(random, n, D, single), weights_for(n) if weighted else None
    shard = CpuShard(rows, weights)
    means = shard.take(random.choice(n, C, replace=False))
    shard.run(ScatterLabels(C, seed))
    options = VariationalOptions(min(C_prime, C), G, n_random, neighborhoods, tol=0.0, max_iter=12)
    mixture = isotropic_mixture(means, 1.0, covariance_type)
    limits = covariance_limits(shard, EMOptions(reg_covar=0.0))
    start = warm_up_mixture(shard, mixture, options, random, limits=limits)
    search = SearchByNeighborhoods(shard, start.graph, options, random)
    steps = list(truncated_em(shard, start, search, options, limits=limits, learned_weights=learned))
    assert_never("falls", [step.objective / shard.total_weight for step in steps], 1e-9)
    for mixture, step in zip([start.mixture, *(step.model.mixture for step in steps)], steps, strict=False):
        exact = CpuShard(rows, weights).run(Expect(mixture)).log_likelihood
        assert step.objective <= exact + 1e-7 * max(abs(exact), shard.total_weight)


@pytest.mark.parametrize("neighborhoods", NEIGHBORHOODS)
@pytest.mark.parametrize("covariance_type", TYPES)
def test_wider_candidates_never_lower_the_free_energy(covariance_type: str, neighborhoods: Any) -> None:
    rows = blobs(n=300, D=3)
    means = rows[::15]
    mixture = isotropic_mixture(means, float(rows.var() / 5), covariance_type)
    graph = random_graph(20, 6, rng())
    reached = []
    for C_prime in (1, 2, 3, 6, 20):
        shard = CpuShard(rows)
        shard.run(ScatterLabels(20, 1))
        search = Search(C_prime, n_random=1, seed=2, estimate=True)
        reached.append(shard.run(Expect(mixture, Neighbors(graph, search))).log_likelihood)
    assert reached == sorted(reached) and reached[0] < reached[-1]
    labelled(shard, means)
    whole = random_graph(20, 20, rng())
    search = Search(20, n_random=0, seed=2, estimate=False)
    everything = shard.run(Expect(mixture, Neighbors(whole, search))).log_likelihood
    assert everything == pytest.approx(CpuShard(rows).run(Expect(mixture)).log_likelihood, rel=1e-12)


def test_starting_variance_is_the_mean_squared_distance() -> None:
    rows, weights = blobs(n=300, D=3), weights_for(300)
    shard = CpuShard(rows, weights)
    means = rows[::10]
    inertia = labelled(shard, means).run(Assign(means)).objective  # type: ignore[attr-defined]
    limits = covariance_limits(shard, EMOptions(reg_covar=0.0))
    for covariance_type in TYPES:
        mixture = isotropic_mixture(means, 7.0, covariance_type)
        options = VariationalOptions(3, 5, n_random=0)
        start = warm_up_mixture(shard, mixture, options, rng(), limits=limits)
        np.testing.assert_allclose(start.mixture.covariances, inertia / (weights.sum() * 3), rtol=1e-12)
        assert start.n_distances > 0
        kept = warm_up_mixture(shard, mixture, options, rng(), limits=limits, keep_covariances=True)
        np.testing.assert_array_equal(kept.mixture.covariances, 7.0)


def test_free_energy_of_one_candidate_is_that_of_kmeans() -> None:
    rows = blobs(n=400, D=3)
    shard = labelled(CpuShard(rows), rows[:10])
    options = VariationalOptions(1, 10, n_random=0, tol=0.0, max_iter=60)
    steps = soft_steps(shard, isotropic_mixture(rows[:10], 1.0, "tied_spherical"), options)
    # once nothing moves: F = −N log C − ND/2 (1 + log 2πσ²)
    variance = float(steps[-2].model.mixture.covariances)
    expected = -400 * np.log(10) - 400 * 3 / 2 * (1 + np.log(2 * np.pi * variance))
    assert steps[-1].objective == pytest.approx(expected, rel=1e-10)
    hard = hard_steps(labelled(CpuShard(rows), rows[:10]), rows[:10], options)
    np.testing.assert_allclose(steps[-1].model.mixture.means, hard[-1].model.centers, rtol=1e-9)


@pytest.mark.parametrize("neighborhoods", NEIGHBORHOODS)
def test_distances_are_counted_exactly(neighborhoods: Any) -> None:
    rows = rng().normal(size=(200, 3))
    centers = rng(1).normal(size=(1500, 3))
    shard = CpuShard(rows)
    shard.run(ScatterLabels(1500, 0))
    options = VariationalOptions(1, 5, 1, neighborhoods, n_warmup=3, tol=0.0, max_iter=4)
    counts = [step.n_distances for step in hard_steps(shard, centers, options)]
    assert counts == [4 * 200 * 6, 200 * 6, 200 * 6, 200 * 6]


def test_reasons_to_stop() -> None:
    rows = blobs(n=200)
    start = rows[:10]
    reasons = {}
    for name, changes in {
        "settled": {"n_random": 0, "tol": 0.0},
        "tol": {"tol": 1e-2, "patience": 2},
        "max_iter": {"tol": 0.0, "max_iter": 5},
    }.items():
        steps = hard_steps(labelled(CpuShard(rows), start), start, VariationalOptions(2, 5, **changes))  # type: ignore[arg-type]
        assert all(step.stopped == "" for step in steps[:-1])
        reasons[name] = steps[-1].stopped, len(steps)
    assert reasons["settled"][0] == "no label changed"
    assert reasons["tol"][0] == CONVERGED
    assert reasons["max_iter"] == ("max_iter", 5)


def test_mixtures_stop_by_change_per_row() -> None:
    rows = blobs(n=200)
    mixture = isotropic_mixture(rows[:10], 1.0, "spherical")
    steps = soft_steps(labelled(CpuShard(rows), rows[:10]), mixture, VariationalOptions(3, 5, tol=1e-2, patience=2))
    changes = np.abs(np.diff([step.objective for step in steps])) / 200
    assert steps[-1].stopped == CONVERGED
    assert (changes[-2:] < 1e-2).all() and not any((a < 1e-2) & (b < 1e-2) for a, b in pairwise(changes[:-1]))
    none = soft_steps(labelled(CpuShard(rows), rows[:10]), mixture, VariationalOptions(3, 5, max_iter=0))
    assert none == []


@pytest.mark.parametrize("relocate", [False, True])
@pytest.mark.parametrize("neighborhoods", NEIGHBORHOODS)
def test_empty_clusters_keep_their_place_or_find_another(neighborhoods: Any, relocate: bool) -> None:
    rows = blobs(n=200, D=2)
    start = np.vstack([rows[:8], np.full((4, 2), 500.0) + np.arange(4)[:, None]])
    options = VariationalOptions(2, 5, 1, neighborhoods, tol=0.0, max_iter=40, relocate_empty=relocate)
    shard = labelled(CpuShard(rows), start)
    steps = hard_steps(shard, start, options)
    objectives = [step.objective for step in steps]
    assert_never("rises", objectives, 1e-12)
    if relocate:
        assert np.abs(steps[-1].model.centers).max() < 100 and len(np.unique(shard.labels)) == 12
    else:
        np.testing.assert_array_equal(steps[-1].model.centers[8:], start[8:])


@pytest.mark.parametrize(("C_prime", "G"), [(1, 3), (3, 5)])
@pytest.mark.parametrize("neighborhoods", NEIGHBORHOODS)
def test_relocated_clusters_are_found_by_rows_and_never_raise_the_objective(neighborhoods, C_prime, G):
    for seed in range(5):
        rows = rng(seed).normal(size=(400, 5))
        start = np.vstack([rows[:50], 100.0 + np.arange(10)[:, None] * np.ones(5)])
        shard = labelled(CpuShard(rows), start)
        options = VariationalOptions(C_prime, G, 1, neighborhoods, tol=0.0, max_iter=25, relocate_empty=True)
        steps = hard_steps(shard, start, options, seed)
        assert_never("rises", [step.objective for step in steps], 1e-12)
        assert len(np.unique(shard.labels)) == 60


@pytest.mark.parametrize("neighborhoods", NEIGHBORHOODS)
def test_duplicates(neighborhoods: Any) -> None:
    rows = np.repeat([[0.0, 0.0], [1.0, 1.0], [5.0, 5.0]], 20, axis=0)
    start = rows[[0, 1, 20, 21, 40]]  # five centres in three places
    options = VariationalOptions(2, 4, 1, neighborhoods, max_iter=10)
    shard = CpuShard(rows)
    shard.run(ScatterLabels(5, 0))
    assert hard_steps(shard, start, options)[-1].objective == 0.0
    shard.run(ScatterLabels(5, 0))
    for covariance_type in TYPES:
        steps = soft_steps(shard, isotropic_mixture(start, 1.0, covariance_type), options)
        assert np.isfinite([step.objective for step in steps]).all()
        assert np.isfinite(steps[-1].model.mixture.means).all()


@pytest.mark.parametrize("printed", [False, True], ids=["cells", "random"])
@pytest.mark.parametrize("C_prime", [1, 3])
def test_a_far_group_without_a_seed_is_served(C_prime: int, printed: bool) -> None:
    near, far = rng(0).normal(size=(300, 2)), rng(1).normal(size=(100, 2)) + 50.0
    rows = np.vstack([near, far])
    start = near[:20]
    shard = CpuShard(rows)
    random = rng(2)
    graph = None if printed else start_rows(shard, start, None, 5, random)
    options = VariationalOptions(C_prime, 5, 1, n_warmup=20 if printed else 0, max_iter=100, printed=printed)
    steps = list(variational_kmeans(shard, start, options, random, graph))
    assert_never("rises", [step.objective for step in steps], 1e-12)
    centers = steps[-1].model.centers
    d2 = ((rows[:, None] - centers) ** 2).sum(axis=2)
    assert np.mean(shard.labels == d2.argmin(axis=1)) > 0.95
    assert not set(shard.labels[:300]) & set(shard.labels[300:])  # no cluster has rows of both groups


@pytest.mark.parametrize(
    ("n", "C", "C_prime", "G"),
    [(50, 4, 2, 9), (50, 12, 6, 2), (50, 1, 1, 1), (50, 1, 1, 5), (20, 20, 3, 5), (1, 1, 1, 1), (2, 2, 2, 1)],
    ids=["G > C", "C' > G", "C = 1", "C = 1 < G", "N = C", "one row", "G = 1"],
)
@pytest.mark.parametrize("neighborhoods", NEIGHBORHOODS)
def test_any_sizes(neighborhoods: Any, n: int, C: int, C_prime: int, G: int) -> None:
    rows = rng().normal(size=(n, 3))
    start = rows[:C]
    for n_random in (0, 1):
        shard = CpuShard(rows)
        graph = start_rows(shard, start, None, G, rng())
        options = VariationalOptions(C_prime, G, n_random, neighborhoods, max_iter=30)
        steps = list(variational_kmeans(shard, start, options, rng(), graph))
        assert steps[-1].model.graph.shape == (C, min(G, C))
        if n == C:
            assert steps[-1].objective == 0.0
        if C == 1:
            np.testing.assert_allclose(steps[-1].model.centers[0], rows.mean(axis=0))
        for covariance_type in TYPES:
            soft = soft_steps(shard, isotropic_mixture(start, 1.0, covariance_type), options)
            mixture = soft[-1].model.mixture
            for values in (mixture.weights, mixture.means, mixture.covariances, soft[-1].objective):
                assert np.isfinite(values).all()


def test_neighborhoods_wider_than_those_of_a_seeding_are_made_anew() -> None:
    rows = blobs(n=200)
    shard = CpuShard(rows)
    narrow = random_graph(30, 4, rng())
    wide = start_rows(shard, rows[:30], narrow, 10, rng())
    assert wide is not None and wide.shape == (30, 10)
    shard.labels[:] = 7
    assert start_rows(shard, rows[:30], narrow, 3, rng()) is narrow
    assert (shard.labels == 7).all()


@pytest.mark.parametrize(
    ("neighborhoods", "C_prime", "G", "n_random"),
    [("exhaustive", 1, 3, 0), ("exhaustive", 1, 3, 1), ("exhaustive", 2, 2, 0), ("exhaustive", 4, 4, 1),
     ("estimated", 1, 3, 0), ("estimated", 2, 2, 0), ("estimated", 3, 8, 1), ("estimated", 4, 4, 1)],
)  # fmt: skip
@pytest.mark.parametrize("n_warmup", [0, 2])
def test_printed_runs_are_those_of_plain_numpy(neighborhoods, C_prime, G, n_random, n_warmup):
    """But for Alg. 2 with C′ = 1 and random candidates, of which Eq. 8 hears less here: the page names it."""
    soft = C_prime > 1
    rows, C = np.asarray(birch_grid(5, 40, random_state=0).X, dtype=np.float64), 25
    seeds = np.ascontiguousarray(rows[rng(3).choice(len(rows), C, replace=False)])
    written = Algorithm(C_prime, G, neighborhoods == "exhaustive", soft, n_random, n_warmup)
    expected = list(written.run(rows, seeds, rng(1), 12))
    options = VariationalOptions(
        C_prime, G, n_random, neighborhoods, n_warmup, max_iter=12, tol=-1.0, patience=100, printed=True
    )
    found: list[Step[Any]]
    if soft:
        found = list(soft_steps(CpuShard(rows), isotropic_mixture(seeds, 1.0, "tied_spherical"), options, seed=1))
        centers = [step.model.mixture.means for step in found]
    else:
        found = list(hard_steps(CpuShard(rows), seeds, options, seed=1))
        centers = [step.model.centers for step in found]
    for t, one in enumerate(expected[: len(found)]):
        assert found[t].objective == pytest.approx(one.objective, rel=1e-9), t
        np.testing.assert_allclose(centers[t], one.centers, rtol=1e-7, atol=1e-7)
    for one in expected[len(found) :]:  # no label changed any more
        np.testing.assert_allclose(centers[-1], one.centers, rtol=1e-7, atol=1e-7)
