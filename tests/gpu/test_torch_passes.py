"""The torch shard against the oracles of all passes that it carries out: on a card, or in plain torch on the CPU."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason='needs torch: pip install "globular[gpu]"')

sys.path.insert(0, str(Path(__file__).parents[1] / "contract"))
from cases import CASES, Case, Problem, State  # noqa: E402

from globular.errors import UnsupportedPassError  # noqa: E402
from globular.passes.torch import TorchShard  # noqa: E402
from globular.seam.center_passes import CellSeeds  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = {"labels": torch.int32, "seeds": torch.int32, "cells": torch.int32}


def make(p: Problem) -> TorchShard:
    return TorchShard(torch.as_tensor(p.matrix, device=DEVICE), p.weights)


def state_of(shard: TorchShard) -> State:
    return {"labels": shard.labels, **{name: t.cpu().numpy().copy() for name, t in shard.state._arrays.items()}}


def carried_out(case: Case) -> bool:
    p = Problem("float64", False)
    shard = make(p)
    known = all(shard._handler(work) is not None for work in [*case.before(p), case.work(p)])
    return known and case.name != "expect probe, full"


ON_GPU = [case for case in CASES if carried_out(case)]


@pytest.mark.parametrize("form", ["float64", "float64 weighted", "float32 weighted"])
@pytest.mark.parametrize("case", ON_GPU, ids=lambda case: case.name)
def test_a_pass_keeps_its_contract(case: Case, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    p = Problem(form.split()[0], "weighted" in form)
    if "float32" in form:
        monkeypatch.setattr("cases.alike", loosely(1e-5))
    shard, work = make(p), case.work(p)
    for earlier in case.before(p):
        shard.run(earlier)
    before = state_of(shard)
    found = shard.run(work)
    after = state_of(shard)
    for name in before.keys() - work.effect.writes:
        assert before[name].tobytes() == after[name].tobytes(), name
    case.oracle(p, shard, before, after, found)


def loosely(least: float) -> Any:
    from cases import alike

    return lambda found, wanted, rtol=1e-9: alike(found, wanted, max(rtol, least))


@pytest.mark.parametrize("case", [case for case in CASES if case not in ON_GPU], ids=lambda case: case.name)
def test_what_is_not_written_is_refused(case: Case) -> None:
    p = Problem("float64", False)
    shard = make(p)
    works = [*case.before(p), case.work(p)]
    with pytest.raises(UnsupportedPassError, match=r"use device='cpu'|the rows are dense"):
        list(map(shard.run, works))


def test_most_passes_of_k_means_are_there() -> None:
    assert len(ON_GPU) >= 25


def test_the_same_bits_again() -> None:
    rows = np.random.default_rng(0).normal(size=(3000, 20)).astype(np.float32)
    from globular.seam.passes import Assign

    first, second = (
        TorchShard(torch.as_tensor(rows, device=DEVICE)).run(Assign(rows[:50].astype(float))) for _ in "ab"
    )
    assert first.sums.tobytes() == second.sums.tobytes() and first.objective == second.objective


def test_cells_that_draw_nothing_leave_the_others_alone() -> None:
    """Rows far from every seed since there is none would weigh more than all others together."""
    rows, sizes = np.random.default_rng(0).normal(size=(300, 4)), np.array([100, 0, 100, 100])
    quotas = np.array([5, 0, 0, 40])
    shard = TorchShard(torch.as_tensor(rows, device=DEVICE))
    found = np.asarray(shard.run(CellSeeds(np.append(0, np.cumsum(sizes)), quotas, np.linspace(0, 0.99, 45))))
    assert len(np.unique(found)) == 45
    assert (np.searchsorted([100, 200], found, side="right") == np.repeat([0, 2], [5, 40])).all()


def test_as_many_seeds_as_distinct_rows() -> None:
    rows = np.repeat(np.random.default_rng(0).normal(size=(20, 4)), 3, axis=0)
    shard = TorchShard(torch.as_tensor(rows, device=DEVICE))
    found = np.asarray(shard.run(CellSeeds(np.array([0, 60]), np.array([30]), np.linspace(0, 0.99, 30))))
    assert len(np.unique(rows[found[found >= 0]], axis=0)) == 20 == (found >= 0).sum()
