"""Threads that wait inside compiled code to join a kernel: a pass meets the interpreter once, whatever their number.

A Python thread that shall take part in a pass needs the interpreter's lock to begin and to end, after all others that
wait for it: some 50 µs each, which for 16 threads is more than most passes take. The threads of a team wait where no
lock is held (`sharing.py`), and are all awake after three or four steps from one to two of them.
"""

from __future__ import annotations

import _thread
import ctypes
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.kernels import sharing
from globular.kernels.compile import kernel
from globular.kernels.queue import FAILED, NEEDED, TEAM
from globular.kernels.quick import IS_KNOWN
from globular.kernels.target import CACHE_LINE
from globular.threads import how_many, on_all_threads, single_threaded_blas

SCRATCH = 1 << 20
"""Bytes of scratch memory that a thread of a team has at first; more where a kernel asks for it."""

Words = NDArray[np.int64]


@kernel
def serve(
    seat: Words,  # IN  see `sharing`
) -> None:
    """Wait to be called, and join, for ever."""
    sharing.serve_seat(seat)


@cache
def _locks() -> tuple[int, int, Callable[[], int]]:
    """Addresses of what acquires and releases a lock, for code that does not hold the interpreter's; and a new one."""
    number, address = ctypes.c_int, ctypes.c_void_p

    def of_python(name: str, *kinds: Any) -> Any:
        return ctypes.PYFUNCTYPE(*kinds)((f"PyThread_{name}_lock", ctypes.pythonapi))

    new, release = of_python("allocate", address), of_python("release", None, address)
    acquire = of_python("acquire", number, address, number)

    def new_lock() -> int:
        lock = int(new())
        acquire(lock, 1)
        return lock

    return *(int(ctypes.cast(each, ctypes.c_void_p).value or 0) for each in (acquire, release)), new_lock


class _Team:
    """Some threads of ours, and what they read: nobody else may use them meanwhile.

    Ctrl-C may come between any two lines, but not while a kernel is shared: the threads then wait again. What is not
    finished when it comes is done again at the next call.
    """

    def __init__(self) -> None:
        self._seats: list[Words] = []
        self._scratch: list[NDArray[np.uint8]] = []
        self._room = SCRATCH
        self._is_arranged = False
        self._words: Words = np.zeros(sharing.SEATS, dtype=np.int64)

    def call(self, queue: Words, work: Callable[[], object], n_threads: int) -> None:
        """Call a function that calls one kernel with this queue; so many threads share it, the calling one included."""
        if not self._is_arranged or len(self._seats) < n_threads - 1:
            self._arrange(n_threads - 1)
        self._let_join(queue, work, n_threads - 1)
        if queue[NEEDED]:
            self._room = int(queue[NEEDED])
            self._arrange(n_threads - 1)
            self._let_join(queue, work, n_threads - 1)
        if queue[FAILED]:
            raise RuntimeError("a kernel failed on another thread than the calling one: n_threads=1 will tell how")

    def _let_join(self, queue: Words, work: Callable[[], object], n_others: int) -> None:
        self._words[sharing.N_OTHERS] = n_others
        queue[TEAM] = self._words.ctypes.data
        work()

    def _arrange(self, n_seats: int) -> None:
        """At least so many threads, each with its scratch memory; pages of it that are never written take none."""
        self._is_arranged = False
        acquire, release, new_lock = _locks()
        serve(np.zeros(sharing.SEAT_SIZE, dtype=np.int64))  # compiled here: without a lock it returns
        while len(self._seats) < n_seats:
            seat: Words = np.zeros(sharing.SEAT_SIZE, dtype=np.int64)
            seat[sharing.ACQUIRE], seat[sharing.NUMBER] = acquire, len(self._seats)
            seat[sharing.DONE], seat[sharing.CALLED] = new_lock(), new_lock()
            _thread.start_new_thread(serve, (seat,))
            self._seats.append(seat)
        words: Words = np.zeros(sharing.SEATS + len(self._seats), dtype=np.int64)
        words[sharing.RELEASE], words[sharing.ROOM] = release, self._room
        self._scratch = [np.empty(self._room + CACHE_LINE, dtype=np.uint8) for _ in self._seats]
        for number, (seat, scratch) in enumerate(zip(self._seats, self._scratch, strict=True)):
            begin = scratch.ctypes.data
            seat[sharing.SCRATCH] = begin + -begin % CACHE_LINE
            seat[sharing.TEAM] = words.ctypes.data
            words[sharing.SEATS + number] = seat.ctypes.data
        self._words, self._is_arranged = words, True


_idle: list[_Team] = []

if not IS_KNOWN:  # then kernels are shared by threads that wait for the interpreter
    how_many.WAKING = how_many.WAITING

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)  # a forked child has the memory of its parent, but not the threads


def share_kernel(work: Callable[[], object], queue: Words, n_threads: int, *, calls_blas: bool = True) -> None:
    """Call a function that does nothing but call one kernel with this queue, so that so many threads share it.

    Its parameters must be annotated: see `queue`. To hold BLAS to one thread takes longer than a small pass, which
    therefore says that it does not call it.
    """
    if n_threads == 1 or not IS_KNOWN:
        on_all_threads(work, n_threads, calls_blas=calls_blas)
        return
    share = partial(_call_team, queue, work, n_threads)
    single_threaded_blas.run(share) if calls_blas else share()


def _call_team(queue: Words, work: Callable[[], object], n_threads: int) -> None:
    held: list[_Team] = []
    try:
        with suppress(IndexError):  # fits at the same time have a team each
            held.extend(map(_idle.pop, (-1,)))  # one instruction: at Ctrl-C the team is in one of the lists
        if not held:
            held.append(_Team())
        held[0].call(queue, work, n_threads)
    finally:
        _idle.extend(held)
