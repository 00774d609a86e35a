"""Our own threads: order, errors, interrupts, BLAS held to one thread, forks."""

import math
import multiprocessing
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from ctrl_c import CtrlC
from globular import threads
from globular.lazy import cached_property
from globular.passes.cpu import CpuShard
from globular.seam.passes import Assign

from globular.threads import (  # isort: skip
    default_threads, even_ranges, map_all, ordered_map, read_ahead, resolve_threads, run_all, single_threaded_blas,
    to_the_end, worth_waking,
)  # fmt: skip


def blas_threads() -> set[int]:
    """Of the BLAS that passes call; other libraries (faiss) may bring their own."""
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    own = [pool for pool in pools if "numpy" in pool["filepath"]]
    return {pool["num_threads"] for pool in own or pools}


@pytest.mark.parametrize("interpreted", [False, True])
def test_as_many_threads_wake_as_are_soonest_done(interpreted: bool) -> None:
    each = threads.pool.WAITING if interpreted else threads.pool.WAKING

    def seconds(n: int, work: float) -> float:
        return work / n + n * each

    for work in (0.0, 1e-6, 1e-4, 1e-3, 5e-3, 1.0, math.inf):
        n = worth_waking(16, work, interpreted=interpreted)
        assert seconds(n, work) <= 1.03 * min(seconds(other, work) for other in range(1, 17))
    assert worth_waking(2, 1.0) == 2


@pytest.mark.parametrize(("seconds", "n_awake"), [(0.0, 1), (math.inf, 4)])
def test_work_of_no_time_is_done_by_the_calling_thread(seconds: float, n_awake: int) -> None:
    together = threading.Barrier(n_awake, timeout=60)
    seen = set()

    def work(item: int) -> None:
        if item < n_awake:
            together.wait()  # so many are at it at once
        seen.add(threading.get_ident())

    run_all(work, range(20), 4, seconds=seconds)
    assert len(seen) == n_awake
    assert map_all(lambda item: item + 1, range(5), 4) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("n_threads", [1, 2, 7])
def test_results_come_in_the_order_of_the_items(n_threads: int) -> None:
    def slow_at_first(item: int) -> int:
        time.sleep(0.002 * (item % 3 == 0))
        return item * item

    assert list(ordered_map(slow_at_first, range(30), n_threads)) == [i * i for i in range(30)]
    assert list(ordered_map(slow_at_first, [], n_threads)) == []


def test_items_are_taken_as_they_are_needed() -> None:
    taken = []

    def items() -> object:
        for item in range(100):
            taken.append(item)
            yield item

    results = ordered_map(lambda item: item, items(), 2)
    assert next(results) == 0
    results.close()
    assert len(taken) <= 6


@pytest.mark.parametrize("n_threads", [1, 3])
def test_an_error_in_a_block_reaches_the_caller_and_the_threads_go_on(n_threads: int) -> None:
    def fail_at_seven(item: int) -> None:
        if item == 7:
            raise ZeroDivisionError("block 7")

    with pytest.raises(ZeroDivisionError, match="block 7"):
        run_all(fail_at_seven, range(40), n_threads)
    assert list(ordered_map(abs, range(5), n_threads)) == list(range(5))


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
@pytest.mark.parametrize("presses", [1, 3])
def test_no_block_is_still_written_after_ctrl_c(presses: int) -> None:
    main = threading.get_ident()
    running = set()

    def work(item: int) -> None:
        running.add(item)
        try:
            if threading.get_ident() == main:
                time.sleep(10)
            for _ in range(presses):
                signal.pthread_kill(main, signal.SIGINT)
                time.sleep(0.05)
        finally:
            running.discard(item)

    with pytest.raises(KeyboardInterrupt):
        run_all(work, range(20), 2)
    assert not running


def test_blas_has_one_thread_inside_and_its_old_number_after() -> None:
    before = blas_threads()
    seen = list(ordered_map(lambda _: blas_threads(), range(4), 2))
    assert all(threads == {1} for threads in seen)
    assert blas_threads() == before
    nested = single_threaded_blas(lambda: (single_threaded_blas(blas_threads)(), blas_threads()))
    assert nested() == ({1}, {1})
    assert blas_threads() == before


@pytest.mark.parametrize("n_threads", [1, 2])
def test_blas_has_its_old_number_of_threads_after_ctrl_c_at_any_moment(n_threads: int) -> None:
    before = blas_threads()
    running = set()

    def work(item: int) -> None:
        running.add(item)
        time.sleep(1e-4)
        running.discard(item)

    kept = []  # as an interactive session keeps the last exception, and with it the frames of our functions
    sys._getframe().f_trace_opcodes = True  # Python 3.12 has to know before anything is traced
    for moment in range(10_000):
        interrupter = CtrlC(moment)
        sys.settrace(interrupter)
        try:
            run_all(work, [1, 2, 3], n_threads)
            for _ in ordered_map(work, [4, 5, 6], n_threads):
                pass
        except KeyboardInterrupt as interrupt:
            kept.append(interrupt)
        finally:
            sys.settrace(None)
        assert not running, moment
        assert blas_threads() == before, moment
        if interrupter.moment > 0:
            break
    assert len(kept) > 50


def test_blas_is_held_and_given_back_by_any_thread() -> None:
    before = blas_threads()
    inside, leave = threading.Event(), threading.Event()
    seen: list[set[int]] = []

    @single_threaded_blas
    def stay() -> None:
        inside.set()
        leave.wait(30)

    def come_second() -> None:
        inside.wait(30)
        seen.append(single_threaded_blas(blas_threads)())
        leave.set()

    first, second = threading.Thread(target=stay), threading.Thread(target=come_second)
    seen.append(single_threaded_blas(blas_threads)())  # the main thread was the first that set it
    for thread in (first, second):
        thread.start()
    for thread in (second, first):
        thread.join()
    assert seen == [{1}, {1}]
    assert blas_threads() == before


def test_what_must_not_stop_half_way_is_over_or_not_begun_after_ctrl_c() -> None:
    for moment in range(10_000):
        begun: list[int] = []
        ended: list[int] = []

        def work(begun: list[int] = begun, ended: list[int] = ended) -> None:
            begun.append(1)
            time.sleep(1e-3)
            ended.append(1)

        interrupter = CtrlC(moment)
        sys.settrace(interrupter)
        try:
            to_the_end(work)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        assert begun == ended, moment
        if interrupter.moment > 0:
            break
    assert moment > 3


def test_the_next_item_is_fetched_meanwhile_and_an_error_comes_in_its_place() -> None:
    fetched: list[int] = []

    def items() -> Iterator[int]:
        for item in range(3):
            fetched.append(item)
            yield item
        raise ZeroDivisionError

    ahead = read_ahead(items())
    assert next(ahead) == 0
    while len(fetched) < 2:
        time.sleep(1e-3)
    assert [next(ahead), next(ahead)] == [1, 2]
    with pytest.raises(ZeroDivisionError):
        next(ahead)
    assert list(read_ahead([])) == []
    ahead = read_ahead(range(5))
    next(ahead)
    ahead.close()  # type: ignore[attr-defined]


def test_two_callers_at_once() -> None:
    before = blas_threads()
    rows = np.random.default_rng(0).normal(size=(20000, 8))
    expected = CpuShard(rows)
    expected.run(Assign(rows[:50]))
    shards = [CpuShard(rows, n_threads=2) for _ in range(3)]
    callers = [threading.Thread(target=shard.run, args=(Assign(rows[:50]),)) for shard in shards]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert all(np.array_equal(shard.labels, expected.labels) for shard in shards)
    assert blas_threads() == before


def _sum_of_labels(n_threads: int) -> int:
    rows = np.random.default_rng(0).normal(size=(500, 3))
    shard = CpuShard(rows, n_threads=n_threads)
    shard.run(Assign(rows[:9]))
    return int(shard.labels.sum())


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_forked_while_another_thread_is_at_work_makes_its_own_locks() -> None:
    expected, before = _sum_of_labels(2), blas_threads()
    at_work, forked = threading.Event(), threading.Event()

    def hold_everything() -> None:
        with threads.pool._pools_lock, threads.single_threaded_blas._lock:
            Slow(at_work, forked).value

    @single_threaded_blas
    def fork_meanwhile() -> Any:
        other = threading.Thread(target=hold_everything)
        other.start()
        at_work.wait(30)
        ours, theirs = multiprocessing.Pipe()
        multiprocessing.get_context("fork").Process(target=_answer, args=(theirs,), daemon=True).start()
        forked.set()
        other.join()
        return ours

    ours = fork_meanwhile()
    assert ours.poll(30), "the child waits for a thread that it does not have"
    assert ours.recv() == (before, expected, before)


class Slow:
    """Has a property that computes for a while."""

    def __init__(self, begun: threading.Event, end: threading.Event) -> None:
        self.begun, self.end = begun, end

    @cached_property
    def value(self) -> int:
        """Waits until it is told to end."""
        self.begun.set()
        return int(self.end.wait(30))


def _answer(pipe: Any) -> None:
    ended = threading.Event()
    ended.set()
    assert Slow(ended, ended).value
    pipe.send((blas_threads(), _sum_of_labels(2), blas_threads()))


def test_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOBULAR_NUM_THREADS", raising=False)
    assert resolve_threads(None) == resolve_threads(-1) == default_threads() >= 1
    assert resolve_threads(3) == resolve_threads(np.int64(3)) == 3
    monkeypatch.setenv("GLOBULAR_NUM_THREADS", " 5 ")
    assert resolve_threads(None) == 5 and resolve_threads(2) == 2
    for bad in ("0", "-1", "two", "1.5", "²"):
        monkeypatch.setenv("GLOBULAR_NUM_THREADS", bad)
        with pytest.raises(ValueError, match="GLOBULAR_NUM_THREADS"):
            resolve_threads(None)


@pytest.mark.parametrize("bad", [0, -2, 1.5, "2", True])
def test_a_bad_number_of_threads_is_named(bad: object) -> None:
    with pytest.raises(ValueError, match="n_threads"):
        resolve_threads(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(("n", "size"), [(0, 3), (1, 3), (3, 3), (10, 3), (5, 100)])
def test_even_ranges_cover_everything_once(n: int, size: int) -> None:
    ranges = even_ranges(n, size)
    assert [row for start, stop in ranges for row in range(start, stop)] == list(range(n))
    assert all(stop - start == size for start, stop in ranges[:-1])
