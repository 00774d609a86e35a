"""Our own threads: fixed blocks, results in a fixed order, BLAS held to one thread inside.

Kernels release the GIL, so plain Python threads scale; those of the library have threads that need no GIL at all
(`jit/driver.c`). Which thread runs a block never matters: blocks do not depend
on the number of threads and their results are combined in block order, so 1 thread and 2 threads give the same bits.
(numba's `parallel=True` is not used: its work-queue layer fails when two Python threads enter it.)
"""

from __future__ import annotations

from globular.threads.blas import single_threaded_blas
from globular.threads.pool import (
    SECONDS_PER_LOOK,
    SECONDS_PER_NUMBER,
    SECONDS_PER_PAIR,
    default_threads,
    even_ranges,
    map_all,
    on_all_threads,
    ordered_map,
    read_ahead,
    resolve_threads,
    run_all,
    to_the_end,
    worth_waking,
)

__all__ = [
    "SECONDS_PER_LOOK",
    "SECONDS_PER_NUMBER",
    "SECONDS_PER_PAIR",
    "default_threads",
    "even_ranges",
    "map_all",
    "on_all_threads",
    "ordered_map",
    "read_ahead",
    "resolve_threads",
    "run_all",
    "single_threaded_blas",
    "to_the_end",
    "worth_waking",
]
