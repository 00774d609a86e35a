"""Probing for mixtures: the pass against its oracle, the schedule, and EM by probing."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from globular import VariationalGaussianMixture, threads
from globular.algorithms.kmeans.cells import draw_cells, label_by_cells
from globular.algorithms.kmeans.variational import VariationalOptions
from globular.algorithms.mixtures.em import EMOptions, covariance_limits
from globular.algorithms.mixtures.probing import LONGEST_WAIT, Schedule, SearchByProbing, find_members, start_probing
from globular.algorithms.mixtures.variational import truncated_em
from globular.model.covariances import FAMILIES
from globular.model.gaussian import GaussianParameters, isotropic_mixture, m_step
from globular.model.statistics import SoftStatistics
from globular.passes.cpu import CpuShard
from globular.passes.cpu import cells as in_cells
from globular.seam.among import Probe
from globular.seam.answers import Answer, Truncated
from globular.seam.mixture_passes import Expect
from globular.seam.passes import ScatterLabels
from globular.seam.shard import answer
from makers import blobs, in_form, weights_for
from reference import assign as hard_reference
from reference import probe as reference
from reference.expect import assert_alike

TYPES = ("tied_spherical", "spherical", "diag")


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def mixture_of(rows: Any, covariance_type: str, C: int, seed: int = 0) -> GaussianParameters:
    """Rows as means, variances and weights at random."""
    random = rng(seed)
    D = rows.shape[1]
    weights = random.random(C) + 0.1
    covariances = random.uniform(0.2, 2.0, FAMILIES[covariance_type].shape(C, D)) * max(rows.var(), 0.1)
    means = rows[random.choice(len(rows), C, replace=len(rows) < C)].astype(np.float64)
    return GaussianParameters(weights / weights.sum(), means, np.asarray(covariances), covariance_type)


def known_members(labels: Any, C: int, C_prime: int) -> Any:
    """The label and a random other component; nothing else."""
    members = np.full((len(labels), C_prime), -1, dtype=np.int32)
    members[:, 0] = labels
    if C_prime > 1 and C > 1:
        members[:, 1] = (labels + rng(3).integers(1, C, len(labels))) % C
    return members


def shard_at(shard: Any, labels: Any, members: Any) -> Any:
    shard.labels[:] = labels
    shard.state.get("members", np.int32, -1, members.shape[1])[:] = members
    return shard


@pytest.mark.parametrize("n_probes", [1, 3, 100])
@pytest.mark.parametrize("C_prime", [1, 4])
@pytest.mark.parametrize("covariance_type", TYPES)
@pytest.mark.parametrize("form", ["float64", "float32", "uint8", "fortran"])
def test_the_pass_equals_its_oracle(form: str, covariance_type: str, C_prime: int, n_probes: int) -> None:
    C = 40
    for D, weights in ((3, None), (20, weights_for(200))):
        matrix = np.asfortranarray(blobs(n=200, D=D)) if form == "fortran" else in_form(blobs(n=200, D=D), form)
        rows = hard_reference.as_seen(matrix)
        mixture = mixture_of(rows, covariance_type, C)
        labels = rng(1).integers(C, size=200).astype(np.int32)
        members = known_members(labels, C, C_prime)
        shard = shard_at(CpuShard(matrix, weights), labels, members)
        cells = draw_cells(shard, mixture.means, rng())
        used = np.ones(200) if weights is None else weights
        kept, expected, gain = reference.probing_soft_pass(rows, used, mixture, cells, n_probes, members)
        found = shard.run(Expect(mixture, Probe(cells, n_probes, C_prime)))
        np.testing.assert_array_equal(shard.state.get("members", np.int32, -1, C_prime), kept)
        np.testing.assert_array_equal(shard.labels, kept[:, 0])
        assert found.gain == pytest.approx(gain, rel=1e-9, abs=1e-8)
        assert found.n_distances == expected.n_distances
        assert_alike(found, expected)


@pytest.mark.parametrize("covariance_type", TYPES)
def test_without_cells_the_members_stay(covariance_type: str) -> None:
    rows = blobs(n=300)
    mixture = mixture_of(rows, covariance_type, 30)
    shard = CpuShard(rows)
    shard.labels[:] = 0
    shard.run(Expect(mixture, Probe(draw_cells(shard, mixture.means, rng()), 2, 3)))
    members = shard.state.get("members", np.int32, -1, 3).copy()
    moved = mixture_of(rows, covariance_type, 30, seed=5)
    found = shard.run(Expect(moved, Probe(None, 0, 3)))
    now = shard.state.get("members", np.int32, -1, 3)
    np.testing.assert_array_equal(np.sort(now, axis=1), np.sort(members, axis=1))
    assert (now != members).any()  # sorted by what they are worth now
    assert found.gain == 0.0 and found.n_distances == 900


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("covariance_type", TYPES)
def test_all_cells_find_the_best_of_all(covariance_type: str, dtype: Any) -> None:
    """Also far from the origin, and with components that are many times wider than others."""
    rows = (blobs(n=1000) + 300.0).astype(dtype)
    mixture = mixture_of(rows, covariance_type, 90)
    if covariance_type != "tied_spherical":
        scales = (10.0 ** rng(2).uniform(-3, 3, 90)).reshape([90] + [1] * (mixture.covariances.ndim - 1))
        mixture = GaussianParameters(
            mixture.weights, mixture.means, np.asarray(mixture.covariances * scales), covariance_type
        )
    shard = CpuShard(rows)
    shard.labels[:] = 0
    shard.run(Expect(mixture, Probe(draw_cells(shard, mixture.means, rng()), 100, 90)))
    (posterior,) = shard.run(Answer(Truncated(mixture, 90), "posterior"))
    np.testing.assert_allclose(posterior.log_densities, answer(CpuShard(rows), mixture, "log_densities"), rtol=1e-6)
    shard.run(Expect(mixture, Probe(draw_cells(shard, mixture.means, rng()), 100, 3)))
    np.testing.assert_array_equal(shard.labels, answer(CpuShard(rows), mixture, "components"))


@pytest.mark.parametrize("covariance_type", TYPES)
def test_the_pass_has_the_same_bits_for_any_number_of_threads(covariance_type, monkeypatch):
    monkeypatch.setattr(in_cells, "BLOCK_ROWS", (16, 16))
    monkeypatch.setattr(threads.pool, "WAKING", 1e-12)
    rows, weights, found = blobs(n=200).astype(np.float32), weights_for(200), []
    mixture = mixture_of(rows, covariance_type, 40)
    for n_threads in (1, 2):
        shard = CpuShard(rows, weights, n_threads=n_threads)
        label_by_cells(shard, mixture.means, draw_cells(shard, mixture.means, rng()))
        one = shard.run(Expect(mixture, Probe(draw_cells(shard, mixture.means, rng(1)), 2, 3)))
        sums = (one.counts, one.sums, one.scatter, shard.labels)
        found.append((*(part.tobytes() for part in sums), one.log_likelihood, one.gain, one.n_distances))
    assert found[0] == found[1]


@given(
    st.integers(0, 2**32 - 1), st.integers(2, 60), st.integers(1, 30), st.integers(1, 10), st.integers(1, 6),
    st.sampled_from(TYPES), st.booleans(),
)  # fmt: skip
@example(seed=16, n=14, C=9, D=1, C_prime=1, covariance_type="tied_spherical", single=False)
def test_the_free_energy_never_falls(seed, n, C, D, C_prime, covariance_type, single):
    random = rng(seed)
    rows = random.integers(-3, 4, size=(n, D)) / 2 + random.choice([0.0, 1e-3, 1.0]) * random.normal(size=(n, D))
    weights = random.integers(0, 3, size=n).astype(np.float64)
    weights[0] = 1.0
    assume(np.ptp(rows[weights > 0], axis=0).all())  # where all are the same, densities are rounding errors
    shard = CpuShard(rows.astype(np.float32 if single else np.float64), weights)
    mixture, learned_weights = mixture_of(rows, covariance_type, C, seed), bool(seed % 2)
    if not learned_weights:  # an M-step that keeps weights equal would take them from unequal ones to worse
        mixture = replace(mixture, weights=np.full(C, 1 / C))
    limits = covariance_limits(shard, EMOptions(reg_covar=0.0))
    shard.run(ScatterLabels(C, seed % 1000))
    C_prime = min(C_prime, C)
    bounds = []
    for step in range(8):
        cells = draw_cells(shard, mixture.means, random) if step % 3 != 1 else None
        found = shard.run(Expect(mixture, Probe(cells, 1 + step % 2, C_prime)))
        assert found.gain >= -1e-9 * abs(found.log_likelihood)
        bounds.append(found.log_likelihood)
        exact = weights @ answer(shard, mixture, "log_densities")
        assert bounds[-1] <= exact + 1e-6 * (1 + abs(exact))
        mixture = m_step(mixture, found, limits, learned_weights=learned_weights)
    assert all(after >= before - 1e-7 * (1 + abs(before)) for before, after in pairwise(bounds))


@pytest.mark.parametrize("covariance_type", TYPES)
def test_em_by_probing(covariance_type: str) -> None:
    rows = blobs(n=3000, C=60, D=4).astype(np.float32)
    shard = CpuShard(rows)
    limits = covariance_limits(shard, EMOptions(reg_covar=1e-6))
    options = VariationalOptions(C_prime=3, G=4, tol=1e-4, max_iter=100)
    start = start_probing(
        shard, isotropic_mixture(shard.take(np.arange(60)), 1.0, covariance_type), options, rng(),
        limits=limits, labelled=False,
    )  # fmt: skip
    search = SearchByProbing(shard, start.graph, options, rng())
    steps = list(truncated_em(shard, start, search, options, limits=limits))
    assert steps[-1].stopped and all(b.objective >= a.objective - 1e-6 for a, b in pairwise(steps))
    plain = [step for step in steps if step.n_distances == 3 * 3000]
    assert plain and len(plain) < len(steps)  # some iterations probe, some do not
    assert steps[-1] not in plain  # not the last one: a search might still find something
    assert steps[0].n_distances > start.n_distances  # what the start took is counted
    graph = steps[-1].model.graph
    assert graph.shape == (60, 4) and (graph[:, 0] == np.arange(60)).all()


def found_by_search(gain: float, others: float, n_distances: float) -> SoftStatistics:
    nothing = np.empty(0)
    return SoftStatistics(nothing, nothing, nothing, gain + others, 100.0, int(100 * n_distances), gain=gain)


def test_the_schedule_probes_while_it_pays() -> None:
    schedule = Schedule(n_candidates=5)
    assert schedule.is_due(idle=False)
    waits = []
    for gain in [1.0, 1.0, 0.1, 0.1, 0.1, 0.1, 0.1, 1.0, 1.0, 1.0, 1.0]:
        schedule.learn(found_by_search(gain, 0.5, 205.0), 0.0, 100)  # 200 in products: the work of five members
        waits.append(1)
        while not schedule.is_due(idle=False):
            waits[-1] += 1
    assert waits == [1, 1, 2, 4, LONGEST_WAIT, LONGEST_WAIT, LONGEST_WAIT, 4, 2, 1, 1]
    schedule.learn(found_by_search(0.1, 0.5, 205.0), 0.0, 100)
    assert schedule.is_due(idle=True)  # nothing was gained without a search
    schedule.learn(found_by_search(0.4, 0.5, 105.0), 0.0, 100)  # half the work needs half the gain
    assert schedule.is_due(idle=False)


@pytest.mark.parametrize("covariance_type", TYPES)
def test_members_are_found_from_nothing(covariance_type: str) -> None:
    rows = blobs(n=2000, C=40, D=3)
    model = VariationalGaussianMixture(100, covariance_type=covariance_type, random_state=0, tol=1e-2).fit(rows)
    found = CpuShard(rows)
    assert 2000 * 10 < find_members(found, model._mixture(), 5, rng()) < 2000 * 250
    assert np.mean(found.labels == model.predict(rows)) > 0.98
    everything = answer(CpuShard(rows), model._mixture(), "log_densities")
    assert (everything - answer(found, Truncated(model._mixture(), 5), "log_densities")).mean() < 0.2


def test_auto_takes_neighborhoods_for_few_components_and_where_asked_for_them() -> None:
    X = blobs(n=300)
    asked: list[tuple[str, dict[str, Any]]] = [
        ("probing", {}),
        ("neighbors", {"n_components": 25}),
        ("neighbors", {"n_neighbors": 6}),
        ("neighbors", {"n_neighbors": 5}),  # also where it is what None comes to
        ("exhaustive neighbors", {"search": "exhaustive neighbors"}),
        ("neighbors", {"search": "neighbors"}),
        ("probing", {"search": "probing", "n_neighbors": 6}),
    ]
    for search, options in asked:
        model = VariationalGaussianMixture(**{"n_components": 30, "tol": 0.1, "random_state": 0, **options}).fit(X)
        assert model.search_ == search, options
        assert model.neighbors_.shape == (model.n_components, model.n_neighbors or 5)


def test_probing_ends_higher_than_neighborhoods_in_many_dimensions() -> None:
    X = np.random.default_rng(0).normal(size=(6000, 20)).astype(np.float32)
    model = VariationalGaussianMixture(300, covariance_type="tied_spherical", weights="equal", random_state=0)
    ends = {search: model.set_params(search=search).fit(X).lower_bound_ for search in ("probing", "neighbors")}
    assert ends["probing"] > ends["neighbors"] + 0.01
