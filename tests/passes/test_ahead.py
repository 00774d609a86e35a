"""The process that compiles ahead: started once and only where it can help, gone with the fit and with its parent."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from globular import GaussianMixture, KMeans
from globular.backends.cpu import CpuShard, ahead
from globular.kernels import assign, cache, expect
from globular.kernels.compile import inline

WAITS = "import sys; sys.stdin.buffer.read()"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """The processes that are started, which do nothing but wait."""
    processes: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def popen(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        processes.append(start(*arguments, **options))
        return processes[-1]

    monkeypatch.delenv(ahead.SWITCH, raising=False)
    monkeypatch.setattr(ahead, "usable_cores", lambda: 2)
    monkeypatch.setattr(ahead, "PROGRAM", WAITS)
    monkeypatch.setattr(ahead.subprocess, "Popen", popen)
    return processes


def compile_something() -> None:
    """What no process has compiled yet."""
    assert inline(lambda x: x + 1)(1) == 2


def rows(n_columns: int = 3) -> CpuShard:
    return CpuShard(np.random.default_rng(0).random((50, n_columns)).astype(np.float32))


def test_it_starts_with_the_first_kernel_and_ends_with_the_fit(started: list[subprocess.Popen[bytes]]) -> None:
    with ahead.compiling_ahead(rows(), ("assign", "probe")):
        assert not started  # nothing had to be compiled
        compile_something()
        compile_something()
        (process,) = started
        assert process.poll() is None
        assert process.args[-4:] == ["float32", "3", "assign", "probe"]  # type: ignore[index]
    assert process.returncode is not None


def test_ctrl_c_ends_it(started: list[subprocess.Popen[bytes]]) -> None:
    def interrupted() -> None:
        with ahead.compiling_ahead(rows(), ("assign",)):
            compile_something()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert started[0].returncode is not None


@pytest.mark.parametrize(
    "prevent",
    [
        lambda patch: patch.setenv(ahead.SWITCH, "0"),
        lambda patch: patch.setattr(ahead, "usable_cores", lambda: 1),
        lambda patch: patch.setattr(cache, "folder", lambda: None),
        lambda patch: patch.setattr(ahead, "HAS_LOCKS", False),
        lambda patch: patch.setattr(sys, "executable", ""),
        lambda patch: patch.setattr(sys, "frozen", True, raising=False),
    ],
)
def test_it_does_not_start_where_it_cannot_help(
    started: list[subprocess.Popen[bytes]],
    monkeypatch: pytest.MonkeyPatch,
    prevent: Callable[[pytest.MonkeyPatch], None],
) -> None:
    prevent(monkeypatch)
    with ahead.compiling_ahead(rows(), ("assign",)):
        compile_something()
    assert not started


def test_sparse_rows_and_fits_without_late_stages_do_without(started: list[subprocess.Popen[bytes]]) -> None:
    with ahead.compiling_ahead(CpuShard(sparse.eye_array(9, format="csr")), ("assign",)):
        compile_something()
    with ahead.compiling_ahead(rows(), ()):
        compile_something()
    assert not started


def test_a_fit_works_where_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("no processes here")

    monkeypatch.delenv(ahead.SWITCH, raising=False)
    monkeypatch.setattr(ahead, "usable_cores", lambda: 2)
    monkeypatch.setattr(ahead.subprocess, "Popen", refuse)
    with ahead.compiling_ahead(rows(), ("assign",)):
        compile_something()


def test_it_ends_with_its_parent() -> None:
    program = "import time; from globular.backends.cpu.ahead import rehearse; rehearse('float32', '2'); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, env=dict(os.environ))
    process.communicate(timeout=300)  # closes what the parent has of it
    assert process.returncode == 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_it_compiles_what_fits_need_and_nothing_else(dtype: str) -> None:
    X = np.random.default_rng(0).random((300, 3)).astype(dtype)
    KMeans(4, random_state=0).fit(X)
    GaussianMixture(4, random_state=0, tol=0.1).fit(X)
    kernels: list[Any] = [assign.assign_spans, expect.expect_spans]
    before = [set(kernel.overloads) for kernel in kernels]
    assert all(before)
    for stage in ahead.STAGES.values():
        stage(CpuShard(X), X[: ahead.C].astype(np.float64))
    assert [set(kernel.overloads) for kernel in kernels] == before


def test_estimators_name_stages_that_there_are() -> None:
    assert {*KMeans._late_stages, *GaussianMixture._late_stages} == {*ahead.STAGES}
