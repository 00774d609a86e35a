"""The partition tree: every node against brute force, its shape, its frontiers, and trees over blocks."""

import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from globular.model.covariances import COLUMNS, NORM, OUTER, ScatterKind
from globular.model.statistics import F64
from globular.passes.cpu import CpuShard
from globular.passes.host import tree_bytes
from globular.passes.tree.frontier import Frontier
from globular.passes.tree.partition import PartitionTree
from globular.seam.tree_passes import TakeCells
from makers import blobs, lattice, weights_for
from reference.expect import scatter_of
from reference.tree import set_statistics

KINDS: tuple[ScatterKind, ...] = (NORM, COLUMNS, OUTER)


def build(
    rows: F64, weights: F64 | None = None, kind: ScatterKind = OUTER, leaf_size: int = 4, n_threads: int = 1
) -> PartitionTree:
    given_weights = np.empty(0) if weights is None else weights.copy()
    return PartitionTree.build(rows.copy(), given_weights, kind, leaf_size, n_threads=n_threads)


def frontier_of(rows: F64, tree: PartitionTree) -> Frontier:
    return Frontier(tree, lambda numbers: (rows[numbers].astype(np.float64), np.ones(len(numbers))))


def assert_is_brute_force(tree: PartitionTree, rows: F64, weights: F64 | None = None) -> None:
    scale = float(np.square(rows - rows.mean(axis=0)).sum()) + 1e-300
    counted = np.ones(len(rows)) if weights is None else weights
    for node in range(tree.n_nodes):
        members = tree.rows_of(node)
        expected = set_statistics(rows[members].astype(np.float64), counted[members])
        assert tree.weights[node] == pytest.approx(expected.weight, rel=1e-12)
        np.testing.assert_allclose(tree.means[node], expected.mean, rtol=1e-13, atol=1e-11 * np.sqrt(scale))
        matrix = tree.kind.unpack(tree.scatter[node : node + 1], rows.shape[1])
        wanted = {OUTER: expected.scatter, COLUMNS: np.diag(expected.scatter), NORM: np.trace(expected.scatter)}[
            tree.kind
        ]
        np.testing.assert_allclose(matrix[0], wanted, rtol=1e-9, atol=1e-11 * scale * max(1.0, counted.max()))


def assert_is_a_tree(tree: PartitionTree, leaf_size: int, rows: F64) -> None:
    assert np.array_equal(np.sort(tree.order), np.arange(len(rows)))
    assert (tree.starts[0], tree.ends[0]) == (0, len(rows))
    assert (tree.ends > tree.starts).all()
    seen = np.zeros(tree.n_nodes, dtype=int)
    for node, (a, b) in enumerate(tree.children):
        if a < 0:
            assert b < 0
            alike = (rows[tree.rows_of(node)] == rows[tree.rows_of(node)[0]]).all()
            assert tree.ends[node] - tree.starts[node] <= leaf_size or alike
        else:
            assert a > node and b > node
            assert tree.starts[a] == tree.starts[node] and tree.ends[a] == tree.starts[b]
            assert tree.ends[b] == tree.ends[node]
            seen[[a, b]] += 1
    assert (seen[1:] == 1).all() and seen[0] == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("offset", [0.0, 1e8])
def test_every_node_is_brute_force(kind: ScatterKind, weighted: bool, dtype: type, offset: float) -> None:
    rows = (np.round(64 * blobs(n=300, D=3)) + offset).astype(dtype)
    weights = weights_for(300) if weighted else None
    tree = build(rows, weights, kind)
    assert_is_a_tree(tree, 4, rows)
    assert_is_brute_force(tree, rows, weights)


@given(
    rows=arrays(np.float64, st.tuples(st.integers(1, 60), st.integers(1, 4)), elements=st.integers(-3, 3)),
    leaf_size=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_any_rows_make_a_tree(rows: F64, leaf_size: int, seed: int) -> None:
    """Small whole numbers: duplicates, ties, constant columns and single places; weights may all be zero."""
    weights = np.random.default_rng(seed).integers(0, 3, size=len(rows)).astype(np.float64)
    tree = build(rows, weights, OUTER, leaf_size)
    assert_is_a_tree(tree, leaf_size, rows)
    assert_is_brute_force(tree, rows, weights)


def test_outliers_do_not_make_the_tree_deep() -> None:
    rows = np.exp(np.linspace(0, 300, 4096))[:, None]  # the mean splits off one row at a time
    tree = build(rows, leaf_size=1)
    depth = np.zeros(tree.n_nodes, dtype=int)
    for node, (a, b) in enumerate(tree.children):
        if a >= 0:
            depth[[a, b]] = depth[node] + 1
    assert depth.max() <= 60


def test_first_split_is_across_the_longest_axis() -> None:
    random = np.random.default_rng(0)
    direction = np.array([3.0, 4.0, 0.0]) / 5
    rows = 10 * random.normal(size=(5000, 1)) * direction + random.normal(size=(5000, 3))
    tree = build(rows, leaf_size=3000)
    a, b = tree.children[0]
    apart = tree.means[b] - tree.means[a]
    assert abs(apart @ direction) > 0.99 * np.linalg.norm(apart)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("alike", [0.0, 0.9])
def test_planes_of_a_sample_make_a_tree_over_all_rows(kind: ScatterKind, alike: float) -> None:
    """More rows than one subtree holds; also where most of them are the same and no plane can part them."""
    rows, weights = blobs(n=20_000), weights_for(20_000)
    rows[: int(alike * len(rows))] = rows[0]
    given_rows, given_weights = rows.copy(), weights.copy()
    tree = PartitionTree.build(given_rows, given_weights, kind, 512)
    assert np.array_equal(given_rows, rows) and np.array_equal(given_weights, weights)
    assert_is_a_tree(tree, 512, rows)
    assert_is_brute_force(tree, rows, weights)


def test_threads_do_not_matter() -> None:
    rows = blobs(n=30_000)
    one, two = (build(rows, None, OUTER, 16, n_threads) for n_threads in (1, 2))
    for name in ("order", "starts", "ends", "children", "weights", "means", "scatter"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))


def test_size_is_foretold() -> None:
    for leaf_size in (8, 32):
        rows = blobs(n=20_000, D=3)
        tree = build(rows, None, OUTER, leaf_size)
        arrays_of = (tree.order, tree.starts, tree.ends, tree.children, tree.weights, tree.means, tree.scatter)
        held = sum(array.nbytes for array in arrays_of)
        assert held == pytest.approx(tree_bytes(20_000, 3, leaf_size, OUTER), rel=0.15)


def test_joined_trees_are_a_tree_over_all_rows() -> None:
    rows, weights = blobs(n=500), weights_for(500)
    cuts = [0, 100, 101, 350, 500]
    for n in range(1, 5):
        end = cuts[n]
        parts = [
            PartitionTree.build(rows[a:b].copy(), weights[a:b].copy(), OUTER, 4, first_row=a)
            for a, b in itertools.pairwise(cuts[: n + 1])
        ]
        tree = PartitionTree.join(parts)
        assert_is_a_tree(tree, 4, rows[:end])
        assert_is_brute_force(tree, rows[:end], weights[:end])


def rows_of_cells(frontier: Frontier) -> int:
    return int(frontier.tree.sizes(frontier.nodes).sum()) + len(frontier.row_chunks)


def test_frontier_is_a_partition_whatever_is_opened() -> None:
    rows = np.vstack([blobs(n=200), np.ones((30, 4))])
    frontier = frontier_of(rows, build(rows))
    random = np.random.default_rng(0)
    total = frontier.chunks
    for _ in range(40):
        frontier.open(np.sort(random.choice(len(frontier.nodes), size=min(5, len(frontier.nodes)), replace=False)))
        assert rows_of_cells(frontier) == len(rows)
        chunks = frontier.chunks
        np.testing.assert_allclose(chunks.weights @ chunks.means, total.weights @ total.means, rtol=1e-10)
        moved = chunks.means - total.means[0]
        scatter = chunks.moments(OUTER).sum(axis=0) + (chunks.weights[:, None] * moved).T @ moved
        np.testing.assert_allclose(scatter, total.moments(OUTER)[0], rtol=1e-9, atol=1e-9)
    while len(frontier.nodes):
        frontier.open(np.arange(len(frontier.nodes)))
    assert np.array_equal(np.unique(frontier.row_chunks.means, axis=0), np.unique(rows, axis=0))
    assert len(frontier) == len(rows)


def test_cells_inherit_what_they_keep() -> None:
    rows = blobs(n=100)
    frontier = frontier_of(rows, build(rows))
    frontier.reset(depth=2)
    frontier.members = np.arange(4, dtype=np.int32)[:, None]
    centers = frontier.node_chunks.means
    for _ in range(8):
        frontier.open(np.arange(len(frontier.nodes)))
    assert len(frontier.nodes) == 0 and len(frontier) == 100
    for c in range(4):
        held = frontier.row_chunks.means[frontier.members[:, 0] == c]
        np.testing.assert_allclose(held.mean(axis=0), centers[c])


def test_frontier_by_weight_and_by_depth() -> None:
    rows = blobs(n=1000)
    frontier = frontier_of(rows, build(rows))
    frontier.reset(depth=3)
    assert len(frontier) == 8
    frontier.reset(largest=20.0)
    assert (frontier.node_chunks.weights <= 20).all() and len(frontier) >= 50
    frontier.reset()
    assert len(frontier) == 1


def test_packing_is_lossless() -> None:
    random = np.random.default_rng(0)
    matrices = random.normal(size=(5, 3, 3))
    matrices += matrices.transpose(0, 2, 1)
    packed = matrices[:, *np.triu_indices(3)]
    np.testing.assert_array_equal(OUTER.unpack(packed, 3), matrices)
    for kind in KINDS:
        coarse = OUTER.coarsen(packed, kind, 3)
        assert coarse.shape == (5, kind.width(3))
        np.testing.assert_allclose(kind.unpack(coarse, 3), scatter_of(matrices, kind))
        inner = np.einsum("ide,jde->ij", matrices, matrices)
        np.testing.assert_allclose(OUTER.dual(matrices) @ packed.T, inner)
        assert pickle.loads(pickle.dumps(kind)) is kind
    with pytest.raises(ValueError, match="holds scatter of kind 'columns', this mixture needs 'outer'"):
        COLUMNS.coarsen(packed[:, :3], OUTER, 3)


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="leaf_size=0"):
        build(lattice(), leaf_size=0)
    with pytest.raises(ValueError, match="at least one row"):
        build(np.empty((0, 2)))
    with pytest.raises(RuntimeError, match="run Plant first"):
        CpuShard(lattice()).run(TakeCells())
