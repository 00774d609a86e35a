"""Work that several threads share inside a kernel: whoever is free takes the next number.

A pass is one call of a kernel per thread. Each call loops: take a number, do the block of rows of that number, until
there are none left. Which thread gets which block is left to chance, so nothing that a kernel returns may depend on
it: results go where their block says, and sums of blocks are added in the order of the blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray


def new_queue() -> NDArray[np.int64]:
    """A queue whose first number is 0."""
    return np.zeros(1, dtype=np.int64)


def _next_number(typing_context: Any, queue: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.atomic_rmw("add", array.data, ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(queue), generate


take_number = cast(Callable[[Any], int], intrinsic(_next_number))
"""The next number of a queue, each number once whatever the number of threads."""
