"""Threads that wait inside compiled code: they share kernels, and nothing depends on which of them does what."""

from __future__ import annotations

import ast
import os
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from globular.kernels.quick import IS_KNOWN

import globular
from ctrl_c import CtrlC
from globular.jit import SCRATCH, Queue, Scratch, Zeros, kernel, new_queue, share_kernel, take_number
from globular.kernels import team

pytestmark = pytest.mark.skipif(not IS_KNOWN, reason="with this version of numba kernels are shared by Python threads")


@kernel
def squares(queue: Queue, n: int, scratch: Scratch, counter: Zeros, out: Any) -> None:
    """Each number once, its square by way of scratch memory; how many this thread has done before."""
    i = take_number(queue)
    while i < n:
        for k in range(scratch[0].shape[0]):
            scratch[0][k] = i
        total = 0.0
        for k in range(scratch[0].shape[0]):
            total += scratch[0][k]
        out[0, i] += 1.0
        out[1, i] = total * i / scratch[0].shape[0]
        out[2, i] = counter[0]
        counter[0] += 1
        i = take_number(queue)


@kernel
def numbers_below(queue: Queue, n: int, out: Any) -> int:
    """The same of a kernel that returns something, and so cannot be shared."""
    taken = 0
    i = take_number(queue)
    while i < n:
        out[i] += 1
        taken += 1
        i = take_number(queue)
    return taken


@kernel
def fails_at(queue: Queue, n: int, failing: int) -> None:
    """Fails at one of the numbers; the others take a while, so that all threads have some."""
    i = take_number(queue)
    while i < n:
        total = 0.0
        for k in range(20_000):
            total += np.sqrt(i + k)
        if i == failing or total < 0.0:
            raise ValueError("no")
        i = take_number(queue)


def share_squares(n_threads: int, n: int = 3000, width: int = 8) -> np.ndarray:
    out, queue = np.zeros((3, n)), new_queue()
    counter = np.zeros(3, dtype=np.int64)
    share_kernel(lambda: squares(queue, n, (np.full(width, np.nan),), counter, out), queue, n_threads)
    return out


def check(out: np.ndarray) -> None:
    n = out.shape[1]
    assert np.array_equal(out[0], np.ones(n))
    assert np.array_equal(out[1], np.arange(n, dtype=float) ** 2)


@pytest.mark.parametrize("n_threads", [1, 2, 3, 4, 8, 17, 5])
def test_every_number_is_taken_once_and_scratch_is_of_one_thread(n_threads: int) -> None:
    for _ in range(20):
        out = share_squares(n_threads)
        check(out)
        # every thread counts from zero, in memory that the last kernel may have used
        starts = int((out[2] == 0).sum())
        assert 1 <= starts <= n_threads


def test_the_others_take_part() -> None:
    assert any((share_squares(4, n=10_000, width=4096)[2] == 0).sum() > 1 for _ in range(20))


@pytest.mark.parametrize("width", [SCRATCH // 16, SCRATCH // 8, SCRATCH // 2])
def test_scratch_memory_grows_before_a_kernel_begins(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(team, "_idle", [])
    check(share_squares(3, n=40, width=width))
    check(share_squares(4, n=40, width=width))
    check(share_squares(2, n=300, width=4))


def test_a_kernel_that_returns_something_is_called_alone() -> None:
    queue, out = new_queue(), np.zeros(1000)
    taken: list[int] = []
    share_kernel(lambda: taken.append(numbers_below(queue, 1000, out)), queue, 4)
    assert sum(taken) == 1000
    assert np.array_equal(out, np.ones(1000))


def test_a_queue_without_a_team_is_worked_off_alone() -> None:
    out = np.zeros(1000)
    assert numbers_below(np.zeros(1, dtype=np.int64), 1000, out) == 1000
    squares(np.zeros(1, dtype=np.int64), 1000, (np.empty(2),), np.zeros(1, np.int64), many := np.zeros((3, 1000)))
    check(many)


def test_an_error_is_told_whichever_thread_it_meets_and_the_team_goes_on() -> None:
    for failing in range(30):
        queue = new_queue()
        with pytest.raises((ValueError, RuntimeError), match=r"^no$|n_threads=1 will tell"):
            share_kernel(lambda queue=queue, failing=failing: fails_at(queue, 200, failing), queue, 3)
    check(share_squares(3))


def test_python_threads_have_a_team_each() -> None:
    wrong: list[BaseException] = []

    def many() -> None:
        try:
            for _ in range(100):
                check(share_squares(3, n=500))
        except BaseException as error:
            wrong.append(error)

    callers = [threading.Thread(target=many) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_a_team_of_its_own() -> None:
    check(share_squares(3))
    child = os.fork()
    if child == 0:
        try:
            check(share_squares(3))
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    check(share_squares(3))


@pytest.mark.parametrize("n_before", [0, 2, 4])
def test_ctrl_c_at_any_moment_leaves_a_team_that_works(n_before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for moment in range(10_000):
        monkeypatch.setattr(team, "_idle", [])
        if n_before:
            share_squares(n_before)
        idle = list(team._idle)
        interrupter = CtrlC(moment, "globular.kernels.team")
        sys.settrace(interrupter)
        try:
            share_squares(4, n=100)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        assert not n_before or team._idle == idle  # a team that is lost keeps its threads and its memory for ever
        check(share_squares(3, n=100))
        check(share_squares(5, n=100))
        if interrupter.moment > 0:
            break
    assert moment > (3 if n_before == 4 else 10)


KERNELS = Path(globular.__file__).parent / "kernels"


def parameters_of_shared_kernels() -> list[tuple[str, str, str, str]]:
    """(kernel, parameter, annotation, comment) of all kernels that have a queue."""
    found = []
    for path in sorted(KERNELS.glob("*.py")):
        lines = path.read_text(encoding="utf-8").splitlines()
        for function in ast.parse("\n".join(lines)).body:
            if not isinstance(function, ast.FunctionDef) or not function.decorator_list:
                continue
            arguments = function.args.args
            if arguments and arguments[0].arg == "queue":
                for each in arguments:
                    comment = lines[each.lineno - 1].partition("#")[2].strip()
                    found.append((function.name, each.arg, ast.unparse(each.annotation or ast.Constant(0)), comment))
    return found


def test_annotations_say_which_memory_is_of_one_thread() -> None:
    parameters = parameters_of_shared_kernels()
    assert len({name for name, *_ in parameters}) > 40
    for name, parameter, annotation, comment in parameters:
        if parameter == "queue":
            assert annotation == "Queue", name
        elif comment.startswith("scratch"):
            assert annotation == ("Zeros" if "zeros" in comment else "Scratch"), (name, parameter)
        else:
            assert comment.startswith(("IN", "OUT")), (name, parameter)
            assert annotation not in ("Queue", "Scratch", "Zeros"), (name, parameter)
