"""The measured process: load the rows, import the library, one small untimed fit, then the timed one.

Started by `globular.benchmarking.measure` as `python -m globular.benchmarking.worker JOB.json RESULT.json`
with the thread variables already in its environment.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from globular.benchmarking.adapters import find_adapter
from globular.benchmarking.fits import Task


@dataclass(frozen=True)
class Job:
    """What the process has to do; paths are .npy files."""

    adapter: str
    data: str
    n_clusters: int
    n_iter: int
    threads: int
    seed: int
    centers_out: str
    start: str | None = None


@dataclass(frozen=True)
class Timing:
    """What only the process itself can know."""

    seconds: float
    peak_mib: float | None


def peak_memory_mib() -> float | None:
    """Largest resident size of this process so far.

    VmHWM, because `ru_maxrss` inherits the size of the parent across fork and exec; None where neither exists.
    """
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    try:
        import resource
    except ImportError:  # pragma: no cover - Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20) if sys.platform == "darwin" else peak / 1024


def measure(job: Job) -> Timing:
    """Run the job and leave the centres in its file."""
    adapter = find_adapter(job.adapter)
    start = None if job.start is None else np.load(job.start)
    task = Task(np.load(job.data), job.n_clusters, job.n_iter, job.threads, job.seed, start)
    adapter.fit(task.small(adapter.warm_up_rows))
    began = time.perf_counter()
    centers = adapter.fit(task)
    seconds = time.perf_counter() - began
    peak = peak_memory_mib()
    np.save(job.centers_out, centers)
    return Timing(seconds, peak)


def main(arguments: list[str]) -> None:
    """Read the job, write the timing."""
    job_file, result_file = map(Path, arguments)
    timing = measure(Job(**json.loads(job_file.read_text())))
    result_file.write_text(json.dumps(asdict(timing)))


if __name__ == "__main__":
    main(sys.argv[1:])
