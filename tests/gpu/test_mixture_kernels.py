"""The triton kernels of truncated mixtures against the same thing in plain torch, on a card or in the interpreter."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason='needs torch: pip install "globular[gpu]"')
pytest.importorskip("triton", reason='needs triton: pip install "globular[gpu]"')

from globular.passes.torch import launch, plain  # noqa: E402
from globular.passes.torch.plain import group  # noqa: E402
from globular.passes.torch.shard import kernels_are_interpreted  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.skipif(
    DEVICE == "cpu" and not kernels_are_interpreted(), reason="needs a CUDA card, or TRITON_INTERPRET=1"
)
ON_CARD = DEVICE == "cuda"
N, C, KEPT = (3000, 300, 5) if ON_CARD else (150, 140, 3)
DTYPES = ["float32", "float64", "float16"] if ON_CARD else ["float32"]
COLUMNS = [3, 40, 64, 150] if ON_CARD else [3, 70]
KINDS = [False, True]
"""Whether every column has a variance of its own."""


def problem(dtype: str, D: int, by_column: bool) -> tuple[Any, tuple[Any, Any, Any], Any]:
    """Rows, means, precisions and biases, and random numbers."""
    rng = np.random.default_rng(D)
    x = torch.as_tensor(5.0 + rng.normal(size=(N, D)), device=DEVICE).to(getattr(torch, dtype))
    means = x[torch.as_tensor(rng.choice(N, C, replace=False), device=DEVICE)].double()
    precisions = torch.as_tensor(rng.uniform(0.5, 4.0, size=(C, D if by_column else 1)), device=DEVICE)
    return x, (means, precisions, torch.as_tensor(rng.normal(size=C) - 9.0, device=DEVICE)), rng


@pytest.mark.parametrize("by_column", KINDS)
@pytest.mark.parametrize("D", COLUMNS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kept", [1, KEPT])
def test_nominees_are_the_best_of_their_cell(dtype: str, D: int, by_column: bool, kept: int) -> None:
    x, parameters, rng = problem(dtype, D, by_column)
    starts = torch.tensor([0, 1, 1, 132, C], device=DEVICE)  # one component, none, more than a tile
    cells = torch.as_tensor(rng.choice([0, 2, 3], size=2 * N), device=DEVICE).to(torch.int32)
    members = torch.as_tensor(rng.permutation(C), device=DEVICE)
    middles = torch.as_tensor(5.0 + 0.3 * rng.normal(size=(4, D)), device=DEVICE)
    grouping = group(cells, 4, starts=False)
    scores, found = launch.nominate_components(x, *parameters, middles, kept, grouping, starts, members, 2)
    wanted, best = plain.nominate_components(x, *parameters, middles, kept, grouping, starts, members, 2)
    is_one = torch.isfinite(wanted)
    assert bool(((found >= 0) == is_one).all())
    own = plain.cost_candidates(x.repeat_interleave(2, dim=0), *parameters, found)
    slack = torch.maximum(*(rounding(x, parameters, middles[cells.long()], numbers) for numbers in (found, best)))
    slack = torch.where(is_one, slack, 0.0).amax(dim=1, keepdim=True)
    assert bool(((scores.double() - own).abs() <= slack)[is_one].all())
    assert bool((own <= wanted + 2.0 * slack)[is_one].all())
    assert all(len(set(some)) == len(some) for some in (row[row >= 0].tolist() for row in found.cpu()))


def rounding(x: Any, parameters: tuple[Any, Any, Any], middles: Any, numbers: Any) -> Any:
    """What costs may be wrong by: tf32 has ten bits of either factor, of terms about the middle of a cell."""
    away = (x.double().repeat_interleave(2, dim=0) - middles).abs()[:, None]
    means = (parameters[0][numbers.long()] - middles[:, None]).abs()
    terms = (parameters[1][numbers.long()] * (away + means) ** 2).sum(2)
    return 2.0**-9 * terms + 1e-4 * (1.0 + parameters[2][numbers.long()].abs())


@pytest.mark.parametrize("by_column", KINDS)
@pytest.mark.parametrize("D", COLUMNS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n_more", [0, 7])
def test_k_of_n_is_the_best_of_itself_and_the_candidates(dtype: str, D: int, by_column: bool, n_more: int) -> None:
    x, parameters, rng = problem(dtype, D, by_column)
    members = np.stack([rng.choice(C, KEPT, replace=False) for _ in range(N)])
    members[::3, -1] = -1
    labels = members[:, 0].copy()
    labels[::5] = rng.integers(C, size=len(labels[::5]))  # rows that start from another label
    candidates = rng.integers(-1, C, size=(N, n_more))  # some twice, some members already
    given = [torch.as_tensor(v, device=DEVICE).to(torch.int32) for v in (labels, members, candidates)]
    one, other = ([v.clone() for v in given] for _ in "ab")
    scores = plain.cost_candidates(x, *parameters, given[2]).clamp_max(1e37).float()
    found = launch.weigh(x, *parameters, one[0], one[1], one[2] if n_more else None, scores if n_more else None)
    wanted = plain.weigh(x, *parameters, other[0], other[1], other[2] if n_more else None, None)
    assert bool((one[0] == other[0]).all()) and bool((one[1] == other[1]).all())
    for ours, theirs in zip(found, wanted, strict=True):
        assert bool(torch.isclose(ours, theirs, rtol=1e-9, atol=1e-12).all())


@pytest.mark.parametrize("n_components", [1, 3, C])
@pytest.mark.parametrize("D", COLUMNS)
def test_sums_cut_large_components(n_components: int, D: int) -> None:
    x, (means, _, _), rng = problem("float32", D, True)
    x = x.repeat(8, 1)
    drawn = np.minimum(rng.geometric(0.02, size=(len(x), KEPT)) - 1, n_components - 1)
    members = torch.as_tensor(np.where(rng.random(drawn.shape) < 0.1, -1, drawn), device=DEVICE).to(torch.int32)
    shares = torch.as_tensor(rng.random(drawn.shape), device=DEVICE)
    means = means[:n_components].contiguous()
    found = [launch.sum_entries(x, shares, means, members) for _ in range(2)]
    assert bool((found[0] == found[1]).all())
    assert bool(torch.isclose(found[0], plain.sum_entries(x, shares, means, members), rtol=1e-10, atol=1e-9).all())
