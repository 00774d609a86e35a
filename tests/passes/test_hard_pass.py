"""Exact passes one after the other, column moments, and both at the edges of floating point.

What a shard keeps from one pass to the next skips work and changes no label, count or objective.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from globular.passes.cpu import CpuShard, settled, sums
from globular.passes.cpu import rows as on_rows
from globular.passes.cpu.assign import all as exact
from globular.passes.cpu.engine import score
from globular.passes.cpu.engine.rows import CANCELLED
from globular.passes.cpu.engine.score import CENTER_CHUNK
from globular.passes.cpu.shard import OFFSET_ROWS
from globular.seam.passes import Assign, Farthest, Relabel, ScatterLabels
from globular.threads import pool
from makers import SHARD_FORMS, Rows, blobs, in_form, lattice, raising, weights_for
from reference import assign as reference


def walk(
    matrix: Any, path: list[Rows], *, weights: Rows | None = None, unit_rows: bool = False, n_threads: int = 1,
    wants: tuple[str, ...] = ("sums",),
) -> list[int]:  # fmt: skip
    """Exact passes along a path of centres, each compared with the reference; the distances each pass took."""
    shard = CpuShard(matrix, weights, unit_rows=unit_rows, n_threads=n_threads)
    rows = reference.as_seen(matrix, unit_rows=unit_rows)
    used = np.ones(len(rows)) if weights is None else weights
    n_distances = []
    for number, centers in enumerate(path):
        before, want = shard.labels.copy(), wants[number % len(wants)]
        found = shard.run(Assign(centers, want=want))  # type: ignore[arg-type]
        labels, expected = reference.hard_pass(rows, used, centers, before)
        np.testing.assert_array_equal(shard.labels, labels)
        if want == "sums":
            largest = np.abs(expected.sums).max(initial=0.0)
            np.testing.assert_allclose(found.sums, expected.sums, rtol=1e-10, atol=1e-12 * largest)
            np.testing.assert_allclose(found.counts, expected.counts, rtol=1e-12)
            np.testing.assert_array_equal(found.counts == 0, expected.counts == 0)
        assert found.objective == pytest.approx(expected.objective, rel=1e-11)
        assert found.n_changed == expected.n_changed
        assert found.n_distances <= expected.n_distances
        n_distances.append(found.n_distances)
    return n_distances


def path_of(start: Rows, n_steps: int, size: float, seed: int = 0) -> list[Rows]:
    """Centres that drift less and less."""
    random, path = np.random.default_rng(seed), [start]
    for step in range(n_steps):
        path.append(path[-1] + size / (step + 1) ** 2 * random.normal(size=start.shape))
    return path


@pytest.mark.parametrize("unit_rows", [False, True], ids=["euclidean", "cosine"])
@pytest.mark.parametrize("weighted", [False, True], ids=["equal", "weighted"])
@pytest.mark.parametrize("form", SHARD_FORMS)
def test_every_form_of_rows_along_a_path(form: str, weighted: bool, unit_rows: bool) -> None:
    matrix = in_form(blobs(n=300, D=5), form)
    start = reference.as_seen(matrix, unit_rows=unit_rows)[:7]
    taken = walk(
        matrix, path_of(start, 5, 0.1 * start.std()), weights=weights_for(300) if weighted else None,
        unit_rows=unit_rows,
    )  # fmt: skip
    assert taken[-1] < taken[0] == 300 * 7


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("D", [1, 3, 9, 67])
@pytest.mark.parametrize("C", [1, 2, 3, 5, 9, 17, 31, 33, 70])
def test_every_tile_of_centers(C: int, D: int, dtype: type) -> None:
    rows = blobs(n=403, C=8, D=D).astype(dtype)
    walk(rows, path_of(rows[:C].astype(np.float64), 3, 0.1))


@pytest.mark.parametrize("C", [CENTER_CHUNK, CENTER_CHUNK + 1, 2 * CENTER_CHUNK + 7])
@pytest.mark.parametrize("form", ["float32", "csr64"])
def test_centers_in_one_chunk_and_in_several(C: int, form: str) -> None:
    matrix = in_form(lattice(), form)
    random = np.random.default_rng(0)
    centers = reference.as_seen(matrix)[random.integers(200, size=C)]  # ties within chunks and across them
    walk(matrix, path_of(centers, 2, 1e-3))


@pytest.mark.parametrize("cached", [1, score.CACHED])
def test_centers_that_do_not_stay_in_the_cache_together(cached: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score, "CACHED", cached)
    rows = lattice().astype(np.float32)
    walk(rows, path_of(rows[np.random.default_rng(0).integers(200, size=90)].astype(np.float64), 2, 1e-3))


@pytest.mark.parametrize("rows_per_block", [1, 9, 4096])
def test_blocks_of_any_size_give_the_same_bits(rows_per_block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, results = blobs(n=3000, D=20).astype(np.float32), []
    for size in (score.ROWS_PER_BLOCK, rows_per_block):
        monkeypatch.setattr(score, "ROWS_PER_BLOCK", size)
        shard = CpuShard(rows, weights_for(3000))
        found = [shard.run(Assign(centers)) for centers in path_of(rows[:30].astype(np.float64), 4, 0.3)]
        results.append([(f.sums.tobytes(), f.counts.tobytes(), f.objective, f.n_distances) for f in found])
    assert results[0] == results[1]


@pytest.mark.parametrize("form", ["float64", "float32", "uint8", "csr64"])
def test_ties_stay_with_the_lowest_index(form: str) -> None:
    matrix = in_form(lattice(), form)
    rows = reference.as_seen(matrix)
    random = np.random.default_rng(1)
    walk(matrix, [rows[random.integers(200, size=12)] for _ in range(2)] + [rows[:12], rows[:12], rows[:12] + 0.5])


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("offset", [0.0, 1e4, 1e8])
def test_offsets(dtype: type, offset: float) -> None:
    rows = (blobs(n=300, D=4) * (1.0 if dtype is np.float64 else 100.0) + offset).astype(dtype)
    start = rows[:9].astype(np.float64)
    walk(rows, path_of(start, 4, 0.05 * (start - offset).std()), weights=weights_for(300))


SINGLE = (1e-45, 1e-42, 1e-38, 1e-30, 1e-25, 1e-18, 1e-12, 1.0, 7e8, 1e15, 1e18, 1e22, 1e30, 1e37)
DOUBLE = (1e-160, 1e-150, 1e-100, 1e-45, 1e30, 1e45, 1e100, 1e150)


@pytest.mark.parametrize(
    ("dtype", "scale"), [*((np.float32, scale) for scale in SINGLE), *((np.float64, scale) for scale in DOUBLE)]
)
def test_any_scale_of_the_data(dtype: type, scale: float) -> None:
    """Also those where scores overflow or vanish."""
    rows = (scale * blobs(n=150, D=3)).astype(dtype)
    centers = rows[:16].astype(np.float64) + 0.1 * scale * np.random.default_rng(0).normal(size=(16, 3))
    walk(rows, path_of(centers, 3, 0.1 * scale))


def test_one_center_far_away() -> None:
    rows = blobs(n=200, D=3).astype(np.float32)
    start = np.vstack([rows[:4].astype(np.float64), np.full((1, 3), 1e30)])
    walk(rows, [start, start + 0.01, rows[:5] + 0.0, start])


@given(
    st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(1, 70), st.integers(1, 20), st.sampled_from([1, 2, 5])
)
def test_random_lattices_along_a_path(seed: int, n: int, C: int, D: int, side: int) -> None:
    random = np.random.default_rng(seed)
    rows = random.integers(-side, side + 1, size=(n, D)).astype(random.choice([np.float32, np.float64]))
    weights = random.choice([0.0, 0.1, 0.7, 1.0], size=n) if random.random() < 0.5 else None
    matrix = sparse.csr_matrix(rows) if random.random() < 0.3 else rows
    path = [random.integers(-2 * side, 2 * side + 1, size=(C, D)) / 2]
    for _ in range(5):  # by powers of two, so that distances are exact and ties are ties
        step = random.integers(-1, 2, size=(C, D)) * random.choice([0.0, 2.0**-20, 0.25, 1.0])
        path.append(path[-1] + np.where(random.random((C, 1)) < 0.5, step, 0.0))
    walk(matrix, path, weights=weights, wants=("sums", "sums", "labels") if seed % 3 == 0 else ("sums",))


@pytest.mark.parametrize("few", [0, 10**9], ids=["in cluster order", "by spans"])
def test_sums_of_what_moved(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "CACHED_NUMBERS", few)
    rows = blobs(n=400, D=3) + 1e3
    for weights in (None, weights_for(400)):
        walk(rows, path_of(rows[:8], 8, 0.5), weights=weights, wants=("sums", "sums", "sums", "labels"))


@pytest.mark.parametrize("n_moved", [0, 10**9])
def test_sums_before_and_after_all_rows_are_added_anew(n_moved: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = blobs(n=200, D=3)
    shard = CpuShard(rows)
    shard.run(Assign(rows[:5]))
    kept = shard.recall(settled.Settled)
    assert kept is not None
    kept.sums += 1.0  # what rounding would do, only more of it
    kept.n_moved = n_moved
    expected = reference.hard_pass(rows, np.ones(200), rows[:5], shard.labels)[1].sums
    off = 1.0 if n_moved == 0 else 0.0
    np.testing.assert_allclose(shard.run(Assign(rows[:5])).sums, expected + off, rtol=1e-11)


def test_a_cluster_that_loses_its_rows_is_empty_and_not_full_of_rounding() -> None:
    rows = np.linspace(0.0, 1.0, 3000)[:, None]
    weights = np.full(3000, 0.1)
    away = [np.array([[0.5], [x]]) for x in (0.4, 0.9, 0.999, 1.3, 2.5, 9.0)]
    walk(rows, away, weights=weights)
    walk(rows, away)


def test_an_objective_that_cancels_is_taken_row_by_row() -> None:
    random = np.random.default_rng(0)
    middles = 1e4 * random.normal(size=(6, 4))
    rows = middles[random.integers(6, size=300)] + 1e-3 * random.normal(size=(300, 4))
    walk(rows, path_of(middles, 4, 1e-4))
    walk(rows, [middles[:2], middles[:2] + 1, middles[2:4]])
    distinct = np.unique(rows, axis=0)
    shard = CpuShard(distinct)
    for _ in range(3):
        assert shard.run(Assign(distinct)).objective == 0.0


def test_labels_that_others_change_in_between() -> None:
    rows = blobs(n=500, D=4)
    shard = CpuShard(rows)
    centers = rows[:6]
    shard.run(Assign(centers))
    exact_labels = shard.labels.copy()
    for change in (Relabel(np.array([1, 0, 3, 2, 5, 4], dtype=np.int32)), ScatterLabels(6, 3)):
        shard.run(change)
        changed = int((shard.labels != exact_labels).sum())
        found = shard.run(Assign(centers + 1e-9))
        assert found.n_changed == changed > 0
        np.testing.assert_array_equal(shard.labels, exact_labels)


def test_settled_rows_are_not_scored_and_another_number_of_centers_begins_anew() -> None:
    rows = blobs(n=1000, D=4)
    shard = CpuShard(rows)
    assert shard.run(Assign(rows[:6])).n_distances == 6000
    assert shard.run(Assign(rows[:6] + 1e-6)).n_distances < 300
    assert shard.run(Assign(rows[:7])).n_distances == 7000
    assert shard.run(Assign(rows[:1])).n_distances == 1000
    assert shard.run(Assign(rows[1:2])).n_distances == 0  # nothing else to belong to


def test_another_run_owes_nothing_to_the_one_before() -> None:
    rows = blobs(n=500, C=12, D=3)
    used, fresh = CpuShard(rows), CpuShard(rows)
    for centers in path_of(rows[:12], 4, 0.2):
        used.run(Assign(centers))
    for centers in path_of(rows[100:112], 3, 0.2):
        one, other = used.run(Assign(centers)), fresh.run(Assign(centers))
        assert (one.sums.tobytes(), one.objective, one.n_distances) == (
            other.sums.tobytes(), other.objective, other.n_distances
        )  # fmt: skip


@pytest.mark.parametrize("form", ["float32", "float16", "csr64"])
def test_the_same_bits_for_any_number_of_threads(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "ROWS_PER_LABELLED_SPAN", 64)
    matrix, weights = in_form(blobs(n=3000, D=6), form), weights_for(3000)
    path = path_of(reference.as_seen(matrix)[:9], 4, 0.3)
    results = []
    for n_threads in (1, 2, 5):
        shard = CpuShard(matrix, weights, n_threads=n_threads)
        found = [shard.run(Assign(centers)) for centers in path]
        results.append([(f.sums.tobytes(), f.counts.tobytes(), f.objective, f.n_distances) for f in found])
    assert results[0] == results[1] == results[2]


def test_an_interrupted_pass_leaves_nothing_half_known(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = blobs(n=400, D=3)
    shard = CpuShard(rows)
    shard.run(Assign(rows[:5]))

    with monkeypatch.context() as patch:
        patch.setattr(exact, "assign_spans", raising(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            shard.run(Assign(rows[5:10]))
    before = shard.labels.copy()
    found = shard.run(Assign(rows[:5] + 0.1))
    labels, expected = reference.hard_pass(rows, np.ones(400), rows[:5] + 0.1, before)
    np.testing.assert_array_equal(shard.labels, labels)
    np.testing.assert_allclose(found.sums, expected.sums, rtol=1e-11)


def test_centers_changed_in_place_are_noticed() -> None:
    rows, centers = blobs(n=300, D=3), blobs(n=6, D=3)
    shard = CpuShard(rows)
    shard.run(Assign(centers))
    centers += 2.0
    shard.run(Assign(centers))
    np.testing.assert_array_equal(shard.labels, reference.closest_centers(rows, centers))


def test_labels_of_many_centers_are_work_for_many_threads(monkeypatch: pytest.MonkeyPatch, watch: Any) -> None:
    """Sums are a reason for few spans; a pass that wants labels alone has none."""
    threads = watch(on_rows, "new_queue", lambda n_threads=1: n_threads)
    monkeypatch.setattr(pool, "WAKING", 1e-5)  # as with the library
    X = np.random.default_rng(0).normal(size=(20_000, 4)).astype(np.float32)
    CpuShard(X, n_threads=16).run(Assign(X[:2000].astype(np.float64), want="labels"))
    assert threads == [16]


@pytest.mark.parametrize("share", [0.5, 0.99, 1.01, 2.0])
def test_sparse_rows_on_either_side_of_cancellation(share: float) -> None:
    random = np.random.default_rng(0)
    centers = np.where(random.random((5, 40)) < 0.5, 0.0, random.normal(size=(5, 40)))
    near = np.repeat(centers, 20, axis=0)
    step = np.where((near != 0) & (random.random(near.shape) < 0.5), random.normal(size=near.shape), 0.0)
    step *= np.sqrt(share * CANCELLED / np.einsum("ij,ij->i", step, step))[:, None]
    rows = near + step * np.linalg.norm(near, axis=1, keepdims=True)
    matrix = sparse.csr_matrix(rows)
    walk(matrix, [centers])
    assert CpuShard(matrix).run(Assign(centers)).objective == pytest.approx(
        share * CANCELLED * np.sum(near**2), rel=1e-9
    )


@pytest.mark.parametrize("offset", [0.0, 1e4, 1e8])
def test_moments_of_columns_with_an_offset(offset: float) -> None:
    rows = blobs(n=150, D=5)
    rows[:, :3] += offset
    rows[::3, 4] = 0.0
    weights = weights_for(150)
    for matrix in (rows, (100 * rows).astype(np.float32), sparse.csr_matrix(rows)):
        mean, variance = CpuShard(matrix, weights).column_moments()
        expected = reference.column_moments(reference.as_seen(matrix), weights)
        np.testing.assert_allclose(mean, expected[0], rtol=1e-12)
        np.testing.assert_allclose(variance, expected[1], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("dtype", "gap"), [(np.float64, 1e-11), (np.float32, 1e-6)])
def test_rows_all_but_halfway_between_two_centers(dtype: type, gap: float) -> None:
    random = np.random.default_rng(4)
    centers = random.normal(size=(60, 30))
    pairs = random.integers(60, size=(3000, 2))
    tilt = 0.5 + gap * random.choice([-1.0, 1.0], size=(3000, 1))
    rows = (tilt * centers[pairs[:, 0]] + (1 - tilt) * centers[pairs[:, 1]]).astype(dtype)
    walk(rows, [centers])


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


@pytest.mark.parametrize("scale", [1e-42, 1e-38, 1e-30, 1e30])
def test_any_scale_of_float32_for_the_cosine(scale: float) -> None:
    rows = (scale * blobs(n=120, D=3)).astype(np.float32)
    walk(rows, [np.random.default_rng(0).normal(size=(20, 3))], unit_rows=True)


def test_rows_and_columns_of_very_different_scale() -> None:
    random = np.random.default_rng(0)
    rows = (random.normal(size=(300, 4)) * [1.0, 1e-20, 7e8, 1e18]).astype(np.float32)
    rows[::5] *= np.float32(1e-30)
    walk(rows, [rows[random.integers(300, size=40)].astype(np.float64)])


def test_a_constant_column_has_no_variance() -> None:
    assert CpuShard(np.full((50, 3), 0.1)).column_moments()[1] == pytest.approx(0.0, abs=1e-30)


def test_a_row_that_equals_a_center_is_at_distance_zero() -> None:
    rows = blobs(n=60, D=7) + 1e8
    for dtype in (np.float64, np.float32):
        distinct = np.unique(rows.astype(dtype), axis=0)
        assert CpuShard(distinct).run(Assign(distinct.astype(np.float64))).objective == 0.0


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
    walk(matrix, [np.random.default_rng(0).normal(size=(6, 3))], weights=weights_for(300), n_threads=2)


@pytest.mark.parametrize("unit_rows", [False, True], ids=["euclidean", "cosine"])
@pytest.mark.parametrize("form", ["float64", "float32", "uint8", "fortran", "csr64", "csr32"])
def test_column_moments_equal_the_reference(form: str, unit_rows: bool) -> None:
    matrix, weights = in_form(blobs(n=150), form), weights_for(150)
    rows = reference.as_seen(matrix, unit_rows=unit_rows)
    for given_weights, used in ((None, np.ones(150)), (weights, weights)):
        found = CpuShard(matrix, given_weights, unit_rows=unit_rows).column_moments()
        for ours, expected in zip(found, reference.column_moments(rows, used), strict=True):
            np.testing.assert_allclose(ours, expected, rtol=1e-11, atol=1e-13)


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
