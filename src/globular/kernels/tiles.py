"""The two lowest scores of a few rows against many centres, tile by tile, without a matrix of scores.

Centres lie in tiles: the numbers of a column are together, as many as one or two vectors hold, so the products of a few
rows with a tile stay in registers, as do the two lowest scores that each lane has seen. Nothing is written until all
tiles are through. LLVM would not find that form in loops over arrays, so it is told in its own vectors, as wide as
those of this machine.

A key is the bits of a score, the last ones replaced by the number of its centre, so minima over integers say where they
come from. Keys are never above their scores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_FEATURES = binding.get_host_cpu_features()
_BY_LANE = bool(_FEATURES.get("neon"))
"""Whether a product takes one lane of a vector for all: then several columns of a row are read at once."""
_VECTOR = 64 if _FEATURES.get("avx512f") else 32 if _FEATURES.get("avx2") else 16
"""Bytes of a vector."""
ROWS = 8 if _VECTOR == 64 or _BY_LANE else 4
"""Rows at once: with 32 registers eight, with 16 four."""
TILE_COST = 0.25
"""What a tile costs besides its vectors, in vectors."""


class Tile(NamedTuple):
    """Centres whose products are in registers at the same time."""

    lanes: int
    vectors: int

    @property
    def width(self) -> int:
        """How many."""
        return self.lanes * self.vectors


def tiles(itemsize: int) -> list[Tile]:
    """All there are for numbers of a size, narrow ones first."""
    widest = _VECTOR // itemsize
    lanes = 16 // itemsize
    found = []
    while lanes <= widest:
        found.append(Tile(lanes, 1))
        lanes *= 2
    return [*found, Tile(widest, 2)]


def tile_for(n_centers: int, itemsize: int) -> Tile:
    """The tile that suits so many centres."""
    return min(tiles(itemsize), key=lambda tile: -(-n_centers // tile.width) * (tile.vectors + TILE_COST))


def line_tile(itemsize: int) -> Tile:
    """The tile of scores that lie in a line."""
    return Tile(_VECTOR // itemsize, 1)


class _Array:
    """An array inside a kernel."""

    def __init__(self, context: Any, builder: Any, kind: Any, value: Any) -> None:
        self._builder = builder
        array = context.make_array(kind)(context, builder, value)
        self.data = array.data
        self.shape = [builder.extract_value(array.shape, axis) for axis in range(kind.ndim)]

    def at(self, index: Any) -> Any:
        """The address of an entry, counted from the first."""
        return self._builder.gep(self.data, [index])


def _unpack(context: Any, builder: Any, signature: Any, values: Any) -> list[Any]:
    """The arguments of an intrinsic, arrays as such."""
    return [
        _Array(context, builder, kind, value) if isinstance(kind, types.Array) else value
        for kind, value in zip(signature.args, values, strict=True)
    ]


class _Emitter:
    """Instructions on vectors of one kind."""

    def __init__(self, builder: Any, scalar: Any, lanes: int) -> None:
        self.builder, self.lanes = builder, lanes
        self.single = isinstance(scalar, ir.FloatType)
        self.scalar, self.vector = scalar, ir.VectorType(scalar, lanes)
        self.whole = ir.IntType(32 if self.single else 64)
        self.wholes = ir.VectorType(self.whole, lanes)

    def intrinsic(self, name: str, result: Any, *arguments: Any) -> Any:
        """Call a function of LLVM; its name ends with the vector's."""
        function = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
            self.builder.module, ir.FunctionType(result, [each.type for each in arguments]), name
        )
        return self.builder.call(function, arguments)

    def splat(self, value: Any) -> Any:
        """One number in all lanes."""
        kind = ir.VectorType(value.type, self.lanes)
        one = self.builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
        return self.lane(one, 0)

    def lane(self, vector: Any, number: int) -> Any:
        """One lane of a vector in all lanes."""
        mask = ir.Constant(ir.VectorType(ir.IntType(32), self.lanes), [number] * self.lanes)
        return self.builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), mask)

    def load(self, address: Any, count: int) -> Any:
        """Numbers that lie together."""
        kind = ir.VectorType(self.scalar, count).as_pointer()
        return self.builder.load(self.builder.bitcast(address, kind), align=4 if self.single else 8)

    def store(self, vector: Any, address: Any) -> None:
        """Numbers that shall lie together."""
        self.builder.store(
            vector, self.builder.bitcast(address, self.vector.as_pointer()), align=4 if self.single else 8
        )

    def multiply_add(self, a: Any, b: Any, c: Any) -> Any:
        """a b + c, fused where that is fast."""
        return self.intrinsic(f"llvm.fmuladd.v{self.lanes}f{32 if self.single else 64}", self.vector, a, b, c)

    def lower(self, a: Any, b: Any) -> Any:
        """The lower keys."""
        return self.builder.select(self.builder.icmp_signed("<", a, b), a, b)

    def higher(self, a: Any, b: Any) -> Any:
        """The higher keys."""
        return self.builder.select(self.builder.icmp_signed("<", a, b), b, a)

    def numbers_from(self, first: Any) -> Any:
        """first, first + 1, … as wide as scores."""
        first = self.builder.trunc(first, self.whole) if self.single else first
        return self.builder.add(self.splat(first), ir.Constant(self.wholes, list(range(self.lanes))))

    def shuffle(self, a: Any, b: Any, chosen: list[int]) -> Any:
        """The chosen lanes of two vectors, those of the second counted behind those of the first."""
        return self.builder.shuffle_vector(
            a, b, ir.Constant(ir.VectorType(ir.IntType(32), len(chosen)), chosen)
        )


class _Search:
    """What is common to the two searches below: the two lowest keys of each lane, row by row."""

    def __init__(self, emit: _Emitter, n_rows: int, mask: Any, nobody: Any) -> None:
        self.emit, self.builder = emit, emit.builder
        start = emit.splat(nobody)
        self.found = [
            [cgutils.alloca_once_value(self.builder, start) for _ in range(2)]  # type: ignore[no-untyped-call]
            for _ in range(n_rows)
        ]
        self._mask = mask

    def take(self, row: int, scores: Any, numbers: Any) -> None:
        """Look at a vector of scores of a row."""
        builder, emit = self.builder, self.emit
        bits = builder.bitcast(scores, emit.wholes)
        key = builder.or_(builder.and_(bits, emit.splat(self._mask)), numbers)
        low, next_low = (builder.load(each) for each in self.found[row])
        builder.store(emit.lower(next_low, emit.higher(low, key)), self.found[row][1])
        builder.store(emit.lower(low, key), self.found[row][0])

    def _merge(self, pairs: list[Any], share: int) -> Any:
        """The two lowest keys of rows in one vector or two, of which each has `share` lanes: half as many lanes each."""
        emit, half = self.emit, share // 2
        n_lanes = len(pairs) * pairs[0][0].type.count
        starts = [start + lane for start in range(0, n_lanes, share) for lane in range(half)]
        (low, other_low), (next_low, other_next) = (
            [emit.shuffle(pairs[0][k], pairs[-1][k], [start + ahead for start in starts]) for ahead in (0, half)]
            for k in range(2)
        )
        return emit.lower(low, other_low), emit.lower(emit.higher(low, other_low), emit.lower(next_low, other_next))

    def write(self, first: Any, low: Any, next_low: Any, found: Any) -> None:
        """Write down the two lowest scores of all rows, rounded down, and the centre of the lowest."""
        builder, emit = self.builder, self.emit
        pairs, share = [tuple(builder.load(each) for each in row) for row in self.found], emit.lanes
        while share > 1:
            together = 2 if len(pairs) > 1 else 1
            pairs = [self._merge(pairs[k : k + together], share) for k in range(0, len(pairs), together)]
            share //= 2
        for k, (key, second) in enumerate(pairs):
            some = _Emitter(builder, emit.scalar, key.type.count)
            keep, place = some.splat(self._mask), ir.Constant(first.type, k * some.lanes)
            for value, address in ((key, low), (second, next_low)):
                some.store(builder.bitcast(builder.and_(value, keep), some.vector), builder.gep(address, [place]))
            numbers = builder.and_(key, builder.not_(keep))
            narrow = ir.VectorType(ir.IntType(32), some.lanes)
            numbers = numbers if emit.single else builder.trunc(numbers, narrow)
            numbers = builder.add(numbers, some.splat(builder.trunc(first, ir.IntType(32))))
            address = builder.bitcast(builder.gep(found, [place]), narrow.as_pointer())
            builder.store(numbers, address, align=4)


def _multiply_tile(emit: _Emitter, tile: Tile, rows: list[Any], n_columns: Any, factors: Any) -> list[list[Any]]:
    """Products of rows with the centres of a tile, vectors by rows. O(rows · width · columns)."""
    builder, size = emit.builder, n_columns.type
    zero = ir.Constant(emit.vector, [0.0] * emit.lanes)
    sums = [
        [cgutils.alloca_once(builder, emit.vector) for _ in rows]  # type: ignore[no-untyped-call]
        for _ in range(tile.vectors)
    ]
    for each in sums:
        for address in each:
            builder.store(zero, address)

    def add_column(column: Any, values: Callable[[int], Any]) -> None:
        line = builder.gep(factors, [builder.mul(column, ir.Constant(size, tile.width))])
        some = [
            emit.load(builder.gep(line, [ir.Constant(size, emit.lanes * v)]), emit.lanes) for v in range(tile.vectors)
        ]
        for row in range(len(rows)):
            value = values(row)
            for v in range(tile.vectors):
                builder.store(emit.multiply_add(value, some[v], builder.load(sums[v][row])), sums[v][row])

    at_once = 16 // (4 if emit.single else 8) if _BY_LANE else 1
    whole = builder.and_(n_columns, ir.Constant(size, -at_once))
    if at_once > 1:
        with cgutils.for_range_slice(  # type: ignore[no-untyped-call]
            builder, ir.Constant(size, 0), whole, ir.Constant(size, at_once), inc=True
        ) as (first, _):
            stretches = [emit.load(builder.gep(row, [first]), at_once) for row in rows]
            for k in range(at_once):
                add_column(
                    builder.add(first, ir.Constant(size, k)), lambda row, k=k: emit.lane(stretches[row], k)
                )
    start = whole if at_once > 1 else ir.Constant(size, 0)
    with cgutils.for_range_slice(  # type: ignore[no-untyped-call]
        builder, start, n_columns, ir.Constant(size, 1), inc=True
    ) as (column, _):
        add_column(column, lambda row: emit.splat(builder.load(builder.gep(rows[row], [column]))))
    return [[builder.load(address) for address in each] for each in sums]


@intrinsic
def lowest_of_rows(
    typing_context: Any, x: Any, places: Any, at: Any, squares: Any, factors: Any, norms: Any, first: Any, stop: Any,
    mask: Any, nobody: Any, scores: Any, low: Any, next_low: Any, found: Any,
) -> Any:  # fmt: skip
    """The two lowest scores of rows against the centres first … stop − 1, of `ROWS` rows: x[places[at]] and so on.

    low[at], next_low[at] and found[at], … are those of a row: rounded down by the truncated bits, and the centre of the
    first. The last row stands for those that are missing. Factors are (tiles, D, width); where `scores` has rows, (ROWS,
    ≥ stop − first), the scores of each are kept there as well.
    """
    arguments = (
        x, places, types.intp, squares, factors, norms, types.intp, types.intp, mask, mask, scores, low, next_low, found
    )  # fmt: skip

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        x, places, at, squares, factors, norms, first, stop, mask, nobody, scores, low, next_low, found = _unpack(
            context, builder, signature, values
        )
        size, scalar = at.type, context.get_data_type(signature.args[3].dtype)
        itemsize = 4 if isinstance(scalar, ir.FloatType) else 8
        n_columns = x.shape[1]
        last = builder.sub(places.shape[0], ir.Constant(size, 1))
        rows, lengths = [], []
        for row in range(ROWS):
            place = builder.add(at, ir.Constant(size, row))
            place = builder.select(builder.icmp_signed("<", place, last), place, last)
            rows.append(x.at(builder.mul(builder.load(places.at(place)), n_columns)))
            lengths.append(builder.load(squares.at(place)))
        end = builder.append_basic_block("found")
        choose = builder.switch(factors.shape[2], end)
        for tile in tiles(itemsize):
            choose.add_case(ir.Constant(size, tile.width), builder.append_basic_block(f"width{tile.width}"))
            builder.position_at_end(choose.cases[-1][1])
            emit = _Emitter(builder, scalar, tile.lanes)
            search = _Search(emit, ROWS, mask, nobody)
            width = ir.Constant(size, tile.width)
            with cgutils.for_range_slice(builder, first, stop, width, inc=True) as (center, _):  # type: ignore[no-untyped-call]
                products = _multiply_tile(emit, tile, rows, n_columns, factors.at(builder.mul(center, n_columns)))
                done = builder.sub(center, first)
                for v in range(tile.vectors):
                    ahead = ir.Constant(size, v * tile.lanes)
                    squared = emit.load(norms.at(builder.add(center, ahead)), tile.lanes)
                    numbers = emit.numbers_from(builder.add(done, ahead))
                    for row in range(ROWS):
                        products[v][row] = builder.fadd(
                            products[v][row], builder.fadd(emit.splat(lengths[row]), squared)
                        )
                        search.take(row, products[v][row], numbers)
                with builder.if_then(builder.icmp_signed("!=", scores.shape[0], ir.Constant(size, 0))):
                    for row in range(ROWS):
                        line = builder.add(builder.mul(ir.Constant(size, row), scores.shape[1]), done)
                        for v in range(tile.vectors):
                            ahead = ir.Constant(size, v * tile.lanes)
                            emit.store(products[v][row], scores.at(builder.add(line, ahead)))
            search.write(first, low.at(at), next_low.at(at), found.at(at))
            builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    return types.void(*arguments), generate


@intrinsic
def lowest_of_scores(
    typing_context: Any, scores: Any, at: Any, first: Any, stop: Any, mask: Any, nobody: Any, low: Any, next_low: Any,
    found: Any,
) -> Any:  # fmt: skip
    """The same of one row, whose scores with the centres first … stop − 1 lie in a line."""
    arguments = (scores, types.intp, types.intp, types.intp, mask, mask, low, next_low, found)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        scores, at, first, stop, mask, nobody, low, next_low, found = _unpack(context, builder, signature, values)
        scalar = context.get_data_type(signature.args[0].dtype)
        tile = line_tile(4 if isinstance(scalar, ir.FloatType) else 8)
        emit = _Emitter(builder, scalar, tile.lanes)
        search, lanes = _Search(emit, 1, mask, nobody), ir.Constant(at.type, tile.lanes)
        with cgutils.for_range_slice(  # type: ignore[no-untyped-call]
            builder, ir.Constant(at.type, 0), builder.sub(stop, first), lanes, inc=True
        ) as (position, _):
            search.take(0, emit.load(scores.at(position), tile.lanes), emit.numbers_from(position))
        search.write(first, low.at(at), next_low.at(at), found.at(at))
        return context.get_dummy_value()

    return types.void(*arguments), generate
