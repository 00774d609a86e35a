"""The same rows whole, split, streamed and on several threads: the same labels, and centres to the last digits."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from globular.algorithms.kmeans.lloyd import KMeansOptions, lloyd
from globular.data.open import as_source
from globular.errors import DataError, UnsupportedPassError
from globular.model.gaussian import isotropic_mixture
from globular.passes.cpu import CpuShard, sums
from globular.passes.many import StreamShard
from globular.seam.among import Remembered
from globular.seam.mixture_passes import Expect, RowsOf
from globular.seam.passes import Assign, Farthest, Pass
from globular.seam.shard import PointState, Shard
from makers import Rows, blobs, in_form, lattice, weights_for
from reference import assign as reference
from split import SplitShard

RAGGED = [0, 1, 3, 40, 41, 130, 240, 300]
"""Where seven shards of 300 rows begin and end."""


def split(
    matrix: Any, weights: Rows | None = None, *, unit_rows: bool = False, bounds: list[int] = RAGGED
) -> SplitShard:
    spans = [slice(a, b) for a, b in pairwise(bounds)]
    return SplitShard(
        [
            CpuShard(matrix[span], None if weights is None else weights[span], unit_rows=unit_rows, n_threads=2)
            for span in spans
        ]
    )


def stream(matrix: Any, weights: Rows | None = None, *, unit_rows: bool = False) -> StreamShard:
    return StreamShard(as_source(matrix), weights, unit_rows=unit_rows, rows_per_part=37, n_threads=2)


LAYOUTS: dict[str, Callable[..., Shard]] = {"split": split, "stream": stream}
FORMS = ["float64", "float32", "uint8", "fortran", "csr64", "csr32"]


@pytest.mark.parametrize("unit_rows", [False, True], ids=["euclidean", "cosine"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_iteration_equals_that_of_one_shard(layout: str, form: str, unit_rows: bool) -> None:
    matrix, weights = in_form(blobs(n=300, D=4), form), weights_for(300)
    whole = CpuShard(matrix, weights, unit_rows=unit_rows)
    parts = LAYOUTS[layout](matrix, weights, unit_rows=unit_rows)
    start = whole.take(np.arange(3, 300, 13))
    options = KMeansOptions(max_iter=30, unit_centers=unit_rows)
    runs = lloyd(whole, start, options), lloyd(parts, start, options)
    for expected, found in zip(*runs, strict=True):
        np.testing.assert_array_equal(parts.labels, whole.labels)
        scale = np.abs(expected.model).max()
        np.testing.assert_allclose(found.model, expected.model, rtol=1e-12, atol=1e-12 * scale)
        assert found.objective == pytest.approx(expected.objective, rel=1e-12)
        assert (found.iteration, found.n_changed, found.stopped) == (
            expected.iteration, expected.n_changed, expected.stopped,
        )  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_clusters_that_run_empty_move_to_the_same_rows(layout: str) -> None:
    rows, weights = blobs(n=300), weights_for(300)
    start = np.concatenate([rows[:5], np.full((30, 4), 1e3) + np.arange(30)[:, None]])  # thirty centres far from all
    whole, parts = CpuShard(rows, weights), LAYOUTS[layout](rows, weights)
    options = KMeansOptions(max_iter=5)
    for expected, found in zip(lloyd(whole, start, options), lloyd(parts, start, options), strict=True):
        np.testing.assert_allclose(found.model, expected.model, rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(parts.labels, whole.labels)


@pytest.mark.parametrize("n", [1, 5, 100, 1000])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_farthest_rows_are_those_of_one_shard(layout: str, n: int) -> None:
    rows, weights = lattice(300, D=3), weights_for(300)  # full of equal distances
    centers = blobs(n=9, D=3)
    whole, parts = CpuShard(rows, weights), LAYOUTS[layout](rows, weights)
    for shard in (whole, parts):
        shard.run(Assign(centers))
    expected, found = whole.run(Farthest(centers, n)), parts.run(Farthest(centers, n))
    oracle = reference.farthest(rows, weights, centers, whole.labels, n)
    for name in ("rows", "squared_distances", "weights", "labels"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
        np.testing.assert_allclose(getattr(found, name), getattr(oracle, name), rtol=1e-12)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("unit_rows", [False, True], ids=["euclidean", "cosine"])
@pytest.mark.parametrize("form", FORMS)
def test_moments_and_rows_are_those_of_one_shard(form: str, unit_rows: bool, layout: str) -> None:
    matrix, weights = in_form(blobs(n=300), form), weights_for(300)
    whole = CpuShard(matrix, weights, unit_rows=unit_rows)
    parts = LAYOUTS[layout](matrix, weights, unit_rows=unit_rows)
    for found, expected in zip(parts.column_moments(), whole.column_moments(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)
    assert (parts.n_rows, parts.n_columns) == (300, 4)
    assert parts.total_weight == pytest.approx(whole.total_weight, rel=1e-14)
    chosen = np.array([299, 0, 40, 40, 41, 2, 129])
    np.testing.assert_array_equal(parts.take(chosen), whole.take(chosen))
    np.testing.assert_array_equal(parts.take(chosen, "weights"), weights[chosen])
    assert parts.take(chosen[:0]).shape == (0, 4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_parts_without_weight(layout: str) -> None:
    rows, weights = blobs(n=300), np.ones(300)
    weights[:45] = 0.0  # the first shards and the first part hold nothing that counts
    parts = LAYOUTS[layout](rows, weights)
    for found, expected in zip(parts.column_moments(), reference.column_moments(rows, weights), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    parts.run(Assign(rows[:5]))
    assert (parts.run(Farthest(rows[:5], 1000)).weights == 1.0).all()


@pytest.mark.parametrize("unit_rows", [False, True], ids=["euclidean", "cosine"])
def test_empty_shards_change_nothing(unit_rows: bool) -> None:
    rows = blobs(n=300)
    parts = split(rows, unit_rows=unit_rows, bounds=[0, 0, 120, 120, 300, 300])
    whole = CpuShard(rows, unit_rows=unit_rows)
    options = KMeansOptions(max_iter=10, unit_centers=unit_rows)
    start = np.concatenate([whole.take(np.arange(8)), np.full((2, 4), 50.0)])
    for expected, found in zip(lloyd(whole, start, options), lloyd(parts, start, options), strict=True):
        np.testing.assert_allclose(found.model, expected.model, rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(parts.labels, whole.labels)
    for found, expected in zip(parts.column_moments(), whole.column_moments(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_split_must_fit_together() -> None:
    with pytest.raises(ValueError, match="at least one shard"):
        SplitShard([])
    with pytest.raises(ValueError, match="same number of columns"):
        SplitShard([CpuShard(np.ones((2, 3))), CpuShard(np.ones((2, 4)))])


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_threads_do_not_change_a_bit(dtype: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "ROWS_PER_RUN", 500)  # many runs on little data
    rows, weights = blobs(n=9000, D=6).astype(dtype), weights_for(9000)
    options = KMeansOptions(max_iter=6)
    shards = [CpuShard(rows, weights, n_threads=n) for n in (1, 2, 5)]
    runs = [lloyd(shard, rows[:40].astype(np.float64), options) for shard in shards]
    for one, two, five in zip(*runs, strict=True):
        assert one.model.tobytes() == two.model.tobytes() == five.model.tobytes()
        assert one.objective == two.objective == five.objective
        np.testing.assert_array_equal(shards[0].labels, shards[1].labels)
        np.testing.assert_array_equal(shards[0].labels, shards[2].labels)
    moments = [shard.column_moments() for shard in shards]
    assert len({moment[0].tobytes() + moment[1].tobytes() for moment in moments}) == 1


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.uint8])
def test_files_are_streamed_like_arrays(dtype: type, tmp_path: Path) -> None:
    rows = (blobs(n=300) + 20.0).astype(dtype)
    np.save(tmp_path / "rows.npy", rows)
    np.save(tmp_path / "fortran.npy", np.asfortranarray(rows))
    mapped = np.memmap(tmp_path / "rows.bin", dtype=dtype, mode="w+", shape=rows.shape)
    mapped[:] = rows
    expected = CpuShard(rows)
    expected.run(Assign(rows[:7].astype(np.float64)))
    for given in (tmp_path / "rows.npy", tmp_path / "fortran.npy", mapped):
        shard = StreamShard(as_source(given), rows_per_part=64)
        shard.run(Assign(rows[:7].astype(np.float64)))
        np.testing.assert_array_equal(shard.labels, expected.labels)


def test_point_state_views_write_to_the_whole() -> None:
    state = PointState(10)
    view = state.view(4, 8).view(1, 3)
    view.get("a", np.int32, -1)[:] = [7, 8]
    assert state.get("a", np.int32, -1).tolist() == [-1] * 5 + [7, 8] + [-1] * 3
    assert state.get("wide", np.float32, 0.5, width=3).tolist() == [[0.5] * 3] * 10
    assert state.get("wide", np.float32, 0.25, width=2).tolist() == [[0.25] * 2] * 10  # another width: made anew


def test_a_stream_names_the_row_that_is_not_finite() -> None:
    for bad in (np.nan, np.inf):
        rows = blobs(n=100)
        rows[71, 2] = bad
        with pytest.raises(DataError, match="row 71"):
            StreamShard(as_source(rows), rows_per_part=30).run(Assign(rows[:3]))
        with pytest.raises(DataError, match="NaN or infinity"):
            StreamShard(as_source(sparse.csr_matrix(rows)), rows_per_part=30).run(Assign(rows[:3]))


def test_values_whose_sum_overflows_are_finite() -> None:
    rows = np.full((50, 2), 1e308)
    shard = StreamShard(as_source(rows), rows_per_part=20)
    assert [part.n_rows for part in shard.parts()] == [20, 20, 10]


@pytest.mark.parametrize("kept", [False, True], ids=["all components", "those kept"])
def test_claims_draw_the_same_rows_however_these_are_split(kept: bool) -> None:
    rows, weights = blobs(n=9000, C=4), weights_for(9000)
    mixture = isotropic_mixture(rows[:4], 2.0, "diag")
    shards: list[Any] = [
        CpuShard(rows, weights),
        SplitShard([CpuShard(rows[a:b], weights[a:b], first_row=a) for a, b in pairwise([0, 10, 5000, 5001, 9000])]),
        StreamShard(as_source(rows), weights, rows_per_part=1234),
    ]
    found = []
    for shard in shards[: 2 if kept else 3]:  # streamed rows keep nothing
        if kept:
            shard.run(Expect(mixture, Remembered(renew=True)))
        found.append(shard.run(RowsOf(mixture, np.array([2, 0]), np.array([0.3, 0.7]), 5, remembered=kept)))
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            assert len(one) > 100
            np.testing.assert_array_equal(one.means, two.means)
            np.testing.assert_allclose(one.weights, two.weights, rtol=1e-9)


class Juggle(Pass[int]):
    """A pass that nobody carries out."""


@pytest.mark.parametrize("shard", [CpuShard(np.eye(3)), split(np.eye(3), bounds=[0, 1, 3]), stream(np.eye(3))])
def test_all_shards_keep_the_protocol(shard: Shard) -> None:
    assert isinstance(shard, Shard)
    assert (shard.labels == -1).all() and shard.labels.dtype == np.int32
    with pytest.raises(UnsupportedPassError, match="Juggle"):
        shard.run(Juggle())
