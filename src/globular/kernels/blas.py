"""A matrix product inside a kernel: BLAS by the address that numba knows, without Python and without allocating.

Whoever calls such a kernel holds BLAS to one thread (`threads.single_threaded_blas`).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.linalg import ensure_blas


@intrinsic
def multiply_rows(typing_context: Any, y: Any, y_first: Any, n: Any, x: Any, x_first: Any, m: Any, out: Any) -> Any:
    """out[:n, :m] = Y Xᵀ for n rows of y and m rows of x from the given ones on, all C-contiguous of one dtype."""
    ensure_blas()  # type: ignore[no-untyped-call]
    single = out.dtype == types.float32
    arguments = (y, types.intp, types.intp, x, types.intp, types.intp, out)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        arrays = [context.make_array(signature.args[at])(context, builder, values[at]) for at in (0, 3, 6)]
        widths = [builder.extract_value(array.shape, 1) for array in arrays]
        pointer, char, size = ir.IntType(8).as_pointer(), ir.IntType(8), context.get_value_type(types.intp)

        def address(at: int, first: Any) -> Any:
            return builder.bitcast(builder.gep(arrays[at].data, [builder.mul(first, widths[at])]), pointer)

        def constant(value: float) -> Any:
            number = ir.Constant(ir.FloatType() if single else ir.DoubleType(), value)
            return builder.bitcast(cgutils.alloca_once_value(builder, number), pointer)  # type: ignore[no-untyped-call]

        letters = [ir.Constant(char, ord(letter)) for letter in ("s" if single else "d", "t", "n")]
        kinds = [char] * 3 + [size] * 3 + [pointer, pointer, size, pointer, size, pointer, pointer, size]
        signature_of_blas = ir.FunctionType(ir.IntType(32), kinds)
        function = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
            builder.module, signature_of_blas, "numba_xxgemm"
        )
        # BLAS counts by columns: its output is out with rows and columns exchanged
        zero = ir.Constant(size, 0)
        return builder.call(
            function,
            [*letters, values[5], values[2], widths[0], constant(1.0), address(1, values[4]), widths[1],
             address(0, values[1]), widths[0], constant(0.0), address(2, zero), widths[2]],
        )  # fmt: skip

    return types.intc(*arguments), generate
