"""Matrix products inside a kernel: BLAS by its address, without Python and without allocating.

Routines are called with 32-bit numbers and everything by reference, as Fortran has it. Whoever calls a kernel that
calls them holds BLAS to one thread (`threads.single_threaded_blas`).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from globular.jit.instructions import declared, procedure, variable
from globular.jit.library import symbol

_POINTER = ir.IntType(8).as_pointer()


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
    routine = "sgemm" if isinstance(out.scalar, ir.FloatType) else "dgemm"
    one, kept = ir.Constant(out.scalar, 1.0), ir.Constant(out.scalar, keep)
    _call(builder, routine, turned, "N", *sizes, one, *a, *b, kept, out.data, out.shape[1])


@procedure
def multiply_rows(builder: Any, y: Any, y_first: Any, n: Any, x: Any, x_first: Any, m: Any, out: Any) -> None:
    """out[:n, :m] = Y Xᵀ for n rows of y and m rows of x from the given ones on, all C-contiguous of one dtype."""
    D = y.shape[1]
    _gemm(builder, out, "T", (m, n, D), (x.row(x_first), x.shape[1]), (y.row(y_first), D), 0.0)


@procedure
def multiply(builder: Any, y: Any, x: Any, out: Any) -> None:
    """out = Y X for as many rows of y as out has, all C-contiguous of one dtype."""
    n, width = out.shape
    _gemm(builder, out, "N", (width, n, y.shape[1]), (x.data, x.shape[1]), (y.data, y.shape[1]), 0.0)


@procedure
def add_product(builder: Any, y: Any, x: Any, x_first: Any, m: Any, out: Any) -> None:
    """out += Y[:, :m] X for m rows of x from the given one on, all C-contiguous of one dtype."""
    n, width = out.shape
    _gemm(builder, out, "N", (width, n, m), (x.row(x_first), x.shape[1]), (y.data, y.shape[1]), 1.0)


@procedure
def multiply_by_triangle(builder: Any, factors: Any, c: Any, rows: Any, m: Any) -> None:
    """rows[:m] = rows[:m] U with U the upper triangle in factors[c], D² numbers; float64. O(m·D²), half of it saved."""
    D, one = rows.shape[1], ir.Constant(ir.DoubleType(), 1.0)
    # by columns U is a lower triangle, to the left of the turned rows
    _call(builder, "dtrmm", "L", "L", "N", "N", D, m, one, factors.row(c), D, rows.data, D)


@procedure
def add_symmetric(builder: Any, rows: Any, m: Any, out: Any, c: Any) -> None:
    """The upper triangle of out[c], D² numbers, += that of rows[:m]ᵀ rows[:m]; float64. O(m·D²), half of it saved."""
    D, one = rows.shape[1], ir.Constant(ir.DoubleType(), 1.0)
    _call(builder, "dsyrk", "L", "N", D, m, one, rows.data, D, one, out.row(c), D)
