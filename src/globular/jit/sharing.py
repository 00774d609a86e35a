"""Work that several threads share inside a kernel: whoever is free takes the next number.

A pass is one call of a kernel that all threads join. Each of them loops: take a number, do the block of rows of that
number, until there are none left. Which thread gets which block is left to chance, so nothing that a kernel returns may
depend on it: results go where their block says, and sums of blocks are added in the order of the blocks.

A kernel of the library is shared by threads that wait inside compiled code and need the interpreter for nothing
(`driver.c`). One that numba has compiled is shared by Python threads, each of which waits for the interpreter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

from globular.jit.functions import N_THREADS, instruction
from globular.jit.instructions import types
from globular.threads import single_threaded_blas

Queue: TypeAlias = Any
"""Annotates the queue of a kernel, its first argument: such a kernel can be shared, and returns nothing then."""
Scratch: TypeAlias = Any
"""Annotates memory of a thread whose content does not matter, in arrays or tuples of them: each thread has its own."""
Zeros: TypeAlias = Any
"""The same where it is zeros."""

QUEUE_SIZE = 2


def new_queue(n_threads: int = 1) -> NDArray[np.int64]:
    """A queue whose first number is 0; `n_threads` threads share the kernel that is called with it."""
    queue = np.zeros(QUEUE_SIZE, dtype=np.int64)
    queue[N_THREADS] = n_threads
    return queue


def share_kernel(
    work: Callable[[], object], queue: NDArray[np.int64], n_threads: int, *, calls_blas: bool = True
) -> None:
    """Call a function that calls one kernel with this queue, so that `n_threads` threads share it.

    To hold BLAS to one thread takes longer than a small pass, which therefore says that it does not call it.
    """
    queue[N_THREADS] = n_threads
    single_threaded_blas.run(work) if calls_blas else work()


@instruction
def take_number(typing_context: Any, queue: Any) -> Any:
    """The next number of a queue, each number once whatever the number of threads."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        place = context.make_array(queue)(context, builder, values[0]).data
        return builder.atomic_rmw("add", place, ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(queue), generate
