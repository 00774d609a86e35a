"""This machine: its name, the environment of a measured process, the peak memory of this one."""

from __future__ import annotations

import math
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[1]
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


@dataclass(frozen=True)
class Machine:
    """Where and when a benchmark ran."""

    date: str
    machine: str
    python: str
    globular_version: str
    commit: str


def describe_machine() -> Machine:
    """Date, processor, versions, and the commit that is checked out; empty where there is none."""
    import globular  # a measured process may not have it, or not this one

    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    machine = f"{_processor()}, {os.cpu_count()} CPUs, {platform.system()}"
    try:
        git = ["git", "rev-parse", "HEAD"]
        commit = subprocess.run(git, cwd=BENCHMARKS, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        commit = ""
    return Machine(now, machine, platform.python_version(), globular.__version__, commit)


def _processor() -> str:
    return _after_colon("/proc/cpuinfo", "model name") or platform.processor() or platform.machine() or sys.platform


def _after_colon(file: str, name: str) -> str:
    """The value of the first line `name: value`; empty where there is none."""
    try:
        lines = Path(file).read_text().splitlines()
    except OSError:
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name)), "")


def process_environment(threads: int, *, tune_openblas: bool) -> dict[str, str]:
    """This environment with every thread variable set, this package found, and OpenBLAS told the CPU's abilities."""
    environment = dict(os.environ) | dict.fromkeys(THREAD_VARIABLES, str(threads))
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(BENCHMARKS), os.environ.get("PYTHONPATH")]))
    if tune_openblas and (core := _openblas_core()):
        environment.setdefault("OPENBLAS_CORETYPE", core)
    return environment


def _openblas_core() -> str:
    """The newest OpenBLAS core type whose instructions this processor has (Linux on x86 only)."""
    flags = set(_after_colon("/proc/cpuinfo", "flags").split())
    if {"avx512f", "avx512bw", "avx512vl", "avx512dq"} <= flags:
        return "SKYLAKEX"
    return "HASWELL" if {"avx2", "fma"} <= flags else ""


def peak_memory_mib() -> float:
    """Largest resident size of this process so far; NaN on Windows.

    VmHWM, because `ru_maxrss` inherits the size of the parent across fork and exec.
    """
    if high := _after_colon("/proc/self/status", "VmHWM"):
        return int(high.split()[0]) / 1024
    try:
        import resource
    except ImportError:  # pragma: no cover - Windows
        return math.nan
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20) if sys.platform == "darwin" else peak / 1024
