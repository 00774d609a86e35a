"""The d² pass, drawing from it, and the routed pass, against plain NumPy."""

import numpy as np
import pytest
from scipy import sparse

from globular.model.cells import CellLevel, CellTree
from globular.passes.cpu import CpuShard
from globular.passes.host import RUN
from globular.seam.among import Down
from globular.seam.center_passes import CellNeighbors, CellSeeds
from globular.seam.passes import AddSeeds, Assign, Total, TrySeeds
from reference import seeds as reference
from reference.assign import squared_distances

N, D = 9001, 7
KINDS = ["float32", "float64", "int16", "fortran", "csr", "cosine", "csr cosine"]


def make_rows(kind: str, n: int = N) -> np.ndarray | sparse.csr_matrix:
    rows = np.random.default_rng(0).integers(-40, 40, size=(n, D)) / 8.0
    rows[::3, 2:5] = 0.0
    rows[n // 2 : n // 2 + 50] = rows[:50]  # duplicates
    if kind == "int16":
        return (rows * 8).astype(np.int16)
    if kind == "fortran":
        return np.asfortranarray(rows)
    if kind == "float32":
        return rows.astype(np.float32)
    return sparse.csr_matrix(rows) if kind.startswith("csr") else rows


def make_shard(kind: str, weights: np.ndarray | None = None, n_threads: int = 2, n: int = N) -> CpuShard:
    return CpuShard(make_rows(kind, n), weights, unit_rows=kind.endswith("cosine"), n_threads=n_threads)


def seen_rows(shard: CpuShard) -> np.ndarray:
    return shard.take(np.arange(shard.n_rows))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_d2_pass_equals_reference_in_any_batches(kind: str, weighted: bool) -> None:
    weights = np.random.default_rng(1).integers(0, 4, N).astype(float) if weighted else None
    shard = make_shard(kind, weights)
    rows = seen_rows(shard)
    seeds = rows[:40]
    shard.run(AddSeeds(seeds[30:]))  # must be forgotten
    shard.run(AddSeeds(seeds[:1]))
    shard.run(AddSeeds(seeds[1:3], 1))
    last = shard.run(AddSeeds(seeds[3:], 3))
    plain = np.ones(N) if weights is None else weights
    expected = reference.seed_distances(rows, plain, seeds)
    everyone = np.arange(N)
    assert last.n_distances == N * 37
    np.testing.assert_allclose(last.potential, expected.potential, rtol=1e-10)
    np.testing.assert_allclose(shard.take(everyone, "errors"), plain * expected.d2, rtol=1e-9, atol=1e-12)
    # ties may be decided by rounding where the form expands the square, so compare weights, not numbers
    if not kind.startswith("csr") and not kind.endswith("cosine"):
        np.testing.assert_array_equal(
            shard.run(Total("weights", "seeds", 40)), np.bincount(expected.seeds, plain, minlength=40)
        )
    assert shard.run(Total("weights", "seeds", 40)).sum() == pytest.approx(plain.sum())


@pytest.mark.parametrize("n_seeds", [1, 60])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_equal_to_a_seed_are_at_distance_exactly_zero(kind: str, n_seeds: int) -> None:
    shard = make_shard(kind)
    shard.run(AddSeeds(shard.take(np.arange(n_seeds))))
    equal = min(n_seeds, 50)
    same = np.concatenate([np.arange(n_seeds), np.arange(N // 2, N // 2 + equal)])
    assert (shard.take(same, "errors") == 0).all()
    assert (shard.take(np.arange(N), "errors") > 0).sum() > N // 2


def test_zero_distance_survives_a_large_offset() -> None:
    rows = np.random.default_rng(0).normal(size=(500, 5)) + 1e8
    shard = CpuShard(rows)
    shard.run(AddSeeds(rows[:20]))
    assert (shard.take(np.arange(20), "errors") == 0).all()
    expected = reference.seed_distances(rows, np.ones(500), rows[:20])
    np.testing.assert_allclose(shard.take(np.arange(500), "errors"), expected.d2, rtol=1e-12)


def test_parallel_rows_are_the_same_direction() -> None:
    rows = np.random.default_rng(0).normal(size=(100, 6)).astype(np.float32)
    shard = CpuShard(np.concatenate([rows, 3 * rows]), unit_rows=True)
    assert shard.run(AddSeeds(shard.take(np.arange(100)))).potential == 0.0


@pytest.mark.parametrize("kind", ["float32", "csr"])
def test_same_bits_for_any_number_of_threads(kind: str) -> None:
    one, two = make_shard(kind, n_threads=1), make_shard(kind, n_threads=2)
    seeds = one.take(np.arange(30))
    assert one.run(AddSeeds(seeds)) == two.run(AddSeeds(seeds))
    np.testing.assert_array_equal(one.take(np.arange(N), "errors"), two.take(np.arange(N), "errors"))
    np.testing.assert_array_equal(one.run(TrySeeds(seeds[:4] + 0.1)), two.run(TrySeeds(seeds[:4] + 0.1)))


@pytest.mark.parametrize("kind", KINDS)
def test_trial_pass_equals_reference_and_changes_nothing(kind: str) -> None:
    weights = np.random.default_rng(1).random(N)
    shard = make_shard(kind, weights)
    rows = seen_rows(shard)
    shard.run(AddSeeds(rows[:3]))
    before = shard.take(np.arange(N), "errors")
    d2 = reference.seed_distances(rows, weights, rows[:3]).d2
    expected = reference.trial_potentials(rows, weights, d2, rows[10:15])
    np.testing.assert_allclose(shard.run(TrySeeds(rows[10:15])), expected, rtol=1e-9)
    np.testing.assert_array_equal(shard.take(np.arange(N), "errors"), before)


@pytest.mark.parametrize("weighted", [False, True])
def test_locate_finds_the_rows_of_the_running_sum(weighted: bool) -> None:
    weights = np.random.default_rng(1).integers(0, 3, N).astype(float) if weighted else None
    shard = make_shard("float64", weights)
    potential = shard.run(AddSeeds(shard.take(np.arange(1)))).potential
    shares = shard.take(np.arange(N), "errors")
    masses = np.random.default_rng(2).random(500)
    np.testing.assert_array_equal(
        shard.locate(masses * potential, "errors"), reference.locate(shares, masses * potential)
    )
    plain = np.ones(N) if weights is None else weights
    found = shard.locate(masses * shard.total_weight, "weights")
    np.testing.assert_array_equal(found, reference.locate(plain, masses * plain.sum()))
    assert (plain[found] > 0).all()
    assert (shares[shard.locate(masses * potential, "errors")] > 0).all()


@pytest.mark.parametrize("n", [1, 2, RUN, RUN + 1])
def test_one_run_of_rows_answers_as_several(n: int) -> None:
    weights = np.random.default_rng(1).integers(1, 3, n).astype(float)
    shard = CpuShard(np.random.default_rng(0).normal(size=(n, 2)), weights, n_threads=2)
    rows = seen_rows(shard)
    potential = shard.run(AddSeeds(np.ones((1, 2)))).potential
    masses = np.array([0.0, 0.3, 0.7, 0.999])
    shares = shard.take(np.arange(n), "errors")
    np.testing.assert_array_equal(
        shard.locate(masses * potential, "errors"), reference.locate(shares, masses * potential)
    )
    found = shard.locate(masses * shard.total_weight, "weights")
    np.testing.assert_array_equal(found, reference.locate(weights, masses * weights.sum()))
    trials = rows[[0, -1]]
    expected = reference.trial_potentials(rows, weights, shares / weights, trials)
    np.testing.assert_allclose(shard.run(TrySeeds(trials)), expected, rtol=1e-9)


def test_locate_of_nothing_is_nothing() -> None:
    shard = make_shard("float64", np.ones(N))
    shard.run(AddSeeds(shard.take(np.arange(1))))
    assert len(shard.locate(np.empty(0), "errors")) == len(shard.locate(np.empty(0), "weights")) == 0


def test_locate_past_the_end_gives_the_last_row_that_can_be_drawn() -> None:
    weights = np.ones(10_000)
    weights[9_000:] = 0.0
    shard = CpuShard(np.arange(10_000.0)[:, None], weights)
    potential = shard.run(AddSeeds(np.zeros((1, 1)))).potential
    assert shard.locate(np.array([potential, 2 * potential]), "errors").tolist() == [8_999, 8_999]
    assert shard.locate(np.array([9_000.0, 1e9]), "weights").tolist() == [8_999, 8_999]
    assert CpuShard(np.zeros((5, 1))).locate(np.array([0.0, 4.999, 5.0]), "weights").tolist() == [0, 4, 4]


def make_tree(rows: np.ndarray) -> CellTree:
    """Three levels with uneven cells."""
    return CellTree(
        (
            CellLevel(rows[:4].astype(float), np.array([0, 4])),
            CellLevel(rows[10:21].astype(float), np.array([0, 1, 6, 8, 11])),
            CellLevel(rows[100:130].astype(float), np.array([0, 2, 3, 5, 6, 9, 12, 15, 20, 21, 22, 30])),
        )
    )


@pytest.mark.parametrize("kind", KINDS)
def test_routed_pass_equals_reference(kind: str) -> None:
    n = 3000
    weights = np.random.default_rng(1).random(n)
    shard = make_shard(kind, weights, n=n)
    rows = seen_rows(shard)
    # centres off the grid of the rows: no ties
    tree = make_tree(rows + np.random.default_rng(3).normal(scale=0.05, size=rows.shape))
    found = shard.run(Assign(tree.centers, Down(tree)))
    labels, expected = reference.routed(rows, weights, tree)
    np.testing.assert_array_equal(shard.labels, labels)
    np.testing.assert_allclose(found.sums, expected.sums, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.counts, expected.counts)
    np.testing.assert_allclose(found.errors, expected.errors, rtol=1e-9, atol=1e-9)
    assert (found.n_changed, found.n_distances) == (n, expected.n_distances)
    # the errors are left where `locate` draws from
    assert shard.take(np.arange(n), "errors").sum() == pytest.approx(expected.errors.sum())


def test_routes_down_and_stay_lead_to_the_same_cells() -> None:
    shard = make_shard("float64", n=2000)
    tree = make_tree(seen_rows(shard) + 0.01)
    shard.run(Assign(tree.centers, Down(tree)))
    labels = shard.labels.copy()
    again = shard.run(Assign(tree.centers, Down(tree, "stay"), "labels"))
    assert again.n_changed == 0 and again.sums.shape == (0, D)
    np.testing.assert_array_equal(shard.labels, labels)
    above = CellTree(tree.levels[:2])
    shard.run(Assign(above.centers, Down(above)))
    shard.run(Assign(tree.centers, Down(tree, "down")))
    np.testing.assert_array_equal(shard.labels, labels)


def test_cell_seeds_are_distinct_rows_of_their_cells() -> None:
    rows = np.repeat(np.arange(30.0), 4)[:, None]
    weights = np.tile([1.0, 0.0, 2.0, 1.0], 30)
    local = CpuShard(rows).local(rows, weights)
    assert local.rows.dtype == np.float32
    starts = np.array([0, 40, 40, 120])
    quotas = np.array([12, 0, 7])
    chosen = local.run(CellSeeds(starts, quotas, np.random.default_rng(0).random(19)))
    first, second = chosen[:12], chosen[12:]
    assert (first[10:] == -1).all()  # only ten distinct rows
    assert set(rows[first[:10], 0]) == set(range(10))
    assert ((second >= 40) & (second < 120)).all() and len(set(rows[second, 0])) == 7
    assert (weights[np.concatenate([first[:10], second])] > 0).all()


def test_cell_neighbors_are_the_closest_of_adjacent_cells() -> None:
    rows = np.random.default_rng(0).normal(size=(60, 3))
    starts = np.array([0, 10, 25, 26, 60])
    adjacent = np.array([[0, 1], [1, 3], [2, 0], [3, 1]])
    found = CpuShard(rows).run(CellNeighbors(starts, adjacent, 5))
    distances = squared_distances(rows, rows)
    for cell in range(4):
        allowed = np.concatenate([np.arange(starts[g], starts[g + 1]) for g in adjacent[cell]])
        for row in range(starts[cell], starts[cell + 1]):
            expected = allowed[np.argsort(distances[row, allowed])[:5]]
            np.testing.assert_array_equal(found[row], expected)
    everyone = CpuShard(rows).run(CellNeighbors(starts, adjacent, 60))
    assert (np.sort(everyone, axis=1) == np.arange(60)).all()
