"""The nested pass: which rows a batch has, labels with bounds and without, bounds that hold, votes that add up."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import sparse

from globular import threads
from globular.algorithms.kmeans import nested
from globular.algorithms.kmeans.cells import group_centers
from globular.algorithms.kmeans.nested import NestedOptions
from globular.algorithms.kmeans.votes import Votes
from globular.model.cells import CenterCells
from globular.model.nested import Batch, Bounds, Candidates, CenterGroups, NestedSearch
from globular.passes.cpu import CpuShard, center_scores
from globular.passes.cpu.assign import batch as cpu_batch
from globular.passes.cpu.assign import votes as cpu_votes
from globular.passes.cpu.sums import cut_runs
from globular.seam.passes import Assign, AssignBatch
from makers import SHARD_FORMS, Rows, blobs, in_form, weights_for
from reference import assign as reference
from split import SplitShard


def groups_of(kind: str, centers: Rows) -> CenterGroups:
    options = NestedOptions(1, bounds="elkan" if kind == "elkan" else "yinyang")
    bounds = nested._first_bounds(CpuShard(centers), centers, options)
    assert bounds is not None
    return bounds.groups


@given(st.integers(0, 2**32 - 1), st.integers(1, 50), st.integers(1, 60))
def test_groups_partition_the_centers(seed: int, C: int, n_groups: int) -> None:
    random = np.random.default_rng(seed)
    centers, n_groups = random.integers(3, size=(C, 2)).astype(np.float64), min(C, n_groups)
    cells = group_centers(CpuShard(centers), centers, centers[:n_groups])
    groups = CenterGroups(cells.order, cells.starts)
    assert sorted(groups.order.tolist()) == list(range(C))
    assert groups.starts[0] == 0 and groups.starts[-1] == C
    assert 1 <= groups.n_groups <= n_groups and (np.diff(groups.starts) > 0).all()
    shifts = random.uniform(size=C)
    members = [groups.order[a:b] for a, b in itertools.pairwise(groups.starts)]
    assert all((np.diff(part) > 0).all() for part in members)
    np.testing.assert_array_equal(groups.largest_shift(shifts), [shifts[part].max() for part in members])


def check_bounds(shard: CpuShard, rows: Rows, batch: Batch, centers: Rows, bounds: Bounds) -> None:
    """l(i, j) ≤ the true distance to every centre but the own one, and that one's is at most the upper bound."""
    chosen = batch.rows(shard.n_rows)
    distances = np.sqrt(reference.squared_distances(rows[chosen], centers))
    labels = shard.labels[chosen]
    own = distances[np.arange(len(chosen)), labels].copy()
    distances[np.arange(len(chosen)), labels] = np.inf
    upper = shard.state.get("nested_upper", np.float32, 0.0)[chosen].astype(np.float64) + bounds.drift[labels]
    assert (own <= upper).all()
    groups = bounds.groups
    lower = shard.state.get("nested_lower", np.float32, 0.0, width=groups.n_groups)[chosen].astype(np.float64)
    lower -= bounds.group_drift
    for g in range(groups.n_groups):
        members = groups.order[groups.starts[g] : groups.starts[g + 1]]
        assert (lower[:, g] <= distances[:, members].min(axis=1)).all()


def walk(
    matrix: Any, path: list[Rows], kind: str, *, weights: Rows | None = None, unit_rows: bool = False, sizes: Any = None
) -> list[int]:
    """Nested passes along a path of centres, the batch growing; labels, votes and bounds checked after each."""
    shard = CpuShard(matrix, weights, unit_rows=unit_rows)
    rows = reference.as_seen(matrix, unit_rows=unit_rows)
    used = np.ones(len(rows)) if weights is None else weights
    bounds = None if kind == "none" else Bounds.start(groups_of(kind, path[0]))
    votes, n_distances = Votes.none(path[0]), []
    for t, centers in enumerate(path):
        size = sizes[t] if sizes else min(len(rows), 20 * 2 ** (t // 2))
        batch = Batch(7, size, len(rows))
        found = shard.run(AssignBatch(centers, votes.origin, batch, NestedSearch(bounds, restart=t == 0)))
        votes.centers = centers
        votes.move(shard, found, unit=False)
        chosen = batch.rows(len(rows))
        assert found.n_rows == len(chosen) == size
        np.testing.assert_array_equal(shard.labels[chosen], reference.closest_centers(rows[chosen], centers))
        assert (np.delete(shard.labels, chosen) == -1).all()
        check_votes(votes, rows[chosen], used[chosen], shard.labels[chosen])
        if bounds is not None:
            check_bounds(shard, rows, batch, centers, bounds)
            if t + 1 < len(path):
                bounds = bounds.after(np.linalg.norm(path[t + 1] - centers, axis=1))
        n_distances.append(found.n_distances)
    return n_distances


def check_votes(votes: Votes, rows: Rows, weights: Rows, labels: np.ndarray) -> None:
    """S, v and the squares are those of every row voting once, summed from scratch."""
    member = weights[:, None] * (labels[:, None] == np.arange(len(votes.counts)))
    about = rows - votes.origin
    scale = np.abs(about).max(initial=0.0) * max(weights.sum(), 1.0)
    np.testing.assert_allclose(votes.counts, member.sum(axis=0), rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(votes.sums, member.T @ about, rtol=1e-10, atol=1e-12 * scale)
    squares = member.T @ (about**2).sum(axis=1)
    np.testing.assert_allclose(votes.squares, squares, rtol=1e-10, atol=1e-11 * squares.max(initial=0.0))
    np.testing.assert_array_equal(votes.sizes, (member > 0).sum(axis=0))
    assert (votes.counts[votes.sizes == 0] == 0.0).all()


def wander(start: Rows, n_steps: int, step: float, seed: int = 0) -> list[Rows]:
    """Centres that take ever smaller random steps, and now and then one that jumps."""
    random = np.random.default_rng(seed)
    path = [start]
    for number in range(n_steps):
        moved = path[-1] + step / (number + 1) * random.normal(size=start.shape)
        if number % 3 == 2:
            moved[random.integers(len(start))] = start[random.integers(len(start))]
        path.append(moved)
    return path


@given(st.integers(0, 2**63 - 1), st.integers(1, 300), st.integers(1, 40), st.data())
def test_batches_nest_and_are_a_part_of_one_order(seed: int, n: int, run: int, data: st.DataObject) -> None:
    sizes = sorted(data.draw(st.lists(st.integers(0, n + 5), min_size=2, max_size=4)))
    batches = [Batch(seed, size, n, run) for size in sizes]
    rows = [batch.rows(n) for batch in batches]
    for size, chosen in zip(sizes, rows, strict=True):
        assert len(set(chosen.tolist())) == len(chosen) and (np.diff(chosen) > 0).all()
        assert min(size, n) - run < len(chosen) <= min(n, size + run - 1)
    assert all(set(small) <= set(large) for small, large in itertools.pairwise(rows))
    new = batches[-1].after(sizes[0]).rows(n)
    np.testing.assert_array_equal(np.sort(np.concatenate([rows[0], new])), rows[-1])
    cut = data.draw(st.integers(0, n))  # a split sees the same rows
    parts = [batches[-1].rows(cut), cut + batches[-1].seen_from(cut).rows(n - cut)]
    np.testing.assert_array_equal(np.concatenate(parts), rows[-1])


def test_orders_look_random() -> None:
    n = 1000
    firsts = np.array([Batch(seed, 100, n).rows(n) for seed in range(300)])
    share = np.bincount(firsts.ravel(), minlength=n) / 300  # every row is in a tenth of the batches
    assert abs(share.mean() - 0.1) < 1e-12 and share.max() < 0.19 and share.min() > 0.03
    halves = (firsts < n // 2).sum(axis=1)
    assert 40 < np.median(halves) < 60 and halves.std() < 8


@pytest.mark.parametrize("kind", ["none", "elkan", "yinyang"])
@pytest.mark.parametrize("unit_rows", [False, True], ids=["euclidean", "cosine"])
@pytest.mark.parametrize("form", SHARD_FORMS)
def test_every_form_of_rows(form: str, unit_rows: bool, kind: str) -> None:
    matrix = in_form(blobs(n=150, D=4), form)
    start = reference.as_seen(matrix, unit_rows=unit_rows)[::9].copy()
    walk(matrix, wander(start, 7, 0.3), kind, weights=weights_for(150), unit_rows=unit_rows)


@pytest.mark.parametrize("kind", ["elkan", "yinyang"])
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 25), st.integers(1, 4), st.booleans())
def test_lattices_full_of_ties_and_duplicate_centers(kind, seed, n, C, D, sparse):
    random = np.random.default_rng(seed)
    path = [random.integers(-4, 5, size=(C, D)) / 2.0]
    for _ in range(6):
        path.append(path[-1] + random.integers(-1, 2, size=(C, D)) * random.integers(0, 2, size=(C, 1)) / 2.0)
    rows = random.integers(-2, 3, size=(n, D)).astype(random.choice([np.float32, np.float64]))
    matrix = in_form(rows.astype(np.float64), "csr64") if sparse else rows
    walk(matrix, path, kind, sizes=sorted(random.integers(1, n + 1, size=7).tolist()))


@pytest.mark.parametrize("kind", ["elkan", "yinyang"])
@pytest.mark.parametrize(
    ("dtype", "scale"),
    [
        *((np.float32, scale) for scale in (1e-42, 1e-30, 1e-19, 7e8, 1e18, 1e22, 1e30, 1e37)),
        *((np.float64, scale) for scale in (1e-150, 1e-60, 1e-45, 1e-38, 1e30, 1e39, 1e60, 1e150)),
    ],
)
def test_any_scale_of_the_data(dtype: type, scale: float, kind: str) -> None:
    rows = blobs(n=120, D=3)
    path = [scale * centers for centers in wander(rows[:20], 6, 0.4)]
    matrix = (scale * rows).astype(dtype)
    shard, plain = CpuShard(matrix), CpuShard(matrix)
    bounds = Bounds.start(groups_of(kind, path[0]))
    for t, centers in enumerate(path):
        batch = Batch(1, min(120, 30 * (t + 1)), 120)
        shard.run(AssignBatch(centers, np.zeros(3), batch, NestedSearch(bounds, restart=t == 0)))
        plain.run(Assign(centers))
        chosen = batch.rows(120)
        np.testing.assert_array_equal(shard.labels[chosen], plain.labels[chosen])
        if t + 1 < len(path):
            bounds = bounds.after(np.linalg.norm((path[t + 1] - centers) / scale, axis=1) * scale)


@pytest.mark.parametrize("kind", ["none", "elkan", "yinyang"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_offsets(dtype: type, kind: str) -> None:
    rows = (100 * blobs(n=200, D=3) + 1e8).astype(dtype)
    walk(rows, wander(rows[::10].astype(np.float64), 8, 30.0), kind)
    nearer = (rows - 9.9e7).astype(dtype)  # sums of sparse rows are taken about zero, and rounded there
    walk(sparse.csr_matrix(nearer), wander(nearer[::10].astype(np.float64), 8, 30.0), kind)


def test_settled_rows_cost_no_distance_at_all() -> None:
    rows = blobs(n=300, C=6, D=3, spread=0.01)
    centers = np.unique(np.round(rows), axis=0)
    n_distances = walk(rows, [centers] * 4, "elkan", sizes=[150, 150, 300, 300])
    assert n_distances == [150 * len(centers), 0, 150 * len(centers), 0]


@pytest.mark.parametrize("kind", ["none", "elkan", "yinyang"])
def test_same_bits_for_any_number_of_threads(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(center_scores, "ROWS_PER_PRODUCT", 64)
    monkeypatch.setattr(center_scores, "ROWS_PER_THREAD", 64)
    monkeypatch.setattr(cpu_batch, "SEARCHED_AT_ONCE", 64)
    monkeypatch.setattr(threads.pool, "WAKING", 1e-12)
    monkeypatch.setattr(cpu_votes, "ROWS_PER_LABELLED_SPAN", 50)
    rows = blobs(n=1000, C=5, D=6)
    found = []
    for n_threads in (1, 2, 3):
        shard = CpuShard(rows, n_threads=n_threads)
        bounds = None if kind == "none" else Bounds.start(groups_of(kind, rows[:30]))
        changes = [
            shard.run(AssignBatch(rows[:30], rows[0], Batch(3, size, 1000), NestedSearch(bounds, restart=size == 400)))
            for size in (400, 800)
        ]
        found.append((shard.labels.tobytes(), *(c.sums.tobytes() + c.squares.tobytes() for c in changes)))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("n_clusters", [1, 3, 40])
@pytest.mark.parametrize("rows_per_sum", [1, 7, 10_000])
def test_large_and_small_clusters_are_summed_alike(n_clusters, rows_per_sum, monkeypatch):
    monkeypatch.setattr(cpu_votes, "ROWS_PER_LABELLED_SPAN", rows_per_sum)
    walk(blobs(n=200, D=3), wander(blobs(n=n_clusters, D=3, seed=1), 4, 0.5), "elkan", weights=weights_for(200))


@given(st.lists(st.integers(0, 25), min_size=1, max_size=40), st.integers(1, 10))
@settings(max_examples=200, deadline=None)
@example([11] * 30, 10)  # two pieces each
def test_runs_are_whole_clusters_or_pieces_of_one(sizes: list[int], most: int) -> None:
    starts = np.concatenate([[0], np.cumsum(sizes)])
    n = int(starts[-1])
    runs, pieces = np.full((3 * n // most + 2, 3), -7), np.full(2 * n // most + 1, -7)
    n_runs, n_pieces = cut_runs(starts, most, False, runs, pieces)
    assert n_runs <= len(runs) and n_pieces <= len(pieces)
    begins, ends, piece_of = runs[:n_runs].T
    np.testing.assert_array_equal(np.concatenate([[0], ends]), np.concatenate([begins, [n]]))
    assert (ends - begins <= most).all() and (ends > begins).all()
    whole = piece_of < 0
    assert np.isin(begins[whole], starts).all() and np.isin(ends[whole], starts).all()
    np.testing.assert_array_equal(piece_of[~whole], np.arange(n_pieces))
    clusters = np.searchsorted(starts, begins[~whole], side="right") - 1
    np.testing.assert_array_equal(pieces[:n_pieces], clusters)
    assert (ends[~whole] <= starts[clusters + 1]).all()


@pytest.mark.parametrize("form", ["float32", "uint8", "csr32"])
def test_candidates_never_lose_a_closer_centre_that_a_row_had(form: str) -> None:
    matrix = in_form(blobs(n=600, C=20, D=4), form)
    rows = reference.as_seen(matrix)
    centers = rows[::6].copy()
    cell_of = np.arange(100) % 10
    cells = CenterCells(
        np.array([centers[cell_of == g].mean(axis=0) for g in range(10)]),
        np.argsort(cell_of, kind="stable"),
        np.arange(0, 101, 10),
    )
    shard, batch = CpuShard(matrix), Batch(0, 400, 600)
    chosen = batch.rows(600)
    votes, before = Votes.none(centers), np.full(400, np.inf)
    for t, n_probes in enumerate((1, 2, 10)):
        found = shard.run(
            AssignBatch(centers, votes.origin, batch, NestedSearch(None, Candidates(cells, n_probes), restart=t == 0))
        )
        votes.move(shard, found, unit=False)
        check_votes(votes, rows[chosen], np.ones(400), shard.labels[chosen])
        squared = ((rows[chosen] - centers[shard.labels[chosen]]) ** 2).sum(axis=1)
        assert (squared <= before).all()
        before = squared
    np.testing.assert_allclose(before, reference.squared_distances(rows[chosen], centers).min(axis=1), atol=1e-9)


@pytest.mark.parametrize("form", ["float64", "uint8", "fortran", "csr32"])
@pytest.mark.parametrize("unit_rows", [False, True])
def test_pick_is_a_shard_of_those_rows(form: str, unit_rows: bool) -> None:
    matrix, weights = in_form(blobs(n=60, D=3), form), weights_for(60)
    chosen = np.array([3, 4, 5, 20, 59])
    rows = reference.as_seen(matrix, unit_rows=unit_rows)
    whole = CpuShard(matrix, weights, unit_rows=unit_rows)
    for shard in (whole, SplitShard([whole])):
        part = shard.subset(chosen)
        np.testing.assert_allclose(part.take(np.arange(5)), rows[chosen], rtol=1e-12)
        np.testing.assert_array_equal(part.take(np.arange(5), "weights"), weights[chosen])
        found = part.run(Assign(rows[:7]))
        labels, expected = reference.hard_pass(rows[chosen], weights[chosen], rows[:7], np.full(5, -1))
        np.testing.assert_array_equal(part.labels, labels)
        np.testing.assert_allclose(found.sums, expected.sums, rtol=1e-6, atol=1e-9)
    assert (whole.subset(np.arange(60)).labels == -1).all()
