"""Cores are counted by affinity, quota and the share that a parent left; memory by the limits of its container."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import joblib
import pytest

from globular import machine
from globular.threads import default_threads


def _fake(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


V2, V1 = "0::/a/b\n", "4:memory:/a\n3:cpu,cpuacct:/docker/abc\n0::/\n"
CASES = {
    "no control groups": ({}, math.inf),
    "version 2, own group": ({"proc/self/cgroup": V2, "sys/fs/cgroup/a/b/cpu.max": "250000 100000\n"}, 2.5),
    "version 2, no limit": ({"proc/self/cgroup": V2, "sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, math.inf),
    "version 2, the group above is the narrower": (
        {
            "proc/self/cgroup": V2,
            "sys/fs/cgroup/a/b/cpu.max": "800000 100000\n",
            "sys/fs/cgroup/a/cpu.max": "300000 100000\n",
        },
        3.0,
    ),
    "version 2, in a container": ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}, 0.5),
    "version 1, path of the machine outside": (
        {
            "proc/self/cgroup": V1,
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "400000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
        4.0,
    ),
    "version 1, mounted as cpu": (
        {
            "proc/self/cgroup": V1,
            "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us": "150000\n",
            "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us": "50000\n",
        },
        3.0,
    ),
    "version 1, no limit": (
        {
            "proc/self/cgroup": V1,
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
        math.inf,
    ),
    "files that say something else": ({"proc/self/cgroup": V2, "sys/fs/cgroup/a/cpu.max": "many\n"}, math.inf),
}


@pytest.mark.parametrize(("files", "expected"), CASES.values(), ids=CASES)
def test_quota_of_control_groups(files, expected, tmp_path):
    assert machine.cgroup_quota(_fake(tmp_path, files)) == expected


MEMORY = {
    "no control groups": ({}, set()),
    "version 2, own group and the one above": (
        {"proc/self/cgroup": V2, "sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/memory.max": "3000000\n"},
        {3_000_000},
    ),
    "version 2, in a container": ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "500\n"}, {500}),
    "version 1, path of the machine outside": (
        {
            "proc/self/cgroup": V1,
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "700\n",
            "sys/fs/cgroup/cpu/memory.limit_in_bytes": "1\n",
        },
        {700},
    ),
}


@pytest.mark.parametrize(("files", "expected"), MEMORY.values(), ids=MEMORY)
def test_memory_stays_within_the_limits_of_control_groups(files, expected, tmp_path, monkeypatch):
    root = _fake(tmp_path, files)
    whole = machine.physical_memory.__wrapped__()
    assert set(machine.memory_limits(root)) - {whole} == expected
    monkeypatch.setattr(machine, "ROOT", root)
    assert machine.physical_memory.__wrapped__() == min({whole, *expected})


@pytest.mark.skipif(machine.resource is None, reason="this system has no limits of processes")
def test_memory_stays_within_the_address_space():
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**31, -1));"
        "from globular.machine import physical_memory; print(physical_memory())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 2**31


@pytest.fixture
def eight_cores(monkeypatch):
    """A machine of eight cores on which nothing is asked for."""
    for name in ("OMP_NUM_THREADS", "GLOBULAR_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(machine, "allowed_cores", lambda: 8)


@pytest.mark.parametrize(("quota", "expected"), [("max", 8), ("50000", 1), ("250000", 3), ("9900000", 8)])
def test_threads_stay_within_the_quota(quota, expected, eight_cores, tmp_path, monkeypatch):
    files = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": f"{quota} 100000\n"}
    monkeypatch.setattr(machine, "ROOT", _fake(tmp_path, files))
    machine.granted_cores.cache_clear()
    try:
        assert default_threads() == expected
    finally:
        machine.granted_cores.cache_clear()


@pytest.mark.parametrize(
    ("given", "expected"), [("3", 3), (" 2 ,1", 2), ("16", 16), ("", 8), ("0", 8), ("-2", 8), ("many", 8)]
)
def test_the_share_that_a_parent_left(given, expected, eight_cores, monkeypatch):
    monkeypatch.setattr(machine, "granted_cores", lambda: math.inf)
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    assert default_threads() == expected
    monkeypatch.setenv("GLOBULAR_NUM_THREADS", "5")
    assert default_threads() == 5


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity")
def test_affinity_counts():
    code = (
        "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]);"
        "from globular.threads import default_threads; print(default_threads())"
    )
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


def test_workers_of_joblib_have_their_share(monkeypatch):
    for name in ("OMP_NUM_THREADS", "GLOBULAR_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    n_jobs = max(2, joblib.cpu_count())
    with joblib.parallel_config("loky", n_jobs=n_jobs):
        assert set(joblib.Parallel()(joblib.delayed(default_threads)() for _ in range(4))) == {1}
    joblib.externals.loky.get_reusable_executor().shutdown()
