"""Our own thread pool: fixed blocks, results in a fixed order, BLAS held to one thread inside.

Kernels release the GIL, so plain Python threads scale. Which thread runs a block never matters: blocks do not depend
on the number of threads and their results are combined in block order, so 1 thread and 2 threads give the same bits.
(numba's `parallel=True` is not used: its work-queue layer fails when two Python threads enter it.)
"""

from __future__ import annotations

import _thread
import ctypes
import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from functools import cache, partial, wraps
from queue import SimpleQueue
from typing import Any, Generic, ParamSpec, Self, TypeVar, cast, overload

import numpy as np
from threadpoolctl import ThreadpoolController

from globular.cores import usable_cores

WAKING = 4e-5
"""Seconds until another thread is at work, one after the other: each has to have the interpreter's lock for a while.
(Passes of whole fits on 16 cores took 23 to 45 µs for each thread; after a pause it is more.)"""

Arguments = ParamSpec("Arguments")
Item = TypeVar("Item")
Result = TypeVar("Result")

_pools: dict[bool, SimpleQueue[_Task[Any]]] = {}
_n_serving: dict[bool, int] = {}
_pools_lock = threading.Lock()


def default_threads() -> int:
    """GLOBULAR_NUM_THREADS if set, else the cores this process may use (see `cores`)."""
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


def worth_waking(n_threads: int, seconds: float) -> int:
    """Threads for work that one thread does in so many seconds: with n of them it takes seconds / n + n · `WAKING`."""
    return max(1, min(n_threads, round(math.sqrt(seconds / WAKING))))


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
        """Of the call, or its error."""
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


class _SingleThreadedBlas:
    """A decorator: BLAS has one thread while anybody is inside; whoever leaves last restores what was there at first.

    Ctrl-C may come between any two instructions of the main thread, those of entering and leaving included. So numbers
    of threads are noted before they change and forgotten after they are restored, leaving twice does no harm, and
    whoever an exception takes out leaves until it is done. (A `with` would not do: its exit may be interrupted at its
    beginning.)
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin as if nobody were inside."""
        self._lock = threading.Lock()
        self._inside: set[object] = set()
        self._before: list[int] | None = None
        self._held = False

    def __call__(self, function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        @wraps(function)
        def held(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            return self.run(partial(function, *args, **kwargs))

        return held

    def run(self, function: Callable[[], Result]) -> Result:
        """Call a function once: to decorate it would take longer than a small pass."""
        stay = object()
        try:
            self._enter(stay)
            result = function()
            self._leave(stay)
        except BaseException:
            inside = True
            while inside:
                try:
                    self._leave(stay)
                    inside = False
                except KeyboardInterrupt:  # one is on its way already
                    pass
            raise
        return result

    def _enter(self, stay: object) -> None:
        with self._lock:
            self._inside.add(stay)
            if self._before is None:
                self._before = [get_threads() for get_threads, _ in _blas()]
            if not self._held:
                for _, set_threads in _blas():
                    set_threads(1)
                self._held = True

    def _leave(self, stay: object) -> None:
        with self._lock:
            self._inside.discard(stay)
            if not self._inside:
                self.restore()

    def restore(self) -> None:
        """Give BLAS the threads that it had before anybody came in."""
        if self._before is not None:
            self._held = False
            for (_, set_threads), n_threads in zip(_blas(), self._before, strict=True):
                set_threads(n_threads)
            self._before = None


@cache
def _blas() -> list[tuple[Callable[[], int], Callable[[int], object]]]:
    """What tells and what sets the number of threads of each loaded BLAS library.

    `ThreadpoolController.limit` looks all libraries over each time, which takes half a short pass. The number of
    threads is one for the whole process. Newer versions of threadpoolctl let only the thread that was the
    first change it; we see to the order ourselves, and whoever leaves last must be able to.
    """
    import numpy.linalg  # noqa: F401
    import scipy.linalg.cython_blas  # noqa: F401  (of NumPy, and of kernels: found once they are loaded)

    return [_direct(each) for each in ThreadpoolController().select(user_api="blas").lib_controllers]


def _direct(library: Any) -> tuple[Callable[[], int], Callable[[int], object]]:
    """The same of one library; of OpenBLAS its own functions, called with the interpreter's lock held.

    Whoever gives the lock away between two passes, as calls by `ctypes` do, waits until all other threads that have
    just ended had it.
    """
    find = getattr(library, "_get_symbol", None)
    if library.internal_api == "openblas" and find is not None:
        there = find("openblas_get_num_threads"), find("openblas_set_num_threads")
        if None not in there:
            tell, change = (ctypes.cast(each, ctypes.c_void_p).value or 0 for each in there)
            return ctypes.PYFUNCTYPE(ctypes.c_int)(tell), ctypes.PYFUNCTYPE(None, ctypes.c_int)(change)
    return library.get_num_threads, getattr(library, "_real_set_num_threads", library.set_num_threads)


single_threaded_blas = _SingleThreadedBlas()


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
    function: Callable[[Item], object], items: Iterable[Item], n_threads: int, *, calls_blas: bool = True
) -> None:
    """Call a function that only writes in place for all items, which are listed before the first call.

    The calling thread takes its share: until another one is awake it may have done much of a small pass itself. To
    hold BLAS to one thread takes longer than a small pass, which therefore says that it does not call it.
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

    share_out = partial(_share_out, share, min(n_threads, len(left)), left.clear)
    single_threaded_blas.run(share_out) if calls_blas else share_out()


def on_all_threads(work: Callable[[], object], n_threads: int, *, calls_blas: bool = True) -> None:
    """Call a function on so many of our threads at once, the calling one included: what is left to do is in its queue.

    For kernels that share a `kernels.queue` and return when it is empty: a thread that has not begun when the calling
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


class cached_property(Generic[Result]):  # noqa: N801
    """`functools.cached_property` without the lock that it has before Python 3.12.

    One thread that computes the property of any object holds that lock, and a child forked meanwhile waits for ever.
    """

    def __init__(self, function: Callable[[Any], Result]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Result: ...
    def __get__(self, instance: object | None, owner: type) -> Self | Result:
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._function(instance)
        return value


def even_ranges(n: int, size: int) -> list[tuple[int, int]]:
    """(start, stop) of blocks of `size` rows; the last one may be shorter."""
    return [(start, min(start + size, n)) for start in range(0, n, size)]
