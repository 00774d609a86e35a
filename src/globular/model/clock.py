"""The time of a fit, and apart from it that which kernels took to compile: the first fit of a kind waits for them."""

from __future__ import annotations

import time
from typing import Any

from numba.core import event

_events: Any = event  # has no types
_compilations = _events.TimingListener()
_events.register("numba:compile", _compilations)


def _compiled() -> float:
    """Seconds that this process has spent compiling, in whichever thread."""
    return float(_compilations.duration) if _compilations.done else 0.0


class Clock:
    """Runs from when it is made. What other processes compile, such as Dask's workers, is time of the fit to it."""

    __slots__ = ("_compiled_before", "_start")

    def __init__(self) -> None:
        self._start, self._compiled_before = time.perf_counter(), _compiled()

    @property
    def wall_seconds(self) -> float:
        """All of the time."""
        return time.perf_counter() - self._start

    @property
    def compile_seconds(self) -> float:
        """The part of it that went into compiling."""
        return _compiled() - self._compiled_before
