"""Instructions on vectors of this machine, for kernels that LLVM would not turn into good loops by itself.

The last are sums of scaled lines of memory. The compiler vectorises a loop over the numbers of a line but keeps the sum
in memory; here vectors of eight numbers are spelled out, so that a sparse row is multiplied with many centres at a load
and a multiplication per line.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

from llvmlite import ir

from globular.jit.instructions import declared, loop, procedure, variable
from globular.jit.library import vector_bytes

BY_LANE = platform.machine() in ("aarch64", "arm64")
"""Whether a product takes one lane of a vector for all: then several columns of a row are read at once."""
VECTOR_BYTES = vector_bytes()
HAS_MANY_REGISTERS = VECTOR_BYTES == 64 or BY_LANE
"""Whether there are 32 vectors, not 16."""
LINE = 8
"""Numbers in a line."""


class Vectors:
    """Instructions on vectors of some lanes."""

    def __init__(self, builder: Any, scalar: Any, lanes: int) -> None:
        self.builder, self.lanes = builder, lanes
        self.single = isinstance(scalar, ir.FloatType)
        self.itemsize = 4 if self.single else 8
        self.scalar, self.floats = scalar, ir.VectorType(scalar, lanes)
        self._whole = ir.IntType(8 * self.itemsize)
        self.wholes = ir.VectorType(self._whole, lanes)
        self.zero = ir.Constant(self.floats, [0.0] * lanes)

    def splat(self, value: Any) -> Any:
        """One number in all lanes."""
        kind = ir.VectorType(value.type, self.lanes)
        one = self.builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
        return self.lane(one, 0)

    def lane(self, vector: Any, number: int) -> Any:
        """One lane of a vector in all lanes."""
        return self._shuffle(vector, vector, [number] * self.lanes)

    def numbers_from(self, first: Any) -> Any:
        """first, first + 1, … as wide as the floats."""
        return self.builder.add(self.splat(self.whole(first)), ir.Constant(self.wholes, list(range(self.lanes))))

    def whole(self, value: Any) -> Any:
        """An index as wide as the floats."""
        return self.builder.trunc(value, self._whole) if self.single else value

    def load(self, address: Any, count: int) -> Any:
        """Numbers that lie together."""
        kind = ir.VectorType(self.scalar, count).as_pointer()
        return self.builder.load(self.builder.bitcast(address, kind), align=self.itemsize)

    def load_widened(self, address: Any, count: int) -> Any:
        """Numbers that lie together, zeros in the other lanes."""
        some = self.load(address, count)
        if count == self.lanes:
            return some
        zeros = ir.Constant(some.type, [0.0] * count)
        return self._shuffle(some, zeros, [min(lane, count) for lane in range(self.lanes)])

    def store(self, vector: Any, address: Any) -> None:
        """Numbers that shall lie together."""
        self.builder.store(vector, self.builder.bitcast(address, vector.type.as_pointer()), align=4)

    def multiply_add(self, a: Any, b: Any, c: Any) -> Any:
        """a b + c, fused where that is fast."""
        name = f"llvm.fmuladd.v{self.lanes}f{8 * self.itemsize}"
        function = declared(self.builder, name, ir.FunctionType(self.floats, [self.floats] * 3))
        return self.builder.call(function, [a, b, c])

    def lower(self, a: Any, b: Any) -> Any:
        """The lower integers."""
        return self.builder.select(self.builder.icmp_signed("<", a, b), a, b)

    def higher(self, a: Any, b: Any) -> Any:
        """The higher integers."""
        return self.builder.select(self.builder.icmp_signed("<", a, b), b, a)

    def fold(self, records: list[Any], combine: Callable[[Any, Any], Any]) -> list[Any]:
        """Combine the lanes of each record, a tuple of vectors: as many vectors as hold one lane of each, in order.

        Two records share a vector, in which each has half its lanes, then four, and so on; the last is halved itself.
        """
        share = self.lanes
        while share > 1:
            together = min(2, len(records))
            records = [
                combine(*self._halves(records[k : k + together], share)) for k in range(0, len(records), together)
            ]
            share //= 2
        return records

    def _halves(self, records: list[Any], share: int) -> tuple[Any, Any]:
        """The first and the second half of what each record has in its vectors."""
        half, n_lanes = share // 2, len(records) * records[0][0].type.count
        lanes = [start + lane for start in range(0, n_lanes, share) for lane in range(half)]
        first, second = (
            tuple(
                self._shuffle(one, other, [lane + ahead for lane in lanes])
                for one, other in zip(records[0], records[-1], strict=True)
            )
            for ahead in (0, half)
        )
        return first, second

    def _shuffle(self, a: Any, b: Any, chosen: list[int]) -> Any:
        """The chosen lanes of two vectors, those of the second counted behind those of the first."""
        mask = ir.Constant(ir.VectorType(ir.IntType(32), len(chosen)), chosen)
        return self.builder.shuffle_vector(a, b, mask)


def _adding(n_lines: int) -> Any:
    """An instruction for `n_lines` lines side by side."""

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
