"""Passes over chunks against their reference, and the theory of the bound."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import sparse

from globular.errors import UnsupportedPassError
from globular.model.chunks import Within
from globular.model.covariances import FAMILIES, NORM, OUTER, scatter
from globular.model.gaussian import GaussianParameters, isotropic_mixture
from globular.model.graph import Search, random_graph
from globular.model.statistics import F64
from globular.passes.cpu import CpuShard
from globular.passes.cpu.expect import blocks as chunk_blocks
from globular.passes.tree import expect
from globular.seam.among import Neighbors
from globular.seam.mixture_passes import Expect
from globular.seam.tree_passes import ExpectCells, Gains, Gap, OpenGaining, OpenRows, Plant, TakeCells
from makers import blobs, weights_for
from reference import chunks as reference
from reference.expect import assert_alike, mixture_for

TYPES = sorted(FAMILIES)


def planted(
    rows: F64, covariance_type: str, weights: F64 | None = None, depth: int = 3, leaf_size: int = 8
) -> CpuShard:
    shard = CpuShard(rows, weights)
    shard.run(Plant(FAMILIES[covariance_type].scatter, leaf_size, depth=depth))
    return shard


def cells_of(shard: CpuShard, rows: F64, weights: F64) -> list[reference.Cell]:
    """The cells of the frontier as sets of rows; those of opened leaves one by one."""
    tree = shard.frontier.tree
    numbers = [tree.rows_of(int(node)) for node in shard.frontier.nodes]
    held = np.concatenate([np.empty(0, dtype=int), *numbers])
    numbers += [np.array([row]) for row in np.setdiff1d(np.arange(len(rows)), held)]
    return [reference.Cell(rows[n], weights[n]) for n in numbers if weights[n].sum() > 0]


@pytest.mark.parametrize("covariance_type", TYPES)
@pytest.mark.parametrize("offset", [0.0, 1e8])
@pytest.mark.parametrize("shrink", [1.0, 1e-7], ids=["ordinary", "tight"])
@pytest.mark.parametrize("rule", ["optimal", "centroid"])
def test_cell_pass_is_the_reference(covariance_type: str, offset: float, shrink: float, rule: str) -> None:
    """`tight` makes components that the expanded square would get wrong; some leaves are opened into rows."""
    rows = np.round(64 * blobs(n=200, D=3)) / 64
    mixture = mixture_for(rows, covariance_type)
    rows = rows + offset
    mixture = GaussianParameters(mixture.weights, mixture.means + offset, mixture.covariances * shrink, covariance_type)
    assert (len(chunk_blocks.ChunkBlocks(mixture, rows.mean(axis=0)).tight) == 4) == (shrink < 1)
    weights = weights_for(200)
    shard = planted(rows, covariance_type, weights)
    for _ in range(4):
        shard.frontier.open(np.arange(0, len(shard.frontier.nodes), 3))
    assert len(shard.frontier.row_chunks) and len(shard.frontier.nodes)
    ours = shard.run(ExpectCells(mixture, rule=rule))
    expected = reference.cell_pass(cells_of(shard, rows, weights), mixture, rule)
    assert_alike(ours, expected, rtol=1e-6 if offset else 1e-9)  # a mean near 1e8 is good to 1e-8
    assert ours.n_distances == len(shard.frontier) * 4


@pytest.mark.parametrize("rule", ["optimal", "centroid"])
@pytest.mark.parametrize("covariance_type", ["full", "tied"])
def test_many_columns_without_packed_products(covariance_type: str, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From some number of columns on matrices are applied to differences: the same sums."""
    rows, weights = blobs(n=200, D=5), weights_for(200)
    mixture = mixture_for(rows, covariance_type)
    shard = planted(rows, covariance_type, weights)
    shard.frontier.open(np.arange(0, len(shard.frontier.nodes), 3))
    packed = shard.run(ExpectCells(mixture, rule=rule))
    monkeypatch.setattr(scatter, "WIDE", 5)
    assert chunk_blocks.ChunkBlocks(mixture, rows.mean(axis=0)).coefficients.shape[1] == 6
    assert_alike(shard.run(ExpectCells(mixture, rule=rule)), packed)


@pytest.mark.parametrize("covariance_type", TYPES)
def test_single_rows_are_the_soft_pass(covariance_type: str) -> None:
    rows, weights = blobs(n=150, D=3), weights_for(150)
    mixture = mixture_for(rows, covariance_type)
    shard = planted(rows, covariance_type, weights)
    while len(shard.frontier.nodes):
        shard.frontier.open(np.arange(len(shard.frontier.nodes)))
    assert_alike(shard.run(ExpectCells(mixture)), shard.run(Expect(mixture)), rtol=1e-10)


@given(
    covariance_type=st.sampled_from(TYPES),
    rows=arrays(np.float64, st.tuples(st.integers(4, 50), st.integers(1, 3)), elements=st.integers(-9, 9)),
    seed=st.integers(0, 1000),
)
def test_bound_rises_with_every_split_and_never_exceeds_the_likelihood(covariance_type, rows, seed):
    random = np.random.default_rng(seed)
    mixture = isotropic_mixture(rows[random.choice(len(rows), 3)] + 0.5, float(random.uniform(0.5, 9)), covariance_type)
    weights = random.integers(0, 3, size=len(rows)) + np.eye(len(rows))[0]
    shard = planted(rows, covariance_type, weights, depth=0, leaf_size=3)
    likelihood = shard.run(Expect(mixture)).log_likelihood
    slack = 1e-9 * (abs(likelihood) + weights.sum())
    bound, counts = -np.inf, 0
    while True:
        optimal = shard.run(ExpectCells(mixture)).log_likelihood
        assert bound - slack <= optimal <= likelihood + slack
        assert shard.run(ExpectCells(mixture, rule="centroid")).log_likelihood <= optimal + slack
        bound, counts = optimal, len(shard.frontier)
        found = shard.run(Gains(mixture, 1))
        if found.total <= 0:
            break
        assert shard.run(OpenGaining(float(found.gains[0]))) > counts
        assert shard.run(ExpectCells(mixture)).log_likelihood >= bound + found.gains[0] * found.added[0] - slack
    # Two halves that are alike gain nothing, whatever is below them: only with single rows is the bound surely tight.
    assert shard.run(OpenRows()) == len(rows)
    assert shard.run(ExpectCells(mixture)).log_likelihood == pytest.approx(likelihood, abs=slack)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.integers(1, 31))
def test_largest_gains_are_the_first_of_a_stable_sort(values: list[int], n: int) -> None:
    gains = np.array(values, dtype=np.float64)
    np.testing.assert_array_equal(expect.largest_first(gains, n), np.argsort(-gains, kind="stable")[:n])


@pytest.mark.parametrize("weighted", [False, True])
def test_gap_is_what_single_rows_would_gain(weighted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact where all rows of the cells are looked at, close where some are; the truncated one with all components."""
    rows = blobs(n=3000, C=6, D=3)
    mixture = mixture_for(rows, "full")
    weights = weights_for(3000) if weighted else np.ones(3000)
    for largest, tolerance in ((4, 0.1 if weighted else 1e-9), (100, 0.1)):
        shard = CpuShard(rows, weights)
        shard.run(Plant(OUTER, 4))
        while (shard.frontier.tree.sizes(shard.frontier.nodes) > largest).any():
            shard.frontier.open(np.flatnonzero(shard.frontier.tree.sizes(shard.frontier.nodes) > largest))
        gap = shard.run(Expect(mixture)).log_likelihood - shard.run(ExpectCells(mixture)).log_likelihood
        found = shard.run(Gap(mixture))
        assert gap > 1 and found.total == pytest.approx(gap, rel=tolerance)
        assert found.n_distances <= 4 * (len(rows) + len(shard.frontier))
        graph = np.tile(np.arange(4, dtype=np.int32), (4, 1))
        shard.run(ExpectCells(mixture, Neighbors(graph, Search(4, 0, 0, estimate=False))))
        close = max(tolerance * gap, 1e-3 * weights.sum() if weighted else 0.0)  # rows of little weight are not drawn
        assert shard.run(Gap(mixture, truncated=True)).total == pytest.approx(gap, abs=close)
        monkeypatch.setattr(expect, "GAP_ROWS", len(shard.frontier) // 3)
        assert shard.run(Gap(mixture)).total == pytest.approx(gap, abs=0.05 * weights.sum())
        monkeypatch.undo()
    shard.run(OpenRows())
    assert shard.run(Gap(mixture)).total == 0.0


@pytest.mark.parametrize("n_cells", [500, 10_000])
def test_gap_does_not_depend_on_where_outer_rows_lie_in_the_tree(n_cells: int) -> None:
    """Most of the gap is in rows at the ends of large cells, and in either of two siblings."""
    rows = np.random.default_rng(0).standard_t(3.0, size=(60_000, 3)) @ np.diag([1.0, 0.2, 0.05])
    mixture, shard = mixture_for(rows[:200], "full"), CpuShard(rows)
    shard.run(Plant(OUTER, 4, largest=len(rows) / n_cells))
    gap = shard.run(Expect(mixture)).log_likelihood - shard.run(ExpectCells(mixture)).log_likelihood
    assert gap > 50
    assert shard.run(Gap(mixture)).total == pytest.approx(gap, rel=0.25)


def _joint(shard: CpuShard, mixture: GaussianParameters) -> F64:
    blocks = chunk_blocks.ChunkBlocks(mixture, shard.frontier.offset)
    return blocks.log_joint(blocks.observed(shard.run(TakeCells())))


@pytest.mark.parametrize("covariance_type", TYPES)
def test_within_counts_what_the_component_holds(covariance_type: str) -> None:
    rows, weights = blobs(n=200, D=3), weights_for(200)
    mixture = mixture_for(rows, covariance_type)
    pair = mixture_for(rows[50:], covariance_type, C=2)
    shard = planted(rows, covariance_type, weights)
    every = shard.run(ExpectCells(mixture))
    parts = [shard.run(ExpectCells(pair, within=Within(mixture, c))) for c in range(4)]
    np.testing.assert_allclose([part.total_weight for part in parts], every.counts, rtol=1e-9)
    total = parts[0] + parts[1] + parts[2] + parts[3]
    assert_alike(total, shard.run(ExpectCells(pair)))


@pytest.mark.parametrize("covariance_type", TYPES)
def test_weights_may_add_up_to_anything(covariance_type: str) -> None:
    rows = blobs(n=100, D=3) + 1e6
    mixture = mixture_for(rows, covariance_type)
    shard = planted(rows, covariance_type)
    scaled = GaussianParameters(1e-30 * mixture.weights, mixture.means, mixture.covariances, covariance_type)
    one, other = shard.run(ExpectCells(mixture)), shard.run(ExpectCells(scaled))
    np.testing.assert_allclose(other.scatter, one.scatter, rtol=1e-6)
    assert other.log_likelihood == pytest.approx(one.log_likelihood + 100 * np.log(1e-30), rel=1e-9)
    gone = GaussianParameters(np.array([1.0, 0.0, 0.0, 0.0]), mixture.means, mixture.covariances, covariance_type)
    np.testing.assert_allclose(shard.run(ExpectCells(gone)).counts, [100.0, 0.0, 0.0, 0.0])


def test_finer_trees_serve_coarser_families() -> None:
    rows = blobs(n=100, D=3)
    shard = CpuShard(rows)
    shard.run(Plant(OUTER, 8, depth=3))
    for covariance_type in TYPES:
        mixture = mixture_for(rows, covariance_type)
        expected = planted(rows, covariance_type).run(ExpectCells(mixture))
        assert_alike(shard.run(ExpectCells(mixture)), expected, rtol=1e-12)
    shard.run(Plant(NORM, 8))
    with pytest.raises(ValueError, match="needs 'columns'"):
        shard.run(ExpectCells(mixture_for(rows, "diag")))


def test_threads_do_not_change_a_bit() -> None:
    rows, weights = blobs(n=3000, D=3), weights_for(3000)
    mixture = mixture_for(rows, "full")
    single, double = CpuShard(rows, weights, n_threads=1), CpuShard(rows, weights, n_threads=2)
    for shard in (single, double):
        shard.run(Plant(OUTER, 4, largest=10.0))
    one, two = single.run(ExpectCells(mixture)), double.run(ExpectCells(mixture))
    np.testing.assert_array_equal(one.scatter, two.scatter)
    assert one.log_likelihood == two.log_likelihood
    assert (single.run(Gains(mixture, 9)).gains == double.run(Gains(mixture, 9)).gains).all()


@pytest.mark.parametrize("covariance_type", TYPES)
def test_all_components_kept_is_the_whole_pass(covariance_type: str) -> None:
    rows, weights = blobs(n=300, D=3), weights_for(300)
    mixture = mixture_for(rows, covariance_type)
    shard = planted(rows, covariance_type, weights)
    shard.run(Gains(mixture, 1))
    shard.run(OpenGaining(0.0))
    graph = random_graph(4, 4, np.random.default_rng(0))
    found = shard.run(ExpectCells(mixture, Neighbors(graph, Search(4, 0, 0, estimate=True))))
    assert_alike(found, shard.run(ExpectCells(mixture)))
    exact, truncated = shard.run(Gains(mixture, 3)), shard.run(Gains(mixture, 3, truncated=True))
    np.testing.assert_allclose(truncated.gains, exact.gains, rtol=1e-7)
    assert truncated.total == pytest.approx(exact.total, rel=1e-7)


@pytest.mark.parametrize("covariance_type", TYPES)
def test_truncated_bound_rises_to_the_best_components(covariance_type: str) -> None:
    """Searched from bad sets and through splits; K(A) ends as the best C′ where neighbourhoods reach everything."""
    rows = blobs(n=400, C=12, D=3)
    mixture = mixture_for(rows, covariance_type, C=12)
    shard = planted(rows, covariance_type, depth=6)
    graph = random_graph(12, 4, np.random.default_rng(0))
    shard.frontier.members = np.tile(np.array([11, 3], dtype=np.int32), (len(shard.frontier), 1))
    bound = -np.inf
    for step in range(20):
        found = shard.run(ExpectCells(mixture, Neighbors(graph, Search(2, 2, step, estimate=True))))
        assert found.log_likelihood >= bound - 1e-9 * abs(bound)
        assert found.counts.sum() == pytest.approx(400)
        bound = found.log_likelihood
        if step in (3, 6):
            gains = shard.run(Gains(mixture, 1, truncated=True))
            shard.run(OpenGaining(float(gains.gains[0])))
    joint = _joint(shard, mixture)
    best = np.sort(joint, axis=1)[:, -2:]
    held = np.take_along_axis(joint, np.asarray(shard.frontier.members), axis=1)
    assert (np.isclose(np.sort(held, axis=1), best).all(axis=1)).mean() > 0.9
    pairs = found.pairs
    assert (pairs.sums[1] > 0).all() and (pairs.pairs[0] != pairs.pairs[1]).all()


def test_first_components_are_the_best_of_all() -> None:
    rows = blobs(n=400, C=12, D=3)
    mixture = mixture_for(rows, "full", C=12)
    shard = planted(rows, "full")
    graph = np.arange(12, dtype=np.int32)[:, None]  # neighbourhoods of one: the sets stay as they begin
    found = shard.run(ExpectCells(mixture, Neighbors(graph, Search(3, 0, 0, estimate=False))))
    joint = _joint(shard, mixture)
    np.testing.assert_array_equal(shard.frontier.members, np.argsort(-joint, axis=1)[:, :3])
    expected = shard.run(TakeCells()).weights @ np.logaddexp.reduce(np.sort(joint, axis=1)[:, -3:], axis=1)
    assert found.log_likelihood == pytest.approx(float(expected), rel=1e-12)


def test_what_cannot_be_done_is_refused() -> None:
    rows = blobs(n=50, D=3)
    shard = planted(rows, "full")
    with pytest.raises(RuntimeError, match="Gains"):
        shard.run(OpenGaining(0.0))
    with pytest.raises(RuntimeError, match="Neighbors"):
        shard.run(Gains(mixture_for(rows, "full"), 1, truncated=True))
    with pytest.raises(UnsupportedPassError, match="dense"):
        CpuShard(sparse.csr_array(rows)).run(Plant(OUTER, 4))
