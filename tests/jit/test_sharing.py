"""Kernels that threads share, by the library's threads and by Python's: nothing depends on which of them does what."""

from __future__ import annotations  # a kernel's roles are read from the text of its annotations

import ast
import ctypes
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import globular
from ctrl_c import CtrlC
from globular.jit import Queue, Scratch, Zeros, build, kernel, library, new_queue, share_kernel, take_number
from globular.jit.functions import Kernel, compiler


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


TYPES = {"squares": "i8:1C i8 (f8:1C) i8:1C f8:2C", "numbers_below": "i8:1C i8 f8:1C", "fails_at": "i8:1C i8 i8"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Any], Callable[..., Any]]:
    """What gives a kernel of this file as the library would have it."""
    folder, c_compiler = tmp_path_factory.mktemp("library"), build.find_compiler()
    if c_compiler is None or compiler().__name__ != "globular.jit.linked":
        pytest.skip("kernels can be built with a C compiler and a version of numba that was tried alone")
    build.build_driver(c_compiler, folder / "driver.so")
    entries = {}
    for name, types in TYPES.items():
        code, returns = build.object_code(name, globals()[name], types)
        (folder / f"{name}.o").write_bytes(code)
        entries[name] = library.Entry(name, "", name, returns or "-", types)
    build.link(c_compiler, folder / "kernels.so", "-nostdlib", *folder.glob("*.o"))
    driver, code_of_all = library.Driver(folder / "driver.so"), ctypes.CDLL(str(folder / "kernels.so"))
    return lambda each: driver.function(each, code_of_all, [entries[each.__name__]])


@pytest.fixture(params=["library", "numba"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every test is of kernels of the library, and of those that numba compiles."""
    if request.param == "library":
        make = request.getfixturevalue("built")
        for name in TYPES:
            monkeypatch.setitem(globals()[name].__dict__, "_ready", make(globals()[name]))
    return request.param


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


@pytest.mark.parametrize("width", [1 << 16, 1 << 18])
def test_scratch_memory_grows(width: int) -> None:
    check(share_squares(3, n=40, width=width))
    check(share_squares(4, n=40, width=2 * width))
    check(share_squares(2, n=300, width=4))


def test_a_kernel_that_returns_something_is_called_alone() -> None:
    queue, out = new_queue(), np.zeros(1000)
    taken: list[int] = []
    share_kernel(lambda: taken.append(numbers_below(queue, 1000, out)), queue, 4)
    assert sum(taken) == 1000
    assert np.array_equal(out, np.ones(1000))


def test_a_queue_that_nobody_shares_is_worked_off_alone() -> None:
    out = np.zeros(1000)
    assert numbers_below(new_queue(), 1000, out) == 1000
    squares(new_queue(), 1000, (np.empty(2),), np.zeros(1, np.int64), many := np.zeros((3, 1000)))
    check(many)


def test_an_error_is_told_whichever_thread_it_meets_and_the_threads_go_on() -> None:
    for failing in range(30):
        queue = new_queue()
        with pytest.raises((ValueError, RuntimeError), match=r"^no$|failed with status"):
            share_kernel(lambda queue=queue, failing=failing: fails_at(queue, 200, failing), queue, 3)
    check(share_squares(3))


def test_callers_at_the_same_time_do_not_disturb_each_other() -> None:
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
def test_a_forked_child_has_threads_of_its_own() -> None:
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


def test_ctrl_c_at_any_moment_leaves_threads_that_work() -> None:
    for moment in range(10_000):
        interrupter = CtrlC(moment, "globular.jit")
        sys.settrace(interrupter)
        try:
            share_squares(4, n=100)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        check(share_squares(3, n=100))
        if interrupter.moment > 0:
            break
    assert moment > 1


def test_types_that_were_not_built_are_left_to_numba(way: str) -> None:
    ready = squares.__dict__.get("_ready")
    queue, scratch, counter, out = new_queue(), (np.empty(2),), np.zeros(1, np.int64), np.zeros((3, 10))
    if way == "library":
        assert ready(queue, 10, scratch, counter, out) is None
        strided, narrow = np.zeros((3, 20))[:, ::2], out.astype(np.float32)
        unaligned = np.zeros(3 * 10 * 8 + 1, np.uint8)[1:].view(np.float64).reshape(3, 10)
        for other in (strided, narrow, unaligned, out.T, out[0], "out", None, 1 + 2j, [1.0], {}):
            assert ready(new_queue(), 10, scratch, counter, other) is NotImplemented
        assert ready(new_queue(), 10.0, scratch, counter, out) is NotImplemented
        assert ready(new_queue(), 2**70, scratch, counter, out) is NotImplemented
        assert ready(new_queue(), 10) is NotImplemented
    strided = np.zeros((3, 20))[:, ::2]
    squares(new_queue(), 10, scratch, np.zeros(1, np.int64), strided)
    check(strided)


def test_numbers_of_numpy_are_numbers(way: str) -> None:
    for n in (np.int64(7), 7):
        out = np.zeros(7)
        assert numbers_below(new_queue(), n, out) == 7 and out.sum() == 7.0


def test_a_constructor_reads_roles() -> None:
    assert isinstance(squares, Kernel) and squares.is_shared and not numbers_below.is_shared
    assert squares.roles == ["Queue", "int", "Scratch", "Zeros", "Any"]


PACKAGE = Path(globular.__file__).parent


def parameters_of_shared_kernels() -> list[tuple[str, str, str, str]]:
    """(kernel, parameter, annotation, comment) of all kernels that have a queue."""
    found = []
    for path in sorted([*PACKAGE.glob("model/**/*.py"), *PACKAGE.glob("passes/**/*.py")]):
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
        elif comment.startswith("scratch") or parameter == "scratch":
            assert annotation == ("Zeros" if "zeros" in comment else "Scratch"), (name, parameter)
        else:
            assert comment.startswith(("IN", "OUT")), (name, parameter)
            assert annotation not in ("Queue", "Scratch", "Zeros"), (name, parameter)
