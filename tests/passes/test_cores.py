"""Cores are counted by affinity, quota and the share that a parent left; memory by the limits of its container."""

import math
import os
import subprocess
import sys
from pathlib import Path

import joblib
import pytest

from globular import machine
from globular.threads import default_threads


def _fake(root: Path, groups: str, limits: dict[str, str]) -> Path:
    files = {f"sys/fs/cgroup/{name}": f"{text}\n" for name, text in limits.items()}
    for name, text in ({"proc/self/cgroup": groups, **files} if groups else {}).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


V2, V1, CONTAINER = "0::/a/b\n", "4:memory:/a\n3:cpu,cpuacct:/docker/abc\n0::/\n", "0::/\n"
CASES = {
    "no control groups": ("", {}, math.inf),
    "version 2, own group": (V2, {"a/b/cpu.max": "250000 100000"}, 2.5),
    "version 2, no limit": (V2, {"a/b/cpu.max": "max 100000"}, math.inf),
    "version 2, the group above is narrower": (V2, {"a/b/cpu.max": "800000 100000", "a/cpu.max": "300000 100000"}, 3),
    "version 2, in a container": (CONTAINER, {"cpu.max": "50000 100000"}, 0.5),
    "version 1, path of the machine outside": (
        V1, {"cpu,cpuacct/cpu.cfs_quota_us": "400000", "cpu,cpuacct/cpu.cfs_period_us": "100000"}, 4.0
    ),
    "version 1, mounted as cpu": (
        V1, {"cpu/docker/abc/cpu.cfs_quota_us": "150000", "cpu/docker/abc/cpu.cfs_period_us": "50000"}, 3.0
    ),
    "version 1, no limit": (V1, {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, math.inf),
    "files that say something else": (V2, {"a/cpu.max": "many"}, math.inf),
}  # fmt: skip


@pytest.mark.parametrize(("groups", "limits", "expected"), CASES.values(), ids=CASES)
def test_quota_of_control_groups(groups, limits, expected, tmp_path):
    assert machine.cgroup_quota(_fake(tmp_path, groups, limits)) == expected


MEMORY = {
    "no control groups": ("", {}, set()),
    "version 2, own group and the one above": (V2, {"a/b/memory.max": "max", "a/memory.max": "3000000"}, {3_000_000}),
    "version 2, in a container": (CONTAINER, {"memory.max": "500"}, {500}),
    "version 1, path of the machine outside": (
        V1, {"memory/memory.limit_in_bytes": "700", "cpu/memory.limit_in_bytes": "1"}, {700}
    ),
}  # fmt: skip


@pytest.mark.parametrize(("groups", "limits", "expected"), MEMORY.values(), ids=MEMORY)
def test_memory_stays_within_the_limits_of_control_groups(groups, limits, expected, tmp_path, monkeypatch):
    root = _fake(tmp_path, groups, limits)
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
    monkeypatch.setattr(machine, "ROOT", _fake(tmp_path, CONTAINER, {"cpu.max": f"{quota} 100000"}))
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
