"""The bounded pass against the hard pass: bounds skip work and change no label."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from globular.backends.cpu import CpuShard
from globular.model.groups import CenterGroups
from globular.seam.among import Bounded
from globular.seam.passes import Assign
from makers import SHARD_FORMS, Rows, blobs, in_form, lattice, weights_for
from reference import assign as reference


def walk(
    matrix: Any,
    path: list[Rows],
    n_groups: int,
    *,
    weights: Rows | None = None,
    unit_rows: bool = False,
    check_bounds: bool = True,
) -> list[int]:
    """Bounded passes along a path of centres, each compared with the reference; the distances each pass took."""
    shard = CpuShard(matrix, weights, unit_rows=unit_rows)
    rows = reference.as_seen(matrix, unit_rows=unit_rows)
    used = np.ones(len(rows)) if weights is None else weights
    groups = CenterGroups.by_proximity(path[0], n_groups)
    shifts, before, n_distances = None, np.full(len(rows), -1), []
    for number, centers in enumerate(path):
        if number:
            shifts = np.linalg.norm(centers - path[number - 1], axis=1)
        found = shard.run(Assign(centers, Bounded(groups, shifts)))
        labels, expected = reference.hard_pass(rows, used, centers, before)
        np.testing.assert_array_equal(shard.labels, labels)
        largest = np.abs(expected.sums).max(initial=0.0)
        np.testing.assert_allclose(found.sums, expected.sums, rtol=1e-11, atol=1e-13 * largest)
        np.testing.assert_allclose(found.counts, expected.counts, rtol=1e-13)
        assert found.objective == pytest.approx(expected.objective, rel=1e-12)
        assert found.n_changed == expected.n_changed
        if check_bounds:
            check_lower_bounds(shard, rows, centers, groups)
        before = labels
        n_distances.append(found.n_distances)
    return n_distances


def check_lower_bounds(shard: CpuShard, rows: Rows, centers: Rows, groups: CenterGroups) -> None:
    """No bound exceeds the distance to any centre of its group other than the row's own."""
    lower = shard.state.get("yinyang", np.float32, 0.0, width=groups.n_groups)
    distances = np.sqrt(reference.squared_distances(rows, centers))
    distances[np.arange(len(rows)), shard.labels] = np.inf
    for g in range(groups.n_groups):
        members = groups.order[groups.starts[g] : groups.starts[g + 1]]
        assert (lower[:, g] <= distances[:, members].min(axis=1)).all()


def wander(start: Rows, n_steps: int, step: float, seed: int = 0) -> list[Rows]:
    """Centres that take random steps of ever smaller size, and now and then one that jumps."""
    random = np.random.default_rng(seed)
    path = [start]
    for number in range(n_steps):
        moved = path[-1] + step / (number + 1) * random.normal(size=start.shape)
        if number % 3 == 2:
            moved[random.integers(len(start))] = start[random.integers(len(start))]
        path.append(moved)
    return path


@pytest.mark.parametrize("unit_rows", [False, True], ids=["euclidean", "cosine"])
@pytest.mark.parametrize("form", SHARD_FORMS)
def test_every_form_of_rows(form: str, unit_rows: bool) -> None:
    matrix = in_form(blobs(n=120, D=4), form)
    start = reference.as_seen(matrix, unit_rows=unit_rows)[::9].copy()
    walk(matrix, wander(start, 6, 0.3), 3, weights=weights_for(120), unit_rows=unit_rows)


@pytest.mark.parametrize("n_groups", [1, 2, 7, 30, 100])
def test_every_number_of_groups(n_groups: int) -> None:
    rows = blobs(n=200, D=3)
    walk(rows, wander(rows[:30], 8, 0.5), n_groups)


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 25), st.integers(1, 4), st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_lattices_full_of_ties_and_duplicate_centers(seed: int, n: int, C: int, D: int, n_groups: int) -> None:
    random = np.random.default_rng(seed)
    path = [random.integers(-4, 5, size=(C, D)) / 2.0]
    for _ in range(6):
        path.append(path[-1] + random.integers(-1, 2, size=(C, D)) * random.integers(0, 2, size=(C, 1)) / 2.0)
    matrix = random.integers(-2, 3, size=(n, D)).astype(random.choice([np.float32, np.float64]))
    walk(matrix, path, n_groups)


def test_duplicate_centers_in_different_groups_with_rounded_distances() -> None:
    random = np.random.default_rng(0)
    rows = random.normal(size=(400, 11))
    start = rows[random.integers(40, size=30)]  # several centres at the same place
    groups = CenterGroups.from_assignment(random.integers(5, size=30), 5)
    for dtype in (np.float64, np.float32):
        bounded, plain = CpuShard(rows.astype(dtype)), CpuShard(rows.astype(dtype))
        shift = np.zeros(30)
        for number in range(6):
            bounded.run(Assign(start + 0.1 * number, Bounded(groups, shift if number else None)))
            plain.run(Assign(start + 0.1 * number))
            np.testing.assert_array_equal(bounded.labels, plain.labels)
            shift = np.full(30, 0.1 * np.sqrt(11) * (1 + 1e-12))


@pytest.mark.parametrize(
    ("dtype", "scale"),
    [
        *((np.float32, scale) for scale in (1e-42, 1e-30, 1e-19, 7e8, 1e18, 1e22, 1e30, 1e37)),
        *((np.float64, scale) for scale in (1e-150, 1e-60, 1e-45, 1e-38, 1e30, 1e39, 1e60, 1e150)),
    ],
)
def test_any_scale_of_the_data(dtype: type, scale: float) -> None:
    rows = blobs(n=120, D=3)
    path = [scale * centers for centers in wander(rows[:20], 6, 0.4)]
    walk((scale * rows).astype(dtype), path, 4)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_offsets(dtype: type) -> None:
    rows = (100 * blobs(n=200, D=3) + 1e8).astype(dtype)
    walk(rows, wander(rows[::10].astype(np.float64), 8, 30.0), 4)


def test_centers_that_stand_still_cost_one_distance_a_row() -> None:
    rows = blobs(n=300, C=6, D=3, spread=0.01)
    centers = np.unique(np.round(rows), axis=0)  # well apart; each is a group of its own
    n_distances = walk(rows, [centers] * 3, len(centers))
    assert n_distances[0] == 300 * len(centers)
    assert n_distances[1:] == [300, 300]


def test_bounds_save_distances_as_centers_settle() -> None:
    rows = blobs(n=500, C=30, D=3)
    n_distances = walk(rows, wander(rows[:40], 9, 0.1), 8)
    assert max(n_distances[1:]) < n_distances[0] and n_distances[-1] < 0.3 * n_distances[0]


def test_starting_afresh_forgets_labels_and_bounds() -> None:
    rows = lattice(100, D=3)
    shard, groups = CpuShard(rows), CenterGroups.by_proximity(rows[:10], 3)
    shard.run(Assign(rows[:10], Bounded(groups, None)))
    again = shard.run(Assign(rows[50:60], Bounded(groups, None)))
    np.testing.assert_array_equal(shard.labels, reference.closest_centers(rows, rows[50:60]))
    assert again.n_changed == 100 and again.n_distances == 1000


@given(st.integers(0, 2**32 - 1), st.integers(1, 50), st.integers(1, 60))
@settings(max_examples=40, deadline=None)
def test_groups_partition_the_centers(seed: int, C: int, n_groups: int) -> None:
    random = np.random.default_rng(seed)
    centers = random.integers(3, size=(C, 2)).astype(np.float64)
    groups = CenterGroups.by_proximity(centers, n_groups)
    assert sorted(groups.order.tolist()) == list(range(C))
    assert groups.starts[0] == 0 and groups.starts[-1] == C
    assert 1 <= groups.n_groups <= min(C, n_groups) and (np.diff(groups.starts) > 0).all()
    shifts = random.uniform(size=C)
    spans = zip(groups.starts, groups.starts[1:], strict=False)
    members = [groups.order[a:b] for a, b in spans]
    assert all((np.diff(part) > 0).all() for part in members)
    np.testing.assert_array_equal(groups.largest_shift(shifts), [shifts[part].max() for part in members])
