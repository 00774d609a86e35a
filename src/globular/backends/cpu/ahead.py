"""Other processes that compile the largest kernels of a fit, while the fit itself compiles what it needs first.

The first fit on a machine waits for its kernels, which one process compiles one after the other. So when a fit meets a
kernel that is not on disk, processes of their own compile what fits like it have needed (`kernels/plan.py`), the
largest first. What they have compiled the fit reads from disk; while they are compiling what it needs, it compiles
what it will need last (`cache.meanwhile`). So nobody waits while there is work, whatever each kernel costs, and large
kernels, which have functions in common, are mostly compiled by one process. These processes end with the fit, however
that ends, and with their parent. Where none can be started the fit compiles all by itself, as it does with one core,
where nothing can be written to disk, and with GLOBULAR_COMPILE_AHEAD=0.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from numba.core.event import Listener, install_listener

from globular.backends.cpu.products import THIN
from globular.backends.cpu.rows import DenseRows
from globular.backends.cpu.shard import CpuShard
from globular.cores import usable_cores
from globular.kernels import cache
from globular.kernels.plan import compile_planned, plan_for

HAS_LOCKS = find_spec("fcntl") is not None
"""Whether processes can wait for what another one compiles; not so under Windows."""
SWITCH = "GLOBULAR_COMPILE_AHEAD"
PROGRAM = """
import os, sys
from globular.kernels.plan import compile_the_largest
compile_the_largest(*sys.argv[1:])
os._exit(0)
"""
"""It leaves at once: the thread that waits for the end of its parent holds stdin, which Python would close."""
MOST_PROCESSES = 3
"""A kernel is compiled by one process, and the largest takes a seventh of all or more: others would wait for it."""


class _Starter(Listener):
    """Starts the other processes when the first kernel is to be compiled."""

    def __init__(self, *fit: str) -> None:
        self._fit = self._started_for = list(fit)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._works = threading.Lock()

    def on_start(self, event: Any) -> None:
        fit, self._fit = self._fit, []
        n_processes = min(MOST_PROCESSES, usable_cores() - 1) if fit and _pays() else 0
        for number in range(n_processes):
            command = [sys.executable, "-P", "-c", PROGRAM, *fit, str(number), str(n_processes)]
            with contextlib.suppress(OSError):
                self._processes += [subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                )]  # fmt: skip

    def on_end(self, event: Any) -> None:
        pass

    def work(self) -> bool:
        """Compile the last kernel of the fit that nobody is at, if there is one and no other thread does that."""
        if not self._processes or not self._works.acquire(blocking=False):
            return False
        try:
            return any(compile_planned(line) for line in self._planned())
        finally:
            self._works.release()

    def _planned(self) -> list[str]:
        model, covariance, *numbers = self._started_for
        return plan_for(model, covariance, *map(int, numbers))[::-1]

    def stop(self) -> None:
        """End the other processes, if there are any."""
        self._fit = []
        for process in self._processes:
            process.kill()
            process.communicate()


@contextlib.contextmanager
def compiling_ahead(shard: Any, model: str, n_clusters: int, covariance: str = "") -> Iterator[None]:
    """While this holds, the first kernel that has to be compiled has the others of this fit compiled beside it."""
    if not (isinstance(shard, CpuShard) and isinstance(shard.rows, DenseRows)):
        yield
        return
    n_columns = shard.n_columns if shard.n_columns > THIN else 1  # thin rows, whose kernels are others, are alike
    starter = _Starter(model, covariance, str(n_clusters), str(n_columns), str(shard.rows.dtype.itemsize))
    try:
        with install_listener("numba:compile", starter), cache.meanwhile(starter.work):
            yield
    finally:
        starter.stop()


def _pays() -> bool:
    """Whether other processes can help: they need cores, a way to hand over kernels, and a Python to run."""
    is_python = bool(sys.executable) and not getattr(sys, "frozen", False)
    shared = HAS_LOCKS and cache.folder() is not None
    return os.environ.get(SWITCH) != "0" and is_python and usable_cores() > 1 and shared
