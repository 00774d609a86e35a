"""Sums of scaled lines of memory, kept in vector registers.

The compiler vectorises a loop over the numbers of a line but keeps the sum in memory; here vectors of eight numbers are
spelled out, so that a sparse row is multiplied with many centres at a load and a multiplication per line.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from globular.jit import instructions
from globular.jit.functions import instruction
from globular.jit.instructions import loop, types, variable

LINE = 8  # numbers in a line
_CONTRACT = ("contract",)


def _adding(n_lines: int) -> Any:
    """An intrinsic for so many lines side by side."""

    @instruction
    def add_lines(
        typing_context: Any, data: Any, columns: Any, begin: Any, end: Any, x: Any, first: Any, out: Any, i: Any
    ) -> Any:
        """out[i, first:…] = Σ_k data[k] · x[columns[k], first:…] over begin ≤ k < end, in float64. O(end − begin)."""
        signature = types.void(data, columns, begin, end, x, first, out, i)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kinds = signature.args

            def array(n: int) -> Any:
                return instructions.array(context, builder, signature, arguments, n)

            def index(n: int) -> Any:
                return context.cast(builder, arguments[n], kinds[n], types.intp)

            double, whole = ir.DoubleType(), context.get_value_type(types.intp)
            line = ir.VectorType(double, LINE)
            undefined = ir.Constant(line, ir.Undefined)
            all_first = ir.Constant(ir.VectorType(ir.IntType(32), LINE), None)
            values, places, source, target = array(0), array(1), array(4), array(6)

            def lines_of(view: Any, row: Any) -> Any:
                start = builder.add(builder.mul(row, builder.extract_value(view.shape, 1)), index(5))
                return builder.bitcast(builder.gep(view.data, [start]), line.as_pointer())

            zeros = ir.Constant(line, [0.0] * LINE)
            sums = [variable(builder, zeros) for _ in range(n_lines)]
            with loop(builder, index(2), index(3), 1) as k:
                value = builder.load(builder.gep(values.data, [k]))
                value = value if value.type == double else builder.fpext(value, double)
                factor = builder.insert_element(undefined, value, ir.Constant(ir.IntType(32), 0))
                factor = builder.shuffle_vector(factor, undefined, all_first)
                start = lines_of(source, builder.sext(builder.load(builder.gep(places.data, [k])), whole))
                for n, total in enumerate(sums):
                    part = builder.load(builder.gep(start, [ir.Constant(whole, n)]), align=LINE)
                    product = builder.fmul(factor, part, flags=_CONTRACT)
                    builder.store(builder.fadd(product, builder.load(total), flags=_CONTRACT), total)
            start = lines_of(target, index(7))
            for n, total in enumerate(sums):
                builder.store(builder.load(total), builder.gep(start, [ir.Constant(whole, n)]), align=LINE)
            return context.get_dummy_value()

        return signature, generate

    return add_lines


add_1_line, add_2_lines, add_4_lines, add_8_lines = _adding(1), _adding(2), _adding(4), _adding(8)
