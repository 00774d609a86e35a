"""Matrix products inside a kernel: BLAS by its address, without Python and without allocating.

`numba_xxgemm` is a symbol that numba knows. What it does not know, products with triangles and symmetric ones, is
called by an address that a kernel gets as a number (`TRIANGULAR`, `SYMMETRIC`): a number in the compiled code would be
wrong in the next process, which reads it from the cache. Whoever calls such a kernel holds BLAS to one thread
(`threads.single_threaded_blas`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import get_cython_function_address, intrinsic
from numba.np.linalg import ensure_blas

_POINTER, _CHAR = ir.IntType(8).as_pointer(), ir.IntType(8)


def _address_of(name: str) -> int:
    return int(get_cython_function_address("scipy.linalg.cython_blas", name))


TRIANGULAR, SYMMETRIC = _address_of("dtrmm"), _address_of("dsyrk")
"""Addresses in this process, for `multiply_by_triangle` and `add_symmetric`."""


def _inside_kernels(function: Callable[..., Any]) -> Callable[..., Any]:
    """`intrinsic`, of which the type checker believes that it never returns."""
    return cast(Callable[..., Any], intrinsic(function))


def _array(context: Any, builder: Any, signature: Any, values: Any, at: int) -> Any:
    return context.make_array(signature.args[at])(context, builder, values[at])


def _width(builder: Any, array: Any) -> Any:
    return builder.extract_value(array.shape, 1)


def _address(builder: Any, array: Any, row: Any) -> Any:
    """Of a row of a C-contiguous matrix."""
    return builder.bitcast(builder.gep(array.data, [builder.mul(row, _width(builder, array))]), _POINTER)


def _stored(builder: Any, value: Any) -> Any:
    """Address of a copy: BLAS takes numbers by reference."""
    return builder.bitcast(cgutils.alloca_once_value(builder, value), _POINTER)  # type: ignore[no-untyped-call]


def _gemm(context: Any, builder: Any, single: bool, turned: tuple[str, str], sizes: Any, a: Any, b: Any, c: Any,
          keep: float) -> Any:  # fmt: skip
    """Call it: a, b and c are (address, width), and `keep` is what the output has of what was there before."""
    size = context.get_value_type(types.intp)
    kinds = [_CHAR] * 3 + [size] * 3 + [_POINTER, _POINTER, size, _POINTER, size, _POINTER, _POINTER, size]
    function = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
        builder.module, ir.FunctionType(ir.IntType(32), kinds), "numba_xxgemm"
    )
    number = ir.FloatType() if single else ir.DoubleType()
    letters = [ir.Constant(_CHAR, ord(letter)) for letter in ("s" if single else "d", *turned)]
    one, kept = (_stored(builder, ir.Constant(number, value)) for value in (1.0, keep))
    return builder.call(function, [*letters, *sizes, one, *a, *b, kept, *c])


@_inside_kernels
def multiply_rows(typing_context: Any, y: Any, y_first: Any, n: Any, x: Any, x_first: Any, m: Any, out: Any) -> Any:
    """out[:n, :m] = Y Xᵀ for n rows of y and m rows of x from the given ones on, all C-contiguous of one dtype."""
    ensure_blas()  # type: ignore[no-untyped-call]
    single = out.dtype == types.float32

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        y, x, out = (_array(context, builder, signature, values, at) for at in (0, 3, 6))
        # BLAS counts by columns: its output is out with rows and columns exchanged
        a = _address(builder, x, values[4]), _width(builder, x)
        b = _address(builder, y, values[1]), _width(builder, y)
        c = _address(builder, out, values[4].type(0)), _width(builder, out)
        return _gemm(context, builder, single, ("t", "n"), (values[5], values[2], _width(builder, y)), a, b, c, 0.0)

    return types.intc(y, types.intp, types.intp, x, types.intp, types.intp, out), generate


@_inside_kernels
def multiply(typing_context: Any, y: Any, x: Any, out: Any) -> Any:
    """out = Y X for as many rows of y as out has, all C-contiguous of one dtype."""
    ensure_blas()  # type: ignore[no-untyped-call]
    single = out.dtype == types.float32

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        y, x, out = (_array(context, builder, signature, values, at) for at in range(3))
        n, first = builder.extract_value(out.shape, 0), ir.Constant(context.get_value_type(types.intp), 0)
        a, b, c = ((_address(builder, array, first), _width(builder, array)) for array in (x, y, out))
        return _gemm(context, builder, single, ("n", "n"), (_width(builder, out), n, _width(builder, y)), a, b, c, 0.0)

    return types.intc(y, x, out), generate


@_inside_kernels
def add_product(typing_context: Any, y: Any, x: Any, x_first: Any, m: Any, out: Any) -> Any:
    """out += Y[:, :m] X for m rows of x from the given one on, all C-contiguous of one dtype."""
    ensure_blas()  # type: ignore[no-untyped-call]
    single = out.dtype == types.float32

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        y, x, out = (_array(context, builder, signature, values, at) for at in (0, 1, 4))
        a = _address(builder, x, values[2]), _width(builder, x)
        b = _address(builder, y, values[2].type(0)), _width(builder, y)
        c = _address(builder, out, values[2].type(0)), _width(builder, out)
        n = builder.extract_value(out.shape, 0)
        return _gemm(context, builder, single, ("n", "n"), (_width(builder, out), n, values[3]), a, b, c, 1.0)

    return types.intc(y, x, types.intp, types.intp, out), generate


def _call_by_reference(builder: Any, address: Any, arguments: list[Any]) -> None:
    """Letters, 32-bit numbers, float64 numbers and addresses, as Fortran takes them."""
    kind = ir.FunctionType(ir.VoidType(), [_POINTER] * len(arguments))
    given = []
    for argument in arguments:
        if isinstance(argument, str):
            argument = ir.Constant(_CHAR, ord(argument))
        elif isinstance(argument, float):
            argument = ir.Constant(ir.DoubleType(), argument)
        elif argument.type == ir.IntType(64):
            argument = builder.trunc(argument, ir.IntType(32))
        given.append(argument if argument.type == _POINTER else _stored(builder, argument))
    builder.call(builder.inttoptr(address, kind.as_pointer()), given)


@_inside_kernels
def multiply_by_triangle(typing_context: Any, address: Any, factors: Any, c: Any, rows: Any, m: Any) -> Any:
    """rows[:m] = rows[:m] U with U the upper triangle in factors[c], D² numbers; float64. O(m·D²), half of it saved."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        factors, rows = (_array(context, builder, signature, values, at) for at in (1, 3))
        D = _width(builder, rows)
        at = _address(builder, factors, values[2]), _address(builder, rows, values[2].type(0))
        # by columns U is a lower triangle, to the left of the turned rows
        _call_by_reference(builder, values[0], ["L", "L", "N", "N", D, values[4], 1.0, at[0], D, at[1], D])
        return context.get_dummy_value()

    return types.void(types.intp, factors, types.intp, rows, types.intp), generate


@_inside_kernels
def add_symmetric(typing_context: Any, address: Any, rows: Any, m: Any, out: Any, c: Any) -> Any:
    """The upper triangle of out[c], D² numbers, += that of rows[:m]ᵀ rows[:m]; float64. O(m·D²), half of it saved."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        rows, out = (_array(context, builder, signature, values, at) for at in (1, 3))
        D = _width(builder, rows)
        at = _address(builder, rows, values[2].type(0)), _address(builder, out, values[4])
        _call_by_reference(builder, values[0], ["L", "N", D, values[2], 1.0, at[0], D, 1.0, at[1], D])
        return context.get_dummy_value()

    return types.void(types.intp, rows, types.intp, out, types.intp), generate
