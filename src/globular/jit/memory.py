"""Bits of numbers, arrays seen as others of the same memory, rows asked for before they are needed.

Numba's own ways need its runtime or take long to compile; most of this is one instruction.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from globular.jit.functions import instruction
from globular.jit.instructions import CACHE_LINE, declared, loop, procedure, types


def _bits_of(context: Any, builder: Any, signature: Any, values: Any) -> Any:
    return builder.bitcast(values[0], context.get_value_type(signature.return_type))


@instruction
def float_bits(typing_context: Any, value: Any) -> Any:
    """The bits of a float as an integer: sorts like the floats themselves where these are not negative.

    Minima over integers vectorise, those over floats do not. Negative values, which stand for distances of zero that
    rounding has spoilt, come before all others, in some order.
    """
    return types.int32(types.float32) if value == types.float32 else types.int64(types.float64), _bits_of


@instruction
def bits_float(typing_context: Any, bits: Any) -> Any:
    """The float64 of these bits."""
    return types.float64(types.int64), _bits_of


@instruction
def order_key(typing_context: Any, value: Any) -> Any:
    """An integer that sorts like the float it comes from, of either sign."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        bits = _bits_of(context, builder, signature, values)
        width = bits.type.width
        sign = builder.ashr(bits, bits.type(width - 1))
        return builder.xor(bits, builder.and_(sign, bits.type(2 ** (width - 1) - 1)))

    return types.int32(types.float32) if value == types.float32 else types.int64(types.float64), generate


def _same_memory(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """A value that refers to the memory of another array, which is counted where references are."""
    if context.enable_nrt:
        context.nrt.incref(builder, kind, value)
    return value


@instruction
def as_read_only(typing_context: Any, array: Any) -> Any:
    """The same array where it is only read, of the type that a user's rows have."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return _same_memory(context, builder, signature.return_type, values[0])

    return array.copy(readonly=True)(array), generate


@instruction
def as_matrix(typing_context: Any, line: Any, n: Any, m: Any) -> Any:
    """The first n · m numbers of a line as an (n, m) matrix."""
    kind = line.copy(ndim=2, layout="C")

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        given = context.make_array(signature.args[0])(context, builder, values[0])
        found = context.make_array(kind)(context, builder)
        n, m = values[1:]

        def pair(first: Any, second: Any) -> Any:
            both = ir.Constant(ir.ArrayType(first.type, 2), ir.Undefined)
            return builder.insert_value(builder.insert_value(both, first, 0), second, 1)

        for name in ("meminfo", "parent", "data", "itemsize"):
            setattr(found, name, getattr(given, name))
        found.nitems, found.shape = builder.mul(n, m), pair(n, m)
        found.strides = pair(builder.mul(m, given.itemsize), given.itemsize)
        return _same_memory(context, builder, kind, found._getvalue())

    return kind(line, types.intp, types.intp), generate


@procedure
def prefetch_row(builder: Any, matrix: Any, row: Any) -> None:
    """Prefetch all cache lines of matrix[row] (2-D, C-contiguous): rows in cluster order lie anywhere, and waiting
    would dominate. No effect on any value."""
    byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
    size = builder.mul(matrix.shape[1], row.type(matrix.itemsize))
    first = builder.gep(builder.bitcast(matrix.data, byte), [builder.mul(row, size)])
    prefetch = declared(builder, "llvm.prefetch.p0i8", ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag]))
    with loop(builder, 0, size, CACHE_LINE) as position:
        read_keep_data = (ir.Constant(flag, value) for value in (0, 2, 1))
        builder.call(prefetch, [builder.gep(first, [position]), *read_keep_data])
