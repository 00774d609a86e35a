"""Infinite mixtures: what the theory promises of VIM, Fast-VIM and BJ, and the passes and trials they are made of."""

from collections.abc import Callable, Generator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.cluster import KMeans as SklearnKMeans
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import BayesianGaussianMixture
from threadpoolctl import threadpool_limits

from globular import InfiniteGaussianMixture
from globular.algorithms.graphs import nearest_graph
from globular.algorithms.infinite import splits
from globular.algorithms.infinite.data import CellData, CellOptions, RowData
from globular.algorithms.infinite.run import VariationalRun
from globular.algorithms.infinite.tree_partition import Worth, hard_free_energy
from globular.algorithms.steps import Step, result_of, to_come
from globular.model.chunks import Chunks, Claims
from globular.model.covariances import COLUMNS, OUTER
from globular.model.dirichlet import InfiniteMixture, StickPrior
from globular.model.gaussian import GaussianParameters, isotropic_mixture
from globular.model.graph import Search
from globular.model.observations import ObservedMoments
from globular.model.statistics import SoftStatistics
from globular.model.wishart import KINDS as WISHART
from globular.model.wishart import GaussianPrior
from globular.passes.cpu import CpuShard
from globular.passes.cpu.expect import rows_of
from globular.passes.cpu.expect.blocks import ChunkBlocks
from globular.passes.cpu.expect.remembered import NATS_BELOW, Kept
from globular.passes.tree import cells as tree_cells
from globular.seam.among import Neighbors, Remembered
from globular.seam.mixture_passes import Expect, ExpectShares, RowsOf
from globular.seam.shard import answer
from globular.threads import pool
from makers import corners as blobs
from reference import expect as reference

from globular.algorithms.infinite.infinite import (  # isort: skip
    GROWN, InfiniteOptions, Mixture, _sow, components_at, infinite, one_component,
)  # fmt: skip
from globular.seam.tree_passes import (  # isort: skip
    BestCut, CellsOf, ExpectCells, Gains, OpenCut, OpenGaining, OpenHeld, Plant, TakeCells,
)  # fmt: skip

Matrix = NDArray[np.float64]
KINDS = ["full", "diag"]


def prior_for(rows: Matrix, kind: str = "full", scale: float = 0.05, least: float | None = None) -> GaussianPrior:
    D = rows.shape[1]
    nu = D + 2.0 if kind == "full" else 3.0
    S = scale * nu * rows.var(axis=0)
    floor = None if least is None else least * S
    return GaussianPrior(WISHART[kind], 0.01, rows.mean(axis=0), nu, np.diag(S) if kind == "full" else S, floor)


def on_rows(rows: Matrix, seed: int = 0) -> RowData:
    return RowData(CpuShard(rows), 100_000, np.random.default_rng(seed))


def on_cells(rows: Matrix, kind: str = "full", seed: int = 0) -> CellData:
    """Cells that stay cells whatever they would gain as rows."""
    options = CellOptions(n_cells=40, tol=1e-6, most_cells=1e9)
    scatter = OUTER if kind == "full" else COLUMNS
    return CellData(CpuShard(rows), scatter, options, 100_000, np.random.default_rng(seed))


def run(data: RowData, prior: GaussianPrior, options: InfiniteOptions = InfiniteOptions()) -> list[Step[Mixture]]:  # noqa: B008
    return list(infinite(data, prior, one_component(data, prior), options, np.random.default_rng(0)))


def free_energy(data: RowData, mixture: Mixture) -> float:
    return mixture.free_energy(data.e_step(mixture.local).log_likelihood)


# What the theory promises --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", [on_rows, on_cells], ids=["rows", "cells"])
@pytest.mark.parametrize("closed", [False, True], ids=["nested", "closed"])
def test_free_energy_never_rises_at_a_fixed_truncation(kind: str, make: Callable[..., RowData], closed: bool) -> None:
    rows, _ = blobs(apart=2.5)
    prior = prior_for(rows, kind)
    data = make(rows)
    moments = components_at(data, rows[:7], prior)
    mixture = InfiniteMixture.update(prior, (1.0, 1.0), moments, closed=closed)
    energies = []
    for _ in range(25):
        statistics = data.e_step(mixture.local)
        energies.append(mixture.free_energy(statistics.log_likelihood))
        found, tail = ObservedMoments.from_pass(mixture.local, statistics), 0.0
        if not closed:
            tail, found = float(found.counts[-1]), found.take(slice(0, -1))
            found = found.take(np.argsort(-found.counts, kind="stable"))  # reordering is part of a cycle
        mixture = InfiniteMixture.update(prior, (1.0, 1.0), found, tail, closed=closed)
    assert (np.diff(energies) <= 1e-9 * abs(energies[0])).all()
    assert energies[-1] < energies[0] - 1


def test_refining_the_tree_never_raises_the_free_energy() -> None:
    rows, _ = blobs(n=4000, apart=3.0)
    data = on_cells(rows)
    prior = prior_for(rows)
    mixture = InfiniteMixture.update(prior, (1.0, 1.0), components_at(data, rows[:5], prior))
    energies = [free_energy(data, mixture)]
    while data.refine(mixture.local, thorough=True):
        energies.append(free_energy(data, mixture))
    energies.append(free_energy(on_rows(rows), mixture))
    assert len(energies) > 3
    assert (np.diff(energies) <= 1e-9 * abs(energies[0])).all()


@pytest.mark.parametrize("make", [on_rows, on_cells], ids=["rows", "cells"])
def test_families_are_nested(make: Callable[..., RowData]) -> None:
    """After convergence F at T + 1 is at most F at T, and what grows further is never worse."""
    rows, _ = blobs(C=4)
    data, prior = make(rows), prior_for(rows)
    energies = []
    for T in range(1, 6):
        steps = run(data, prior, InfiniteOptions(T_max=T, accept="best"))
        assert steps[-1].model.T <= T
        energies.append(-steps[-1].objective)
    assert (np.diff(energies) <= InfiniteOptions().tol * len(rows)).all()  # what counts as converged
    assert energies[3] < energies[0] - 100


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", [on_rows, on_cells], ids=["rows", "cells"])
def test_shown_objectives_are_monotone_and_the_components_found(kind: str, make: Callable[..., RowData]) -> None:
    rows, labels = blobs(C=6, D=3)
    steps = run(make(rows), prior_for(rows, kind, least=1e-6))
    objectives = np.array([step.objective for step in steps])
    assert (np.diff(objectives) >= -1e-9 * abs(objectives[0])).all()
    assert [step.stopped for step in steps] == [""] * (len(steps) - 1) + [GROWN]
    assert [step.iteration for step in steps] == list(range(1, len(steps) + 1))
    model = steps[-1].model
    assert model.T == 6
    assert adjusted_rand_score(labels, answer(CpuShard(rows), model.local, "components")) > 0.99
    assert (np.diff(model.sticks.weights) <= 1e-9).all()  # the largest first


def test_a_ring_needs_more_than_two_halves_at_once() -> None:
    """No split in two lowers F here; halves of halves do."""
    angles = np.repeat(np.arange(8) * np.pi / 4, 30)
    rows = 10 * np.stack([np.cos(angles), np.sin(angles)], axis=1) + np.random.default_rng(0).normal(size=(240, 2)) / 2
    assert run(on_rows(rows), prior_for(rows, least=1e-6))[-1].model.T == 8


def test_cells_that_gain_too_much_as_rows_give_way_to_them() -> None:
    rows, _ = blobs(n=2000, apart=4.0, D=3, C=6)
    data = CellData(CpuShard(rows), OUTER, CellOptions(n_cells=30, tol=1e-9), 100_000, np.random.default_rng(0))
    assert not data.by_rows
    steps = run(data, prior_for(rows, least=1e-6))
    assert data.by_rows
    exact = run(on_rows(rows), prior_for(rows, least=1e-6))
    ours, theirs = steps[-1].objective, exact[-1].objective
    # both end in optima of their own; here that of the rows is the lower one, by 1.5e-3
    assert ours > theirs - 1e-3 * abs(theirs) and ours == pytest.approx(theirs, rel=2e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_cells_that_look_at_few_components(kind: str) -> None:
    """F stays a bound that never rises; a cycle costs C′·G densities a cell, and finds what looking at all finds."""
    random = np.random.default_rng(0)
    centers = 12.0 * np.stack(np.meshgrid(np.arange(8), np.arange(8)), axis=-1).reshape(-1, 2)
    labels = np.arange(6400) % 64
    rows = centers[labels] + random.normal(size=(6400, 2))
    options = CellOptions(n_cells=400, C_prime=3, G=6)
    scatter = OUTER if kind == "full" else COLUMNS
    data = CellData(CpuShard(rows), scatter, options, 100_000, np.random.default_rng(0))
    steps = run(data, prior_for(rows, kind, least=1e-6), InfiniteOptions(n_candidates=50))
    objectives = np.array([step.objective for step in steps])
    assert (np.diff(objectives) >= -1e-9 * abs(objectives[0])).all()
    model = steps[-1].model
    assert abs(model.T - 64) <= 4 and not data.by_rows
    assert adjusted_rand_score(labels, answer(CpuShard(rows), model.local, "components")) > 0.97
    # within a round, a pass costs far less than cells × T
    cheapest = min(step.n_distances for step in steps[-3:])
    assert cheapest < 0.6 * data.n_cells * model.T
    assert free_energy(on_rows(rows), model) <= -steps[-1].objective + 1e-6 * abs(steps[-1].objective)


@pytest.mark.parametrize("options", [InfiniteOptions(max_iter=3), InfiniteOptions(T_max=2)], ids=["max_iter", "T_max"])
def test_limits_hold(options: InfiniteOptions) -> None:
    rows, _ = blobs()
    steps = run(on_rows(rows), prior_for(rows), options)
    assert len(steps) <= options.max_iter
    assert options.T_max >= steps[-1].model.T
    assert steps[-1].stopped == ("max_iter" if options.max_iter == 3 else GROWN)


# As scikit-learn -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("T", [3, 6])
def test_closed_truncation_agrees_with_scikit_learn(T: int) -> None:
    """The same priors, start and truncation; scikit-learn leaves the last stick a Beta where BJ has q(v_T = 1) = 1."""
    rows, _ = blobs(n=240, C=3, apart=6.0)
    with threadpool_limits(1):
        start = SklearnKMeans(T, n_init=1, random_state=0).fit(rows)
        peer = BayesianGaussianMixture(
            n_components=T, weight_concentration_prior_type="dirichlet_process", weight_concentration_prior=1.0,
            mean_precision_prior=0.5, mean_prior=rows.mean(axis=0), degrees_of_freedom_prior=5.0,
            covariance_prior=np.eye(2) * 3, reg_covar=0, tol=1e-10, max_iter=2000, random_state=0,
        ).fit(rows)  # fmt: skip
    prior = GaussianPrior(WISHART["full"], 0.5, rows.mean(axis=0), 5.0, np.eye(2) * 3)
    data = on_rows(rows)
    options = InfiniteOptions(alpha=(1.0, 1.0), closed=True, tol=1e-12, max_iter=2000)
    moments = components_at(data, start.cluster_centers_, prior)
    model = list(infinite(data, prior, moments, options, np.random.default_rng(0)))[-1].model
    ours, theirs = answer(CpuShard(rows), model.local, "probabilities"), peer.predict_proba(rows)
    np.testing.assert_allclose(ours @ ours.T, theirs @ theirs.T, atol=0.04)  # whichever component a cluster has
    assert adjusted_rand_score(ours.argmax(axis=1), peer.predict(rows)) == 1.0


# Passes, trials, merges ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rates", [[1.0, 1.0], [0.3, 0.7]])
def test_what_components_draw_depends_neither_on_spans_nor_on_threads(rates, monkeypatch):
    rows, _ = blobs(n=900, C=8, D=3, apart=5.0)
    weights = np.random.default_rng(0).uniform(size=len(rows))
    mixture = isotropic_mixture(rows[:8], 1.5, "full")
    work = RowsOf(mixture, np.array([5, 0]), np.array(rates), 0, remembered=True)

    def claims(n_threads: int) -> Claims:
        shard = CpuShard(rows, weights, n_threads=n_threads)
        shard.run(Expect(mixture, Remembered(renew=True)))
        return shard.run(work)

    wanted = claims(1)
    assert min(len(claim) for claim in wanted) > 30
    for name in ("RUN", "ROWS_AT_ONCE"):
        monkeypatch.setattr(rows_of, name, 64)
    monkeypatch.setattr(pool, "WAKING", 1e-12)
    for one, other in zip(wanted, claims(3), strict=True):
        np.testing.assert_array_equal(one.means, other.means)
        np.testing.assert_array_equal(one.weights, other.weights)


@pytest.mark.parametrize("kind", [*KINDS, "tied_spherical"])
@pytest.mark.parametrize("weighted", [False, True])
def test_rows_that_remember_their_components_lose_nothing_that_matters(kind: str, weighted: bool) -> None:
    rows, _ = blobs(n=900, C=8, D=3, apart=9.0)
    weights = np.random.default_rng(0).uniform(size=len(rows)) if weighted else None
    shard, other = CpuShard(rows, weights), CpuShard(rows, weights, n_threads=2)
    means = np.vstack([rows[:8], [[40.0, 0.0, 0.0]]])
    mixture = isotropic_mixture(means, 1.5, kind)
    for step, renew in enumerate([True, False, False]):
        exact, found = shard.run(Expect(mixture)), shard.run(Expect(mixture, Remembered(renew=renew)))
        assert (found.n_distances < 0.3 * exact.n_distances) is not renew
        assert found.log_likelihood <= exact.log_likelihood + 1e-9 * abs(exact.log_likelihood)
        for name in ("counts", "sums", "scatter", "log_likelihood", "total_weight"):
            np.testing.assert_allclose(getattr(found, name), getattr(exact, name), atol=5e-3, rtol=1e-4, err_msg=name)
            np.testing.assert_array_equal(
                getattr(other.run(Expect(mixture, Remembered(renew=renew))), name), getattr(found, name), err_msg=name
            )
        wanted, rates = np.array([5, 0]), np.array([1.0, 0.4])
        for kept, all_rows in zip(
            shard.run(RowsOf(mixture, wanted, rates, 0, remembered=True)),
            shard.run(RowsOf(mixture, wanted, rates, 0)),
            strict=True,
        ):
            np.testing.assert_allclose(kept.means, all_rows.means, atol=1e-12)
            np.testing.assert_allclose(kept.weights, all_rows.weights, rtol=np.exp(-NATS_BELOW))
        mixture = isotropic_mixture(means + 0.05 * (step + 1), 1.4, kind)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_a_look_that_begins_with_some_of_the_columns_keeps_what_matters(dtype: str) -> None:
    """All within the margin of the best, and nothing else; whatever the rows look like in memory."""
    rows, _ = blobs(n=900, C=9, D=45, apart=3.0)
    rows = rows.astype(dtype)
    random = np.random.default_rng(0)
    spread = np.eye(45) + 0.1 * random.normal(size=(9, 45, 45))
    mixture = GaussianParameters(np.full(9, 1 / 9), rows[:9].astype(float), spread @ spread.transpose(0, 2, 1), "full")
    shard, exact = CpuShard(rows), reference.log_joint(rows.astype(float), mixture)
    found = shard.run(Expect(mixture, Remembered(renew=True)))
    remembered = shard.recall(Kept)
    assert remembered is not None
    kept = np.zeros(exact.shape, dtype=bool)
    pairs = remembered.pairs
    kept[np.repeat(pairs.numbers, np.diff(pairs.starts)), pairs.components] = True
    np.testing.assert_array_equal(kept, exact >= exact.max(axis=1, keepdims=True) - NATS_BELOW)
    assert 1.1 * len(rows) < kept.sum() < 0.3 * kept.size  # a trivial answer would not do
    again = shard.run(Expect(mixture, Remembered(renew=False)))
    for name in ("counts", "sums", "scatter", "log_likelihood"):
        np.testing.assert_allclose(getattr(again, name), getattr(found, name), rtol=1e-9, atol=1e-9, err_msg=name)


def test_a_cycle_costs_the_same_a_cell_for_a_thousand_components() -> None:
    """From the true means: F never rises, no weight is lost, F of all rows is lower, and T is not in the cost."""
    per_cell = {}
    for side in (12, 34):
        T = side * side
        centers = 9.0 * np.stack(np.meshgrid(np.arange(side), np.arange(side)), axis=-1).reshape(-1, 2)
        rows = centers[np.arange(20 * T) % T] + np.random.default_rng(0).normal(size=(20 * T, 2))
        options = CellOptions(leaf_size=8, n_cells=4 * T, C_prime=4, G=6)
        data = CellData(CpuShard(rows, n_threads=2), OUTER, options, 100_000, np.random.default_rng(0))
        prior = prior_for(rows, scale=1e-3)
        cycles = VariationalRun(data, prior, InfiniteOptions(T_max=T, max_iter=6))
        state = cycles.arrange(components_at(data, centers, prior), 0.0, np.zeros(T))
        steps = list(cycles.cycle(state, None, 0.0, refine=False))
        objectives = np.array([step.objective for step in steps])
        assert (np.diff(objectives) >= -1e-9 * abs(objectives[0])).all() and objectives[-1] > objectives[0]
        model = steps[-1].model
        assert model.sticks.weights.sum() + model.sticks.remainder == pytest.approx(1.0, abs=1e-12)
        held = model.sticks.first - model.sticks.alpha[0]
        assert held.sum() == pytest.approx(len(rows), rel=1e-3)
        assert free_energy(on_rows(rows), model) <= -objectives[-1] + 1e-9 * abs(objectives[-1])
        per_cell[side] = steps[-1].n_distances / data.n_cells
    assert per_cell[34] < 1.2 * per_cell[12]
    assert per_cell[34] < 4 * 6 + 2


@pytest.mark.parametrize("C_prime", [None, 2])
def test_cells_of_components_that_are_tried_are_opened(C_prime: int | None) -> None:
    rows, _ = blobs(n=4000, C=8, D=3)
    shard = CpuShard(rows)
    n_before = shard.run(Plant(OUTER, 8, largest=600.0))
    mixture = isotropic_mixture(rows[:8], 1.0, "full")
    if C_prime:
        graph = nearest_graph(shard, mixture.means, 4)
        shard.run(ExpectCells(mixture, Neighbors(graph, Search(C_prime, 0, 0, estimate=False))))
    bound = shard.run(ExpectCells(mixture)).log_likelihood
    n_cells = shard.run(OpenHeld(mixture, np.array([3, 5]), 40))
    claims = list(shard.run(CellsOf(mixture, np.arange(8))))
    assert n_cells > n_before and n_cells < n_before + 4 * 80
    assert min(len(claims[3]), len(claims[5])) >= 30 > len(claims[0])
    after = shard.run(ExpectCells(mixture))
    assert after.log_likelihood >= bound and after.total_weight == pytest.approx(4000)
    assert shard.run(OpenHeld(mixture, np.array([3, 5]), 10)) == n_cells  # they have enough now
    assert shard.run(OpenHeld(mixture, np.arange(8), 10_000)) == 4000  # all rows, and no more


def test_rows_that_need_most_components_remember_none() -> None:
    rows, _ = blobs(apart=0.5)
    shard = CpuShard(rows)
    mixture = isotropic_mixture(rows[:5], 1.0, "full")
    for renew in (True, False):
        found, exact = shard.run(Expect(mixture, Remembered(renew=renew))), shard.run(Expect(mixture))
        np.testing.assert_array_equal(found.sums, exact.sums)
        assert found.n_distances == exact.n_distances


def e_step_on(shard: CpuShard, chunks: Chunks, mixture: GaussianParameters) -> SoftStatistics:
    """The E-step of one mixture on one share."""
    starts, bounds = np.array([0, len(chunks)]), np.array([0, mixture.n_components])
    found = shard.run(ExpectShares(chunks, starts, mixture, bounds, np.array([[0]])))
    assert found.log_likelihoods.tolist() == [found.parts.log_likelihood]
    return found.parts


@pytest.mark.parametrize("D", [3, 45])  # in many columns passes over the whole frontier may not pack matrices
@pytest.mark.parametrize("kind", [*KINDS, "tied", "spherical"])
def test_a_share_of_cells_has_the_e_step_of_the_frontier(kind: str, D: int) -> None:
    """Before and after cells are opened."""
    rows, _ = blobs(n=1500, apart=2.0, D=D)
    mixture = isotropic_mixture(rows[:3], 0.7, kind)
    shard = CpuShard(rows + 100.0)
    mixture = replace(mixture, means=mixture.means + 100.0)
    shard.run(Plant(OUTER, 16, largest=200.0))
    local = shard.local(rows[:0])
    for _ in range(2):
        chunks = shard.run(TakeCells())
        found, again = e_step_on(local, chunks, mixture), e_step_on(local, chunks, mixture)
        exact = shard.run(ExpectCells(mixture))
        for name in ("counts", "sums", "scatter", "log_likelihood", "total_weight", "n_distances"):
            np.testing.assert_array_equal(getattr(found, name), getattr(again, name))
            np.testing.assert_allclose(getattr(found, name), getattr(exact, name), rtol=1e-7, atol=1e-6, err_msg=name)
        gains = shard.run(Gains(mixture, 5))
        shard.run(OpenGaining(float(gains.gains[-1])))


def test_components_seen_in_the_same_cells_are_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, _ = blobs(n=4000, C=8, D=4, apart=5.0)
    rejected_at: list[tuple[int, int]] = []
    once = splits._try_split

    def observed(*arguments: Any) -> Generator[splits.Asked, Any, splits.Trial]:
        trial = yield from once(*arguments)
        if trial.gain <= 0:
            rejected_at.append((round(float(trial.children.counts[0])), trial.n_seen))
        return trial

    monkeypatch.setattr(splits, "_try_split", observed)
    data = on_cells(rows)
    before = data.n_cells
    steps = run(data, prior_for(rows))
    assert steps[-1].stopped == GROWN and steps[-1].model.T == 8
    assert data.n_cells > before  # it has looked closer, …
    assert len(rejected_at) == len(set(rejected_at)) >= 8  # … and at nothing twice


@pytest.mark.parametrize(("steeper", "fall", "n_left", "expected"), [(4, 1, 9, 2 / 3), (4, 3, 1, 3), (4, 3, 9, 18)])
def test_what_f_may_still_fall_by_is_twice_a_geometric_series(steeper, fall, n_left, expected):
    assert to_come(steeper, fall, n_left) == pytest.approx(expected)


def test_rows_take_over_with_the_components_that_matter() -> None:
    """The objective stays monotone, the components sorted, and the result that of all pairs."""
    rows, _ = blobs(n=3000, apart=6.0, D=4, C=12)
    data = CellData(CpuShard(rows), OUTER, CellOptions(n_cells=30, most_cells=1e-3), 100_000, np.random.default_rng(0))
    assert data.by_rows and data.truncated
    steps = run(data, prior_for(rows, least=1e-6))
    exact = run(on_rows(rows), prior_for(rows, least=1e-6))
    objectives = np.array([step.objective for step in steps])
    assert (np.diff(objectives) >= -1e-9 * abs(objectives[0])).all()
    assert steps[-1].model.T == exact[-1].model.T == 12
    assert steps[-1].objective == pytest.approx(exact[-1].objective, rel=1e-5)
    assert (np.diff(steps[-1].model.sticks.weights) <= 1e-9).all()
    assert sum(step.n_distances for step in steps) < sum(step.n_distances for step in exact)


def test_a_part_of_the_claims_weighs_as_much_as_all() -> None:
    rows, _ = blobs(n=20_000, C=1)
    prior = prior_for(rows)
    mixture = InfiniteMixture.update(prior, (1.0, 1.0), components_at(on_rows(rows), rows[:1], prior)).local
    (part,) = CpuShard(rows).run(RowsOf(mixture, np.array([0]), np.array([0.1]), 7))
    (again,) = CpuShard(rows, n_threads=2).run(RowsOf(mixture, np.array([0]), np.array([0.1]), 7))
    assert 1500 < len(part.weights) < 2500
    assert part.weights.sum() == pytest.approx(20_000, rel=0.1)
    np.testing.assert_array_equal(part.means, again.means)


@pytest.mark.parametrize("sizes", [{}, {"ROWS_AT_ONCE": 7}, {"MOMENTS_AT_ONCE": 100}])
def test_what_components_hold_of_cells_depends_neither_on_spans_nor_on_threads(sizes, monkeypatch):
    """Some cells are nodes, some are single rows."""
    rows, _ = blobs(n=900, C=8, D=3, apart=3.0)
    mixture, wanted = isotropic_mixture(rows[:8], 1.5, "full"), np.array([5, 0, 7])
    shards = [CpuShard(rows, np.random.default_rng(0).uniform(size=len(rows)), n_threads=n) for n in (1, 3)]
    for shard in shards:
        shard.run(Plant(OUTER, 8, largest=4.0))
        shard.run(OpenGaining(float(np.median(shard.run(Gains(mixture, 1000)).gains))))
    cells = shards[0].run(TakeCells())
    assert np.count_nonzero(cells.scatter.any(axis=1)) > 20 < np.count_nonzero(~cells.scatter.any(axis=1))
    blocks = ChunkBlocks(mixture, np.zeros(3))
    q = blocks.posterior(blocks.observed(cells))[0]
    for name, value in sizes.items():
        monkeypatch.setattr(tree_cells, name, value)
    monkeypatch.setattr(pool, "WAKING", 1e-12)
    one, other = (shard.run(CellsOf(mixture, wanted)) for shard in shards)
    for claim, same, component in zip(one, other, wanted.tolist(), strict=True):
        share = q[:, component]
        chosen = share > 1e-4
        np.testing.assert_allclose(claim.weights, (cells.weights * share)[chosen], rtol=1e-9)
        np.testing.assert_array_equal(claim.means, cells.means[chosen])
        np.testing.assert_allclose(claim.scatter, (cells.scatter * share[:, None])[chosen], rtol=1e-9)
        for name in ("weights", "means", "scatter"):
            np.testing.assert_array_equal(getattr(claim, name), getattr(same, name))


@pytest.mark.parametrize("make", [on_rows, on_cells], ids=["rows", "cells"])
def test_the_gain_of_a_trial_is_what_the_free_energy_falls_by(make: Callable[..., RowData]) -> None:
    """Children in the place of their parent, everything else as it was: F of all the data tells the same."""
    rows, _ = blobs(C=3, apart=10.0)
    data, prior = make(rows), prior_for(rows)
    moments = components_at(data, np.array([[0.0, 0.0], [10.0, 5.0]]), prior)  # the second holds two clusters
    order = np.argsort(-moments.counts)
    moments = moments.take(order)
    before = InfiniteMixture.update(prior, (1.0, 1.0), moments)
    shares = data.shares(before.local, np.array([0]), moments.counts[:1])
    rules = splits.SplitRules(StickPrior(1.0, 1.0), 0.0, 0.0, 10.0)
    (trial,) = splits.try_splits(shares, np.array([0]), moments, [float(moments.counts[1])], prior, rules)
    assert trial.gain > 50 and len(trial.children) == 2
    after = InfiniteMixture.update(prior, (1.0, 1.0), trial.children.join(moments.take(slice(1, 2))))
    fallen = free_energy(data, before) - free_energy(data, after)
    assert fallen == pytest.approx(trial.gain, rel=0.02)


def test_small_children_are_not_split_off() -> None:
    rows, _ = blobs(C=2, n=100, apart=30.0)
    data, prior = on_rows(rows), prior_for(rows)
    few = InfiniteOptions(smallest=60.0)
    assert run(data, prior)[-1].model.T == 2
    assert run(data, prior, few)[-1].model.T == 1


def test_splits_that_gain_little_are_not_kept() -> None:
    """A cluster that is not quite Gaussian stays whole unless asked otherwise."""
    rows = np.random.default_rng(0).uniform(size=(2000, 2))
    data, prior = on_rows(rows), prior_for(rows, least=1e-6)
    whole, pieces = (run(data, prior, InfiniteOptions(gain=gain))[-1].model.T for gain in (0.5, 0.0))
    assert whole == 1 < pieces


def test_superfluous_components_are_merged() -> None:
    rows, labels = blobs(C=2, apart=12.0)
    data, prior = on_rows(rows), prior_for(rows)
    halves = rows[labels == 0]
    means = np.array([halves[halves[:, 0] > 0].mean(axis=0), halves[halves[:, 0] <= 0].mean(axis=0), [12.0, 0.0]])
    moments = components_at(data, means, prior)
    cycles = VariationalRun(data, prior, InfiniteOptions())
    assert cycles.superfluous(cycles.arrange(moments, 0.0, np.zeros((3, 2))), 0.0) == [(1, 2)]  # sorted by size
    steps = list(infinite(data, prior, moments, InfiniteOptions(), np.random.default_rng(0)))
    assert steps[-1].model.T == 2


def test_rows_of_large_components_are_thinned_for_trials() -> None:
    rows, _ = blobs(n=3000)
    data, prior = RowData(CpuShard(rows), 300, np.random.default_rng(0)), prior_for(rows)
    last = run(data, prior)[-1].model
    assert last.T == 4
    found = data.shares(last.local, np.arange(4), np.full(4, 750.0))
    assert (found.sizes < 400).all()
    assert found.cells.weights.sum() == pytest.approx(3000, rel=0.05)


def grid_of_clusters(side: int, per: int) -> Matrix:
    """Clusters four deviations apart: lines of them look like long components, which are worth no two halves."""
    centers = 4.0 * np.stack(np.meshgrid(np.arange(side), np.arange(side)), axis=-1).reshape(-1, 2)
    return np.repeat(centers, per, axis=0) + np.random.default_rng(0).normal(size=(per * side**2, 2))


def test_another_start_finds_what_splits_do_not() -> None:
    rows = grid_of_clusters(6, 200)
    data, prior = on_rows(rows), prior_for(rows, scale=1.0, least=1e-6)
    grown, sown = (run(data, prior, InfiniteOptions(n_sown=n))[-1] for n in (0, 2))
    assert grown.model.T < 36 == sown.model.T
    assert sown.objective > grown.objective


class SownRun:
    """A run whose sown starts have so many components and so much lower an F, a row, than the state."""

    ended, total_weight = False, 100.0

    def __init__(self, *outcomes: tuple[int, float]) -> None:
        self.outcomes, self.asked = list(outcomes), list[int]()

    def sown(self, state: Any, n_times: int, rng: Any) -> Any:
        self.asked.append(n_times)
        if not self.outcomes:
            return None
        T, lower = self.outcomes.pop(0)
        return SimpleNamespace(mixture=SimpleNamespace(T=T), F=state.F - lower * self.total_weight)

    def cycle(self, state: Any, *_: Any, **__: Any) -> Any:
        yield state
        return state

    with_fitted_prior = cycle

    def compared(self, state: Any, attempt: Any) -> Any:
        yield attempt
        return state

    superfluous = staticmethod(lambda *_: [])
    without_vanished = staticmethod(lambda state: state)


@pytest.mark.parametrize(
    ("outcomes", "asked", "taken"),
    [
        ([], [2], None),  # no room
        ([(10, 0.0009)], [2], None),  # not lower
        ([(10, 0.0201)], [2], 10),  # five components more, of ten, have to gain half of twice the 0.02
        ([(10, 0.0199), (20, 0.0301)], [2, 4], 20),  # lower by too little, then by enough
        ([(10, 0.0199), (20, 0.0299)], [2, 4], None),
        ([(10, 0.0199)], [2, 4], None),  # no room for twice as many
        ([(4, 0.0011)], [2], 4),  # fewer components have to gain nothing more
    ],
)
def test_twice_as_many_are_sown_where_the_first_gain_too_little(outcomes, asked, taken):
    state: Any = SimpleNamespace(mixture=SimpleNamespace(T=5), F=1000.0)
    cycles: Any = SownRun(*outcomes)
    found = result_of(_sow(cycles, state, InfiniteOptions(n_sown=2), np.random.default_rng(0)))
    assert cycles.asked == asked and (found and found.mixture.T) == taken


def test_objectives_stay_monotone_while_other_starts_are_tried() -> None:
    rows = grid_of_clusters(4, 100)
    steps = run(on_rows(rows), prior_for(rows, scale=1.0, least=1e-6), InfiniteOptions(n_sown=2))
    objectives = np.array([step.objective for step in steps])
    assert (np.diff(objectives) >= -1e-9 * np.abs(objectives[1:])).all()


def test_partition_of_the_tree_is_the_best_that_it_contains() -> None:
    """Against all partitions of a small tree, by brute force."""
    rows, _ = blobs(n=60, C=4, D=2, apart=8.0)
    shard = CpuShard(rows)
    shard.run(Plant(OUTER, 10))
    worth = Worth(prior_for(rows, scale=1e-2), 5.0, 60.0)
    tree = shard.frontier.tree
    values = worth(tree.chunks(np.arange(tree.n_nodes)))

    def totals(node: int) -> list[float]:
        a, b = tree.children[node]
        below = [] if a < 0 else [x + y for x in totals(a) for y in totals(b)]
        return [values[node], *below]

    found = shard.run(BestCut(worth, 0.0))
    assert found.weights.sum() == pytest.approx(60.0)
    assert worth(found).sum() == pytest.approx(max(totals(0)))
    shard.run(OpenCut())
    assert len(shard.frontier) == len(found)
    np.testing.assert_allclose(np.sort(shard.run(TakeCells()).weights), np.sort(found.weights))


def test_hard_free_energy_is_that_of_rows_that_are_not_shared() -> None:
    rows, labels = blobs(n=400, C=4, D=2, apart=60.0)
    prior, data = prior_for(rows, scale=1e-2), RowData(CpuShard(rows), 1000, np.random.default_rng(0))
    moments = components_at(data, np.array([rows[labels == c].mean(axis=0) for c in range(4)]), prior)
    cycles = VariationalRun(data, prior, InfiniteOptions())
    *_, last = cycles.cycle(cycles.arrange(moments, 0.0, np.zeros(4)), None, 1e-9)
    assert hard_free_energy(moments, prior, (1.0, 1.0)) == pytest.approx(-last.objective, rel=1e-4)


def test_the_tree_sees_clusters_that_look_uniform_from_afar() -> None:
    side = 12
    centers = 10.0 * np.stack(np.meshgrid(np.arange(side), np.arange(side)), axis=-1).reshape(-1, 2)
    rows = centers[np.arange(40 * side**2) % side**2] + np.random.default_rng(0).normal(size=(40 * side**2, 2))
    data = CellData(CpuShard(rows), OUTER, CellOptions(n_cells=64, most_cells=1.0), 1000, np.random.default_rng(0))
    cycles = VariationalRun(data, prior_for(rows, scale=1.0, least=1e-6), InfiniteOptions())
    one = cycles.arrange(one_component(data, cycles.prior), 0.0, np.zeros(1))
    *_, whole = cycles.cycle(one, None, 1e-3)
    state = cycles.better_parts(replace(one, F=-whole.objective))
    assert state is not None and side**2 <= state.mixture.T
    assert data.n_cells >= state.mixture.T  # no cell is larger than a component
    assert state.moments.counts.sum() == pytest.approx(len(rows))
    *_, last = cycles.cycle(state, None, 1e-3, refine=False)
    assert -last.objective < -whole.objective - len(rows)
    assert cycles.better_parts(replace(one, F=-whole.objective)) is None  # once in a run


def test_a_row_without_a_density_is_an_error() -> None:
    rows = np.array([[0.0, 0.0], [np.nan, 0.0]])
    with pytest.raises(np.linalg.LinAlgError, match="no density"):
        CpuShard(rows).run(Expect(isotropic_mixture(rows[:1], 1.0, "full"), Remembered(renew=True)))


@pytest.mark.parametrize("seed", [3, 4, 8, 9])
def test_rows_on_a_line_that_weigh_much_have_covariances_with_factors(seed: int) -> None:
    random = np.random.default_rng(seed)
    rows = np.outer(random.normal(size=5), random.normal(size=10))
    weights = 1e9 * np.random.default_rng(seed + 1).uniform(0.1, 3.0, size=5)
    model = InfiniteGaussianMixture(random_state=seed).fit(rows, sample_weight=weights)
    assert np.isfinite(np.linalg.cholesky(model.covariances_)).all()


@pytest.mark.parametrize("seed", range(4))
def test_a_fixed_truncation_ends_with_no_cluster_in_parts(seed: int) -> None:
    """F of ten components falls so slowly that it seems to have settled while four clusters are in nine parts."""
    random = np.random.default_rng(0)
    labels = random.integers(4, size=2000)
    rows = 6.0 * np.column_stack([labels % 2, labels // 2]) + random.normal(size=(2000, 2))
    model = InfiniteGaussianMixture(truncation="fixed", max_components=10, random_state=seed).fit(rows)
    assert model.n_components_ == len(np.unique(model.labels_)) == 4 and len(model.weights_) == 10
    assert adjusted_rand_score(labels, model.labels_) > 0.98
    assert model.converged_ and np.diff(model.lower_bounds_).min() > -1e-9
