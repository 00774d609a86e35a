"""Centres between passes: sums that go on, means, what products take; clusters cut in two, with few sums or many."""

from typing import Any

import numpy as np
import pytest

from globular.algorithms.kmeans import centers
from globular.passes.cpu import CpuShard, cells, sums, swaps
from globular.passes.cpu.cells import prepared
from globular.seam.passes import Halve
from makers import blobs, in_form, weights_for
from reference import assign as reference


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.fixture(params=[1, 1 << 14])
def blocks(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A centre at a time, or all of them."""
    monkeypatch.setattr(cells, "PREPARED_AT_ONCE", request.param)
    monkeypatch.setattr(centers, "NUMBERS_PER_PART", request.param)
    for module in (centers, cells):
        monkeypatch.setattr(module, "SECONDS_PER_NUMBER", 1.0)


@pytest.mark.parametrize("n_threads", [1, 3])
def test_means_are_quotients(blocks: None, n_threads: int) -> None:
    totals, counts = rng().normal(size=(50, 7)), rng(2).integers(1, 99, 50) / 7
    np.testing.assert_array_equal(centers.means_of(totals, counts, n_threads), totals / counts[:, None])


def test_the_mean_of_equal_rows_is_that_row() -> None:
    rows, counts = rng().integers(1 << 40, size=(200, 9)) / 3.0, np.arange(1.0, 201.0)
    kept = (counts[:, None] * rows) / counts[:, None] == rows  # where the sum is not rounded away
    assert kept.mean() > 0.8
    means = centers.means_of(counts[:, None] * rows, counts, 1)
    np.testing.assert_array_equal(means == rows, kept)


@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("offset", [np.empty(0), np.full(5, 3.0)])
def test_centers_are_prepared_for_products(blocks: None, dtype: Any, offset: Any, n_threads: int) -> None:
    given, order = rng().normal(size=(40, 5)), rng(1).permutation(40)
    about = given - offset if len(offset) else given
    norms, score_norms, factors = prepared(given, -2.0, np.dtype(dtype), n_threads, order, offset)
    np.testing.assert_allclose(norms, (given**2).sum(axis=1), rtol=1e-14)
    np.testing.assert_allclose(score_norms, (about**2).sum(axis=1)[order], rtol=4 * np.finfo(dtype).eps)
    np.testing.assert_array_equal(factors[:, :, 0], (-2.0 * about[order]).astype(dtype))
    assert factors.dtype == score_norms.dtype == dtype
    np.testing.assert_array_equal(prepared(given, 1.0, np.dtype(dtype), n_threads)[2][:, :, 0], given.astype(dtype))


@pytest.mark.parametrize("form", ["float64", "float32", "uint8", "csr64"])
@pytest.mark.parametrize("few", [0, 1 << 16])
@pytest.mark.parametrize("rows_per_span", [16, 1 << 14])
def test_halves_are_those_of_brute_force(form, few, rows_per_span, monkeypatch):
    monkeypatch.setattr(sums, "CACHED_NUMBERS", few)
    monkeypatch.setattr(sums, "ROWS_PER_RUN", rows_per_span)
    monkeypatch.setattr(swaps, "RUN", rows_per_span)
    matrix, weights, C = in_form(blobs(n=300), form), weights_for(300), 12
    rows = reference.as_seen(matrix)
    firsts, seconds = rows[:C], rows[C : 2 * C]
    labels, names = rng().integers(C, size=300).astype(np.int32), rng(1).permutation(C).astype(np.int32) + C
    expected = reference.halve(rows, weights, labels, firsts, seconds)
    squared = reference.distances_in_halves(rows, labels, firsts, seconds)
    for n_threads in (1, 3):
        for given in (None, names):
            shard = CpuShard(matrix, weights, n_threads=n_threads)
            shard.labels[:] = labels
            found = shard.run(Halve(firsts, seconds, given))
            np.testing.assert_allclose(found.sums, expected.sums, rtol=1e-12, atol=1e-12)
            np.testing.assert_allclose(found.counts, expected.counts, rtol=1e-12)
            assert found.objective == pytest.approx(expected.objective, rel=1e-12)
            np.testing.assert_allclose(shard.squared_distances, squared.min(axis=0), rtol=1e-12, atol=1e-12)
            won = squared[1] < squared[0]
            np.testing.assert_array_equal(
                shard.labels, labels if given is None else np.where(won, names[labels], labels)
            )


def test_halves_where_the_second_wins_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "CACHED_NUMBERS", 0)
    rows = blobs(n=100)
    shard = CpuShard(rows, n_threads=2)
    shard.labels[:] = 0
    found = shard.run(Halve(rows[:3], rows[:3]))
    assert not found.sums.any() and not found.counts.any() and found.sums.shape == (3, rows.shape[1])
