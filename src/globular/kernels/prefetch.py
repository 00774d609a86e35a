"""Ask for a row of memory before it is needed: rows in cluster order lie anywhere, and waiting would dominate."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from globular.kernels.target import CACHE_LINE


@intrinsic
def prefetch_row(typing_context: Any, array: Any, row: Any) -> Any:
    """Prefetch all cache lines of array[row] (2-D, C-contiguous). No effect on any value."""
    signature = types.void(array, row)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_type = signature.args[0]
        view = context.make_array(array_type)(context, builder, arguments[0])
        width = builder.extract_value(view.shape, 1)
        index = context.cast(builder, arguments[1], signature.args[1], types.intp)
        item = context.get_abi_sizeof(context.get_data_type(array_type.dtype))
        size = ir.Constant(width.type, item)
        byte_pointer = ir.IntType(8).as_pointer()
        first = builder.bitcast(view.data, byte_pointer)
        first = builder.gep(first, [builder.mul(builder.mul(index, width), size)])
        prefetch = builder.module.declare_intrinsic(
            "llvm.prefetch", [byte_pointer], ir.FunctionType(ir.VoidType(), [byte_pointer] + [ir.IntType(32)] * 3)
        )
        read, keep, data = (ir.Constant(ir.IntType(32), value) for value in (0, 2, 1))
        length = builder.mul(width, size)
        step = ir.Constant(width.type, CACHE_LINE)
        with cgutils.for_range_slice(builder, ir.Constant(width.type, 0), length, step, inc=True) as (position, _):
            builder.call(prefetch, [builder.gep(first, [position]), read, keep, data])
        return context.get_dummy_value()

    return signature, generate
