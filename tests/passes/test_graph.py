"""The cluster graph: drawn at random, exhaustive, by cells, estimated by Eq. 8."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from globular.algorithms.kmeans.cells import LARGEST_CELL, _halved, draw_cells, graph_by_cells, label_by_cells
from globular.model.graph import Graph, introduce, random_graph
from globular.model.statistics import PairStatistics
from globular.passes.cpu import CpuShard
from globular.passes.cpu.assign import down as routed
from globular.seam.center_passes import CellNeighbors, EstimateNeighbors
from makers import Rows, blobs
from reference import assign as hard
from reference import neighbors as truncated


def check_graph(graph: Graph, C: int, G: int) -> None:
    """Itself first, then others, each once."""
    assert graph.shape == (C, min(G, C)) and graph.dtype == np.int32
    np.testing.assert_array_equal(graph[:, 0], np.arange(C))
    assert graph.min() >= 0 and graph.max() < C
    assert all(len(set(row)) == len(row) for row in graph.tolist())


def exhaustive(centers: Rows, G: int) -> Graph:
    everything = np.array([0, len(centers)]), np.zeros((1, 1), dtype=np.intp)
    return CpuShard(centers).run(CellNeighbors(*everything, G))


def estimated_graph(graph: Graph, pairs: PairStatistics, n_threads: int) -> Graph:
    shard = CpuShard(np.zeros((len(graph), 1)), n_threads=n_threads)
    return shard.run(EstimateNeighbors(graph, pairs))


def triples(pairs: list[tuple[int, int, float, float]]) -> PairStatistics:
    table = np.array(pairs, dtype=np.float64).reshape(-1, 4)
    return PairStatistics(table[:, :2].T.astype(np.int32), np.ascontiguousarray(table[:, 2:].T.astype(np.float32)))


@pytest.mark.parametrize(
    ("C", "G"), [(1, 1), (1, 5), (2, 2), (5, 9), (20, 5), (21, 5), (1000, 10), (300, 1), (401, 100)]
)
def test_random_neighborhoods(C: int, G: int) -> None:
    check_graph(random_graph(C, G, np.random.default_rng(0)), C, G)
    if C == 1000:
        graphs = [random_graph(C, G, np.random.default_rng(seed)) for seed in (1, 1, 2)]
        np.testing.assert_array_equal(graphs[0], graphs[1])
        assert (graphs[0] != graphs[2]).any()


@pytest.mark.parametrize("at_once", [8, 128])
@pytest.mark.parametrize(("C", "G"), [(1, 1), (7, 3), (60, 60), (60, 5)])
def test_exhaustive_neighborhoods_are_the_closest_centers(C, G, at_once, monkeypatch):
    monkeypatch.setattr(routed, "CENTERS_PER_TASK", at_once)
    centers = blobs(n=C, D=3) + 1e6
    graph = exhaustive(centers, G)
    check_graph(graph, C, G)
    d2 = hard.squared_distances(centers, centers)
    np.testing.assert_allclose(np.take_along_axis(d2, graph.astype(np.intp), 1), np.sort(d2, axis=1)[:, :G], atol=1e-6)


def test_centers_alike_are_first_in_their_own_neighborhood() -> None:
    check_graph(exhaustive(np.zeros((12, 2)), 5), 12, 5)


@pytest.mark.parametrize(("C", "G"), [(1, 5), (3, 2), (10, 20), (500, 8)])
def test_neighborhoods_by_cells(C: int, G: int) -> None:
    centers = blobs(n=C, C=20, D=2, seed=1)
    shard = CpuShard(blobs(n=50, D=2))
    cells = draw_cells(shard, centers, np.random.default_rng(0))
    graph = graph_by_cells(shard, centers, cells, G)
    check_graph(graph, C, G)
    closest = exhaustive(centers, min(G, C))
    recall = np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(graph.tolist(), closest.tolist(), strict=True)])
    assert recall >= 0.95
    n_distances = label_by_cells(shard, centers, cells).n_distances
    assert shard.labels.min() >= 0 and shard.labels.max() < C
    # all middles, and the centres of one cell
    assert 50 * (len(cells.middles) + 1) <= n_distances <= 50 * (len(cells.middles) + np.diff(cells.starts).max())


@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 8), st.integers(0, 80))
@settings(max_examples=80, deadline=None)
def test_estimate_equals_the_reference(seed: int, C: int, G: int, n: int) -> None:
    random = np.random.default_rng(seed)
    graph = random_graph(C, G, random)
    pairs = truncated.Pairs.none(C)
    given_triples: list[tuple[int, int, float, float]] = []
    for c, other in random.integers(C, size=(n, 2)):
        distance, weight = float(random.integers(1, 9)), float(random.integers(0, 3))  # ties, and rows of no weight
        pairs.add(int(c), int(other), distance, weight)
        given_triples.append((c, other, weight * distance, weight))
    found = estimated_graph(graph, triples(given_triples), n_threads=1)
    check_graph(found, C, G)
    np.testing.assert_array_equal(found, truncated.estimated_graph(graph, pairs))
    np.testing.assert_array_equal(found, estimated_graph(graph, triples(given_triples), n_threads=2))


def test_many_pairs_of_no_weight_change_nothing() -> None:
    graph = random_graph(3, 2, np.random.default_rng(0))
    statistics = triples([(0, 1, 0.0, 0.0), (0, 2, 0.0, 0.0)] * 5000)
    np.testing.assert_array_equal(estimated_graph(graph, statistics, n_threads=1), graph)


def test_triples_add_up_in_order() -> None:
    parts = [triples([(0, 1, 1.0, 1.0)]), triples([(1, 0, 2.0, 1.0), (0, 1, 3.0, 1.0)]), triples([])]
    joined = PairStatistics.of_pieces([piece for part in parts for piece in part.pieces])
    added = parts[0] + parts[1] + parts[2]
    np.testing.assert_array_equal(joined.pairs, added.pairs)
    np.testing.assert_array_equal(joined.sums, added.sums)
    assert PairStatistics.of_pieces([]).pairs.shape == (2, 0)


@given(st.integers(0, 2**32 - 1), st.integers(2, 12), st.integers(1, 8), st.integers(0, 6))
def test_newcomers_and_hosts_know_each_other(seed: int, C: int, G: int, n: int) -> None:
    random = np.random.default_rng(seed)
    graph = random_graph(C, G, random)
    moved = random.permutation(C)[: min(n, C - 1)]
    hosts = random.choice(np.setdiff1d(np.arange(C), moved), size=len(moved))
    before = graph.copy()
    found = introduce(graph, list(zip(moved.tolist(), hosts.tolist(), strict=True)))
    np.testing.assert_array_equal(graph, before)
    check_graph(found, C, G)
    width = found.shape[1]
    for cluster, host in zip(moved, hosts, strict=True):
        assert width == 1 or host in found[cluster]
    for host in set(hosts.tolist()):
        guests = moved[hosts == host]
        assert np.isin(guests, found[host]).sum() >= min(len(guests), width - 1)
    untouched = np.setdiff1d(np.arange(C), np.concatenate([moved, hosts]))
    np.testing.assert_array_equal(found[untouched], before[untouched])


def test_a_giant_cell_is_halved() -> None:
    """Most of these centres are closest to the middle that lies near the origin."""
    random = np.random.default_rng(0)
    shells = np.repeat([0.01, 1.0], [700, 200])[:, None]
    centers = shells * random.normal(size=(900, 60))
    cells = draw_cells(CpuShard(centers), centers, np.random.default_rng(0))
    sizes = np.diff(cells.starts)
    assert sizes.max() <= LARGEST_CELL * 30 < 700
    assert sorted(cells.order.tolist()) == list(range(900)) and sizes.min() > 0
    for start, stop, middle in zip(cells.starts[:-1], cells.starts[1:], cells.middles, strict=True):
        np.testing.assert_allclose(middle, centers[cells.order[start:stop]].mean(axis=0), atol=1e-12)


def test_a_cell_of_the_largest_size_stays_whole() -> None:
    centers = np.random.default_rng(0).normal(size=(40, 3))
    members, rng = np.arange(40), np.random.default_rng(0)
    assert [len(cell) for cell in _halved(centers, members, 40, rng)] == [40]
    assert sorted(len(cell) for cell in _halved(centers, members, 39, rng)) == [20, 20]
    assert sorted(len(cell) for cell in _halved(np.zeros((40, 3)), members, 10, rng)) == [10] * 4
