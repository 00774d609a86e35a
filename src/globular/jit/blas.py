"""Matrix products inside a kernel: BLAS by its address, without Python and without allocating.

Routines are called with 32-bit numbers and everything by reference, as Fortran has it. Whoever calls a kernel that
calls them holds BLAS to one thread (`threads.single_threaded_blas`).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from globular.jit.addresses import symbol
from globular.jit.functions import instruction
from globular.jit.instructions import array, declared, types, variable

_POINTER = ir.IntType(8).as_pointer()


def _width(builder: Any, matrix: Any) -> Any:
    return builder.extract_value(matrix.shape, 1)


def _row(builder: Any, matrix: Any, row: Any) -> Any:
    """The address of a row of a C-contiguous matrix."""
    return builder.gep(matrix.data, [builder.mul(row, _width(builder, matrix))])


def _call(builder: Any, routine: str, *arguments: Any) -> None:
    """Call a routine with letters, whole numbers, constants (`float`, `ir.Constant`) and addresses."""
    given = []
    for argument in arguments:
        if isinstance(argument, str):
            argument = ir.Constant(ir.IntType(8), ord(argument))
        elif argument.type == ir.IntType(64):
            argument = builder.trunc(argument, ir.IntType(32))
        if not isinstance(argument.type, ir.PointerType):
            argument = variable(builder, argument)
        given.append(builder.bitcast(argument, _POINTER))
    kind = ir.FunctionType(ir.VoidType(), [_POINTER] * len(given))
    function = builder.load(declared(builder, symbol(routine), kind.as_pointer()))
    builder.call(function, given)


def _gemm(builder: Any, out: Any, turned: str, sizes: Any, a: Any, b: Any, keep: float) -> None:
    """out = A B + keep · out; `a` and `b` are (address, width). BLAS counts by columns: everything is exchanged."""
    number = out.data.type.pointee
    zero = ir.Constant(ir.IntType(64), 0)
    routine = "sgemm" if isinstance(number, ir.FloatType) else "dgemm"
    one, kept = ir.Constant(number, 1.0), ir.Constant(number, keep)
    c = _row(builder, out, zero), _width(builder, out)
    _call(builder, routine, turned, "N", *sizes, one, *a, *b, kept, *c)


@instruction
def multiply_rows(typing_context: Any, y: Any, y_first: Any, n: Any, x: Any, x_first: Any, m: Any, out: Any) -> Any:
    """out[:n, :m] = Y Xᵀ for n rows of y and m rows of x from the given ones on, all C-contiguous of one dtype."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        y, x, out = (array(context, builder, signature, values, at) for at in (0, 3, 6))
        a = _row(builder, x, values[4]), _width(builder, x)
        b = _row(builder, y, values[1]), _width(builder, y)
        _gemm(builder, out, "T", (values[5], values[2], _width(builder, y)), a, b, 0.0)
        return context.get_dummy_value()

    return types.void(y, types.intp, types.intp, x, types.intp, types.intp, out), generate


@instruction
def multiply(typing_context: Any, y: Any, x: Any, out: Any) -> Any:
    """out = Y X for as many rows of y as out has, all C-contiguous of one dtype."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        y, x, out = (array(context, builder, signature, values, at) for at in range(3))
        n, first = builder.extract_value(out.shape, 0), ir.Constant(ir.IntType(64), 0)
        a, b = ((_row(builder, matrix, first), _width(builder, matrix)) for matrix in (x, y))
        _gemm(builder, out, "N", (_width(builder, out), n, _width(builder, y)), a, b, 0.0)
        return context.get_dummy_value()

    return types.void(y, x, out), generate


@instruction
def add_product(typing_context: Any, y: Any, x: Any, x_first: Any, m: Any, out: Any) -> Any:
    """out += Y[:, :m] X for m rows of x from the given one on, all C-contiguous of one dtype."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        y, x, out = (array(context, builder, signature, values, at) for at in (0, 1, 4))
        a = _row(builder, x, values[2]), _width(builder, x)
        b = _row(builder, y, values[2].type(0)), _width(builder, y)
        _gemm(builder, out, "N", (_width(builder, out), builder.extract_value(out.shape, 0), values[3]), a, b, 1.0)
        return context.get_dummy_value()

    return types.void(y, x, types.intp, types.intp, out), generate


@instruction
def multiply_by_triangle(typing_context: Any, factors: Any, c: Any, rows: Any, m: Any) -> Any:
    """rows[:m] = rows[:m] U with U the upper triangle in factors[c], D² numbers; float64. O(m·D²), half of it saved."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        factors, rows = (array(context, builder, signature, values, at) for at in (0, 2))
        D, one = _width(builder, rows), ir.Constant(ir.DoubleType(), 1.0)
        at = _row(builder, factors, values[1]), _row(builder, rows, values[1].type(0))
        # by columns U is a lower triangle, to the left of the turned rows
        _call(builder, "dtrmm", "L", "L", "N", "N", D, values[3], one, at[0], D, at[1], D)
        return context.get_dummy_value()

    return types.void(factors, types.intp, rows, types.intp), generate


@instruction
def add_symmetric(typing_context: Any, rows: Any, m: Any, out: Any, c: Any) -> Any:
    """The upper triangle of out[c], D² numbers, += that of rows[:m]ᵀ rows[:m]; float64. O(m·D²), half of it saved."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        rows, out = (array(context, builder, signature, values, at) for at in (0, 2))
        D, one = _width(builder, rows), ir.Constant(ir.DoubleType(), 1.0)
        at = _row(builder, rows, values[1].type(0)), _row(builder, out, values[3])
        _call(builder, "dsyrk", "L", "N", D, values[1], one, at[0], D, one, at[1], D)
        return context.get_dummy_value()

    return types.void(rows, types.intp, out, types.intp), generate
