"""Threads that wait for calls, how many of them to use, and the ways to share work out among them in blocks that do not
depend on their number; Ctrl-C and forks at any moment included.
"""

from __future__ import annotations

import _thread
import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, TypeVar, cast

import numpy as np

from globular.machine import usable_cores
from globular.threads.blas import single_threaded_blas

WAKING = 1e-5
"""Seconds that another thread costs a pass. (Fits on 16 cores took as long with a third of it, and longer with four
times as much.)"""
WAITING = 5e-5
"""The same of a thread that runs in the interpreter, whose lock it has to wait for."""
SECONDS_PER_NUMBER = 1e-9
"""Seconds to read a number that lies behind the last one, and to do little with it; larger = more threads for small
passes."""
SECONDS_PER_LOOK = 5e-9
"""The same of a number, a member or a place that lies anywhere in memory."""
SECONDS_PER_PAIR = 2e-8
"""The same of the density of a row under a component, and of a row that moves from one cluster to another."""


def default_threads() -> int:
    """GLOBULAR_NUM_THREADS if set, else the cores this process may use (see `machine`)."""
    asked = os.environ.get("GLOBULAR_NUM_THREADS", "").strip()
    if asked:
        if not asked.isdecimal() or int(asked) < 1:
            raise ValueError(f"GLOBULAR_NUM_THREADS={asked!r} must be a whole number of at least 1")
        return int(asked)
    return usable_cores()


def resolve_threads(n_threads: int | None) -> int:
    """Number of threads to use for a user's `n_threads` (None: all cores; −1 too, as in joblib)."""
    if n_threads is None or n_threads == -1:
        return default_threads()
    if isinstance(n_threads, bool) or not isinstance(n_threads, int | np.integer) or n_threads < 1:
        raise ValueError(f"n_threads={n_threads!r} must be None, -1 or a whole number of at least 1")
    return int(n_threads)


def worth_waking(n_threads: int, seconds: float, *, interpreted: bool = False) -> int:
    """Threads for work that one thread does in `seconds`: with n of them it takes seconds / n + n · `WAKING`.

    Or n · `WAITING`, where it is `interpreted`.
    """
    return round(max(1.0, min(n_threads, math.sqrt(seconds / (WAITING if interpreted else WAKING)))))


def even_ranges(n: int, size: int) -> list[tuple[int, int]]:
    """(start, stop) of blocks of `size` rows; the last one may be shorter."""
    return [(start, min(start + size, n)) for start in range(0, n, size)]


Item = TypeVar("Item")
Result = TypeVar("Result")

_pools: dict[bool, SimpleQueue[_Task[Any]]] = {}
_n_serving: dict[bool, int] = {}
_pools_lock = threading.Lock()


class _Task(Generic[Result]):
    """A call that another thread makes.

    Ctrl-C in the main thread may come at the end of any call of a function, and in those of a `Condition`, which
    futures consist of, it leaves a lock behind that the other thread waits for. Here there are only locks and lists,
    whose methods are one instruction each.
    """

    def __init__(self, function: Callable[[], Result]) -> None:
        self._function = function
        self._claims: list[bool] = []
        self._result: Result | None = None
        self._error: BaseException | None = None
        self._running = threading.Lock()
        self._running.acquire()

    def run(self) -> None:
        """Make the call, unless it is cancelled."""
        self._claims.append(True)
        if self._claims[0]:
            try:
                self._result = self._function()
            except BaseException as error:
                self._error = error
        self._running.release()

    def cancel(self) -> bool:
        """Keep it from beginning; False if it has begun."""
        self._claims.append(False)
        return not self._claims[0]

    def wait(self) -> None:
        """Until it has ended."""
        with self._running:
            pass

    def result(self) -> Result:
        """Result of the call, or its error."""
        self.wait()
        if self._error is not None:
            raise self._error
        return cast(Result, self._result)


def _pool(n_threads: int) -> SimpleQueue[_Task[Any]]:
    """The queue that at least `n_threads` threads wait at; 0 is one thread for whole tasks that use the others.

    One queue for all numbers: passes of many sizes would otherwise keep threads for every size.
    """
    whole = n_threads == 0
    with _pools_lock:
        pool = _pools.setdefault(whole, SimpleQueue())
        while _n_serving.get(whole, 0) < max(1, n_threads):
            _thread.start_new_thread(_serve, (pool,))
            _n_serving[whole] = _n_serving.get(whole, 0) + 1
        return pool


def _serve(pool: SimpleQueue[_Task[Any]]) -> None:
    while True:
        pool.get().run()


def _abandon(tasks: Iterable[_Task[Any]]) -> None:
    """An error or Ctrl-C: let none begin, and wait for those that have, lest they write behind our back; also twice."""
    for task in tasks:
        waiting = True
        while waiting:
            try:
                if not task.cancel():
                    task.wait()
                waiting = False
            except KeyboardInterrupt:  # one is on its way already
                pass


def _begin_anew() -> None:
    """A forked child has the pools and locks of its parent, but not the threads in them, nor those that hold them."""
    global _pools_lock
    _pools_lock = threading.Lock()
    _pools.clear()
    _n_serving.clear()
    single_threaded_blas.restore()
    single_threaded_blas.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


def ordered_map(function: Callable[[Item], Result], items: Iterable[Item], n_threads: int) -> Iterator[Result]:
    """`map` on our threads: results in the order of the items, at most n_threads + 2 of them waiting.

    For large results that are added up; small ones, and those that are kept, come faster by `map_all`. A single
    item is not worth waking a thread: that may take longer than the work of a small block.
    """
    work = single_threaded_blas(function)
    if n_threads == 1 or (isinstance(items, Sized) and len(items) <= 1):
        yield from map(work, items)
        return
    pool = _pool(n_threads)
    waiting: deque[_Task[Result]] = deque()
    try:
        for item in items:
            waiting.append(_Task(partial(work, item)))  # before it is handed over: Ctrl-C may come in between
            pool.put(waiting[-1])
            if len(waiting) >= n_threads + 2:
                yield _first_result(waiting)
        while waiting:
            yield _first_result(waiting)
    finally:
        _abandon(waiting)


def _first_result(waiting: deque[_Task[Result]]) -> Result:
    """Wait for the first and take it off; until then it stays where an interrupt will find it."""
    result = waiting[0].result()
    waiting.popleft()
    return result


def run_all(
    function: Callable[[Item], object],
    items: Iterable[Item],
    n_threads: int,
    *,
    seconds: float = math.inf,
    calls_blas: bool = True,
) -> None:
    """Call a function that only writes in place for all items, which are listed before the first call.

    Where one thread would take `seconds` for them, fewer threads may be worth waking. The calling thread takes
    its share: until another one is awake it may have done much of a small pass itself. To hold BLAS to one thread takes
    longer than a small pass, which therefore says that it does not call it.
    """
    left = deque(items)

    def share() -> None:
        while left:
            try:
                item = left.popleft()
            except IndexError:  # another thread was the faster one
                return
            try:
                function(item)
            except BaseException:
                left.clear()
                raise

    n_threads = worth_waking(min(n_threads, len(left)), seconds, interpreted=True)
    share_out = partial(_share_out, share, n_threads, left.clear)
    single_threaded_blas.run(share_out) if calls_blas else share_out()


def on_all_threads(work: Callable[[], object], n_threads: int, *, calls_blas: bool = True) -> None:
    """Run `work` on `n_threads` threads at once, the calling one included: what is left to do is in its queue.

    For kernels that share a queue and return when it is empty: a thread that has not begun when the calling
    one is done is not waited for, and does not call it.
    """
    share_out = partial(_share_out, work, n_threads)
    single_threaded_blas.run(share_out) if calls_blas else share_out()


def _share_out(work: Callable[[], object], n_threads: int, give_up: Callable[[], object] = tuple) -> None:
    """`give_up`: what leaves nothing to do for those that have begun, after an error or Ctrl-C."""
    helpers = [_Task(work) for _ in range(n_threads - 1)]
    try:
        if helpers:
            pool = _pool(n_threads)
            for helper in helpers:
                pool.put(helper)
        work()
        for helper in helpers:
            if not helper.cancel():
                helper.result()
    finally:
        give_up()
        _abandon(helpers)


def map_all(function: Callable[[Item], Result], items: Iterable[Item], n_threads: int) -> list[Result]:
    """`run_all` for functions with results, which are all kept and come in the order of the items."""
    numbered = list(enumerate(items))
    results: dict[int, Result] = {}

    def keep(item: tuple[int, Item]) -> None:
        results[item[0]] = function(item[1])

    run_all(keep, numbered, n_threads)
    return [results[number] for number, _ in numbered]


def to_the_end(function: Callable[[], Result]) -> Result:
    """Call a function that must not stop half-way: Ctrl-C is heard before it begins or when it has returned."""
    task = _Task(function)
    try:
        _pool(0).put(task)  # signals reach the main thread only
        return task.result()
    finally:
        _abandon([task])


def read_ahead(items: Iterable[Item]) -> Iterator[Item]:
    """The same items; while one is worked on, another thread fetches the next."""
    source, end = iter(items), object()

    def fetch() -> _Task[Any]:
        return _Task(partial(next, source, end))

    task = fetch()
    try:
        _thread.start_new_thread(task.run, ())
        while (item := task.result()) is not end:
            task = fetch()
            _thread.start_new_thread(task.run, ())
            yield item
    finally:
        _abandon([task])
