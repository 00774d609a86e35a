"""One measured run: a fresh process for the fit, the exact error computed here, the same way for everybody."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from scipy.spatial import cKDTree
from sklearn.metrics import pairwise_distances_argmin
from sklearn.utils import gen_batches
from threadpoolctl import threadpool_limits

from globular.benchmarking.adapters import Adapter
from globular.benchmarking.worker import Job, Timing

# Every library reads one of these variables, most of them when they are imported and never again.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "GLOBULAR_NUM_THREADS",
    "RAYON_NUM_THREADS",
    "LANCE_CPU_THREADS",
)

_TREE_FEATURES = 8  # up to here a k-d tree finds nearest centres faster than a matrix product
_ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class Run:
    """Outcome of one run; `error` is the mean squared distance of a row to its nearest centre."""

    status: str
    seconds: float = math.nan
    error: float = math.nan
    peak_mib: float = math.nan
    message: str = ""


def quantization_error(
    X: Any, centers: NDArray[Any], *, weights: NDArray[np.floating[Any]] | None = None, threads: int = 1
) -> float:
    """Mean over all rows, or weighted mean, of the squared distance to the nearest centre.

    The nearest centre is found in float64, the distance itself is summed as a difference, so neither an
    offset of the data nor float32 input costs digits. A sparse X has no offset, and stays sparse.
    """
    typed = np.array(centers, dtype=np.float64)
    if typed.ndim != 2 or typed.shape[1] != X.shape[1] or not np.isfinite(typed).all():
        raise ValueError(f"centers must be finite and have {X.shape[1]} columns, got shape {typed.shape}")
    find = _sparse_squares if issparse(X) else _dense_squares
    squares = np.concatenate(list(find(X, typed, threads)))
    return float(squares.mean() if weights is None else np.average(squares, weights=weights.astype(np.float64)))


def _dense_squares(X: NDArray[Any], centers: NDArray[np.float64], threads: int) -> Iterator[NDArray[np.float64]]:
    """Squared distances to the nearest centre, of some rows at a time."""
    shift = X.mean(axis=0, dtype=np.float64)
    centers = centers - shift
    tree = cKDTree(centers) if X.shape[1] <= _TREE_FEATURES else None
    for rows in gen_batches(len(X), _ROWS_AT_ONCE):
        part = X[rows].astype(np.float64) - shift
        if tree is not None:
            labels = tree.query(part, workers=threads)[1]
        else:
            with threadpool_limits(limits=threads):
                labels = pairwise_distances_argmin(part, centers)
        yield np.square(part - centers[labels]).sum(axis=1)


def _sparse_squares(X: Any, centers: NDArray[np.float64], threads: int) -> Iterator[NDArray[np.float64]]:
    """The same for CSR, by ‖x‖² − 2x·m + ‖m‖²."""
    across, norms = np.ascontiguousarray(centers.T), np.square(centers).sum(axis=1)
    for rows in gen_batches(X.shape[0], _ROWS_AT_ONCE):
        part = X[rows].astype(np.float64)
        lowest = (norms - 2.0 * (part @ across)).min(axis=1)
        yield np.maximum(lowest + part.multiply(part).sum(axis=1).A1, 0.0)


def run_once(
    adapter: Adapter,
    data: Path,
    X: NDArray[np.float32],
    n_clusters: int,
    *,
    n_iter: int,
    threads: int,
    seed: int,
    timeout: float,
    start: Path | None = None,
) -> Run:
    """Fit in a fresh process (`data` is X as .npy) and judge the centres; whatever goes wrong is a status."""
    with tempfile.TemporaryDirectory(prefix="globular-bench-") as folder:
        job_file, result, centers_file = (Path(folder, name) for name in ("job.json", "result.json", "centers.npy"))
        started_from = str(start) if start is not None and adapter.accepts_start else None
        job = Job(adapter.name, str(data), n_clusters, n_iter, threads, seed, str(centers_file), started_from)
        job_file.write_text(json.dumps(asdict(job)))
        command = [sys.executable, "-m", "globular.benchmarking.worker", str(job_file), str(result)]
        environment = process_environment(threads, tune_openblas=adapter.module == "faiss")
        try:
            done = subprocess.run(command, env=environment, capture_output=True, timeout=timeout, check=False)
        except subprocess.TimeoutExpired:
            return Run("timeout", message=f"not done within {timeout:.0f} s")
        if done.returncode != 0 or not result.is_file():
            return Run("failed", message=_last_line(done.stderr) or f"exit code {done.returncode}")
        timing, centers = Timing(**json.loads(result.read_text())), np.load(centers_file)
    try:
        error = quantization_error(X, centers, threads=threads)
    except ValueError as wrong:  # centres of a wrong shape or with NaN
        return Run("failed", message=str(wrong))
    message = "" if len(centers) == n_clusters else f"gave {len(centers)} centres"
    return Run("ok", timing.seconds, error, math.nan if timing.peak_mib is None else timing.peak_mib, message)


def process_environment(threads: int, *, tune_openblas: bool) -> dict[str, str]:
    """This environment with every thread variable set, and OpenBLAS told what the processor can do."""
    environment = dict(os.environ) | dict.fromkeys(THREAD_VARIABLES, str(threads))
    core = _openblas_core()
    if tune_openblas and core is not None:
        environment.setdefault("OPENBLAS_CORETYPE", core)
    return environment


def _openblas_core() -> str | None:
    """The newest OpenBLAS core type whose instructions this processor has (Linux on x86 only)."""
    try:
        flags = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return None
    if {"avx512f", "avx512bw", "avx512vl", "avx512dq"} <= flags:
        return "SKYLAKEX"
    return "HASWELL" if {"avx2", "fma"} <= flags else None


def _last_line(stream: bytes) -> str:
    lines = [line.strip() for line in stream.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
