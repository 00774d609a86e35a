"""K-means from a subspace: which directions count, exact objectives of lifted centres, and the whole fit."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from globular import KMeans
from globular.algorithms.kmeans.cells import draw_cells, label_by_cells
from globular.algorithms.kmeans.probing import ProbingOptions, probing_kmeans
from globular.algorithms.kmeans.subspace import ROWS_PER_DIRECTION, Inside, enter_subspace, leave_subspace
from globular.data.open import as_source
from globular.model.subspace import MARGIN, Subspace, informative_subspace, n_informative, orthonormal
from globular.passes.cpu import CpuShard
from globular.passes.many import StreamShard
from globular.seam.passes import Assign, PowerStep, Project, SumByLabel
from split import SplitShard


def flat_rows(n: int = 3000, D: int = 40, dtype: Any = np.float64, offset: float = 3.0) -> Any:
    """Blobs in six directions of D, and a little noise in all."""
    random = np.random.default_rng(0)
    middles = 10 * random.normal(size=(60, 6))
    inner = middles[random.integers(60, size=n)] + random.normal(size=(n, 6))
    turn = np.linalg.qr(random.normal(size=(D, 6)))[0]
    return (offset + inner @ turn.T + 0.2 * random.normal(size=(n, D))).astype(dtype)


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=30), st.integers(2, 10_000))
def test_directions_are_kept_down_to_a_margin_below_the_water_level(variances: list[float], n_clusters: int) -> None:
    sorted_variances = np.sort(np.array(variances))[::-1]
    low, high = 1e-12 * sorted_variances[-1], sorted_variances[0]
    for _ in range(200):
        level = np.sqrt(low * high)
        spent = 0.5 * np.log(np.maximum(sorted_variances / level, 1.0)).sum()
        low, high = (level, high) if spent > np.log(n_clusters) else (low, level)
    found = n_informative(sorted_variances, float(sorted_variances.sum()), n_clusters)
    assert np.count_nonzero(sorted_variances > 1.001 * level / MARGIN) <= found
    assert found <= max(1, np.count_nonzero(sorted_variances > 0.999 * level / MARGIN))


def test_data_that_do_not_vary_have_one_direction() -> None:
    assert n_informative(np.zeros(5), 0.0, 10) == 1


@pytest.mark.parametrize("D", [40, 300])  # all directions, and the leading ones by random projections
def test_the_directions_that_the_data_have_are_found(D: int) -> None:
    X = flat_rows(D=D)
    subspace = informative_subspace(X, X.mean(axis=0), 100, np.random.default_rng(0))
    np.testing.assert_allclose(subspace.basis.T @ subspace.basis, np.eye(subspace.dimension), atol=1e-12)
    assert 6 <= subspace.dimension <= 10
    missed = X - subspace.lift((X - subspace.origin) @ subspace.basis)
    assert np.vdot(missed, missed) < 1.2 * 0.04 * D * len(X)


def enter(shard: Any, n_clusters: int = 100, unit: bool = False) -> Inside:
    inside = enter_subspace(shard, n_clusters, np.random.default_rng(0), 0.6, unit_centers=unit)
    assert inside is not None
    return inside


def steps(shard: Any, unit: bool = False, max_iter: int = 30) -> Iterator[Any]:
    """The fit from random rows as centres."""
    random = np.random.default_rng(1)
    inside = enter(shard, unit=unit)
    centers = inside.shard.take(np.sort(random.choice(shard.n_rows, 100, replace=False)))
    if unit:
        centers /= np.linalg.norm(centers, axis=1, keepdims=True)
    label_by_cells(inside.shard, centers, draw_cells(inside.shard, centers, random))
    options = ProbingOptions(max_iter=max_iter, min_gain=1e-3, unit_centers=unit)
    inner = probing_kmeans(inside.shard, centers, replace(options, unexplained=inside.unexplained), random)
    return leave_subspace(shard, inside, inner, options, random)


@pytest.mark.parametrize("form", ["float64", "float32", "unit", "weighted"])
def test_the_objective_never_rises_and_bounds_that_of_the_model(form: str) -> None:
    X = flat_rows(dtype=np.float32 if form == "float32" else np.float64)
    weights = np.random.default_rng(2).random(len(X)) if form == "weighted" else np.ones(len(X))
    seen = X / np.linalg.norm(X, axis=1, keepdims=True) if form == "unit" else X.astype(np.float64)
    shard = CpuShard(X, weights, unit_rows=form == "unit")
    tolerance = 1e-5 if form == "float32" else 1e-9
    before, n_steps = np.inf, 0
    for step in steps(shard, unit=form == "unit"):
        assert step.objective <= before * (1 + tolerance)
        before, n_steps = step.objective, n_steps + 1
        # the M-step has moved the centres since: for the same labels that only helps
        assert weights @ ((seen - step.lifted()[shard.labels]) ** 2).sum(axis=1) <= before * (1 + tolerance)
    assert n_steps > 4


def test_the_unexplained_error_is_what_projection_leaves() -> None:
    X = flat_rows()
    weights = np.random.default_rng(2).random(len(X))
    inside = enter(CpuShard(X, weights))
    z = (X - inside.subspace.origin) @ inside.subspace.basis
    missed = X - inside.subspace.lift(z)
    np.testing.assert_allclose(inside.unexplained, weights @ (missed**2).sum(axis=1), rtol=1e-9)
    np.testing.assert_allclose(inside.total, weights @ ((X - inside.subspace.origin) ** 2).sum(axis=1), rtol=1e-9)


def test_labels_are_shared_and_sums_follow_them() -> None:
    shard = CpuShard(flat_rows())
    inside = enter(shard)
    inside.shard.run(Assign(inside.shard.take(np.arange(100))))
    assert (shard.labels >= 0).all()
    statistics = shard.run(SumByLabel(100))
    X = flat_rows()
    for c in (0, 50, 99):
        np.testing.assert_allclose(statistics.sums[c], X[shard.labels == c].sum(axis=0), atol=1e-9)


def test_a_stream_keeps_its_coordinates_in_memory() -> None:
    X = flat_rows(dtype=np.float32)
    whole, streamed = CpuShard(X), StreamShard(as_source(X), rows_per_part=700)
    subspace = enter(whole).subspace
    np.testing.assert_allclose(
        whole.run(Project(subspace)).take(np.arange(3000)),
        streamed.run(Project(subspace)).take(np.arange(3000)),
        atol=1e-5,
    )
    objectives = [step.objective for step in steps(streamed)]
    np.testing.assert_allclose(objectives, [step.objective for step in steps(whole)], rtol=1e-3)


def test_threads_do_not_change_a_bit() -> None:
    X = flat_rows(6000)
    one, two = (list(steps(CpuShard(X, n_threads=n))) for n in (1, 2))
    assert [step.objective for step in one] == [step.objective for step in two]
    np.testing.assert_array_equal(one[-1].lifted(), two[-1].lifted())


def text(n: int = 4000, D: int = 1500, n_topics: int = 12) -> Any:
    """Sparse rows of a few words each, most of them from the words of their topic."""
    random = np.random.default_rng(0)
    topics = random.integers(n_topics, size=n)
    words = random.integers(D // n_topics, size=(n, 12)) * n_topics + topics[:, None]
    words[:, 6:] = random.zipf(1.3, size=(n, 6)) % D
    matrix = sparse.csr_matrix((np.ones(12 * n), words.ravel(), 12 * np.arange(n + 1)), shape=(n, D))
    matrix.sum_duplicates()
    return matrix.astype(np.float32)


def test_few_rows_a_direction_or_few_columns_leave_sparse_rows_in_the_whole_space() -> None:
    X, rng = text(), np.random.default_rng(0)
    d = 4 + 2 * 6
    for n, D in ((d * ROWS_PER_DIRECTION, 4 * d), (d * ROWS_PER_DIRECTION - 1, 4 * d), (4000, 4 * d - 1)):
        inside = enter_subspace(CpuShard(X[:n, :D]), 2, rng, 0.25, unit_centers=False)
        assert (inside is not None) == (n == d * ROWS_PER_DIRECTION)
    assert enter_subspace(StreamShard(as_source(X)), 2, rng, 0.25, unit_centers=False) is None


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_sparse_rows_are_searched_in_a_subspace(metric: str) -> None:
    X = text()
    weights = np.random.default_rng(1).random(X.shape[0])
    fits = [KMeans(12, metric=metric, random_state=0, n_threads=n).fit(X, sample_weight=weights) for n in (1, 2)]
    d = 4 + 12 * 6
    assert d - 8 <= fits[0].subspace_dimension_ <= d  # a row may be drawn twice
    np.testing.assert_array_equal(fits[0].cluster_centers_, fits[1].cluster_centers_)
    assert all(b <= a * (1 + 1e-5) for a, b in pairwise(fits[0].history_.iterations.column("objective")))
    plain = [
        KMeans(12, metric=metric, algorithm="lloyd", random_state=s).fit(X, sample_weight=weights) for s in range(3)
    ]
    assert fits[0].inertia_ <= (1 + 1e-6) * min(model.inertia_ for model in plain)


def test_power_steps_share_the_columns_of_sparse_rows_until_there_are_coordinates() -> None:
    X = sparse.random_array((300, 40), density=0.2, format="csr", random_state=np.random.default_rng(0))
    shard, basis = CpuShard(X), np.eye(40)[:, :3]
    work = PowerStep(Subspace(X.mean(axis=0), basis))
    first = shard.run(work)
    assert len(shard._memory) == 1
    np.testing.assert_array_equal(shard.run(work), first)
    shard.run(Project(work.subspace))
    assert not shard._memory


def test_an_orthonormal_basis_leaves_out_what_depends_on_the_rest() -> None:
    vectors = np.random.default_rng(0).normal(size=(500, 6))
    basis = orthonormal(np.column_stack([vectors, vectors @ np.ones(6)]))
    assert basis.shape == (500, 6)
    np.testing.assert_allclose(basis.T @ basis, np.eye(6), atol=1e-10)
    np.testing.assert_allclose(basis @ (basis.T @ vectors), vectors, atol=1e-9)


def test_rows_in_parts_stay_in_the_whole_space() -> None:
    X = flat_rows()
    split = SplitShard([CpuShard(X[:1000]), CpuShard(X[1000:])])
    assert enter_subspace(split, 100, np.random.default_rng(0), 0.6, unit_centers=False) is None


def test_max_iter_counts_both_spaces() -> None:
    X = flat_rows()
    iterations = [step.iteration for step in steps(CpuShard(X))]
    assert iterations == list(range(1, len(iterations) + 1))
    for n in (1, 4):
        *_, last = steps(CpuShard(X), max_iter=n)
        assert last.iteration == n and last.stopped == "max_iter" and last.lifted().shape == (100, 40)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_kmeans_begins_in_a_subspace_where_it_pays(metric: str) -> None:
    X = flat_rows(6000, dtype=np.float32)
    options: Any = {"n_clusters": 500, "metric": metric, "random_state": 0}
    model = KMeans(**options).fit(X)
    assert model.subspace_dimension_ < 24 and model.cluster_centers_.shape == (500, 40)
    assert all(b <= a * (1 + 1e-6) for a, b in pairwise(model.history_.iterations.column("objective")))
    given = KMeans(**options, init=X[:500]).fit(X)
    assert given.subspace_dimension_ == 40
    assert model.inertia_ < 1.05 * given.inertia_


def test_kmeans_stays_in_the_whole_space_where_all_directions_count() -> None:
    X = np.random.default_rng(0).normal(size=(3000, 20))
    assert KMeans(500, random_state=0).fit(X).subspace_dimension_ == 20


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("k", [1, 3])
def test_sparse_rows_that_are_alike_have_no_directions(k: int) -> None:
    """The second power step once met a basis without columns."""
    X = sparse.csr_array(np.ones((160, 16)))
    model = KMeans(k, algorithm="probing", random_state=0).fit(X)
    assert model.inertia_ == 0.0 and (model.cluster_centers_ == 1.0).all()
