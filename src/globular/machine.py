"""How many cores and how much memory this process may use: what the machine has, what its container grants, what its
parent left it.

A container or a batch system limits processors in two ways: by affinity (these cores and no others) and by a quota of
the control group (microseconds of processor time in each period, on whichever cores). `os.cpu_count` sees
neither, and a process with more threads than its quota is stopped for the rest of every period. Those who start
several workers on one machine leave each its share in OMP_NUM_THREADS: joblib writes cores ÷ workers there, Dask's
nanny 1 for each thread of a worker, batch systems the cores of a task.

What would take more memory at once than the process may use is refused by its number, before anything of that size is
asked for: files say how large they are before they are read, in a header, a footer, or by their own length.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath

from globular.errors import MemoryBudgetError

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

ROOT = Path("/")
"""Where the files of control groups are."""


def usable_cores() -> int:
    """OMP_NUM_THREADS if it is set, as with every OpenMP library; else the cores by affinity and quota."""
    return share_of_parent() or int(min(allowed_cores(), granted_cores()))


def share_of_parent() -> int | None:
    """The first number of OMP_NUM_THREADS (further ones are for nested regions); None if it is not such a list."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) >= 1 else None


def allowed_cores() -> int:
    """Cores that the scheduler lets this process run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def granted_cores() -> float:
    """Cores of the quota, a part of one counting as one; infinite without a quota. The files are read once."""
    quota = cgroup_quota(ROOT)
    return quota if math.isinf(quota) else max(1, math.ceil(quota))


def cgroup_quota(root: Path) -> float:
    """Processor seconds per second that the control groups of this process grant, or infinity."""
    return min(map(_quota, cgroup_folders(root, "cpu")), default=math.inf)


def cgroup_folders(root: Path, controller: str) -> Iterator[Path]:
    """The folders of this process's control groups for `controller` (version 1 or 2) and of those above them.

    The lowest limit of all of them counts. Inside a container the group's path may be that of the machine outside,
    which is not there: what is there, at the latest the mount itself, is to be read.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        controllers, _, group = line.partition(":")[2].partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        mounts = (controllers, controller) if controllers else ("", "unified")
        for mount in dict.fromkeys(mounts):
            place = PurePosixPath(group.lstrip("/"))
            yield from (root / "sys/fs/cgroup" / mount / folder for folder in (place, *place.parents))


def _quota(folder: Path) -> float:
    """Quota ÷ period of one group; a group without a limit says "max" (version 2) or −1 (version 1)."""
    try:
        if (folder / "cpu.max").is_file():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(quota) / int(period) if int(quota) > 0 else math.inf
    except (OSError, ValueError, ZeroDivisionError):  # no such files, or "max"
        return math.inf


@cache
def physical_memory() -> int:
    """Bytes of memory that this process may use: the machine's, or less where a container or `ulimit -v` says so.

    8 GiB where the system does not tell.
    """
    if not hasattr(os, "sysconf"):
        return 8 * 2**30
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *memory_limits(ROOT)])


def memory_limits(root: Path) -> Iterator[int]:
    """Bytes that this process's address space and its control groups are limited to."""
    if resource is not None and (limit := resource.getrlimit(resource.RLIMIT_AS)[0]) != resource.RLIM_INFINITY:
        yield limit
    for folder in cgroup_folders(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):  # of version 2 and 1
            with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
                yield int((folder / name).read_text())


def check_fits(n_bytes: int, what: str, remedy: str) -> None:
    """Refuse what is larger than the memory that there is; of a file, `what` begins with its name."""
    memory = physical_memory()
    if n_bytes > memory:
        raise MemoryBudgetError(
            f"{what} would take {n_bytes / 2**30:,.1f} GiB, this process may use {memory / 2**30:,.1f}; {remedy}"
        )
