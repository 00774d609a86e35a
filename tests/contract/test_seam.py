"""What the seam promises beside the results of its passes: who refuses what, and what a lost part is told again."""

import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from globular.data.sources import ArraySource
from globular.errors import UnsupportedPassError
from globular.model.covariances import FAMILIES
from globular.model.gaussian import GaussianParameters
from globular.model.nested import NestedStatistics
from globular.passes.cpu import CpuShard
from globular.passes.cpu.shard import BlockShard
from globular.passes.dask.messages import Log, Work
from globular.passes.host import RUN
from globular.passes.many import StreamShard
from globular.seam.among import Down, Remembered
from globular.seam.mixture_passes import Expect
from globular.seam.passes import AddSeeds, Assign, Moments, Project, Relabel, Spare, SumByLabel
from globular.seam.shard import PointState, Shard
from globular.seam.tree_passes import ExpectCells, Gains, OpenGaining, OpenRows, Plant, TakeCells
from makers import blobs
from split import SplitShard

PUBLIC_MEMBERS = {
    "n_rows", "n_columns", "n_threads", "total_weight", "labels", "lacks", "run", "why_not", "take", "locate", "subset",
    "local", "left", "column_moments", "spread", "passes_are_cheap",
}  # fmt: skip


def test_a_shard_has_few_members() -> None:
    members = {name for name in [*vars(Shard), *Shard.__annotations__] if not name.startswith("_")}
    assert members == PUBLIC_MEMBERS and len(members) <= 16


def mixture_of(rows: np.ndarray, n: int = 3) -> GaussianParameters:
    return GaussianParameters(np.full(n, 1 / n), rows[:n].astype(float), np.ones((n, rows.shape[1])), "diag")


def test_one_sparse_part_makes_a_split_refuse_what_needs_dense_rows() -> None:
    rows = blobs(60, D=3)
    split = SplitShard([CpuShard(rows[:30]), CpuShard(sparse.csr_array(rows[30:]))])
    assert "sparse" in split.why_not(Expect)
    with pytest.raises(UnsupportedPassError, match="Expect is not available here: X is sparse"):
        split.run(Expect(mixture_of(rows)))
    assert split.why_not(Assign) == ""


def test_who_remembers_and_who_projects() -> None:
    rows = blobs(60, D=3)
    whole, stream = CpuShard(rows), StreamShard(ArraySource(rows), rows_per_part=20)
    split = SplitShard([CpuShard(rows[:30]), CpuShard(rows[30:])])
    assert whole.why_not(Remembered) == "" and "remember" in stream.why_not(Remembered)
    assert whole.why_not(Project) == stream.why_not(Project) == "" and "parts" in split.why_not(Project)


def test_a_split_numbers_the_rows_of_its_parts() -> None:
    rows = blobs(60, D=3)
    parts = [CpuShard(rows[:25]), CpuShard(rows[25:40]), CpuShard(rows[40:])]
    SplitShard(parts)
    assert [part.first_row for part in parts] == [0, 25, 40]


def test_a_subset_of_a_subset_has_the_right_rows() -> None:
    rows = blobs(60, D=3)
    for matrix in (rows, sparse.csr_array(rows)):
        inner = CpuShard(matrix).subset(np.arange(0, 60, 2)).subset(np.array([1, 4, 9]))
        np.testing.assert_array_equal(inner.take(np.arange(3)), rows[[2, 8, 18]])


def test_ballots_do_not_add_up_in_silence() -> None:
    some, none = NestedStatistics.none(2, 3), NestedStatistics.none(2, 3)
    some.ballots = object()  # type: ignore[assignment]
    with pytest.raises(TypeError, match="ballots"):
        none + some


def test_a_streamed_tree_reads_its_own_rows_wherever_they_begin() -> None:
    rows = blobs(90, D=3)
    shard = StreamShard(ArraySource(rows), rows_per_part=40, first_row=1000)
    shard.run(Plant(FAMILIES["diag"].scatter, leaf_size=8))
    assert shard.run(OpenRows()) == 90
    found = shard.run(TakeCells()).means
    np.testing.assert_allclose(np.sort(found, axis=0), np.sort(rows, axis=0))


class Elsewhere(BlockShard):
    """A backend that knows how to take rows, and no pass."""

    def __init__(self, rows: np.ndarray) -> None:
        super().__init__(rows.shape)
        self.rows = rows

    def take_rows(self, indices: np.ndarray) -> np.ndarray:
        return self.rows[indices].astype(np.float64)


def test_a_backend_that_takes_rows_has_all_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("globular.passes.cpu.shard.PART_BYTES", 8 * 3 * 25)
    rows = blobs(90, D=3)
    here, elsewhere = CpuShard(rows), Elsewhere(rows)
    one, other = here.run(Assign(rows[:7])), elsewhere.run(Assign(rows[:7]))
    np.testing.assert_array_equal(here.labels, elsewhere.labels)
    np.testing.assert_allclose(one.sums, other.sums)
    assert elsewhere.run(AddSeeds(rows[:4])).potential == pytest.approx(here.run(AddSeeds(rows[:4])).potential)
    np.testing.assert_allclose(elsewhere.run(Moments()).variance, here.run(Moments()).variance)
    assert elsewhere.run(Plant(FAMILIES["diag"].scatter, 8)) == 1


def changes(log: Log) -> list[str]:
    return [type(change.work.one).__name__ for change in log.changes]


def append(log: Log, *works: object) -> None:
    for work in works:
        log.append(Work(work))  # type: ignore[arg-type]


def test_the_log_keeps_what_still_shows() -> None:
    rows, log = blobs(60, D=3), Log()
    append(log, Assign(rows[:3]), Relabel(np.arange(3, dtype=np.int32)), Assign(rows[:4]))
    assert changes(log)[-1] == "Assign"
    append(log, Relabel(np.arange(4, dtype=np.int32)))
    assert changes(log) == ["Assign", "Relabel"]


def test_passes_that_change_nothing_are_not_logged() -> None:
    rows = blobs(60, D=3)
    mixture = mixture_of(rows)
    for work in (ExpectCells(mixture), TakeCells(), SumByLabel(3), Expect(mixture), Moments()):
        assert not Work(work).changes
    for change in (Gains(mixture, 4), OpenGaining(0.0), Expect(mixture, Remembered(renew=True)), AddSeeds(rows[:2])):
        assert Work(change).changes


def test_gains_under_the_same_mixture_are_one_story() -> None:
    rows, log = blobs(60, D=3), Log()
    mixture, other = mixture_of(rows), mixture_of(rows)
    append(
        log, Plant(FAMILIES["diag"].scatter, 8), Gains(mixture, 4), OpenGaining(0.0), Gains(mixture, 4), Gains(other, 4)
    )
    append(log, OpenGaining(1.0))
    assert changes(log) == ["Plant", "Gains", "OpenGaining", "Gains", "OpenGaining"]


def test_rows_that_stay_in_their_cells_need_what_was_there() -> None:
    assert Assign(np.eye(2), Down(None, "top")).effect.afresh  # type: ignore[arg-type]
    assert not Assign(np.eye(2), Down(None, "stay")).effect.afresh  # type: ignore[arg-type]


def test_oracles_are_plain_numpy() -> None:
    for path in (Path(__file__).parents[1] / "reference").glob("*.py"):
        imported = re.findall(r"^(?:from|import) ([\w.]+)", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert not [name for name in imported if re.match(r"numba|sklearn|globular\.(kernels|passes)", name)], path


def test_threads_that_ask_for_state_at_once_get_one_array(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that have to be converted come part by part, in threads: each once made distances of its own."""
    make = PointState._new

    def slowly(self: PointState, *how: Any) -> Any:
        time.sleep(0.02)
        return make(self, *how)

    monkeypatch.setattr(PointState, "_new", slowly)
    X = np.random.default_rng(0).integers(255, size=(3 * RUN, 3)).astype(np.uint8)
    shard = CpuShard(X, n_threads=3)
    shard.run(Spare(X[:64].astype(np.float64)))
    assert np.isfinite(shard.squared_distances).all() and shard.labels.min() >= 0
