"""Every pass, in every layout of the rows: its oracle, its state, its declaration, its journey and its sums."""

import inspect
import logging
import pickle
from collections.abc import Iterator
from functools import reduce
from itertools import pairwise
from typing import Any, get_args

import numpy as np
import pytest
from cases import CASES, C, Case, N, Problem, State, alike, hosts

from globular.data.open import as_source
from globular.passes.cpu import CpuShard
from globular.passes.cpu.expect.remembered import Kept
from globular.passes.many import StreamShard
from globular.seam import answers, center_passes, mixture_passes, passes, sparse_passes, tree_passes
from globular.seam.among import HardAmong, SoftAmong
from globular.seam.center_passes import SolveLine
from globular.seam.mixture_passes import Expect, ExpectSparse, SparseRowsOf
from globular.seam.passes import (
    AddSeeds,
    Assign,
    ByColumn,
    CastBallots,
    Change,
    Locate,
    Pass,
    ScatterLabels,
    Take,
)  # fmt: skip
from globular.seam.sparse_passes import AssignSparse, LabelSparse, SeedSparse
from globular.seam.tree_passes import Opening
from split import SplitShard

CUTS = [0, 50, 100, 150, N]
FORMS = {"float64": False, "float32 weighted": True, "csr64 weighted": True}
ARRAYS = {"nested_upper": "bounds", "nested_lower": "bounds"}
"""Per-row state whose array has another name than passes call it by."""


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    distributed = pytest.importorskip("distributed", reason='needs Dask: pip install "globular[dask]"')
    options = {"processes": False, "dashboard_address": ":0", "silence_logs": logging.CRITICAL}
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, **options) as cluster,
        distributed.Client(cluster, set_as_default=False) as connected,
    ):
        yield connected


def split(p: Problem) -> SplitShard:
    pieces = [(p.matrix[a:b], None if p.weights is None else p.weights[a:b]) for a, b in pairwise(CUTS)]
    return SplitShard([CpuShard(*piece) for piece in pieces])


def on_dask(p: Problem, client: Any) -> Any:
    import dask.array as da

    from globular.passes.dask import DaskShard
    from globular.passes.dask.workers import collection_partitions

    sizes = tuple(b - a for a, b in pairwise(CUTS))
    rows = da.from_array(p.matrix, chunks=(sizes, 3), asarray=False)
    return DaskShard(client, collection_partitions(rows), p.weights)


def make(layout: str, p: Problem, request: pytest.FixtureRequest) -> Any:
    if layout == "whole":
        return CpuShard(p.matrix, p.weights)
    if layout == "split":
        return split(p)
    if layout == "stream":
        return StreamShard(as_source(p.matrix), p.weights, rows_per_part=50)
    return on_dask(p, request.getfixturevalue("client"))


def state_of(shard: Any) -> State:
    """Copies of the per-row state by the names that passes declare, and of what a tree has."""
    found: dict[str, list[Any]] = {"labels": [] if hosts(shard) else [np.array(shard.labels)]}
    for part in hosts(shard):
        for name, array in {"labels": part.labels, **part.state._arrays}.items():
            found.setdefault(ARRAYS.get(name, name), []).append(array.copy())
        if isinstance(part, CpuShard):
            found.setdefault("pairs", []).append(np.array([id(part.recall(Kept))]))
        if (f := part.frontier) is not None:
            of_tree = {"tree": np.array([id(f.tree)]), "frontier": f.nodes, "cell members": f.members}
            for name, value in {**of_tree, "gains": f.gains, "cut": f.parted}.items():
                found.setdefault(name, []).append(np.empty(0) if value is None else value.copy())
    return {name: np.concatenate([a.ravel() for a in arrays]) if len(arrays) != 1 else arrays[0]
            for name, arrays in found.items()}  # fmt: skip


def begun(case: Case, p: Problem, layout: str, request: pytest.FixtureRequest) -> Any:
    shard = make(layout, p, request)
    works = [*case.before(p), case.work(p)]
    if (case.of_one_tree and layout != "whole") or (case.dense and not isinstance(p.matrix, np.ndarray)):
        pytest.skip("the state of one tree, or a model of dense rows")
    if reason := next(
        filter(
            None,
            (shard.why_not(kind) for work in works for kind in (type(work), work.variant) if hasattr(kind, "needs")),
        ),
        "",
    ):
        pytest.skip(reason)
    for work in works[:-1]:
        shard.run(work)
    return shard


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("layout", ["whole", "split", "stream", "dask"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_pass_keeps_its_contract(case: Case, layout: str, form: str, request: pytest.FixtureRequest) -> None:
    p = Problem(form.split()[0], FORMS[form])
    shard, work = begun(case, p, layout, request), case.work(p)
    before = state_of(shard)
    found = shard.run(work)
    after = state_of(shard)

    for name in before.keys() - work.effect.writes:  # (c) what is not declared keeps its bytes
        assert before[name].tobytes() == after[name].tobytes(), name
    for name in after.keys() - before.keys() - work.effect.writes:
        assert (after[name] == after[name].flat[0]).all(), name
    if layout == "whole":  # (d) what has travelled does the same
        other, sent = begun(case, p, layout, request), pickle.loads(pickle.dumps(work))
        alike(other.run(sent), found, 0.0)
        for name in after.keys() - {"pairs", "tree"}:
            np.testing.assert_array_equal(state_of(other)[name], after[name], err_msg=name)
    else:  # (b) the parts make the whole; trees, where each part has its own, make those of a split
        other = begun(case, p, "split" if case.on_tree else "whole", request)
        if not (case.cells_of_parts and layout == "stream"):
            alike(found, other.run(work))
        for name in {"labels", "seeds", "cells"} & after.keys():
            np.testing.assert_array_equal(after[name], state_of(other)[name], err_msg=name)
    if layout == "split" and not isinstance(work, Take | Locate):  # (e) results add up in order
        alike(reduce(work.merge, [part.run(work) for part in begun(case, p, layout, request).shards]), found)
    if layout != "dask" or not case.on_tree:  # (a) the oracle
        case.oracle(p, shard, before, after, found)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_is_set_afresh_does_not_show_what_was_there(case: Case, request: pytest.FixtureRequest) -> None:
    p = Problem("float64", True)
    work, one, other = case.work(p), begun(case, p, "whole", request), begun(case, p, "whole", request)
    if not work.effect.afresh:
        pytest.skip("goes on from what was there")
    if "labels" in work.effect.writes:
        other.run(ScatterLabels(C, 99))
    if "d2" in work.effect.writes:
        other.run(AddSeeds(p.rows[100:103]))
    for shard in (one, other):
        shard.run(work)
    for name in work.effect.writes & state_of(one).keys() - {"pairs", "tree"}:
        np.testing.assert_array_equal(state_of(one)[name], state_of(other)[name], err_msg=name)


def test_every_pass_and_every_source_of_candidates_has_a_case() -> None:
    # see test_votes.py, test_sparse.py
    of_csr_rows = ByColumn, CastBallots, AssignSparse, LabelSparse, SeedSparse, ExpectSparse, SparseRowsOf
    of_one_column = (SolveLine,)  # see test_line.py
    kinds = {
        kind
        for module in (passes, center_passes, mixture_passes, answers, sparse_passes, tree_passes)
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, Pass) and kind not in (Pass, Change, Opening, *of_csr_rows, *of_one_column)
    }
    works = [case.work(Problem("float64", False)) for case in CASES]
    assert {type(work) for work in works} == kinds
    for kind, among in ((Assign, HardAmong), (Expect, SoftAmong)):
        assert {work.variant for work in works if isinstance(work, kind)} == set(get_args(among))
