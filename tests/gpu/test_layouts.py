"""Rows in several parts: streamed to the card since they are larger than it, and divided among cards."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason='needs torch: pip install "globular[gpu]"')

sys.path.insert(0, str(Path(__file__).parents[1] / "contract"))
from cases import CASES, Case, Problem, State  # noqa: E402

from globular import KMeans  # noqa: E402
from globular.algorithms.kmeans.lloyd import KMeansOptions, lloyd  # noqa: E402
from globular.algorithms.kmeans.pipeline import PipelineOptions, kmeans  # noqa: E402
from globular.algorithms.seeding.named import draw_seeds  # noqa: E402
from globular.data.formats import open_path  # noqa: E402
from globular.errors import DataError, MemoryBudgetError  # noqa: E402
from globular.passes.cpu import CpuShard  # noqa: E402
from globular.passes.torch import StreamedShard, TorchShard, opening  # noqa: E402
from globular.passes.torch.cards import CardsShard  # noqa: E402
from globular.seam.passes import Assign, Moments  # noqa: E402
from makers import blobs, raising, weights_for  # noqa: E402

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
NAME = "cuda" if DEVICE.type == "cuda" else "torch-cpu"
ROWS = blobs(n=3000, C=40, D=20, spread=0.7).astype(np.float32)
NOT_ON_GPU = {"assign neighbors", "assign candidates", "expect probe, full"}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of 37 rows of three float64 columns, or of 11 of twenty float32 columns."""
    monkeypatch.setattr(opening, "PART_BYTES", 888)


def streamed(rows: Any, weights: Any) -> StreamedShard:
    """A third of the parts stay."""
    return StreamedShard(rows, weights, DEVICE, room=rows.nbytes / 3)


def split(rows: Any, weights: Any) -> CardsShard:
    shard = opening.shard_on_cards(rows, weights, [NAME, NAME, NAME])
    assert isinstance(shard, CardsShard)
    return shard


LAYOUTS = {"streamed": streamed, "split": split}


def state_of(shard: Any) -> State:
    parts = getattr(shard, "_parts", [shard])
    names = {name for part in parts for name in part.state._arrays}
    found = {name: np.concatenate([part.state._arrays[name].cpu().numpy() for part in parts]) for name in names}
    return {"labels": np.array(shard.labels), **found}


def carried_out(case: Case) -> bool:
    p = Problem("float64", False)
    whole, works = TorchShard(torch.as_tensor(p.matrix)), [*case.before(p), case.work(p)]
    known = all(whole._handler(work) is not None for work in works) and case.name not in NOT_ON_GPU
    return known and not any(streamed(p.matrix, None).why_not(type(work)) for work in works)


IN_PARTS = [case for case in CASES if carried_out(case)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", IN_PARTS, ids=lambda case: case.name)
def test_a_pass_over_parts_keeps_its_contract(case: Case, layout: str) -> None:
    p = Problem("float64", True)
    shard, work = LAYOUTS[layout](p.matrix, p.weights), case.work(p)
    if reason := shard.why_not(type(work)):
        assert layout == "split", reason
        return
    for earlier in case.before(p):
        shard.run(earlier)
    before = state_of(shard)
    found = shard.run(work)
    case.oracle(p, shard, before, state_of(shard), found)


def test_most_passes_run_in_parts() -> None:
    assert len(IN_PARTS) >= 20


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_iteration_equals_that_of_one_shard(layout: str) -> None:
    weights = weights_for(len(ROWS))
    whole, parts = TorchShard(torch.as_tensor(ROWS, device=DEVICE), weights), LAYOUTS[layout](ROWS, weights)
    start, options = np.asarray(whole.take(np.arange(3, 3000, 100))), KMeansOptions(max_iter=5)
    for expected, found in zip(lloyd(whole, start, options), lloyd(parts, start, options), strict=True):
        np.testing.assert_array_equal(np.asarray(parts.labels), np.asarray(whole.labels))
        np.testing.assert_allclose(np.asarray(found.model), np.asarray(expected.model), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_whole_pipeline_runs_in_parts(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "PART_BYTES", 80_000)
    ends = []
    for shard in (TorchShard(torch.as_tensor(ROWS, device=DEVICE)), LAYOUTS[layout](ROWS, None)):
        rng, state = np.random.default_rng(0), np.random.RandomState(0)
        steps = list(
            kmeans(shard, lambda s, r=rng: draw_seeds(s, "auto", 520, r, rough=True), PipelineOptions(520), state)
        )
        ends.append(steps[-1].objective)
    assert ends[1] == pytest.approx(ends[0], rel=0.02)


def leave_room(monkeypatch: pytest.MonkeyPatch, n_bytes: float) -> None:
    """X takes 240,000 bytes, a fit of five clusters beside it 688,000 and of thirty 768,000; in parts some 500,000."""
    monkeypatch.setattr(opening, "SPARE_BYTES", 0)
    monkeypatch.setattr(opening, "free_bytes", lambda device: n_bytes)


@pytest.mark.parametrize("unit", [False, True], ids=["euclidean", "cosine"])
@pytest.mark.parametrize("source", ["array", "file"])
def test_rows_larger_than_the_card_are_streamed(source, unit, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(opening, "PART_BYTES", 40_000)
    np.save(tmp_path / "rows.npy", ROWS)
    X = ROWS if source == "array" else tmp_path / "rows.npy"
    weights = np.where(np.arange(3000) % 7 == 0, 0.0, 1.0)
    model = KMeans(30, algorithm="lloyd", init=ROWS[1:31], metric="cosine" if unit else "euclidean", device=NAME)
    expected = model.fit(ROWS, sample_weight=weights).labels_
    leave_room(monkeypatch, 600_000)
    with caplog.at_level("INFO", "globular"):
        np.testing.assert_array_equal(model.fit(X, sample_weight=weights).labels_, expected)
    assert "of which 0.1 MiB stay there" in caplog.text and "up to 0.5 MiB" in caplog.text
    np.testing.assert_array_equal(model.predict(X)[weights > 0], expected[weights > 0])


@pytest.mark.parametrize("form", ["array", "npy", "parquet of 700", "parquet of 200"])
def test_parts_that_stay_change_nothing(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "PART_BYTES", 40_000)
    rows: Any = ROWS
    if form == "npy":
        np.save(tmp_path / "rows.npy", ROWS)
        rows = open_path(tmp_path / "rows.npy")
    if "parquet" in form:
        pa = pytest.importorskip("pyarrow", reason='needs pyarrow: pip install "globular[io]"')
        pq = pytest.importorskip("pyarrow.parquet")
        lists = pa.FixedSizeListArray.from_arrays(ROWS.ravel(), 20)
        pq.write_table(pa.table({"x": lists}), tmp_path / "rows.parquet", row_group_size=int(form[-3:]))
        rows = open_path(tmp_path / "rows.parquet")
    found = set()
    for room in (0, 90_000, 170_000, 10**9):
        shard = StreamedShard(rows, None, DEVICE, room=room)
        passes = [shard.run(Assign(ROWS[:40].astype(float))) for _ in range(3)]
        found |= {np.asarray(one.sums).tobytes() + np.asarray(shard.labels).tobytes() for one in passes}
        assert sum(part is not None for part in shard._kept.values()) == min(6, room // 40_000)
    assert len(found) == 1


def test_a_streamed_file_with_holes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = ROWS.copy()
    rows[2222, 3] = np.nan
    np.save(tmp_path / "rows.npy", rows)
    leave_room(monkeypatch, 700_000)
    with pytest.raises(DataError, match=r"rows\.npy: NaN or infinity in row 2222"):
        KMeans(5, device=NAME).fit(tmp_path / "rows.npy")


def test_memory_is_refused_beforehand_with_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_room(monkeypatch, 1000.0)
    with pytest.raises(MemoryBudgetError, match="GiB of the card"):
        KMeans(5, device=NAME).fit(ROWS)


def test_a_fit_after_one_that_ran_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    model = KMeans(520, random_state=0, device=NAME)

    out_of_memory = raising(torch.OutOfMemoryError("CUDA out of memory."))
    with monkeypatch.context() as there:
        there.setitem(TorchShard._handlers, (Moments, None), out_of_memory)
        with pytest.raises(MemoryBudgetError, match="too little memory left for Moments"):
            model.fit(ROWS)
    assert model.fit(ROWS).inertia_ == KMeans(520, random_state=0, device=NAME).fit(ROWS).inertia_


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a CUDA card")
def test_a_card_that_runs_out_of_memory_recovers() -> None:
    shard = TorchShard(torch.as_tensor(ROWS, device=DEVICE))
    centers = np.asarray(shard.take(np.arange(40)))
    first = shard.run(Assign(centers))
    torch.cuda.empty_cache()
    share = (torch.cuda.memory_reserved() + 2**24) / torch.cuda.get_device_properties(DEVICE).total_memory
    torch.cuda.set_per_process_memory_fraction(share)
    try:
        with pytest.raises(MemoryBudgetError):
            TorchShard(torch.as_tensor(ROWS, device=DEVICE)).run(Assign(np.zeros((10**6, 20))))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert shard.run(Assign(centers)).sums.tobytes() == first.sums.tobytes()


def test_rows_that_stream_to_a_card_do_not_lie_there() -> None:
    assert TorchShard(torch.as_tensor(ROWS)).passes_are_cheap and split(ROWS, None).passes_are_cheap
    assert not streamed(ROWS, None).passes_are_cheap and not CpuShard(ROWS).passes_are_cheap
