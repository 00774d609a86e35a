"""The hard pass, column moments and farthest rows against their reference, and at the edges of floating point."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from globular.model.groups import group_by
from globular.model.statistics import HardStatistics
from globular.passes.cpu import CpuShard, sums
from globular.passes.cpu.engine.rows import CANCELLED
from globular.passes.cpu.engine.score import CENTER_CHUNK
from globular.passes.cpu.shard import OFFSET_ROWS
from globular.seam.passes import Assign, Farthest
from makers import SHARD_FORMS, Rows, blobs, in_form, lattice, weights_for
from reference import assign as reference


def check_pass(
    matrix: Any, centers: Rows, *, weights: Rows | None = None, unit_rows: bool = False, n_threads: int = 1
) -> CpuShard:
    """Run a hard pass and compare labels and statistics with the reference."""
    shard = CpuShard(matrix, weights, unit_rows=unit_rows, n_threads=n_threads)
    rows = reference.as_seen(matrix, unit_rows=unit_rows)
    before = shard.labels.copy()
    found = shard.run(Assign(centers))
    labels, expected = reference.hard_pass(rows, np.ones(len(rows)) if weights is None else weights, centers, before)
    np.testing.assert_array_equal(shard.labels, labels)
    check_statistics(found, expected)
    return shard


def check_statistics(found: HardStatistics, expected: HardStatistics) -> None:
    largest = np.abs(expected.sums).max(initial=0.0)
    np.testing.assert_allclose(found.sums, expected.sums, rtol=1e-11, atol=1e-13 * largest)
    np.testing.assert_allclose(found.counts, expected.counts, rtol=1e-13)
    assert found.objective == pytest.approx(expected.objective, rel=1e-12)
    assert found.n_changed == expected.n_changed
    assert found.n_distances == expected.n_distances


@pytest.mark.parametrize("unit_rows", [False, True], ids=["euclidean", "cosine"])
@pytest.mark.parametrize("weighted", [False, True], ids=["equal", "weighted"])
@pytest.mark.parametrize("form", SHARD_FORMS)
def test_equals_the_reference_for_every_form_of_rows(form: str, weighted: bool, unit_rows: bool) -> None:
    rows = blobs(n=150, D=5)
    centers = np.random.default_rng(3).normal(size=(9, 5))
    matrix = in_form(rows, form)
    check_pass(matrix, centers, weights=weights_for(150) if weighted else None, unit_rows=unit_rows)


@pytest.mark.parametrize(("n", "C", "D"), [(1, 1, 1), (1, 3, 2), (5, 5, 1), (7, 64, 3), (3, 65, 17), (200, 129, 1)])
def test_equals_the_reference_for_every_shape(n: int, C: int, D: int) -> None:
    random = np.random.default_rng(n)
    for dtype in (np.float64, np.float32):
        check_pass(random.normal(size=(n, D)).astype(dtype), random.normal(size=(C, D)))


@pytest.mark.parametrize("share", [0.5, 0.99, 1.01, 2.0])
def test_sparse_rows_on_either_side_of_cancellation(share: float) -> None:
    random = np.random.default_rng(0)
    centers = np.where(random.random((5, 40)) < 0.5, 0.0, random.normal(size=(5, 40)))
    near = np.repeat(centers, 20, axis=0)
    step = np.where((near != 0) & (random.random(near.shape) < 0.5), random.normal(size=near.shape), 0.0)
    step *= np.sqrt(share * CANCELLED / np.einsum("ij,ij->i", step, step))[:, None]
    rows = near + step * np.linalg.norm(near, axis=1, keepdims=True)
    shard = check_pass(sparse.csr_matrix(rows), centers)
    assert shard.run(Assign(centers)).objective == pytest.approx(share * CANCELLED * np.sum(near**2), rel=1e-9)


@pytest.mark.parametrize("offset", [0.0, 1e4, 1e8])
def test_moments_of_sparse_columns_with_an_offset(offset: float) -> None:
    rows = blobs(n=150, D=5)
    rows[:, :3] += offset
    rows[::3, 4] = 0.0
    weights = weights_for(150)
    mean, variance = CpuShard(sparse.csr_matrix(rows), weights).column_moments()
    expected = reference.column_moments(rows, weights)
    np.testing.assert_allclose(mean, expected[0], rtol=1e-12)
    np.testing.assert_allclose(variance, expected[1], rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_several_chunks_of_centers_and_blocks_of_rows(dtype: type) -> None:
    random = np.random.default_rng(0)
    rows = random.normal(size=(1300, 2)).astype(dtype)
    check_pass(rows, random.normal(size=(2 * CENTER_CHUNK + 7, 2)), n_threads=2)


@pytest.mark.parametrize("form", ["float64", "float32", "uint8", "csr64"])
def test_exact_ties_go_to_the_lowest_index(form: str) -> None:
    matrix = in_form(lattice(), form)
    random = np.random.default_rng(1)
    centers = reference.as_seen(matrix)[random.integers(200, size=40)]  # duplicates among the centres too
    shard = check_pass(matrix, centers)
    same = (centers[:, None] == centers[None]).all(axis=2)
    assert not np.isin(shard.labels, np.flatnonzero(np.triu(same, 1).any(axis=0))).any()


@pytest.mark.parametrize(("dtype", "gap"), [(np.float64, 1e-11), (np.float32, 1e-6)])
def test_rows_all_but_halfway_between_two_centers(dtype: type, gap: float) -> None:
    random = np.random.default_rng(4)
    centers = random.normal(size=(60, 30))
    pairs = random.integers(60, size=(3000, 2))
    tilt = 0.5 + gap * random.choice([-1.0, 1.0], size=(3000, 1))
    rows = (tilt * centers[pairs[:, 0]] + (1 - tilt) * centers[pairs[:, 1]]).astype(dtype)
    check_pass(rows, centers)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("C", [6, 50])
def test_labels_do_not_depend_on_the_rounding_of_the_product(C: int, dtype: type) -> None:
    random = np.random.default_rng(5)
    centers = random.normal(size=(C, 16))
    pairs = random.integers(C, size=(2000, 2))
    rows = (0.5 * centers[pairs[:, 0]] + 0.5 * centers[pairs[:, 1]]).astype(dtype)
    together = CpuShard(rows)
    together.run(Assign(centers))
    for size in (1, 3, 7, 50):  # other shapes, other sums inside BLAS
        for begin in range(0, 2000, 307):
            part = CpuShard(rows[begin : begin + size])
            part.run(Assign(centers))
            np.testing.assert_array_equal(part.labels, together.labels[begin : begin + size])


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 70), st.integers(1, 9), st.sampled_from([1, 2, 5]))
@settings(max_examples=60, deadline=None)
def test_random_lattices(seed: int, n: int, C: int, D: int, side: int) -> None:
    random = np.random.default_rng(seed)
    matrix = random.integers(-side, side + 1, size=(n, D)).astype(random.choice([np.float32, np.float64]))
    check_pass(matrix, random.integers(-2 * side, 2 * side + 1, size=(C, D)) / 2)


SINGLE = (1e-45, 1e-42, 1e-38, 1e-30, 1e-25, 1e-18, 1e-12, 1.0, 7e8, 1e15, 1e18, 1e22, 1e30, 1e37)
DOUBLE = (1e-160, 1e-150, 1e-100, 1e-45, 1e30, 1e45, 1e100, 1e150)
SCALES = [(np.float32, scale) for scale in SINGLE] + [(np.float64, scale) for scale in DOUBLE]


@pytest.mark.parametrize(("dtype", "scale"), SCALES)
def test_any_scale_of_the_data(dtype: type, scale: float) -> None:
    rows = (scale * blobs(n=120, D=3)).astype(dtype)
    check_pass(rows, scale * np.random.default_rng(0).normal(size=(20, 3)))


@pytest.mark.parametrize("scale", [1e-42, 1e-38, 1e-30, 1e30])
def test_any_scale_of_float32_for_the_cosine(scale: float) -> None:
    rows = (scale * blobs(n=120, D=3)).astype(np.float32)
    check_pass(rows, np.random.default_rng(0).normal(size=(20, 3)), unit_rows=True)


def test_rows_and_columns_of_very_different_scale() -> None:
    random = np.random.default_rng(0)
    rows = (random.normal(size=(300, 4)) * [1.0, 1e-20, 7e8, 1e18]).astype(np.float32)
    rows[::5] *= np.float32(1e-30)
    check_pass(rows, rows[random.integers(300, size=40)].astype(np.float64))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("offset", [1e4, 1e8, -1e8])
def test_offsets_cancel(dtype: type, offset: float) -> None:
    random = np.random.default_rng(0)
    rows = (blobs(n=200, D=3) * (1.0 if dtype is np.float64 else 100.0) + offset).astype(dtype)
    shard = check_pass(rows, rows[random.integers(200, size=15)].astype(np.float64), weights=weights_for(200))
    mean, variance = shard.column_moments()
    expected_mean, expected_variance = reference.column_moments(rows.astype(np.float64), weights_for(200))
    np.testing.assert_allclose(mean, expected_mean, rtol=1e-14)
    np.testing.assert_allclose(variance, expected_variance, rtol=1e-6)


def test_constant_columns_and_rows_alike() -> None:
    rows = np.full((50, 3), 0.1)
    shard = check_pass(rows, np.array([[0.1, 0.1, 0.1], [0.1, 0.1, 0.1], [5.0, 0, 0]]))
    assert (shard.labels == 0).all()
    assert shard.column_moments()[1] == pytest.approx(0.0, abs=1e-30)


def test_a_row_that_equals_a_center_is_at_distance_zero() -> None:
    rows = blobs(n=60, D=7) + 1e8
    for dtype in (np.float64, np.float32):
        distinct = np.unique(rows.astype(dtype), axis=0)
        assert CpuShard(distinct).run(Assign(distinct.astype(np.float64))).objective == 0.0


def test_changed_labels_are_counted_against_the_pass_before() -> None:
    rows = blobs(n=100)
    shard = CpuShard(rows)
    assert shard.run(Assign(rows[:5])).n_changed == 100
    assert shard.run(Assign(rows[:5])).n_changed == 0
    before = shard.labels.copy()
    changed = shard.run(Assign(rows[3:9])).n_changed
    assert changed == (shard.labels != before).sum() > 0


def test_without_accumulating_only_labels_and_objective() -> None:
    rows = blobs(n=100, D=4)
    full, light = CpuShard(rows), CpuShard(rows)
    a, b = full.run(Assign(rows[:5])), light.run(Assign(rows[:5], want="labels"))
    np.testing.assert_array_equal(full.labels, light.labels)
    assert (a.n_changed, a.n_distances) == (b.n_changed, b.n_distances)
    assert a.objective == pytest.approx(b.objective, rel=1e-13)  # of sums, and of distances
    assert b.sums.shape == (0, 4) and b.counts.shape == (0,)


def test_passes_leave_the_input_alone() -> None:
    for form in ("float64", "csr unsorted", "fortran"):
        matrix, weights = in_form(blobs(n=50), form), weights_for(50)
        before = matrix.toarray() if form.startswith("csr") else matrix.copy()
        nnz, weights_before = getattr(matrix, "nnz", None), weights.copy()
        shard = CpuShard(matrix, weights, unit_rows=True)
        shard.run(Assign(np.eye(4)))
        shard.column_moments()
        shard.run(Farthest(np.eye(4), 3))
        np.testing.assert_array_equal(matrix.toarray() if form.startswith("csr") else matrix, before)
        assert getattr(matrix, "nnz", None) == nnz
        np.testing.assert_array_equal(weights, weights_before)


@pytest.mark.parametrize("form", ["float64", "float16", "csr64"])
def test_sums_of_clusters_longer_than_a_run(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "ROWS_PER_RUN", 16)
    matrix = in_form(blobs(n=300, D=3), form)
    check_pass(matrix, np.random.default_rng(0).normal(size=(6, 3)), weights=weights_for(300), n_threads=2)


@pytest.mark.parametrize("unit_rows", [False, True], ids=["euclidean", "cosine"])
@pytest.mark.parametrize("form", ["float64", "float32", "uint8", "fortran", "csr64", "csr32"])
def test_column_moments_equal_the_reference(form: str, unit_rows: bool) -> None:
    matrix, weights = in_form(blobs(n=150), form), weights_for(150)
    rows = reference.as_seen(matrix, unit_rows=unit_rows)
    for given_weights, used in ((None, np.ones(150)), (weights, weights)):
        found = CpuShard(matrix, given_weights, unit_rows=unit_rows).column_moments()
        for ours, expected in zip(found, reference.column_moments(rows, used), strict=True):
            np.testing.assert_allclose(ours, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("form", ["float64", "float32", "csr64"])
@pytest.mark.parametrize("n", [1, 7, 1000])
def test_farthest_rows_equal_the_reference(form: str, n: int) -> None:
    matrix, weights = in_form(blobs(n=150), form), weights_for(150)
    centers = np.random.default_rng(0).normal(size=(6, 4))
    shard = CpuShard(matrix, weights)
    shard.run(Assign(centers))
    found = shard.run(Farthest(centers, n))
    expected = reference.farthest(reference.as_seen(matrix), weights, centers, shard.labels, n)
    np.testing.assert_allclose(found.squared_distances, expected.squared_distances, rtol=1e-12)
    np.testing.assert_array_equal(found.rows, expected.rows)
    np.testing.assert_array_equal(found.weights, expected.weights)
    np.testing.assert_array_equal(found.labels, expected.labels)


@pytest.mark.parametrize("n", [1, OFFSET_ROWS, OFFSET_ROWS + 1, 5000])
@pytest.mark.parametrize("form", ["float64", "float32", "int64", "fortran"])
def test_rows_far_from_zero_are_seen_about_the_mean_of_a_sample(form: str, n: int) -> None:
    rows = np.random.default_rng(0).integers(-4, 5, size=(n, 3)).astype(np.float64)
    for offset in (0.0, 1000.0):
        matrix = in_form(rows + offset, form)
        seen = np.asarray(matrix)[:: -(-n // OFFSET_ROWS)].astype(np.float64)
        mean, variance = seen.mean(axis=0), seen.var(axis=0)
        found = CpuShard(matrix).offset
        if mean @ mean <= 4.0 * variance.sum():
            assert found is None
        else:
            assert found is not None
            np.testing.assert_array_equal(found, mean.astype(CpuShard(matrix).dtype))


@pytest.mark.parametrize("size", [1, 3, 50])
def test_moves_are_cut_between_clusters(size: int) -> None:
    clusters = np.random.default_rng(0).integers(0, 9, 40).astype(np.int32)
    starts, _ = group_by(clusters, 9)
    runs, pieces = sums.cut_clusters(starts, size, whole=True)
    assert len(pieces) == 0 and (runs[:, 2] == -1).all()
    assert runs[0, 0] == 0 and runs[-1, 1] == 40 and (runs[1:, 0] == runs[:-1, 1]).all()
    assert np.isin(runs[:, 0], starts).all()
    assert len(runs) == {1: 9, 3: 9, 50: 1}[size]
