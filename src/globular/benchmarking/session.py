"""A process that stays: one adapter, one data set loaded once, as many timed fits as are asked for.

Runs of several adapters can take turns this way without loading and importing for each of them. The process is started
with its thread variables set; it reads a request per line and answers with a line, centres go through a file. An answer
that takes too long, or none, ends the process, and the next request starts another.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from globular.benchmarking.adapters import Adapter, find_adapter
from globular.benchmarking.fits import Task
from globular.benchmarking.measure import process_environment
from globular.benchmarking.sets import Rows


@dataclass(frozen=True)
class Request:
    """One fit."""

    n_clusters: int
    seed: int
    n_iter: int
    centers_out: str


@dataclass(frozen=True)
class Answer:
    """Seconds and centres of a fit; or, without centres, what went wrong."""

    seconds: float
    centers: Any = None
    message: str = ""


class Session:
    """The asking side; a context manager that ends its process. `folder` has the rows as `Rows.write` leaves them."""

    def __init__(self, adapter: Adapter, folder: Path, threads: int) -> None:
        self.adapter = adapter
        self._command = [sys.executable, "-m", "globular.benchmarking.session", adapter.name, str(folder), str(threads)]
        self._environment = process_environment(threads, tune_openblas=adapter.module == "faiss")
        self._process: subprocess.Popen[bytes] | None = None
        self._scratch = tempfile.TemporaryDirectory(prefix="globular-bench-")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._scratch.cleanup()

    def fit(self, n_clusters: int, seed: int, n_iter: int, timeout: float) -> Answer:
        """Ask for one fit; whatever goes wrong is a message."""
        centers, errors = Path(self._scratch.name, "centers.npy"), Path(self._scratch.name, "errors.txt")
        request = Request(n_clusters, seed, n_iter, str(centers))
        if self._process is None:
            with errors.open("wb") as stream:
                self._process = subprocess.Popen(
                    self._command, env=self._environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stream
                )
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has died: there will be no answer
            self._process.stdin.write(json.dumps(asdict(request)).encode() + b"\n")
            self._process.stdin.flush()
        ready = select.select([self._process.stdout], [], [], timeout)[0]
        line = self._process.stdout.readline() if ready else b""
        if not line:
            self._end()
            lines = errors.read_text(errors="replace").split("\n")
            last = next((text.strip() for text in reversed(lines) if text.strip()), "the process ended")
            return Answer(np.nan, message=last[:300] if ready else f"not done within {timeout:.0f} s")
        reply = json.loads(line)
        if reply["message"]:
            return Answer(np.nan, message=reply["message"])
        return Answer(reply["seconds"], np.load(centers))

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
        request = Request(**json.loads(line))
        task = Task(rows.X, request.n_clusters, request.n_iter, threads, request.seed, weights=rows.weights)
        try:
            if request.n_clusters not in warm:
                adapter.fit(task.small(adapter.warm_up_rows))
                warm.add(request.n_clusters)
            began = time.perf_counter()
            centers = adapter.fit(task)
            seconds, message = time.perf_counter() - began, ""
            np.save(request.centers_out, centers)
        except Exception as error:
            seconds, message = 0.0, f"{type(error).__name__}: {error}"[:300]
        print(json.dumps({"seconds": seconds, "message": message}), file=answers, flush=True)


if __name__ == "__main__":
    serve(find_adapter(sys.argv[1]), Rows.read(Path(sys.argv[2])), int(sys.argv[3]))
