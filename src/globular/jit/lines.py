"""Sums of scaled lines of memory, kept in vector registers.

The compiler vectorises a loop over the numbers of a line but keeps the sum in memory; here vectors of eight numbers are
spelled out, so that a sparse row is multiplied with many centres at a load and a multiplication per line.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from globular.jit.instructions import loop, procedure, variable
from globular.jit.vectors import Vectors

LINE = 8  # numbers in a line


def _adding(n_lines: int) -> Any:
    """An instruction for so many lines side by side."""

    @procedure
    def add_lines(
        builder: Any, data: Any, columns: Any, begin: Any, end: Any, x: Any, first: Any, out: Any, i: Any
    ) -> None:
        """out[i, first:…] = Σ_k data[k] · x[columns[k], first:…] over begin ≤ k < end, in float64. O(end − begin)."""
        vectors = Vectors(builder, ir.DoubleType(), LINE)
        sums = [variable(builder, vectors.zero) for _ in range(n_lines)]

        def line(start: Any, n: int) -> Any:
            return builder.gep(start, [builder.add(first, first.type(n * LINE))])

        with loop(builder, begin, end, 1) as k:
            value = builder.load(data.at(k))
            factor = vectors.splat(value if value.type == vectors.scalar else builder.fpext(value, vectors.scalar))
            start = x.row(builder.sext(builder.load(columns.at(k)), k.type))
            for n, total in enumerate(sums):
                part = vectors.load(line(start, n), LINE)
                builder.store(vectors.multiply_add(factor, part, builder.load(total)), total)
        for n, total in enumerate(sums):
            vectors.store(builder.load(total), line(out.row(i), n))

    return add_lines


add_1_line, add_2_lines, add_4_lines, add_8_lines = _adding(1), _adding(2), _adding(4), _adding(8)
