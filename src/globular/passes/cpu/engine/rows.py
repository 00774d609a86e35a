"""Rows inside kernels: one family of kernels for dense and CSR input.

Kernels take rows as a tuple: `(array,)` for a C-contiguous (n, D) block, `(data, indices, indptr)` for CSR rows.
The helpers below are written for dense rows, each with a twin for CSR rows; the length of that tuple tells which is
meant when a kernel is compiled, so nothing is decided at run time. All of them work in float64, and in the
difference form: identical rows are at distance exactly zero, and large offsets cancel before they are squared. Only a
CSR row that is far from a centre expands the square, ‖m‖² + Σ x(x − 2m) over its nonzeros: that loses no more than
‖m‖² / d² roundings. One that is close walks along all columns instead.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from globular.jit import inline, kernel, twin
from globular.jit.memory import prefetch_row

CANCELLED = 2.0**-10
"""Share of ‖m‖² below which a squared distance to m, its square expanded, has lost too many digits."""


AHEAD = 4
"""Rows before its turn that the memory of one is asked for; larger = it has more time to come, and more may be driven
out again."""


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


@twin
def squared_distance(rows: Any, i: int, scale: float, centers: Any, c: int, norms: Any) -> float:
    """‖scale·x_i − m_c‖²; `norms` holds ‖m_c‖² in float64 (needed for CSR only). O(D) or O(nnz)."""
    x = rows[0]
    total = 0.0
    for j in range(x.shape[1]):
        difference = scale * x[i, j] - centers[c, j]
        total += difference * difference
    return total


@squared_distance.for_csr
def _squared_distance(rows: Any, i: int, scale: float, centers: Any, c: int, norms: Any) -> float:
    data, indices, indptr = rows
    total = 0.0
    for k in range(indptr[i], indptr[i + 1]):
        x = scale * data[k]
        total += x * (x - 2.0 * centers[c, indices[k]])
    total += norms[c]
    return total if total >= CANCELLED * norms[c] else distance_by_columns(rows, i, scale, centers, c, 1.0)


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


@twin
def row_length(rows: Any, i: int) -> float:
    """‖x_i‖, unscaled. O(D) or O(nnz)."""
    return length(rows[0][i], 0, rows[0].shape[1])


@row_length.for_csr
def _row_length(rows: Any, i: int) -> float:
    return length(rows[0], rows[2][i], rows[2][i + 1])


@inline
def copy_row(x: Any, row: int, offset: Any, out: Any, i: int) -> float:
    """A row about the offset, if there is one, to out[i]; its squared length. O(D)."""
    total = 0.0
    if offset.shape[0]:
        for j in range(x.shape[1]):
            out[i, j] = x[row, j] - offset[j]
            total += np.float64(out[i, j]) * out[i, j]
    else:
        for j in range(x.shape[1]):
            out[i, j] = x[row, j]
            total += np.float64(x[row, j]) * x[row, j]
    return total


@twin
def add_row(rows: Any, i: int, factor: float, offset: Any, out: Any, c: int) -> None:
    """out[c] += factor · (x_i − offset), of dense rows where there is an offset. O(D) or O(nnz)."""
    x = rows[0]
    if offset.shape[0]:
        for j in range(x.shape[1]):
            out[c, j] += factor * (x[i, j] - offset[j])
    else:
        for j in range(x.shape[1]):
            out[c, j] += factor * x[i, j]


@add_row.for_csr
def _add_row(rows: Any, i: int, factor: float, offset: Any, out: Any, c: int) -> None:
    data, indices, indptr = rows
    for k in range(indptr[i], indptr[i + 1]):
        out[c, indices[k]] += factor * data[k]


@twin
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


@quick_distance.for_csr
def _quick_distance(rows: Any, i: int, scale: float, centers: Any, c: int, norms: Any) -> float:
    return rows[0].dtype.type(squared_distance(rows, i, scale, centers, c, norms))


@twin
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


@quick_distances.for_csr
def _quick_distances(rows: Any, i: int, scale: float, centers: Any, graph: Any, p: int, norms: Any, d: Any) -> None:
    for g in range(1, graph.shape[1]):
        d[g] = quick_distance(rows, i, scale, centers, graph[p, g], norms)


@twin
def quick_mahalanobis(rows: Any, i: int, centers: Any, c: int, precisions: Any) -> float:
    """Σ_j precision_cj (x_ij − m_cj)² in the rows' own precision, for mixtures of dense rows."""
    x = rows[0]
    total = x.dtype.type(0)
    for j in range(x.shape[1]):
        difference = x[i, j] - centers[c, j]
        total += difference * difference * precisions[c, j]
    return total


@quick_mahalanobis.for_csr
def _quick_mahalanobis(rows: Any, i: int, centers: Any, c: int, precisions: Any) -> float:
    return rows[0].dtype.type(np.nan)  # mixtures of sparse rows are refused before


@twin
def fetch(rows: Any, i: int) -> None:
    """Ask for a dense row before it is needed; CSR rows are left to the hardware."""
    prefetch_row(rows[0], i)


@fetch.for_csr
def _fetch(rows: Any, i: int) -> None:
    pass
