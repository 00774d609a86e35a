"""How much memory there is, and the refusal of what cannot fit into it.

Files say how large they are before they are read: in a header, a footer, or by their own length. What would take more
memory at once than the machine has is refused by its number, before anything of that size is asked for.
"""

from __future__ import annotations

import os
from functools import cache

from globular.errors import MemoryBudgetError


@cache
def physical_memory() -> int:
    """Bytes of memory in this machine; 8 GiB where the system does not tell."""
    if not hasattr(os, "sysconf"):
        return 8 * 2**30
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_fits(n_bytes: int, what: str, remedy: str) -> None:
    """Refuse what is larger than this machine's memory; of a file, `what` begins with its name."""
    memory = physical_memory()
    if n_bytes > memory:
        raise MemoryBudgetError(
            f"{what} would take {n_bytes / 2**30:,.1f} GiB, this machine has {memory / 2**30:,.1f}; {remedy}"
        )
