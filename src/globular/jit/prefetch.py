"""Ask for a row of memory before it is needed: rows in cluster order lie anywhere, and waiting would dominate."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from globular.jit.functions import instruction
from globular.jit.instructions import array, declared, loop, types
from globular.jit.target import CACHE_LINE


@instruction
def prefetch_row(typing_context: Any, matrix: Any, row: Any) -> Any:
    """Prefetch all cache lines of matrix[row] (2-D, C-contiguous). No effect on any value."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        view, byte, flag = array(context, builder, signature, values, 0), ir.IntType(8).as_pointer(), ir.IntType(32)
        width = builder.extract_value(view.shape, 1)
        size = ir.Constant(width.type, matrix.dtype.bitwidth // 8)
        first = builder.bitcast(view.data, byte)
        first = builder.gep(first, [builder.mul(builder.mul(values[1], width), size)])
        kind = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
        prefetch = declared(builder, "llvm.prefetch.p0i8", kind)
        with loop(builder, 0, builder.mul(width, size), CACHE_LINE) as position:
            read_keep_data = (ir.Constant(flag, value) for value in (0, 2, 1))
            builder.call(prefetch, [builder.gep(first, [position]), *read_keep_data])
        return context.get_dummy_value()

    return types.void(matrix, types.intp), generate
