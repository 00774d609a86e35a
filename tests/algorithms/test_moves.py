"""Moves of components that are tried out, and the start of a mixture on a part of the rows."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from globular import GaussianMixture
from globular.algorithms.mixtures import moves, pipeline
from globular.algorithms.mixtures.em import EMOptions, em, start_from_means
from globular.algorithms.mixtures.moves import search_by_moves
from globular.algorithms.mixtures.pipeline import search_start
from globular.algorithms.search import SHORTEST
from globular.algorithms.steps import last_step, result_of
from globular.model.covariances import FAMILIES
from globular.passes.cpu import CpuShard
from globular.seam.mixture_passes import Expect
from reference import expect as soft

TYPES = sorted(FAMILIES)
MIDDLES = np.array([[0.0, 0, 0], [12, 0, 0], [0, 12, 0], [0, 0, 12], [12, 12, 0], [12, 0, 12]])


def rows(n: int = 1200, seed: int = 0) -> Any:
    """Six clusters that are as many components."""
    random = np.random.default_rng(seed)
    return MIDDLES[np.arange(n) % 6] + random.normal(size=(n, 3)) * random.uniform(0.5, 1.5, size=3)


def lost() -> Any:
    """Three means in one cluster, and one between two clusters, twice: EM alone does not mend it."""
    return np.array([[0.0, 0, 0], [0.5, 0, 0], [0, 0.5, 0], [12, 0, 6], [6, 12, 0], [0, 0, 12]])


def likelihood(X: Any, mixture: Any) -> float:
    return float(np.mean(soft.posterior(X, mixture)[1]))


@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize("covariance_type", TYPES)
def test_a_bad_start_is_mended_and_the_likelihood_never_falls(covariance_type: str, learned: bool) -> None:
    X, options = rows(), EMOptions(learned_weights=learned)
    shard = CpuShard(X)
    start = start_from_means(shard, lost(), covariance_type, options)
    *_, stuck = em(shard, start, options)
    steps = list(search_by_moves(shard, start, options, 500, np.random.default_rng(0)))
    objectives = [step.objective for step in steps]
    assert (np.diff(objectives) >= -1e-6 * abs(objectives[0])).all() and not any(step.stopped for step in steps)
    *_, found = em(shard, steps[-1].model, options)
    *_, right = em(shard, start_from_means(shard, MIDDLES, covariance_type, options), options)
    assert stuck.objective < right.objective - 0.1 * len(X)
    assert found.objective == pytest.approx(right.objective, rel=1e-3)
    if not learned:
        np.testing.assert_array_equal(found.model.weights, 1 / 6)


def test_without_steps_there_is_em_alone() -> None:
    X, options = rows(), EMOptions()
    start = start_from_means(CpuShard(X), lost(), "full", options)
    least = SHORTEST
    ends = [
        list(search_by_moves(CpuShard(X), start, options, n, np.random.default_rng(0)))[-1]
        for n in (0, least - 1, least)
    ]
    assert ends[0].objective == ends[1].objective < ends[2].objective


@pytest.mark.parametrize("covariance_type", TYPES)
def test_gains_and_losses_are_those_of_the_rows(covariance_type: str) -> None:
    """What halves gain and what a merger loses, by single Gaussians fitted to the rows of components far apart."""
    X, options = rows(), EMOptions(reg_covar=0.0)
    shard = CpuShard(X)
    means = np.vstack([MIDDLES[:4], [[12.0, 6, 6]]])  # the last holds two clusters
    *_, step = em(shard, start_from_means(shard, means, covariance_type, options), options)
    prospects = moves.GaussianProspects(shard, step.model, options, np.random.default_rng(0))
    assert prospects.objective == pytest.approx(shard.run(Expect(step.model)).log_likelihood)
    assert prospects.gains.argmax() == 4 and prospects.gains[4] > 20 * np.abs(prospects.gains[:4]).max()
    halves = prospects.halves.means[8:]
    nearest = np.linalg.norm(halves[:, None] - MIDDLES[4:], axis=2).argmin(axis=1)
    assert sorted(nearest) == [0, 1] and np.abs(halves - MIDDLES[4:][nearest]).max() < 0.5
    # one Gaussian in the place of a pair: the likelihood of all rows falls by about as much
    a, b = prospects.pairs[0].tolist()
    merged = prospects.merged(np.array([a]), np.array([b]))
    both = soft.log_joint(X, merged)[:, 0]
    others = np.delete(soft.log_joint(X, step.model), [a, b], axis=1)
    after = np.logaddexp(both, np.logaddexp.reduce(others, axis=1)).sum()
    assert prospects.losses[0] == pytest.approx(prospects.objective - after, rel=0.06)


def test_no_move_leaves_a_component_on_a_few_rows() -> None:
    """Five rows in a corner would have any density one likes, given a component of their own."""
    X = np.vstack([rows(), 30 + 1e-4 * np.random.default_rng(1).normal(size=(5, 3))])
    shard, options = CpuShard(X), EMOptions(reg_covar=0.0)
    start = start_from_means(shard, lost(), "full", options)
    *_, step = search_by_moves(shard, start, options, 500, np.random.default_rng(0))
    assert step.model.weights.min() * len(X) > 100
    alone = np.vstack([MIDDLES[:4], [[12.0, 6, 6], [30, 30, 30]]])  # one that is there already is the first to go
    *_, step = search_by_moves(
        shard, start_from_means(shard, alone, "full", options), options, 500, np.random.default_rng(0)
    )
    assert step.model.weights.min() * len(X) > 100


@pytest.mark.parametrize("n", [2 * pipeline.FEWEST_ROWS - 1, 2 * pipeline.FEWEST_ROWS])
def test_a_part_is_drawn_from_twice_its_rows_on(n: int) -> None:
    shard = CpuShard(rows(n))
    part = pipeline.draw_part(shard, 6, "full", np.random.default_rng(0))
    assert (part.n_rows == n) == (n < 2 * pipeline.FEWEST_ROWS)
    assert part.total_weight == pytest.approx(n) and part.n_columns == 3


def test_the_part_has_rows_for_all_parameters() -> None:
    shard = CpuShard(np.zeros((4, 3)))
    assert pipeline.rows_of_part(shard, 16, "diag") == 2048
    assert pipeline.rows_of_part(shard, 17, "diag") == 17 * 128
    wide = CpuShard(np.zeros((4, 40)))
    assert pipeline.rows_of_part(wide, 10, "full") == 15 * (40 + 20 * 41)
    assert pipeline.rows_of_part(wide, 10, "tied") == 2048


@pytest.mark.parametrize(("components_per_step", "searched"), [(10**9, False), (1, True)])
@pytest.mark.parametrize("n", [1200, 2 * pipeline.FEWEST_ROWS])
def test_a_search_is_as_long_as_the_em_before_it(n, components_per_step, searched, monkeypatch, watch):
    X = np.repeat(rows(n), 8, axis=1)  # dear enough for a search of all rows
    limits = watch(pipeline, "search_by_moves", lambda part, start, options, max_steps, rng: max_steps)
    monkeypatch.setattr(pipeline, "COMPONENTS_PER_STEP", components_per_step)
    result_of(search_start(CpuShard(X), 6, "full", EMOptions(), np.random.default_rng(0)))
    assert [limit >= SHORTEST for limit in limits] == [True] * searched


@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag", "spherical"])
def test_few_rows_in_separate_groups_are_never_started_wrongly(covariance_type: str) -> None:
    """Seeds alone leave out a group now and then, and EM does not find it."""
    random = np.random.default_rng(0)
    means, shapes = random.normal(size=(5, 5)) * 3, np.eye(5) + 0.4 * random.normal(size=(5, 5, 5)) / np.sqrt(5)
    which = random.choice(5, size=2000, p=np.full(5, 0.2))
    X = means[which] + np.einsum("nij,nj->ni", shapes[which], random.normal(size=(2000, 5)))
    scores = [
        GaussianMixture(5, covariance_type=covariance_type, random_state=seed).fit(X).score(X) for seed in range(8)
    ]
    assert np.ptp(scores) < 1e-2


@pytest.mark.parametrize("k", [pipeline.SETTLED_COMPONENTS, pipeline.SETTLED_COMPONENTS + 1])
def test_few_components_are_settled_by_kmeans(k: int) -> None:
    X = np.repeat(rows(1200), 8, axis=1)
    stages = {record.stage for record in GaussianMixture(k, random_state=0).fit(X).history_}
    assert ("part" in stages) == (k > pipeline.SETTLED_COMPONENTS)


@pytest.mark.parametrize("k", [pipeline.FEW_COMPONENTS, pipeline.FEW_COMPONENTS + 1])
@pytest.mark.parametrize("covariance_type", ["diag", "tied"])
@pytest.mark.parametrize("missing", [0, 1])
def test_short_runs_compete_for_few_components_of_many_rows(k, covariance_type, missing, watch) -> None:
    sizes = watch(pipeline, "best_of_short_runs", lambda part, centers, *others: len(centers))
    X = rows(pipeline.SHORT_SHARE * pipeline.SHORT_ROWS - missing)
    result_of(search_start(CpuShard(X), k, covariance_type, EMOptions(), np.random.default_rng(0)))
    competed = k <= pipeline.FEW_COMPONENTS and covariance_type == "diag" and not missing
    assert sizes == [k] * competed


@pytest.mark.parametrize("learned", [True, False])
def test_the_best_short_run_is_likelier_than_that_of_kmeans(learned: bool) -> None:
    """A narrow cross: k-means cuts each arm in half, and EM from there is slow to part the arms."""
    random = np.random.default_rng(0)
    X = random.normal(size=(9000, 2)) * [6.0, 0.3]
    X[::2] = X[::2, ::-1]
    part, options = CpuShard(X), EMOptions(learned_weights=learned)
    centers = np.array([[3.0, 0.0], [-3.0, 0.0]])
    best = result_of(pipeline.best_of_short_runs(part, centers, "full", options, np.random.default_rng(0)))
    alone = last_step(em(part, start_from_means(part, centers, "full", options), replace(options, max_iter=10))).model
    assert best.weights.sum() == pytest.approx(1.0) and (learned or best.weights.tolist() == [0.5, 0.5])
    assert part.run(Expect(best)).log_likelihood > part.run(Expect(alone)).log_likelihood - 1e-2 * len(X)
    assert np.sort(best.variances().max(axis=1))[0] > 20.0  # both arms are whole


@pytest.mark.parametrize("most", [64 * 32, 64 * 32 - 1])
def test_kmeans_is_searched_where_few_rows_suffice(most: int, monkeypatch: pytest.MonkeyPatch, watch: Any) -> None:
    """Both ways give means of the part; one row less a component, and steps over all of it follow the seeds."""
    sizes = watch(pipeline, "_search_few", lambda part, n, n_components, rng: n)
    monkeypatch.setattr(pipeline, "FEW_NUMBERS", 3 * most)
    X = rows(3000)
    centers = result_of(pipeline._kmeans(CpuShard(X), 64, 1.0, np.random.default_rng(0)))
    assert centers.shape == (64, 3) and sizes == [most] * (most == 64 * pipeline.FEW_ROWS_PER_COMPONENT)
    assert np.linalg.norm(MIDDLES[:, None] - centers, axis=2).min(axis=1).max() < 2


def test_rows_far_off_have_components_of_a_tied_mixture() -> None:
    """A few rows that nobody has for his own widen the covariance of all; a plain part of the rows has none of them."""
    X = rows(12_000)
    X[:4], X[4:7] = [300.0, 0, 0], [0, -300.0, 0]
    for seed in range(3):
        found = GaussianMixture(8, covariance_type="tied", random_state=seed).fit(X)
        assert np.sort(found.weights_ * len(X))[:2] == pytest.approx([3, 4], rel=1e-3)
        assert np.linalg.eigvalsh(found.covariances_).max() < 4


def test_small_fits_do_without_a_search() -> None:
    small, large = (GaussianMixture(6, random_state=0).fit(rows(n)) for n in (300, 12_000))
    assert {record.stage for record in small.history_} == {"seeds", "k-means", "iterations"}
    assert {record.stage for record in large.history_} == {"seeds", "k-means", "part", "iterations"}
    assert len(large.history_.iterations) == large.n_iter_ == len(large.lower_bounds_)


@pytest.mark.parametrize("algorithm", ["em", "chunky"])
def test_many_overlapping_groups_are_found(algorithm: str) -> None:
    """As good as EM from the groups that the rows were drawn from."""
    random = np.random.default_rng(1)
    means, spreads = random.normal(size=(20, 4)) * 4, random.uniform(0.3, 1.2, size=(20, 4))
    labels = random.choice(20, size=42_000, p=np.arange(1, 21) / 210)
    X = means[labels] + spreads[labels] * random.normal(size=(42_000, 4))
    truth = GaussianMixture(
        20, weights_init=np.arange(1, 21) / 210, means_init=means, algorithm="em", random_state=0,
        precisions_init=np.eye(4) / spreads[:, :, None] ** 2,
    ).fit(X)  # fmt: skip
    for seed in range(2):
        model = GaussianMixture(20, algorithm=algorithm, random_state=seed).fit(X)
        assert model.score(X) > truth.score(X) - 0.01


def test_no_iteration_is_no_search_on_a_part_either() -> None:
    X = rows(3 * pipeline.FEWEST_ROWS)
    model = GaussianMixture(6, algorithm="em", max_iter=0, random_state=0).fit(X)
    assert model.n_iter_ == 0 and np.isfinite(model.means_).all()
