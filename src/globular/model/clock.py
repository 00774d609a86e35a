"""Wall time of a fit, with the compilation of kernels counted apart: the first fit of a kind waits for them."""

from __future__ import annotations

import time
from typing import Any

from numba.core import event

from globular.kernels.cache import WAIT
from globular.kernels.linking import Kernel

_events: Any = event  # has no types


class _Compilations(_events.TimingListener):
    """Times the compilation of our kernels, not of other people's, and the waiting for processes that compile them."""

    def notify(self, event: Any) -> None:
        if event.kind == WAIT or isinstance(event.data["dispatcher"], Kernel):
            super().notify(event)


_compilations = _Compilations()
for kind in ("numba:compile", WAIT):
    _events.register(kind, _compilations)


def _compiled() -> float:
    """Seconds that this process has spent on compiling kernels, in whichever thread."""
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
