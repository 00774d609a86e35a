"""Work that several threads share inside a kernel: whoever is free takes the next number.

A pass is one call of a kernel that all threads join (`team.py`). Each of them loops: take a number, do the block of
rows of that number, until there are none left. Which thread gets which block is left to chance, so nothing that a
kernel returns may depend on it: results go where their block says, and sums of blocks are added in the order of the
blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

Queue: TypeAlias = Any
"""Annotates the queue of a kernel, its first argument: such a kernel can be shared."""
Scratch: TypeAlias = Any
"""Annotates memory of a thread whose content does not matter, in arrays or tuples of them: each thread has its own."""
Zeros: TypeAlias = Any
"""The same where it is zeros."""

TEAM, NEEDED, FAILED, SIZE = 1, 2, 3, 4
"""Behind the next number a queue has the address of the threads that shall join, and what these report: how much
scratch memory they need if theirs is too small, and the status of a call that has failed."""


def new_queue() -> NDArray[np.int64]:
    """A queue whose first number is 0, and that nobody shares yet."""
    return np.zeros(SIZE, dtype=np.int64)


def _next_number(typing_context: Any, queue: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.atomic_rmw("add", array.data, ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(queue), generate


take_number = cast(Callable[[Any], int], intrinsic(_next_number))
"""The next number of a queue, each number once whatever the number of threads."""
