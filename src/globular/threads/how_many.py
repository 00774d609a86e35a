"""How many threads to use, and blocks of work that do not depend on it."""

from __future__ import annotations

import math
import os

import numpy as np

from globular.machine import usable_cores

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
    """Threads for work that one thread does in so many seconds: with n of them it takes seconds / n + n · `WAKING`.

    Or n · `WAITING`, where it is `interpreted`.
    """
    return round(max(1.0, min(n_threads, math.sqrt(seconds / (WAITING if interpreted else WAKING)))))


def even_ranges(n: int, size: int) -> list[tuple[int, int]]:
    """(start, stop) of blocks of `size` rows; the last one may be shorter."""
    return [(start, min(start + size, n)) for start in range(0, n, size)]
