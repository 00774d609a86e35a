"""Truncated passes against their reference: every form of rows, every path through the kernels, whole and in parts."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from globular import threads
from globular.model.gaussian import GaussianParameters
from globular.model.graph import Graph, Search, random_graph
from globular.model.statistics import PairStatistics, SoftStatistics
from globular.passes.cpu import CpuShard, cells, grouped, sums
from globular.passes.cpu.assign import neighborhoods
from globular.passes.cpu.assign import neighbors as truncated
from globular.seam.among import Neighbors
from globular.seam.answers import Answer, Truncated
from globular.seam.mixture_passes import Expect
from globular.seam.passes import Assign, SumByLabel
from makers import Rows, blobs, in_form, lattice, weights_for
from reference import assign as hard_reference
from reference import neighbors as reference

FORMS = ("float64", "float32", "uint8", "fortran", "csr64", "csr32")
DENSE = FORMS[:4]
TYPES = ("tied_spherical", "spherical", "diag")
FEW, MANY = 3, 20
"""Numbers of columns: fewer than most vectors hold, and more than any holds."""


def exact(form: str) -> bool:
    """Whether kernels see such rows in float64."""
    return form in ("float64", "fortran", "csr64")


def dense_pairs(statistics: PairStatistics, C: int) -> reference.Pairs:
    """Triples as tables of C × C."""
    found = reference.Pairs.none(C)
    c, other = statistics.pairs
    np.add.at(found.distances, (c, other), statistics.sums[0].astype(np.float64))
    np.add.at(found.weights, (c, other), statistics.sums[1].astype(np.float64))
    np.fill_diagonal(found.distances, 0.0)  # a random candidate drawn twice is its own pair, and says nothing
    np.fill_diagonal(found.weights, 0.0)
    return found


def check_pairs(found: PairStatistics, expected: reference.Pairs) -> None:
    tables = dense_pairs(found, len(expected.weights))
    np.testing.assert_allclose(tables.weights, expected.weights, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(tables.distances, expected.distances, rtol=1e-4, atol=1e-4)


def problem(
    form: str, D: int, *, C: int = 25, G: int = 4, n: int = 200, unit_rows: bool = False
) -> tuple[Any, Rows, Graph, np.ndarray]:
    """Rows in a form, centres among them, a random graph and random labels."""
    random = np.random.default_rng(D + C)
    matrix = in_form(blobs(n=n, D=D), form)
    rows = hard_reference.as_seen(matrix, unit_rows=unit_rows)
    centers = rows[random.choice(n, C, replace=False)] + 0.1 * random.normal(size=(C, D)) * rows.std()
    return matrix, centers, random_graph(C, G, random), random.integers(C, size=n).astype(np.int32)


def soft_problem(rows: Rows, covariance_type: str, C: int, learned: bool = True) -> GaussianParameters:
    random = np.random.default_rng(C)
    D = rows.shape[1]
    variances = rows.var() * random.uniform(0.5, 2.0, size={"diag": (C, D), "spherical": (C,)}.get(covariance_type, ()))
    weights = random.dirichlet(np.full(C, 3.0)) if learned else np.full(C, 1.0 / C)
    means = rows[random.choice(len(rows), C, replace=False)] + 0.1 * random.normal(size=(C, D))
    return GaussianParameters(weights, means, np.asarray(0.2 * variances), covariance_type)


def check_soft(found: SoftStatistics, expected: reference.SoftStep) -> None:
    statistics, wanted = found, expected.statistics
    assert statistics.n_distances == wanted.n_distances
    assert statistics.total_weight == pytest.approx(wanted.total_weight, rel=1e-12)
    assert statistics.log_likelihood == pytest.approx(wanted.log_likelihood, rel=1e-11)
    for name in ("counts", "sums", "scatter"):
        reached, sought = getattr(statistics, name), getattr(wanted, name)
        np.testing.assert_allclose(reached, sought, rtol=1e-9, atol=1e-10 * np.abs(sought).max(), err_msg=name)


@pytest.mark.parametrize(("C_prime", "n_random"), [(1, 0), (1, 1), (1, 3), (2, 2), (3, 2), (7, 2)])
@pytest.mark.parametrize("unit_rows", [False, True], ids=["euclidean", "cosine"])
@pytest.mark.parametrize("D", [FEW, MANY], ids=["few columns", "many columns"])
@pytest.mark.parametrize("form", FORMS)
def test_hard_pass_equals_the_reference(form: str, D: int, unit_rows: bool, C_prime: int, n_random: int) -> None:
    """Several passes, each from the labels and the candidates of the one before."""
    matrix, centers, graph, labels = problem(form, D, unit_rows=unit_rows)
    rows = hard_reference.as_seen(matrix, unit_rows=unit_rows)
    for weights in (None, weights_for(200)):
        shard = CpuShard(matrix, weights, unit_rows=unit_rows)
        shard.labels[:] = labels
        used = np.ones(200) if weights is None else weights
        former, members = labels, reference.starting_members(labels, graph, C_prime)
        for seed in range(3):
            search = Search(C_prime, n_random, seed=seed, estimate=True)
            found = shard.run(Assign(centers, Neighbors(graph, search)))
            expected = hard_step(rows, used, centers, graph, search, former, members)
            np.testing.assert_array_equal(shard.labels, expected.labels)
            if C_prime > 1:
                np.testing.assert_array_equal(shard.state.get("members", np.int32, -1, C_prime), expected.members)
            check_hard(found, expected, form)
            former, members = expected.labels, expected.members


def hard_step(
    rows: Rows, weights: Rows, centers: Rows, graph: Graph, search: Search, labels: Any, members: Any = None
) -> reference.HardStep:
    if search.n_candidates == 1:
        return reference.neighborhood_pass(rows, weights, centers, graph, search, labels)
    if members is None:
        members = reference.starting_members(labels, graph, search.n_candidates)
    return reference.candidates_pass(rows, weights, centers, graph, search, labels, members)


def check_hard(found: Any, expected: reference.HardStep, form: str) -> None:
    statistics, wanted = found, expected.statistics
    scale = np.abs(wanted.sums).max()
    np.testing.assert_allclose(statistics.sums, wanted.sums, rtol=1e-9, atol=1e-11 * scale)
    np.testing.assert_allclose(statistics.counts, wanted.counts, rtol=1e-12)
    assert statistics.objective == pytest.approx(wanted.objective, rel=1e-11 if exact(form) else 1e-6)
    assert statistics.n_changed == wanted.n_changed
    assert statistics.n_distances == wanted.n_distances
    check_pairs(found.pairs, expected.pairs)


@pytest.mark.parametrize("C_prime", [1, 2, 5])
@pytest.mark.parametrize("form", ["float64", "float32", "csr64"])
def test_exact_ties_are_broken_as_in_the_reference(form: str, C_prime: int) -> None:
    matrix = in_form(lattice(n=150, D=2), form)
    rows = hard_reference.as_seen(matrix)
    centers = rows[:20] + 0.5
    random = np.random.default_rng(0)
    graph, labels = random_graph(20, 6, random), random.integers(20, size=150).astype(np.int32)
    shard = CpuShard(matrix)
    shard.labels[:] = labels
    search = Search(C_prime, n_random=1, seed=5, estimate=False)
    found = shard.run(Assign(centers, Neighbors(graph, search)))
    expected = hard_step(rows, np.ones(150), centers, graph, search, labels)
    np.testing.assert_array_equal(shard.labels, expected.labels)
    assert found.objective == expected.statistics.objective


@given(
    st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 30), st.integers(1, 14),
    st.integers(1, 12), st.integers(1, 6), st.integers(0, 3),
)  # fmt: skip
def test_any_shape(seed: int, n: int, C: int, D: int, G: int, C_prime: int, n_random: int) -> None:
    random = np.random.default_rng(seed)
    rows = random.integers(-3, 4, size=(n, D)) / 2  # ties, duplicates
    centers = random.integers(-3, 4, size=(C, D)) / 2
    graph, labels = random_graph(C, G, random), random.integers(C, size=n).astype(np.int32)
    weights = random.integers(0, 3, size=n).astype(np.float64)
    C_prime = min(C_prime, C)
    shard = CpuShard(rows.astype(random.choice([np.float32, np.float64])), weights)
    shard.labels[:] = labels
    search = Search(C_prime, n_random, seed=seed, estimate=True)
    found = shard.run(Assign(centers, Neighbors(graph, search)))
    expected = hard_step(rows, weights, centers, graph, search, labels)
    np.testing.assert_array_equal(shard.labels, expected.labels)
    check_hard(found, expected, "float32")


@pytest.mark.parametrize("learned", [False, True], ids=["equal", "learned"])
@pytest.mark.parametrize("C_prime", [1, 3])
@pytest.mark.parametrize("covariance_type", TYPES)
@pytest.mark.parametrize("form", DENSE)
def test_soft_pass_equals_the_reference(form: str, covariance_type: str, C_prime: int, learned: bool) -> None:
    for D, weights in ((FEW, None), (MANY, weights_for(200))):
        matrix, _, graph, labels = problem(form, D)
        rows = hard_reference.as_seen(matrix)
        mixture = soft_problem(rows, covariance_type, 25, learned)
        shard = CpuShard(matrix, weights)
        shard.labels[:] = labels
        used = np.ones(200) if weights is None else weights
        members = reference.starting_members(labels, graph, C_prime)
        for seed in range(3):
            search = Search(C_prime, n_random=1, seed=seed, estimate=True)
            found = shard.run(Expect(mixture, Neighbors(graph, search)))
            expected = reference.soft_pass(rows, used, mixture, graph, search, members)
            np.testing.assert_array_equal(shard.state.get("members", np.int32, -1, C_prime), expected.members)
            np.testing.assert_array_equal(shard.labels, expected.members[:, 0])
            check_soft(found, expected)
            check_pairs(found.pairs, expected.pairs)
            members = expected.members


@pytest.mark.parametrize("covariance_type", TYPES)
def test_posterior_is_that_of_the_members(covariance_type: str) -> None:
    matrix, _, graph, labels = problem("float32", FEW)
    rows = hard_reference.as_seen(matrix)
    mixture = soft_problem(rows, covariance_type, 25)
    shard = CpuShard(matrix, weights_for(200))  # the posterior of a row does not depend on its weight
    shard.labels[:] = labels
    search = Search(3, n_random=1, seed=1, estimate=False)
    shard.run(Expect(mixture, Neighbors(graph, search)))
    (posterior,) = shard.run(Answer(Truncated(mixture, 3), "posterior"))
    members = reference.starting_members(labels, graph, 3)
    expected = reference.soft_pass(rows, np.ones(200), mixture, graph, search, members)
    np.testing.assert_array_equal(posterior.members, expected.members)
    own = np.take_along_axis(expected.responsibilities, expected.members.astype(np.intp), axis=1)
    np.testing.assert_allclose(posterior.probabilities, own, rtol=1e-10)
    assert posterior.log_densities.sum() == pytest.approx(expected.statistics.log_likelihood, rel=1e-12)


def test_members_that_are_not_there_have_no_share() -> None:
    rows = blobs(n=50)
    mixture = soft_problem(rows, "spherical", 10)
    shard = CpuShard(rows)
    shard.labels[:] = 0
    search = Search(4, n_random=0, seed=0, estimate=False)  # G = 2: at most two are known at first
    shard.run(Expect(mixture, Neighbors(random_graph(10, 1, np.random.default_rng(0)), search)))
    (posterior,) = shard.run(Answer(Truncated(mixture, 4), "posterior"))
    np.testing.assert_array_equal(posterior.members, np.tile([0, -1, -1, -1], (50, 1)))
    np.testing.assert_array_equal(posterior.probabilities, np.tile([1.0, 0.0, 0.0, 0.0], (50, 1)))


@pytest.fixture
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tasks and threads, hash tables that run full, and no room for many of them, also on little data."""
    monkeypatch.setattr(truncated, "ROWS_PER_TASK", 16)
    monkeypatch.setattr(grouped, "ROWS_PER_TASK", 16)
    monkeypatch.setattr(truncated, "HASH_SIZE", 64)
    monkeypatch.setattr(truncated, "TABLES_AT_ONCE", 1)
    monkeypatch.setattr(neighborhoods, "SEARCHED_AT_ONCE", 16)
    monkeypatch.setattr(neighborhoods, "GATHERED_ROWS", 16)
    monkeypatch.setattr(cells, "PREPARED_AT_ONCE", 16)
    monkeypatch.setattr(threads.pool, "WAKING", 1e-12)
    monkeypatch.setattr(sums, "SEARCHED_AT_ONCE", 16)
    monkeypatch.setattr(sums, "ROWS_PER_TASK", 16)


@pytest.mark.parametrize("n_candidates", [1, 3])
@pytest.mark.parametrize("D", [FEW, MANY], ids=["few columns", "many columns"])
@pytest.mark.parametrize("form", ["float32", "uint8", "csr64"])
@pytest.mark.usefixtures("small_tasks")
def test_sums_are_those_of_the_rows_by_label(form: str, D: int, n_candidates: int) -> None:
    matrix, centers, graph, labels = problem(form, D, n=300)
    weights, found = weights_for(300), []
    for n_threads in (1, 2, 3):
        shard = CpuShard(matrix, weights, n_threads=n_threads)
        shard.labels[:] = labels
        one = shard.run(Assign(centers, Neighbors(graph, Search(n_candidates, 1, 0, estimate=True))))
        assert one.n_changed == np.count_nonzero(shard.labels != labels) > 100
        by_label = shard.run(SumByLabel(len(centers)))
        np.testing.assert_allclose(one.counts, by_label.counts, atol=1e-9)
        np.testing.assert_allclose(one.sums, by_label.sums, rtol=1e-9, atol=1e-6)
        found.append((one.sums.tobytes(), one.counts.tobytes(), one.pairs.sums.tobytes(), one.objective))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("D", [FEW, MANY], ids=["few columns", "many columns"])
@pytest.mark.parametrize("form", ["float32", "uint8", "csr64"])
@pytest.mark.usefixtures("small_tasks")
def test_groups_kept_between_passes_are_those_made_anew(form: str, D: int) -> None:
    # groups of 1 to 150 rows: some larger than a task, others many to a task
    matrix, centers, graph, labels = problem(form, D, C=12, G=3, n=500)
    labels = np.minimum(labels, 2 * (labels % 3)).astype(np.int32)
    random = np.random.default_rng(0)
    kept = CpuShard(matrix, n_threads=2)
    kept.labels[:] = labels
    for seed in range(12):
        if seed == 5:  # somebody else moves rows too
            kept.labels[::7] = random.integers(12, size=len(kept.labels[::7]))
        anew = CpuShard(matrix)
        anew.labels[:] = kept.labels
        search = Search(1, n_random=1, seed=seed, estimate=True)
        expected = anew.run(Assign(centers, Neighbors(graph, search)))
        found = kept.run(Assign(centers, Neighbors(graph, search)))
        np.testing.assert_array_equal(kept.labels, anew.labels)
        assert found.n_changed == expected.n_changed
        assert found.n_distances == expected.n_distances
        assert found.objective == pytest.approx(expected.objective, rel=1e-12)
        np.testing.assert_allclose(found.sums, expected.sums, rtol=1e-10, atol=1e-8)
        np.testing.assert_allclose(found.counts, expected.counts, atol=1e-12)
        check_pairs(found.pairs, dense_pairs(expected.pairs, 12))
        centers = centers + 0.05 * random.normal(size=centers.shape) * centers.std()


@pytest.mark.parametrize("covariance_type", TYPES)
@pytest.mark.parametrize("form", ["float32", "uint8"])
@pytest.mark.usefixtures("small_tasks")
def test_soft_pass_has_the_same_bits_for_any_number_of_threads(form: str, covariance_type: str) -> None:
    matrix, _, graph, labels = problem(form, FEW)
    mixture = soft_problem(hard_reference.as_seen(matrix), covariance_type, 25)
    found = []
    for n_threads in (1, 2):
        shard = CpuShard(matrix, weights_for(200), n_threads=n_threads)
        shard.labels[:] = labels
        one = shard.run(Expect(mixture, Neighbors(graph, Search(3, n_random=1, seed=9, estimate=True))))
        sums = (one.counts, one.sums, one.scatter, one.pairs.sums, shard.labels)
        found.append((*(part.tobytes() for part in sums), one.log_likelihood, one.n_distances))
    assert found[0] == found[1]


@pytest.mark.parametrize("C_prime", [1, 3])
@pytest.mark.parametrize("D", [FEW, MANY])
@pytest.mark.parametrize("offset", [1e3, 1e5])
def test_no_row_moves_to_a_cluster_that_is_farther_in_float64(offset: float, D: int, C_prime: int) -> None:
    rows = (blobs(n=300, D=D) + offset).astype(np.float32)  # float32 resolves only about 0.01 at 1e5
    random = np.random.default_rng(0)
    centers = blobs(n=300, D=D)[random.choice(300, 30, replace=False)] + offset
    graph, d2 = random_graph(30, 8, random), hard_reference.squared_distances(rows.astype(np.float64), centers)
    shard = CpuShard(rows)
    shard.labels[:] = d2.argmin(axis=1)
    for seed in range(5):
        before = d2[np.arange(300), shard.labels]
        shard.run(Assign(centers, Neighbors(graph, Search(C_prime, n_random=1, seed=seed, estimate=True))))
        assert (d2[np.arange(300), shard.labels] <= before).all()
