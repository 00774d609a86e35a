"""A second process that compiles what a fit needs late, while the fit itself compiles what it needs first.

The first fit on a machine waits for its kernels, which one process compiles one after the other. So when a fit meets a
kernel that is not on disk, a process of its own runs passes of the fit's later stages on a few rows. What it has
compiled the fit reads from disk; what it is compiling the fit waits for (`KernelCache.alone`). The process ends with
the fit, however that ends, and with its parent. Where none can be started the fit compiles all by itself, as it does
with one core, where nothing can be written to disk, and with GLOBULAR_COMPILE_AHEAD=0.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
from numba.core.event import Listener, install_listener

from globular.backends.cpu.rows import DenseRows
from globular.backends.cpu.shard import CpuShard
from globular.cores import usable_cores
from globular.kernels import cache
from globular.model.cells import CenterCells
from globular.model.gaussian import GaussianParameters
from globular.model.statistics import F64
from globular.seam.among import Probe
from globular.seam.mixture_passes import Expect
from globular.seam.passes import Assign

HAS_LOCKS = find_spec("fcntl") is not None
"""Whether processes can wait for what another one compiles; not so under Windows."""
SWITCH = "GLOBULAR_COMPILE_AHEAD"
PROGRAM = "import sys; from globular.backends.cpu.ahead import rehearse; rehearse(*sys.argv[1:])"
N, C, MOST_COLUMNS = 64, 4, 64
"""Rows and centres of a rehearsal; it has the columns of the fit, if they are not more than these."""


def assign(shard: CpuShard, centers: F64) -> None:
    """Exact iterations: a first one, and one that knows of it."""
    for _ in range(2):
        shard.run(Assign(centers))


def probe(shard: CpuShard, centers: F64) -> None:
    """Probing iterations."""
    cells = CenterCells(centers[:2], np.arange(C, dtype=np.intp), np.array([0, 2, C], dtype=np.intp))
    shard.run(Assign(centers, Probe(cells, 1)))


def expect(shard: CpuShard, centers: F64) -> None:
    """E-steps of a mixture."""
    covariances = np.tile(np.eye(shard.n_columns), (C, 1, 1))
    shard.run(Expect(GaussianParameters(np.full(C, 1 / C), centers, covariances, "full")))


STAGES: dict[str, Callable[[CpuShard, F64], None]] = {"assign": assign, "probe": probe, "expect": expect}
"""Stages of fits that can be rehearsed."""


def rehearse(dtype: str, n_columns: str, *stages: str) -> None:
    """Compile the kernels of some stages for rows of one type; this is what the other process does."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    rows = np.random.default_rng(0).random((N, int(n_columns))).astype(dtype)
    for stage in stages:
        STAGES[stage](CpuShard(rows), rows[:C].astype(np.float64))


def _end_with_parent() -> None:
    sys.stdin.buffer.read()  # until the parent closes it, or is gone
    os._exit(1)


class _Starter(Listener):
    """Starts the other process when the first kernel is to be compiled."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = list(arguments)
        self._process: subprocess.Popen[bytes] | None = None

    def on_start(self, event: Any) -> None:
        arguments, self._arguments = self._arguments, []
        if arguments and _pays():
            command = [sys.executable, "-P", "-c", PROGRAM, *arguments]
            with contextlib.suppress(OSError):
                self._process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                    env={**os.environ, SWITCH: "0"},
                )  # fmt: skip

    def on_end(self, event: Any) -> None:
        pass

    def stop(self) -> None:
        """End the other process, if there is one."""
        self._arguments = []
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


@contextlib.contextmanager
def compiling_ahead(shard: Any, stages: Sequence[str]) -> Iterator[None]:
    """While this holds, the first kernel that has to be compiled has those of these stages compiled beside it."""
    if not (isinstance(shard, CpuShard) and isinstance(shard.rows, DenseRows) and stages):
        yield
        return
    starter = _Starter(shard.rows.dtype.name, str(min(shard.n_columns, MOST_COLUMNS)), *stages)
    try:
        with install_listener("numba:compile", starter):
            yield
    finally:
        starter.stop()


def _pays() -> bool:
    """Whether a second process can help: it needs a core, a way to hand over kernels, and a Python to run."""
    is_python = bool(sys.executable) and not getattr(sys, "frozen", False)
    shared = HAS_LOCKS and cache.folder() is not None
    return os.environ.get(SWITCH) != "0" and is_python and usable_cores() > 1 and shared
