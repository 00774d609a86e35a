"""A process that stays: one adapter, one data set loaded once, as many timed fits as are asked for.

Runs of several adapters can take turns this way without loading and importing for each of them. The process is started
with its thread variables set and imports no more than it needs, so that its peak memory is that of the library. It
reads a request per line and answers with a line, centres go through a file. An answer that takes too long, or none,
ends the process, and the next request starts another.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from .adapters import ADAPTERS, Adapter
from .fits import Rows, Task
from .machine import peak_memory_mib, process_environment


@dataclass(frozen=True)
class Answer:
    """Seconds, memory and centres of a fit; or, without centres, what went wrong."""

    seconds: float = math.nan
    peak_mib: float = math.nan
    centers: Any = None
    message: str = ""


class Session:
    """The asking side; a context manager that ends its process. `folder` has the rows as `Rows.write` leaves them."""

    def __init__(self, adapter: Adapter, folder: Path, threads: int) -> None:
        self._command = [sys.executable, "-m", "harness.session", adapter.name, str(folder), str(threads)]
        self._environment = process_environment(threads, tune_openblas=adapter.module == "faiss")
        self._process: subprocess.Popen[bytes] | None = None
        self._scratch = tempfile.TemporaryDirectory(prefix="globular-bench-")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._scratch.cleanup()

    def fit(self, n_clusters: int, seed: int, n_iter: int, timeout: float, start: Path | None = None) -> Answer:
        """Ask for one fit, from centres in a file if `start` names one; whatever goes wrong is a message."""
        centers, errors = Path(self._scratch.name, "centers.npy"), Path(self._scratch.name, "errors.txt")
        if self._process is None:
            with errors.open("wb") as stream:
                self._process = subprocess.Popen(
                    self._command, env=self._environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stream
                )
        process, began = self._process, time.monotonic()
        assert process.stdin is not None and process.stdout is not None
        request = [n_clusters, seed, n_iter, str(centers), None if start is None else str(start)]
        patience = threading.Timer(timeout, process.kill)
        patience.start()
        with contextlib.suppress(BrokenPipeError):  # it has died: there will be no answer
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
        line = process.stdout.readline()
        patience.cancel()
        if not line:
            self._end()
            if time.monotonic() - began >= timeout:
                return Answer(message=f"not done within {timeout:.0f} s")
            lines = errors.read_text(errors="replace").split("\n")
            last = next((text.strip() for text in reversed(lines) if text.strip()), "the process ended")
            return Answer(message=last[:300])
        reply = json.loads(line)
        return Answer(**reply) if "message" in reply else Answer(**reply, centers=np.load(centers))

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def serve(adapter: Adapter, rows: Rows, threads: int) -> None:
    """The answering side: a small untimed fit before the first one with each number of clusters, then the timed one."""
    # What libraries print must not get among the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    warm = set[int]()
    for line in sys.stdin:
        n_clusters, seed, n_iter, centers_out, start = json.loads(line)
        task = Task(rows.X, n_clusters, n_iter, threads, seed, start and np.load(start), rows.weights)
        try:
            if n_clusters not in warm:
                adapter.fit(task.small(adapter.warm_up_rows))
                warm.add(n_clusters)
            began = time.perf_counter()
            centers = adapter.fit(task)
            answer = {"seconds": time.perf_counter() - began, "peak_mib": peak_memory_mib()}
            np.save(centers_out, centers)
        except Exception as error:
            answer = {"message": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    serve(ADAPTERS[sys.argv[1]], Rows.read(Path(sys.argv[2])), int(sys.argv[3]))
