"""Sparse centres: the pass and the seeds against plain NumPy, and the centres themselves against dense arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import sparse
from scipy.spatial.distance import cdist

from globular.errors import UnsupportedPassError
from globular.model.gaussian import GaussianParameters
from globular.model.sparse_centers import SPARSE_FROM, SparseCenters
from globular.passes.cpu import CpuShard
from globular.passes.cpu import shard as shard_module
from globular.passes.cpu.assign import all as exact
from globular.passes.cpu.sparse_seeds import COMMON, Seeding
from globular.passes.host import RUN
from globular.seam.mixture_passes import Expect, ExpectShares, ExpectSparse, RowsOf, SparseRowsOf
from globular.seam.passes import AddSeeds, Assign
from globular.seam.shard import answer
from globular.seam.sparse_passes import AssignSparse, SeedSparse
from makers import weights_for
from reference.assign import as_seen, hard_pass, squared_distances

N, D, C = 300, 60, 40


@pytest.fixture
def any_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows count as sparse however many entries they have."""
    monkeypatch.setattr(shard_module, "ENTRIES_APART", 0)


def texts(kind: str, seed: int = 0, n: int = N, n_columns: int = D) -> sparse.csr_array:
    """Rows with few entries: weighted words, whole numbers with ties, of both signs, or a common large column."""
    rng = np.random.default_rng(seed)
    share = 1.0 / np.arange(1, n_columns + 1)
    filled = rng.random((n, n_columns)) < np.minimum(0.9, 12 * share / share.sum())
    if kind == "ties":
        filled &= rng.random((n, 1)) < 0.3
        values: Any = rng.integers(1, 3, (n, n_columns))
    elif kind == "signed":
        values = rng.normal(size=(n, n_columns))
    else:
        values = 0.1 + rng.random((n, n_columns))
    if kind == "common column":
        filled[:, 0], values[:, 0] = True, 100.0 + rng.random(n)
    filled[::50] = False  # rows of zeros
    return sparse.csr_array(np.where(filled, values, 0.0))


KINDS = ["words", "ties", "signed", "common column"]


@pytest.mark.usefixtures("any_entries")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("unit_rows", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_find_the_closest_of_sparse_centers(kind: str, unit_rows: bool, dtype: str) -> None:
    matrix, weights = texts(kind).astype(dtype), weights_for(N)
    rows = as_seen(matrix, unit_rows=unit_rows)
    shards = [CpuShard(matrix, weights, unit_rows=unit_rows, n_threads=n) for n in (1, 3)]
    centers = rows[1 : C + 1].copy()
    centers[7], centers[9] = centers[8], 0.0  # a tie, and a centre of zeros
    before = np.full(N, -1)
    for _ in range(4):  # the labels of one pass are where the next begins
        labels, wanted = hard_pass(rows, weights, centers, before)
        for shard in shards:
            found = shard.run(AssignSparse(SparseCenters.of(centers)))
            np.testing.assert_array_equal(shard.labels, labels)
            np.testing.assert_allclose(found.sums.dense_centers(), wanted.sums, rtol=1e-12, atol=1e-12)
            np.testing.assert_allclose(found.counts, wanted.counts, rtol=1e-12)
            assert found.objective == pytest.approx(wanted.objective, rel=1e-12)
            assert found.n_changed == wanted.n_changed
            np.testing.assert_allclose(
                shard.squared_distances, squared_distances(rows, centers).min(axis=1), rtol=1e-10, atol=1e-13
            )
        before = labels
        held = wanted.counts > 0
        centers[held] = wanted.sums[held] / wanted.counts[held, None]
    assert (shards[0].squared_distances == shards[1].squared_distances).all()


@pytest.mark.usefixtures("any_entries")
def test_labels_of_other_centers_are_forgotten() -> None:
    matrix = texts("words")
    rows, shard = matrix.toarray(), CpuShard(matrix)
    shard.run(AssignSparse(SparseCenters.of(rows[:C])))
    shard.run(AssignSparse(SparseCenters.of(rows[:3])))
    np.testing.assert_array_equal(shard.labels, squared_distances(rows, rows[:3]).argmin(axis=1))


@pytest.mark.usefixtures("any_entries")
def test_a_row_at_its_center_is_at_distance_zero() -> None:
    rows = 1e3 * texts("words").toarray()
    shard = CpuShard(sparse.csr_array(rows))
    shard.run(AssignSparse(SparseCenters.of(rows)))
    assert (shard.squared_distances == 0).all()


@pytest.mark.usefixtures("any_entries")
def test_pruned_rows_read_less_than_all_postings() -> None:
    rng, words = np.random.default_rng(0), 2000
    topics = [rng.choice(words, 8, replace=False) for _ in range(200)]
    rows = np.zeros((2000, words))
    for i in range(len(rows)):
        rows[i, rng.choice(topics[i % 200], 5, replace=False)] = 1.0
    shard, centers = CpuShard(sparse.csr_array(rows)), np.stack([rows[t::200].mean(axis=0) for t in range(200)])
    shard.run(AssignSparse(SparseCenters.of(centers)))
    found = shard.run(AssignSparse(SparseCenters.of(centers)))
    np.testing.assert_array_equal(shard.labels, cdist(rows, centers, "sqeuclidean").argmin(axis=1))
    assert found.n_changed == 0
    assert found.n_distances < 0.05 * len(rows) * len(centers)


@pytest.mark.parametrize(("n_centers", "empty"), [(SPARSE_FROM - 1, True), (SPARSE_FROM, True), (SPARSE_FROM, False)])
def test_labels_alone_come_from_either_side(n_centers: int, empty: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    by_file = exact.label_sparse
    monkeypatch.setattr(exact, "label_sparse", lambda *args: calls.append(1) or by_file(*args))
    matrix = sparse.random_array((700, 1000), density=3e-3, random_state=np.random.default_rng(0), format="csr")
    shard, rows = CpuShard(matrix), matrix.toarray()
    centers = rows[:n_centers] + (0.0 if empty else np.random.default_rng(1).random((n_centers, 1000)))
    found = shard.run(Assign(centers, want="labels"))
    d2 = cdist(rows, centers, "sqeuclidean")
    np.testing.assert_array_equal(shard.labels, d2.argmin(axis=1))
    assert found.objective == pytest.approx(d2.min(axis=1).sum(), rel=1e-12)
    assert len(calls) == (n_centers >= SPARSE_FROM and empty)


@pytest.mark.parametrize(("entries", "few"), [(1, True), (2, False)])
def test_rows_with_many_entries_are_refused(entries: int, few: bool) -> None:
    n_columns = 2 * shard_module.ENTRIES_APART - 1
    rows = np.zeros((4, n_columns))
    rows[:, :entries] = 1.0
    shard = CpuShard(sparse.csr_array(rows))
    assert bool(shard.why_not(AssignSparse)) is not few
    if not few:
        with pytest.raises(UnsupportedPassError, match="many entries"):
            shard.run(AssignSparse(SparseCenters.of(rows)))


def test_dense_rows_are_refused() -> None:
    assert CpuShard(np.eye(3)).why_not(AssignSparse)


@pytest.mark.usefixtures("any_entries")
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("unit_rows", [False, True])
@pytest.mark.parametrize(("kind", "n"), [*((kind, N) for kind in KINDS), ("words", 2 * RUN + 5)])
def test_each_seed_is_the_best_of_its_draws(kind: str, n: int, unit_rows: bool, weighted: bool) -> None:
    matrix, rng = texts(kind, n=n, n_columns=15 * D), np.random.default_rng(1)
    rows, weights = as_seen(matrix, unit_rows=unit_rows), weights_for(n) if weighted else np.ones(n)
    rare = rows[:, (rows != 0).sum(axis=0) <= n // COMMON]  # common columns tell draws little, and take long
    squares = (rows**2).sum(axis=1)
    shard = CpuShard(matrix, weights if weighted else None, unit_rows=unit_rows)
    if unit_rows:  # rows of zeros have no direction, and are no seeds
        weights = np.where(rows.any(axis=1), weights, 0.0)
    draws, chosen = rng.random((30, 4)), np.empty(0, dtype=np.intp)
    for begin in (0, 1, 12):  # one call goes on where another has ended
        some = draws[begin : {0: 1, 1: 12, 12: 30}[begin]]
        found = shard.run(SeedSparse(some, begin))
        chosen = np.concatenate([chosen, found.indices])
    between = squared_distances(rows, rows[chosen])
    assert chosen[0] == np.searchsorted(np.cumsum(weights), draws[0, 0] * weights.sum(), side="right")
    d2 = between[:, 0]
    for k in range(1, len(chosen)):
        sums = np.cumsum(weights * d2)
        drawn = np.searchsorted(sums, draws[k] * sums[-1], side="right")
        candidates = np.append(drawn, chosen[k])
        away = squares[:, None] + squares[candidates] - 2.0 * rare @ rare[candidates].T
        shares = (rare != 0).astype(int) @ (rare[candidates] != 0).T > 0  # only rows with such a column in common count
        of_draws = weights @ np.where(shares, np.maximum(d2[:, None] - away, 0.0), 0.0)
        assert of_draws[-1] == pytest.approx(of_draws[:-1].max(), rel=1e-9, abs=1e-9)
        d2 = np.minimum(d2, between[:, k])
    np.testing.assert_allclose(shard.squared_distances, d2, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(between[np.arange(n), shard.closest_seeds], d2, rtol=1e-9, atol=1e-9)
    assert found.potential == pytest.approx((weights_for(n) if weighted else np.ones(n)) @ d2, rel=1e-9)
    again = CpuShard(matrix, weights_for(n) if weighted else None, unit_rows=unit_rows, n_threads=3)
    np.testing.assert_array_equal(again.run(SeedSparse(draws)).indices, chosen)
    np.testing.assert_array_equal(again.squared_distances, shard.squared_distances)


@pytest.mark.usefixtures("any_entries")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_there_are_no_more_seeds_than_distinct_rows(dtype: str) -> None:
    matrix = sparse.csr_array(np.repeat(texts("words", n=9).toarray(), 20, axis=0).astype(dtype))
    shard = CpuShard(matrix)
    found = shard.run(SeedSparse(np.random.default_rng(0).random((30, 3)), is_last=True))
    assert shard.recall(Seeding) is None  # as large as the rows, and not asked for again
    assert len(found.indices) == len(np.unique(matrix.toarray()[found.indices], axis=0)) == 9
    assert found.potential == 0.0


@pytest.mark.usefixtures("any_entries")
def test_seeds_are_drawn_beside_a_giant_row_and_a_large_common_column() -> None:
    rows = texts("words").toarray()
    rows[3, 5], draws = 1e10, np.random.default_rng(0).random((40, 3))
    assert len(CpuShard(sparse.csr_array(rows)).run(SeedSparse(draws)).indices) == 40
    rows[3, 5], rows[:, 0] = 0.0, 1e7
    assert len(CpuShard(sparse.csr_array(rows)).run(SeedSparse(draws)).indices) == 40


@pytest.mark.usefixtures("any_entries")
@pytest.mark.parametrize("unit_rows", [False, True])
@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_single_precision_rows_of_any_scale(scale: float, unit_rows: bool) -> None:
    matrix = (scale * texts("words")).astype("float32")
    rows, shard = as_seen(matrix, unit_rows=unit_rows), CpuShard(matrix, unit_rows=unit_rows)
    shard.run(AssignSparse(SparseCenters.of(rows[1 : C + 1])))
    d2 = squared_distances(rows, rows[1 : C + 1])
    np.testing.assert_allclose(d2[np.arange(N), shard.labels], d2.min(axis=1), rtol=1e-12)
    assert len(shard.run(SeedSparse(np.random.default_rng(0).random((40, 3)))).indices) == 40


@pytest.mark.usefixtures("any_entries")
def test_as_far_from_a_center_that_shares_nothing() -> None:
    rows, centers = np.zeros((2, D)), np.zeros((3, D))
    rows[0, 0], centers[0, 1], centers[1, :2], centers[2, 2] = 0.3, 0.8, (0.6, 0.8), 9.0
    shard = CpuShard(sparse.csr_array(rows))
    for first in (centers[[2, 1, 1]], centers):  # the row comes from the second
        shard.run(AssignSparse(SparseCenters.of(first)))
    assert shard.labels[0] == squared_distances(rows, centers).argmin(axis=1)[0] == 0


@pytest.mark.usefixtures("any_entries")
def test_labels_leave_the_distances_to_seeds_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "are_sparse", lambda _: True)
    matrix = texts("words")
    shard, rows = CpuShard(matrix), matrix.toarray()
    shard.run(AddSeeds(rows[:3], 0))
    before = shard.squared_distances.copy()
    shard.run(Assign(rows[:C], want="labels"))
    np.testing.assert_array_equal(shard.squared_distances, before)


def test_sparse_centers_are_what_dense_ones_are() -> None:
    rng = np.random.default_rng(0)
    one, other = (np.where(rng.random((600, 30)) < 0.2, rng.normal(size=(600, 30)), 0.0) for _ in range(2))
    one[3], other[5] = 0.0, 0.0
    a, b = SparseCenters.of(one), SparseCenters.of(other)
    assert a.shape == (600, 30)
    np.testing.assert_array_equal(a.dense_centers(), one)
    np.testing.assert_allclose(a.norms, (one**2).sum(axis=1))
    np.testing.assert_array_equal(
        a.over(1.0 + np.arange(600.0)).dense_centers(), one / (1.0 + np.arange(600.0))[:, None]
    )
    np.testing.assert_array_equal(a.followed_by(b).dense_centers(), np.concatenate([one, other]))
    which = rng.integers(0, 600, 50)
    np.testing.assert_array_equal(a.picked(which).dense_centers(), one[which])
    which = rng.permutation(600)[:50]
    replaced = one.copy()
    replaced[which] = other[:50]
    np.testing.assert_array_equal(a.replaced(which, b.picked(np.arange(50))).dense_centers(), replaced)
    assert a.squared_shift(b) == pytest.approx(((one - other) ** 2).sum(), rel=1e-12)
    nothing = SparseCenters.of(np.zeros((2, 30)))
    assert nothing.squared_shift(a.picked(np.arange(2))) == pytest.approx((one[:2] ** 2).sum())
    assert a.picked(np.arange(2)).squared_shift(nothing) == pytest.approx((one[:2] ** 2).sum())


@pytest.mark.usefixtures("any_entries")
@pytest.mark.parametrize("kind", KINDS)
def test_rows_whose_center_stays_look_at_the_others_that_move(kind: str) -> None:
    matrix, rng = texts(kind), np.random.default_rng(0)
    rows, shard = matrix.toarray(), CpuShard(matrix)
    centers = rows[1 : C + 1].copy()
    for step in range(6):
        found = shard.run(AssignSparse(SparseCenters.of(centers)))
        np.testing.assert_array_equal(shard.labels, squared_distances(rows, centers).argmin(axis=1))
        if step in (1, 4):  # nothing has moved
            assert found.n_changed == 0
        if step == 2:  # somebody else has changed labels
            shard.labels[:] = rng.integers(C, size=N)
        if step not in (0, 3):
            centers[rng.integers(C, size=5)] = rows[rng.integers(N, size=5)]


@pytest.mark.parametrize("weighted", [False, True])
def test_mixtures_of_one_variance_see_sparse_rows_as_dense_ones(weighted: bool) -> None:
    rows = texts("words").astype(np.float32)
    rng, weights = np.random.default_rng(0), weights_for(N) if weighted else None
    mixture = GaussianParameters(np.full(5, 0.2), rng.random((5, D)), np.asarray(0.7), "tied_spherical")
    dense, thin = CpuShard(rows.toarray(), weights), CpuShard(rows, weights)
    found, expected = thin.run(ExpectSparse(mixture)), dense.run(Expect(mixture))
    for name in ("counts", "sums", "scatter", "log_likelihood", "total_weight"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-9, atol=1e-8, err_msg=name)
    for want in ("components", "probabilities", "log_densities"):
        np.testing.assert_allclose(answer(thin, mixture, want), answer(dense, mixture, want), rtol=1e-9, atol=1e-12)
    asked: tuple[Any, ...] = mixture, np.array([3, 1]), np.array([1.0, 0.5]), 7
    claims, dense_claims = thin.run(SparseRowsOf(*asked)), dense.run(RowsOf(*asked))
    np.testing.assert_array_equal(claims.starts, dense_claims.starts)
    np.testing.assert_allclose(claims.chunks.weights, dense_claims.chunks.weights, rtol=1e-9)
    groups = np.array([0, 2, 5]), np.array([[0, 1], [1, 0]])
    one, other = (
        shard.run(ExpectShares(each.chunks, each.starts, mixture, *groups))
        for shard, each in ((thin, claims), (dense, dense_claims))
    )
    np.testing.assert_allclose(one.log_likelihoods, other.log_likelihoods, rtol=1e-9)
    np.testing.assert_allclose(one.parts.scatter, other.parts.scatter, rtol=1e-9, atol=1e-8)


def test_components_of_several_variances_are_refused_on_sparse_rows() -> None:
    mixture = GaussianParameters(np.full(2, 0.5), np.zeros((2, D)), np.array([1.0, 2.0]), "spherical")
    with pytest.raises(UnsupportedPassError, match="sparse"):
        CpuShard(texts("words")).run(ExpectSparse(mixture))
