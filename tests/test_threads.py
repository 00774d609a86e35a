"""Our own threads: order, errors, interrupts, BLAS held to one thread, forks."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import threading
import time

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from globular.backends.cpu import CpuShard
from globular.threads import (
    default_threads,
    even_ranges,
    ordered_map,
    resolve_threads,
    run_all,
    single_threaded_blas,
)


def blas_threads() -> set[int]:
    """Of the BLAS that passes call; other libraries (faiss) may bring their own."""
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    own = [pool for pool in pools if "numpy" in pool["filepath"]]
    return {pool["num_threads"] for pool in own or pools}


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
def test_no_block_is_still_written_after_ctrl_c() -> None:
    running = set()
    lock = threading.Lock()

    def work(item: int) -> None:
        with lock:
            running.add(item)
        try:
            time.sleep(0.3)
        finally:
            with lock:
                running.discard(item)

    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(0.1, lambda: signal.pthread_kill(main, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        run_all(work, range(20), 2)
    assert not running
    timer.join()


def test_blas_has_one_thread_inside_and_its_old_number_after() -> None:
    before = blas_threads()
    seen = list(ordered_map(lambda _: blas_threads(), range(4), 2))
    assert all(threads == {1} for threads in seen)
    assert blas_threads() == before
    with single_threaded_blas():
        with single_threaded_blas():
            assert blas_threads() == {1}
        assert blas_threads() == {1}
    assert blas_threads() == before


def test_two_callers_at_once() -> None:
    before = blas_threads()
    rows = np.random.default_rng(0).normal(size=(20000, 8))
    expected = CpuShard(rows)
    expected.hard_pass(rows[:50])
    shards = [CpuShard(rows, n_threads=2) for _ in range(3)]
    callers = [threading.Thread(target=shard.hard_pass, args=(rows[:50],)) for shard in shards]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert all(np.array_equal(shard.labels, expected.labels) for shard in shards)
    assert blas_threads() == before


def _sum_of_labels(n_threads: int) -> int:
    rows = np.random.default_rng(0).normal(size=(500, 3))
    shard = CpuShard(rows, n_threads=n_threads)
    shard.hard_pass(rows[:9])
    return int(shard.labels.sum())


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_makes_its_own_threads() -> None:
    expected = _sum_of_labels(2)  # the pool of two threads exists now
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply_async(_sum_of_labels, (2,)).get(timeout=30) == expected


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
