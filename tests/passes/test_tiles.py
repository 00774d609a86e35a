"""The two lowest scores of rows, for every way that centres can lie, against plain NumPy."""

from typing import Any

import numpy as np
import pytest

from globular.jit import kernel
from globular.jit.instructions import CACHE_LINE
from globular.jit.tiles import FOLD_COST, ROWS, Tile, line_tile, lowest_of_rows, lowest_of_scores, tile_for, tiles
from globular.passes.cpu.rows import read_only
from globular.passes.cpu.settled import aligned_zeros

TILES = [(np.dtype(name), tile) for name in ("float32", "float64") for tile in tiles(np.dtype(name).itemsize)]


@kernel
def search(
    x: Any, places: Any, at: int, squares: Any, factors: Any, norms: Any, first: int, stop: int, mask: Any, nobody: Any,
    scores: Any, low: Any, next_low: Any, found: Any,
) -> None:  # fmt: skip
    lowest_of_rows(
        x, places, at, squares, factors, norms, first, stop, mask, nobody, scores, low, next_low, found
    )  # fmt: skip


@kernel
def search_line(
    scores: Any, at: int, first: int, stop: int, mask: Any, nobody: Any, low: Any, next_low: Any, found: Any
) -> None:
    lowest_of_scores(scores, at, first, stop, mask, nobody, low, next_low, found)


def key_of(dtype: np.dtype) -> type:
    return np.int32 if dtype == np.float32 else np.int64


@pytest.mark.parametrize("D", [1, 4, 37])
@pytest.mark.parametrize(("dtype", "tile"), TILES)
@pytest.mark.parametrize("keep", [False, True])
def test_rows_against_every_tile(dtype: np.dtype, tile: Tile, D: int, keep: bool) -> None:
    random, n, K, bits = np.random.default_rng(0), 3 * ROWS - 3, 4 * tile.step, 8
    rows, centers = random.normal(size=(50, D)).astype(dtype), random.normal(size=(K, D)).astype(dtype)
    places = random.permutation(50)[:n]
    factors = np.ascontiguousarray((-2 * centers).reshape(-1, tile.width, D).transpose(0, 2, 1))
    squares = np.zeros(n + ROWS, dtype)
    squares[:n] = np.square(rows[places]).sum(axis=1)
    norms = np.square(centers).sum(axis=1)
    key = key_of(dtype)
    mask, nobody = key(-1 << bits), np.array([1e30], dtype).view(key)[0]
    first, stop, start = tile.step, 3 * tile.step, ROWS  # some of the centres, the second rows and those behind
    expected = np.square(rows[places][:, None].astype(np.float64) - centers[None, first:stop]).sum(axis=2)
    low, next_low, found = np.full(n + ROWS, -1, dtype), np.full(n + ROWS, -1, dtype), np.full(n + ROWS, -1, np.int32)
    for at in (start, 2 * ROWS):
        scores = np.zeros((ROWS if keep else 0, stop - first + 1), dtype)
        search(
            read_only(rows), places, at, squares, factors, norms, first, stop, mask, nobody, scores,
            low, next_low, found,
        )  # fmt: skip
        there = np.minimum(np.arange(at, at + ROWS), n - 1)
        if keep and at == start:
            np.testing.assert_allclose(scores[:, :-1], expected[there], rtol=2e-4, atol=2e-4)
    assert (found[:start] == -1).all()
    np.testing.assert_array_equal(found[start:n], first + expected[start:].argmin(axis=1))
    lowest = np.sort(expected, axis=1)
    np.testing.assert_allclose(low[start:n], lowest[start:, 0], rtol=1e-4 if dtype == np.float32 else 1e-10, atol=1e-5)
    np.testing.assert_allclose(next_low[start:n], lowest[start:, 1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("equal", [False, True])
def test_scores_in_a_line(dtype: type, equal: bool) -> None:
    lanes = line_tile(np.dtype(dtype).itemsize).lanes
    scores = np.random.default_rng(0).uniform(1.0, 2.0, size=3 * lanes).astype(dtype)
    if equal:  # the second lowest may be in the lane of the lowest, or in another
        scores[0] = scores[lanes] = 0.5
    key = key_of(np.dtype(dtype))
    low, next_low, found = np.zeros(2, dtype), np.zeros(2, dtype), np.zeros(2, np.int32)
    nobody = np.array([1e30], dtype).view(key)[0]
    search_line(scores, 1, 100, 100 + 3 * lanes, key(-64), nobody, low, next_low, found)
    assert found.tolist() == [0, 100 + scores.argmin()]
    np.testing.assert_allclose([low[1], next_low[1]], np.sort(scores)[:2], rtol=2e-5)
    assert low[1] <= scores.min()


@pytest.mark.parametrize("itemsize", [4, 8])
def test_few_centers_of_many_columns_lie_as_they_are(itemsize: int) -> None:
    lanes = line_tile(itemsize).lanes
    D = 64 * lanes
    few = D // (64 + FOLD_COST)
    assert tile_for(few, D, itemsize).width == 1 < tile_for(few + 1, D, itemsize).width
    assert tile_for(1, 2, itemsize).width == 16 // itemsize
    assert tile_for(1000, D, itemsize) == Tile(lanes, 2)


def test_tiles_begin_with_a_cache_line() -> None:
    for n in (1, 3, 1000):
        zeros = aligned_zeros((n, 3, 4), np.dtype(np.float32))
        assert zeros.ctypes.data % CACHE_LINE == 0 and zeros.shape == (n, 3, 4) and not zeros.any()
