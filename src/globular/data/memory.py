"""How much memory there is, and the refusal of what cannot fit into it.

Files say how large they are before they are read: in a header, a footer, or by their own length. What would take more
memory at once than the process may use is refused by its number, before anything of that size is asked for.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from globular import cores
from globular.errors import MemoryBudgetError

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


@cache
def physical_memory() -> int:
    """Bytes of memory that this process may use: the machine's, or less where a container or `ulimit -v` says so.

    8 GiB where the system does not tell.
    """
    if not hasattr(os, "sysconf"):
        return 8 * 2**30
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *memory_limits(cores.ROOT)])


def memory_limits(root: Path) -> Iterator[int]:
    """Bytes that this process's address space and its control groups are limited to."""
    if resource is not None and (limit := resource.getrlimit(resource.RLIMIT_AS)[0]) != resource.RLIM_INFINITY:
        yield limit
    for folder in cores.cgroup_folders(root, "memory"):
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
