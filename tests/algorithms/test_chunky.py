"""Chunky EM and greedy growth: the theory they are held to."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from globular.algorithms.mixtures.chunky import CONVERGED, ENOUGH_CELLS, ChunkyOptions, chunky, start_from_cells
from globular.algorithms.mixtures.em import EMOptions, covariance_limits, em, start_from_means
from globular.algorithms.mixtures.greedy import grow_mixture
from globular.algorithms.steps import Step
from globular.datasets import separated_mixture
from globular.model.covariances import FAMILIES, OUTER
from globular.model.gaussian import GaussianParameters, isotropic_mixture
from globular.model.statistics import F64
from globular.passes.cpu import CpuShard
from globular.seam.mixture_passes import Expect
from globular.seam.shard import Shard
from globular.seam.tree_passes import ExpectCells, Gap, Plant, TakeCells
from makers import blobs, weights_for

TYPES = sorted(FAMILIES)


def run(shard: Shard, start: GaussianParameters, options: ChunkyOptions) -> list[Step]:
    limits = covariance_limits(shard, EMOptions(relative_floor=1e-5))
    return list(chunky(shard, start, options, np.random.default_rng(0), limits=limits))


def planted(
    rows: F64, covariance_type: str, weights: F64 | None = None, leaf_size: int = 4, depth: int = 2
) -> CpuShard:
    shard = CpuShard(rows, weights)
    shard.run(Plant(FAMILIES[covariance_type].scatter, leaf_size, depth=depth))
    return shard


@pytest.mark.parametrize("covariance_type", TYPES)
def test_single_rows_are_exact_em(covariance_type: str) -> None:
    """Every leaf opened: the path of the log-likelihood is that of EM, and so is the mixture it ends with."""
    rows, weights = blobs(n=200, D=3), weights_for(200)
    shard = planted(rows, covariance_type, weights)
    start = start_from_means(shard, rows[:4], covariance_type, EMOptions())
    while len(shard.frontier.nodes):
        shard.frontier.open(np.arange(len(shard.frontier.nodes)))
    options = ChunkyOptions(max_iter=25, tol=0.0, max_cells=1)
    limits = covariance_limits(shard, EMOptions())
    ours = list(chunky(shard, start, options, np.random.default_rng(0), limits=limits))
    theirs = list(em(shard, start, EMOptions(max_iter=25, tol=0.0)))
    for a, b in zip(ours, theirs, strict=True):
        assert a.objective == pytest.approx(b.objective, rel=1e-8)
        assert a.n_distances == b.n_distances
    np.testing.assert_allclose(ours[-1].model.mixture.means, theirs[-1].model.means, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(ours[-1].model.mixture.covariances, theirs[-1].model.covariances, rtol=1e-8, atol=1e-8)


@given(
    covariance_type=st.sampled_from(TYPES), refine=st.sampled_from(["batch", "best_first"]),
    C_prime=st.sampled_from([None, 2]), learned_weights=st.booleans(),
    rows=arrays(np.float64, st.tuples(st.integers(4, 40), st.integers(1, 3)), elements=st.integers(-9, 9)),
    seed=st.integers(0, 1000),
)  # fmt: skip
def test_bound_never_falls_and_never_exceeds_the_likelihood(
    covariance_type: str, refine: str, C_prime: int | None, learned_weights: bool, rows: F64, seed: int
) -> None:
    """EM steps and refinements alike, on small whole numbers: duplicates, constant columns, collapsing components."""
    random = np.random.default_rng(seed)
    weights = random.integers(0, 3, size=len(rows)) + np.eye(len(rows))[0]
    shard = planted(rows, covariance_type, weights, leaf_size=2)
    start = isotropic_mixture(rows[random.choice(len(rows), 3)], 5.0, covariance_type)
    options = ChunkyOptions(
        max_iter=40, tol=1e-2, refine_tol=0.0, max_cells=60, refine=refine, C_prime=C_prime, G=2,
        learned_weights=learned_weights,
    )  # fmt: skip
    steps = run(shard, start, options)
    bounds = np.array([step.objective for step in steps])
    slack = 1e-9 * np.maximum(np.abs(bounds), weights.sum())
    assert np.isfinite(bounds).all()
    assert (np.diff(bounds) >= -slack[1:]).all()
    mixtures = [start, *(step.model.mixture for step in steps[:-1])]
    exact = [CpuShard(rows, weights).run(Expect(mixture)).log_likelihood for mixture in mixtures]
    assert (bounds <= np.array(exact) + slack).all()


def test_refinement_ends_by_gain_or_by_cells() -> None:
    data = separated_mixture(3000, 5, 2, separation=2.0, random_state=0)
    shard = CpuShard(data.X)
    start = start_from_means(shard, data.centers, "full", EMOptions())

    def ends(options: ChunkyOptions) -> Step:
        shard.run(Plant(OUTER, 8, largest=100.0))
        return run(shard, start, options)[-1]

    by_gain = ends(ChunkyOptions(refine_tol=0.05))
    assert by_gain.stopped == CONVERGED and by_gain.model.n_cells < 1000
    finer = ends(ChunkyOptions(refine_tol=0.005))
    assert finer.stopped == CONVERGED and finer.model.n_cells > by_gain.model.n_cells
    by_cells = ends(ChunkyOptions(refine_tol=0.0, max_cells=300))
    assert by_cells.stopped == ENOUGH_CELLS and 300 <= by_cells.model.n_cells <= 320
    assert ends(ChunkyOptions(max_iter=2, tol=0.0)).stopped == "max_iter"


@pytest.mark.parametrize(
    ("options", "reason"),
    [(ChunkyOptions(tol=1e-3), CONVERGED), (ChunkyOptions(tol=1e-3, refine_tol=0.0, max_cells=300), ENOUGH_CELLS)],
    ids=["by gap", "by cells"],
)
def test_em_settles_for_good_on_the_last_cells(options: ChunkyOptions, reason: str) -> None:
    """Components that overlap part slowly: F is close to the log-likelihood long before it is at its top."""
    data = separated_mixture(5000, 8, 2, separation=0.5, random_state=0)
    shard = CpuShard(data.X)
    start = start_from_means(shard, data.X[:8], "full", EMOptions())
    shard.run(Plant(OUTER, 8, largest=50.0))
    steps = run(shard, start, options)
    n_cells = np.array([step.model.n_cells for step in steps])
    rises = np.diff([step.objective / len(data.X) for step in steps])[n_cells[1:] == n_cells[-1]]
    assert steps[-1].stopped == reason
    assert rises[-1] < 1e-4 and (rises < 1e-3).sum() > 5  # on cells that were to be opened the first would do
    if reason == CONVERGED:
        assert shard.run(Gap(steps[-1].model.mixture)).total <= 0.03 * len(data.X)


def test_best_first_opens_one_cell_after_the_other() -> None:
    rows = blobs(n=300, D=2)
    shard = planted(rows, "full", leaf_size=1, depth=3)
    start = start_from_means(shard, rows[:4], "full", EMOptions())
    steps = run(shard, start, ChunkyOptions(refine="best_first", refine_tol=0.0, max_cells=20))
    cells = np.array([step.model.n_cells for step in steps])
    assert cells[0] == 8 and steps[-1].stopped == ENOUGH_CELLS
    assert set(np.diff(cells)) <= {0, 1}


def test_finer_cells_come_closer_to_em() -> None:
    data = separated_mixture(6000, 8, 3, separation=1.0, random_state=1)
    rows, test = data.X[:5000], CpuShard(data.X[5000:])
    shard = CpuShard(rows)
    start = start_from_means(shard, rows[:8].astype(np.float64), "full", EMOptions())
    exact = test.run(Expect(list(em(shard, start, EMOptions(tol=1e-4)))[-1].model)).log_likelihood
    short = []
    for n_cells in (20, 200, 2000):
        shard.run(Plant(OUTER, 4, largest=5000 / 20))
        steps = run(shard, start, ChunkyOptions(tol=1e-4, refine_tol=0.0, max_cells=n_cells))
        short.append((exact - test.run(Expect(steps[-1].model.mixture)).log_likelihood) / abs(exact))
    assert short[0] > short[2] and abs(short[2]) < 0.01


def test_few_components_per_cell_lose_little_and_cost_little() -> None:
    """A grid of 144 clusters: five components per cell do what all do, with far fewer densities."""
    random = np.random.default_rng(0)
    centers = 6.0 * np.stack(np.meshgrid(np.arange(12.0), np.arange(12.0)), axis=-1).reshape(-1, 2)
    rows = centers[random.integers(144, size=20_000)] + random.normal(size=(20_000, 2))
    shard = CpuShard(rows)
    results = {}
    for C_prime in (None, 5):
        shard.run(Plant(OUTER, 8, largest=20_000 / 1440))
        start = start_from_cells(
            shard, centers + 1.0, "full", covariance_limits(shard, EMOptions()), learned_weights=True
        )
        steps = run(shard, start, ChunkyOptions(C_prime=C_prime, max_cells=4000))
        likelihood = shard.run(Expect(steps[-1].model.mixture)).log_likelihood / len(rows)
        results[C_prime] = likelihood, sum(step.n_distances for step in steps[1:])
    assert results[5][0] == pytest.approx(results[None][0], abs=0.005)
    assert results[5][1] < results[None][1] / 3


@pytest.mark.parametrize("covariance_type", TYPES)
def test_start_on_cells_is_the_start_on_rows_when_cells_are_rows(covariance_type: str) -> None:
    rows = blobs(n=150, D=3)
    shard = planted(rows, covariance_type, leaf_size=1, depth=60)
    assert len(shard.run(TakeCells())) == 150
    ours = start_from_cells(
        shard, rows[:4], covariance_type, covariance_limits(shard, EMOptions()), learned_weights=True
    )
    theirs = start_from_means(shard, rows[:4], covariance_type, EMOptions())
    np.testing.assert_allclose(ours.means, theirs.means, rtol=1e-8)
    np.testing.assert_allclose(ours.covariances, theirs.covariances, rtol=1e-6)


@pytest.mark.parametrize("covariance_type", TYPES)
def test_grown_mixtures_find_separate_clusters(covariance_type: str) -> None:
    random = np.random.default_rng(0)
    centers = np.array([[0, 0], [20, 0], [0, 20], [20, 20], [10, 40]], dtype=float)
    rows = np.repeat(centers, 200, axis=0) + random.normal(size=(1000, 2))
    shard = planted(rows, covariance_type, depth=7)
    limits = covariance_limits(shard, EMOptions())
    grown = grow_mixture(shard, 5, covariance_type, random, limits=limits)
    one = grow_mixture(shard, 1, covariance_type, random, limits=limits)
    assert shard.run(ExpectCells(grown)).log_likelihood > shard.run(ExpectCells(one)).log_likelihood + 1000
    if covariance_type.startswith("tied"):
        return  # one covariance for all is far too wide for the first splits, which need not be the right ones
    distances = np.linalg.norm(grown.means[:, None] - centers, axis=2)
    assert sorted(distances.argmin(axis=1)) == [0, 1, 2, 3, 4] and distances.min(axis=1).max() < 1.0
    assert grown.weights.sum() == pytest.approx(1.0)


def test_growth_goes_on_where_there_is_nothing_to_split() -> None:
    shard = planted(np.ones((6, 2)), "full")
    grown = grow_mixture(shard, 4, "full", np.random.default_rng(0), limits=covariance_limits(shard, EMOptions()))
    assert grown.n_components == 4 and np.isfinite(grown.covariances).all() and np.isfinite(grown.factors).all()
