"""Every triton kernel against the same thing in plain torch, on a card or (slowly) in triton's interpreter."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason='needs torch: pip install "globular[gpu]"')
pytest.importorskip("triton", reason='needs triton: pip install "globular[gpu]"')

from globular.model.cells import CenterCells  # noqa: E402
from globular.passes.torch import TorchShard, launch, plain  # noqa: E402
from globular.passes.torch.plain import group  # noqa: E402
from globular.passes.torch.products import Aim  # noqa: E402
from globular.passes.torch.shard import kernels_are_interpreted  # noqa: E402
from globular.seam.among import Probe  # noqa: E402
from globular.seam.center_passes import RoughCells  # noqa: E402
from globular.seam.passes import Assign  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.skipif(
    DEVICE == "cpu" and not kernels_are_interpreted(), reason="needs a CUDA card, or TRITON_INTERPRET=1"
)
ON_CARD = DEVICE == "cuda"
N, C = (3000, 300) if ON_CARD else (150, 140)
DTYPES = ["float32", "float16", "uint8", *(["bfloat16"] if ON_CARD else [])]  # the interpreter does not know it
COLUMNS = [5, 40, 128, 200] if ON_CARD else [40]


def problem(dtype: str, D: int) -> tuple[Any, Any, Any]:
    """Rows, centres in float64, and random numbers."""
    rng = np.random.default_rng(D)
    rows = 3.0 * rng.normal(size=(N, D))
    rows = np.abs(20.0 * rows) if dtype == "uint8" else rows
    x = torch.as_tensor(rows, device=DEVICE).to(getattr(torch, dtype))
    centers = x[torch.as_tensor(rng.choice(N, C), device=DEVICE)].double()
    return x, centers + torch.as_tensor(rng.normal(size=(C, D)), device=DEVICE), rng


def plainly(
    x: Any, centers: Any, kept: int, starts: Any = None, cells: Any = None, per_row: int = 1
) -> tuple[Any, Any]:
    """Nominees by plain products in float64."""
    return Aim(TorchShard(x.double()), centers, None, starts).nominate(kept, cells=cells, per_row=per_row)


@pytest.mark.parametrize("D", COLUMNS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kept", [1, 2, 4])
def test_precise_nominees_are_the_closest(dtype: str, D: int, kept: int) -> None:
    x, centers, _ = problem(dtype, D)
    scores, found = Aim(TorchShard(x), centers).nominate(kept, precise=True)
    wanted, _ = plainly(x, centers, kept)
    scale = (x.double() ** 2).sum(1, keepdim=True) + (centers**2).sum(1).max()
    assert bool(((scores - wanted).abs() <= 1e-4 * wanted + 1e-5 * scale).all())
    own = ((x.double() - centers[found[:, 0].long()]) ** 2).sum(1)
    assert bool((own <= wanted[:, 0] * 1.0001 + 1e-5 * scale[:, 0]).all())


@pytest.mark.parametrize("D", COLUMNS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("at_once", [False, True])
def test_labels_are_exactly_the_closest(dtype: str, D: int, scaled: bool, at_once: bool) -> None:
    x, centers, _ = problem(dtype, D)
    shard = TorchShard(x, unit_rows=scaled)
    if scaled:
        centers = centers / torch.linalg.vector_norm(centers, dim=1, keepdim=True)
    labels = torch.full((N,), -1, dtype=torch.int32, device=DEVICE)
    aim = Aim(shard, centers)
    d2, tally = aim.closest_at_once(labels) if at_once else aim.closest(labels)
    if at_once and bool(tally[2] > 0):  # eight bits leave too many doubts in so few columns
        assert (dtype, D) == ("bfloat16", 5)
        return
    assert not bool(tally[2:].any())
    rows = plain.seen(shard.x, shard.scales, torch.float64)
    squared = torch.cdist(rows, centers.float().double(), compute_mode="donot_use_mm_for_euclid_dist") ** 2
    best = squared.min(1).values
    own = squared.gather(1, labels.long()[:, None])[:, 0]
    assert bool((own <= best * (1 + 1e-5) + 1e-9).all())
    assert bool(torch.isclose(d2.double(), own, rtol=1e-4, atol=1e-6 * float(best.max())).all())
    assert float(tally[1]) == N and abs(float(tally[0]) / float(own.sum()) - 1) < 1e-5


@pytest.mark.parametrize("dtype", DTYPES)
def test_several_nominees_of_a_cell_are_different_ones(dtype: str) -> None:
    x, centers, rng = problem(dtype, 40)
    starts = torch.arange(0, C + 1, 20, device=DEVICE)
    cells = torch.as_tensor(rng.integers(len(starts) - 1, size=N), device=DEVICE).to(torch.int32)  # many in a program
    _, found = Aim(TorchShard(x), centers, None, starts).nominate(5, cells=cells, precise=True)
    _, wanted = plainly(x, centers, 5, starts, cells)
    assert float((found == wanted).float().mean()) > 0.99


@pytest.mark.parametrize("dtype", DTYPES)
def test_items_look_into_their_own_cell(dtype: str) -> None:
    x, centers, rng = problem(dtype, 40)
    starts = torch.tensor([0, 1, 1, 131, C], device=DEVICE)  # one centre, none, more than a tile
    cells = torch.as_tensor(rng.choice([0, 2, 3], size=2 * N), device=DEVICE).to(torch.int32)
    members = torch.as_tensor(rng.permutation(C), device=DEVICE)
    aim = Aim(TorchShard(x), centers, members, starts)
    scores, found = aim.nominate(2, cells=cells, per_row=2, precise=True)
    wanted, places = plainly(x, centers[members], 2, starts, cells, per_row=2)
    assert float((found[:, 0] == members[places[:, 0].long()]).float().mean()) > 0.99
    assert bool((found[cells == 0, 1] == -1).all())
    assert int(aim.looks.sum()) == int(starts.diff()[cells.long()].sum())
    close = torch.isfinite(wanted)
    assert bool(torch.isclose(scores.double()[close], wanted[close], rtol=1e-2, atol=1e-4 * float(scores[0, 0])).all())


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n_clusters", [1, 3, 200])
def test_sums_cut_long_clusters(weighted: bool, n_clusters: int) -> None:
    x, _, rng = problem("float16", 40)
    labels = torch.as_tensor(np.minimum(rng.geometric(0.02, size=N) - 1, n_clusters - 1), device=DEVICE)
    w = torch.as_tensor(rng.random(N), device=DEVICE) if weighted else None
    d2 = torch.as_tensor(rng.random(N), device=DEVICE).float()
    grouping = group(labels.to(torch.int32), n_clusters)
    found = [launch.sum_clusters(x, w, w, d2, grouping) for _ in range(2)]
    assert bool((found[0] == found[1]).all())
    wanted = plain.sum_clusters(x, w, w, d2, grouping)
    assert bool(torch.isclose(found[0], wanted, rtol=1e-12, atol=1e-9).all())


def test_too_many_doubts_are_told_and_settled() -> None:
    x, centers, _ = problem("float16", 40)
    centers = centers[:1].expand(C, -1).contiguous()
    labels = torch.full((N,), -1, dtype=torch.int32, device=DEVICE)
    assert int(Aim(TorchShard(x), centers).closest_at_once(labels)[1][2]) > 0
    shard = TorchShard(x)
    for _ in range(3):
        found = shard.run(Assign(centers.cpu().numpy()))
        assert not shard.mostly_sure and not np.asarray(shard.labels).any() and int(found.counts[0]) == N


@pytest.mark.skipif(not ON_CARD, reason="only a card records")
def test_a_recorded_pass_is_the_same_again() -> None:
    x, centers, rng = problem("float16", 128)
    rows, given = TorchShard(x), centers.cpu().numpy()
    cells = CenterCells(given[:3], rng.permutation(C), np.array([0, 100, 150, C]))
    for work in (Assign(given), Assign(given, Probe(cells, 2)), Assign(given[:9], want="labels")):
        rows.label_tensor.fill_(-1)
        first, rough = rows.run(work), TorchShard(x.float()).run(RoughCells(given[:7], 2)).middles
        labels = np.asarray(rows.labels)
        for _ in range(4):
            rows.label_tensor.fill_(-1)
            again = rows.run(work)
            assert again.sums.tobytes() == first.sums.tobytes() and again.objective == first.objective
            np.testing.assert_array_equal(np.asarray(rows.labels), labels)
            assert rows.local(x.float()).run(RoughCells(given[:7], 2)).middles.tobytes() == rough.tobytes()
    assert any(rows.recordings._graphs.values()) and any(rows.lent_recordings._graphs.values())
