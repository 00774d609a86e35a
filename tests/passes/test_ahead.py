"""The processes that compile ahead: started once and only where they can help, gone with the fit and their parent."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from globular.backends.cpu import CpuShard, ahead
from globular.kernels import cache, linking, plan, sums
from globular.kernels.compile import inline
from globular.model.clock import Clock

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


@pytest.mark.parametrize(("n_columns", "like"), [(ahead.THIN, "1"), (ahead.THIN + 1, "9")])
def test_it_starts_with_the_first_kernel_and_ends_with_the_fit(
    started: list[subprocess.Popen[bytes]], n_columns: int, like: str
) -> None:
    """Thin rows have kernels of their own, so the plan is that of thin rows."""
    with ahead.compiling_ahead(rows(n_columns), "KMeans", 8):
        assert not started  # nothing had to be compiled
        compile_something()
        compile_something()
        (process,) = started
        assert process.poll() is None
        assert process.args[-7:] == ["KMeans", "", "8", like, "4", "0", "1"]  # type: ignore[index]
    assert process.returncode is not None


def test_ctrl_c_ends_it(started: list[subprocess.Popen[bytes]]) -> None:
    def interrupted() -> None:
        with ahead.compiling_ahead(rows(), "KMeans", 8):
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
    with ahead.compiling_ahead(rows(), "KMeans", 8):
        compile_something()
    assert not started


def test_many_cores_have_some_processes(
    started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "usable_cores", lambda: 64)
    with ahead.compiling_ahead(rows(), "GaussianMixture", 8, "full"):
        compile_something()
    assert [process.args[-2:] for process in started] == [  # type: ignore[index]
        [str(number), str(ahead.MOST_PROCESSES)] for number in range(ahead.MOST_PROCESSES)
    ]
    assert all(process.returncode is not None for process in started)


def test_sparse_rows_do_without(started: list[subprocess.Popen[bytes]]) -> None:
    with ahead.compiling_ahead(CpuShard(sparse.eye_array(9, format="csr")), "KMeans", 8):
        compile_something()
    assert not started


def test_a_fit_works_where_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("no processes here")

    monkeypatch.delenv(ahead.SWITCH, raising=False)
    monkeypatch.setattr(ahead, "usable_cores", lambda: 2)
    monkeypatch.setattr(ahead.subprocess, "Popen", refuse)
    with ahead.compiling_ahead(rows(), "KMeans", 8):
        compile_something()


def test_it_ends_with_its_parent() -> None:
    program = (
        "import time; from globular.kernels.plan import compile_the_largest;"
        "compile_the_largest('none', '', '8', '2', '8'); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, env=dict(os.environ))
    process.communicate(timeout=300)  # closes what the parent has of it
    assert process.returncode == 1


def test_what_is_on_disk_or_under_way_is_left_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "folder", lambda: tmp_path)
    monkeypatch.setattr(cache, "_sources", lambda: [tmp_path])
    kinds = plan.read("i8:1C")
    compiled: list[Any] = []
    monkeypatch.setattr(linking.Kernel, "compile", lambda self, sig: compiled.append(sig))
    name = sums.sum_spans._cache._file(kinds)
    (tmp_path / name).touch()
    sums.sum_spans.compile_if_free(kinds)
    (tmp_path / name).unlink()
    lock = tmp_path / f"{name}.lock"
    with lock.open("w") as other:
        if cache.fcntl is not None:
            cache.fcntl.flock(other, cache.fcntl.LOCK_EX)
            sums.sum_spans.compile_if_free(kinds)
    assert not compiled
    assert lock.exists()  # left by a process that was killed
    sums.sum_spans.compile_if_free(kinds)
    assert compiled == [kinds]
    if cache.fcntl is not None:
        with lock.open("w") as other:
            cache.fcntl.flock(other, cache.fcntl.LOCK_EX | cache.fcntl.LOCK_NB)  # looking has left no lock behind


@pytest.mark.skipif(not ahead.HAS_LOCKS, reason="there are no locks on files")
def test_nobody_waits_for_ever_for_a_process_that_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import fcntl

    monkeypatch.setattr(cache, "folder", lambda: tmp_path)
    monkeypatch.setattr(cache, "_sources", lambda: [tmp_path])
    monkeypatch.setattr(cache, "LONGEST_WAIT", 0.05)
    kernels, kinds = sums.sum_spans._cache, plan.read("i8:1C")
    with (lock := tmp_path / f"{kernels._file(kinds)}.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        clock = Clock()
        with kernels.alone(kinds):
            assert clock.compile_seconds == pytest.approx(clock.wall_seconds, abs=0.03)  # waiting is not fitting
            assert clock.compile_seconds >= 0.05
        assert lock.exists()  # it is the other's
    assert f"{lock}: held by another process" in caplog.text


@pytest.mark.skipif(not ahead.HAS_LOCKS, reason="there are no locks on files")
def test_whoever_waits_for_a_kernel_does_other_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    monkeypatch.setattr(cache, "folder", lambda: tmp_path)
    monkeypatch.setattr(cache, "_sources", lambda: [tmp_path])
    kernels, kinds = sums.sum_spans._cache, plan.read("i8:1C")
    with (tmp_path / f"{kernels._file(kinds)}.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        done: list[bool] = []

        def work() -> bool:
            done.append(True)
            if len(done) == 2:
                fcntl.flock(other, fcntl.LOCK_UN)
            return True

        with cache.meanwhile(work), kernels.alone(kinds):
            pass
        assert len(done) == 2
        with kernels.alone(kinds):
            pass
        assert len(done) == 2


def test_a_fit_that_waits_compiles_what_it_needs_last(
    started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = plan.plan_for("KMeans", "", 8, 1, 4)
    free, taken = set(planned[:-1]), []

    def compile_planned(line: str) -> bool:
        if line in free:
            free.remove(line)
            taken.append(line)
            return True
        return False

    monkeypatch.setattr(ahead, "compile_planned", compile_planned)
    with ahead.compiling_ahead(rows(), "KMeans", 8):
        (work,) = cache._WORK
        assert not work()  # nobody else compiles
        compile_something()
        assert [work() for _ in planned] == [True] * (len(planned) - 1) + [False]
    assert taken == planned[:-1][::-1]
    assert not cache._WORK
