"""Wall time of a fit, with the compilation of kernels counted apart: the first fit of a kind waits for them."""

from __future__ import annotations

import time

from globular.jit import compile_seconds


class Clock:
    """Runs from when it is made. What other processes compile, such as Dask's workers, is time of the fit to it."""

    __slots__ = ("_compiled_before", "_start")

    def __init__(self) -> None:
        self._start, self._compiled_before = time.perf_counter(), compile_seconds()

    @property
    def wall_seconds(self) -> float:
        """All of the time."""
        return time.perf_counter() - self._start

    @property
    def compile_seconds(self) -> float:
        """The part of it that went into compiling."""
        return compile_seconds() - self._compiled_before
