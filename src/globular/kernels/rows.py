"""Rows inside kernels: one family of kernels for dense and CSR input.

Kernels take rows as a tuple: `(array,)` for a C-contiguous (n, D) block, `(data, indices, indptr)` for CSR rows.
The helpers below are written for dense rows, each with a twin for CSR rows; the length of that tuple tells which is
meant when a kernel is compiled, so nothing is decided at run time. All of them work in float64, and in the
difference form: identical rows are at distance exactly zero, and large offsets cancel before they are squared. Only a
CSR row that is far from a centre expands the square, ‖m‖² + Σ x(x − 2m) over its nonzeros: that loses no more than
‖m‖² / d² roundings. One that is close walks along all columns instead.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, cast

import numpy as np
from numba import types
from numba.extending import intrinsic, overload

from globular.kernels.compile import OVERLOADED, inline, kernel
from globular.kernels.prefetch import prefetch_row

CANCELLED = 2.0**-10
"""Share of ‖m‖² below which a squared distance to m, its square expanded, has lost too many digits."""


def for_csr(dense: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a function with the same arguments the twin of one for dense rows."""

    def register(csr: Callable[..., Any]) -> Callable[..., Any]:
        @overload(dense, jit_options=OVERLOADED)
        @wraps(dense)
        def choose(rows: Any, *_: Any) -> Callable[..., Any]:
            return dense if len(rows) == 1 else csr

        return csr

    return register


@kernel
def distance_by_columns(
    rows: Any,  # IN  (data, indices, indptr), the columns of a row ascending
    i: int,  # IN  row
    scale: float,  # IN  its scale
    centers: Any,  # IN  (C, D)
    c: int,  # IN  centre
    factor: float,  # IN  its factor
) -> float:
    """‖scale·x_i − factor·m_c‖² of a CSR row in the difference form. O(D)."""
    data, indices, indptr = rows
    total, column = 0.0, 0
    for k in range(indptr[i], indptr[i + 1]):
        for j in range(column, indices[k]):
            total += np.float64(factor * centers[c, j]) * (factor * centers[c, j])
        column = indices[k] + 1
        difference = scale * data[k] - factor * centers[c, indices[k]]
        total += difference * difference
    for j in range(column, centers.shape[1]):
        total += np.float64(factor * centers[c, j]) * (factor * centers[c, j])
    return total


def squared_distance(rows: Any, i: int, scale: float, centers: Any, c: int, norms: Any) -> float:
    """‖scale·x_i − m_c‖²; `norms` holds ‖m_c‖² in float64 (needed for CSR only). O(D) or O(nnz)."""
    x = rows[0]
    total = 0.0
    for j in range(x.shape[1]):
        difference = scale * x[i, j] - centers[c, j]
        total += difference * difference
    return total


@for_csr(squared_distance)
def _squared_distance(rows: Any, i: int, scale: float, centers: Any, c: int, norms: Any) -> float:
    data, indices, indptr = rows
    total = 0.0
    for k in range(indptr[i], indptr[i + 1]):
        x = scale * data[k]
        total += x * (x - 2.0 * centers[c, indices[k]])
    total += norms[c]
    return total if total >= CANCELLED * norms[c] else distance_by_columns(rows, i, scale, centers, c, 1.0)


@inline
def rows_between(rows: Any, begin: int, end: int) -> Any:
    """Rows begin … end − 1, not copied; for a `kernel`, since an `allocating_kernel` counts references."""
    if len(rows) == 1:
        return (rows[0][begin:end],)
    return rows[0], rows[1], rows[2][begin : end + 1]


@inline
def multiply_csr_row(rows: Any, i: int, scale: float, factors: Any, first: int, product: Any) -> None:
    """product = scale · x_i · factors[:, first …], four nonzeros at a time: it is read less often. O(nnz · width)."""
    data, indices, indptr = rows
    width = product.shape[0]
    T = product.dtype.type
    for c in range(width):
        product[c] = 0
    k, end = indptr[i], indptr[i + 1]
    while k + 4 <= end:
        a, b = T(scale * data[k]), T(scale * data[k + 1])
        d, e = T(scale * data[k + 2]), T(scale * data[k + 3])
        of_a, of_b = factors[indices[k], first:], factors[indices[k + 1], first:]
        of_d, of_e = factors[indices[k + 2], first:], factors[indices[k + 3], first:]
        for c in range(width):
            product[c] += (a * of_a[c] + b * of_b[c]) + (d * of_d[c] + e * of_e[c])
        k += 4
    while k < end:
        a, of_a = T(scale * data[k]), factors[indices[k], first:]
        for c in range(width):
            product[c] += a * of_a[c]
        k += 1


@inline
def length(values: Any, begin: int, end: int) -> float:
    """‖values[begin … end − 1]‖, also where its square would leave the range of float64. O(n)."""
    total = 0.0
    for k in range(begin, end):
        total += np.float64(values[k]) * values[k]
    if 2.0**-960 < total < np.inf:
        return np.sqrt(total)
    factor = 2.0**600 if total < 1.0 else 2.0**-600
    total = 0.0
    for k in range(begin, end):
        total += (factor * values[k]) * (factor * values[k])
    return np.sqrt(total) / factor


def row_length(rows: Any, i: int) -> float:
    """‖x_i‖, unscaled. O(D) or O(nnz)."""
    return length(rows[0][i], 0, rows[0].shape[1])


@for_csr(row_length)
def _row_length(rows: Any, i: int) -> float:
    return length(rows[0], rows[2][i], rows[2][i + 1])


def add_row(rows: Any, i: int, factor: float, offset: Any, out: Any, c: int) -> None:
    """out[c] += factor · (x_i − offset); CSR rows know no offset. O(D) or O(nnz)."""
    x = rows[0]
    for j in range(x.shape[1]):
        out[c, j] += factor * (x[i, j] - offset[j])


@for_csr(add_row)
def _add_row(rows: Any, i: int, factor: float, offset: Any, out: Any, c: int) -> None:
    data, indices, indptr = rows
    for k in range(indptr[i], indptr[i + 1]):
        out[c, indices[k]] += factor * data[k]


def _bits_of(context: Any, builder: Any, value: Any, kind: Any) -> Any:
    return builder.bitcast(value, context.get_value_type(kind))


def _float_bits(typing_context: Any, value: Any) -> Any:
    """The bits of a float as an integer: sorts like the floats themselves where these are not negative.

    Minima over integers vectorise, those over floats do not. Negative values, which stand for distances of zero that
    rounding has spoilt, come before all others, in some order.
    """
    signature = types.int32(types.float32) if value == types.float32 else types.int64(types.float64)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return _bits_of(context, builder, values[0], signature.return_type)

    return signature, generate


def _bits_float(typing_context: Any, bits: Any) -> Any:
    """The float64 of these bits."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return _bits_of(context, builder, values[0], types.float64)

    return types.float64(types.int64), generate


def _order_key(typing_context: Any, value: Any) -> Any:
    """An integer that sorts like the float it comes from, of either sign."""
    signature, of_bits = _float_bits(typing_context, value)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        bits = of_bits(context, builder, signature, values)
        width = bits.type.width
        sign = builder.ashr(bits, bits.type(width - 1))
        return builder.xor(bits, builder.and_(sign, bits.type(2 ** (width - 1) - 1)))

    return signature, generate


def _as_read_only(typing_context: Any, array: Any) -> Any:
    """The same array where it is only read, of the type that a user's rows have; for a `kernel`, as `rows_between`."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return values[0]

    return array.copy(readonly=True)(array), generate


# Operations of one instruction each: numba's `view` takes a hundred times as long to compile.
float_bits = cast(Callable[[float], int], intrinsic(_float_bits))
bits_float = cast(Callable[[int], float], intrinsic(_bits_float))
order_key = cast(Callable[[float], int], intrinsic(_order_key))
as_read_only = cast(Callable[[Any], Any], intrinsic(_as_read_only))


def quick_distance(rows: Any, i: int, scale: float, centers: Any, c: int, norms: Any) -> float:
    """`squared_distance` in the rows' own precision, for choosing among candidates; centers and norms in it too.

    Of CSR rows the sum stays float64.
    """
    x = rows[0]
    total = x.dtype.type(0)
    if scale == 1.0:
        for j in range(x.shape[1]):
            difference = x[i, j] - centers[c, j]
            total += difference * difference
    else:
        stretch = x.dtype.type(scale)
        for j in range(x.shape[1]):
            difference = stretch * x[i, j] - centers[c, j]
            total += difference * difference
    return total


@for_csr(quick_distance)
def _quick_distance(rows: Any, i: int, scale: float, centers: Any, c: int, norms: Any) -> float:
    return rows[0].dtype.type(squared_distance(rows, i, scale, centers, c, norms))


def quick_distances(rows: Any, i: int, scale: float, centers: Any, graph: Any, p: int, norms: Any, d: Any) -> None:
    """d[g] = `quick_distance` to the neighbour graph[p, g], for g ≥ 1. O(G · D) or O(G · nnz)."""
    x, G = rows[0], graph.shape[1]
    stretch = x.dtype.type(scale)
    for g in range(1, G - 3, 4):  # four at once: a row is read once for all of them
        a, b, c, e = graph[p, g], graph[p, g + 1], graph[p, g + 2], graph[p, g + 3]
        total_a = total_b = total_c = total_e = x.dtype.type(0)
        for j in range(x.shape[1]):
            value = stretch * x[i, j]
            total_a += (value - centers[a, j]) * (value - centers[a, j])
            total_b += (value - centers[b, j]) * (value - centers[b, j])
            total_c += (value - centers[c, j]) * (value - centers[c, j])
            total_e += (value - centers[e, j]) * (value - centers[e, j])
        d[g], d[g + 1], d[g + 2], d[g + 3] = total_a, total_b, total_c, total_e
    for g in range(1 + (G - 1) // 4 * 4, G):
        d[g] = quick_distance(rows, i, scale, centers, graph[p, g], norms)


@for_csr(quick_distances)
def _quick_distances(rows: Any, i: int, scale: float, centers: Any, graph: Any, p: int, norms: Any, d: Any) -> None:
    for g in range(1, graph.shape[1]):
        d[g] = quick_distance(rows, i, scale, centers, graph[p, g], norms)


def quick_mahalanobis(rows: Any, i: int, centers: Any, c: int, precisions: Any) -> float:
    """Σ_j precision_cj (x_ij − m_cj)² in the rows' own precision, for mixtures of dense rows."""
    x = rows[0]
    total = x.dtype.type(0)
    for j in range(x.shape[1]):
        difference = x[i, j] - centers[c, j]
        total += difference * difference * precisions[c, j]
    return total


@for_csr(quick_mahalanobis)
def _quick_mahalanobis(rows: Any, i: int, centers: Any, c: int, precisions: Any) -> float:
    return rows[0].dtype.type(np.nan)  # mixtures of sparse rows are refused before


def fetch(rows: Any, i: int) -> None:
    """Ask for a dense row before it is needed; CSR rows are left to the hardware."""
    prefetch_row(rows[0], i)


@for_csr(fetch)
def _fetch(rows: Any, i: int) -> None:
    pass
