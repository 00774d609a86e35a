"""The two lowest scores of a few rows against many centres, without a matrix of scores.

Centres lie in tiles: the numbers of a column are together, as many as one or two vectors hold. The products of a few
rows with a tile stay in registers, as do the two lowest scores that each lane has seen, and nothing is written until
all tiles are through. A few centres of many columns lie as they are (tiles of one), and vectors run along the columns.
LLVM would not find these forms in loops over arrays, so it is told in vectors, as wide as those of this machine.

A key is the bits of a score, the last ones replaced by the number of its centre, so minima over integers say where they
come from. Keys are never above their scores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from llvmlite import ir

from globular.jit.instructions import loop, procedure, variable
from globular.jit.vectors import BY_LANE, HAS_MANY_REGISTERS, VECTOR_BYTES, Vectors

ROWS = 8 if HAS_MANY_REGISTERS else 4
"""Rows at once: with as many sums for each of them as registers allow."""
PAIR = 2
"""Centres at once where vectors run along the columns."""
TILE_COST = 0.25
"""What a tile costs besides its vectors, in vectors."""
FOLD_COST = 4
"""What it costs to add up the lanes of a product, in vectors."""


class Tile(NamedTuple):
    """How centres lie: the columns of `width` centres together."""

    lanes: int
    vectors: int
    """Those of a column; 0 if vectors run along the columns of one centre."""

    @property
    def width(self) -> int:
        """Centres of a tile."""
        return max(1, self.lanes * self.vectors)

    @property
    def step(self) -> int:
        """Centres come in multiples of it."""
        return self.width if self.vectors else PAIR


def tiles(itemsize: int) -> list[Tile]:
    """All there are for numbers of a size, narrow ones first."""
    widest, lanes = VECTOR_BYTES // itemsize, 16 // itemsize
    found = [Tile(widest, 0)]
    while lanes <= widest:
        found.append(Tile(lanes, 1))
        lanes *= 2
    return [*found, Tile(widest, 2)]


def tile_for(n_centers: int, n_columns: int, itemsize: int) -> Tile:
    """The tile that suits `n_centers` centres."""
    along, *across = tiles(itemsize)
    n_vectors = n_columns // along.lanes + (n_columns % along.lanes).bit_count()
    if n_centers * (n_vectors + FOLD_COST) <= n_columns:
        return along
    return min(across, key=lambda tile: -(-n_centers // tile.width) * (tile.vectors + TILE_COST))


def line_tile(itemsize: int) -> Tile:
    """The tile of scores that lie in a line."""
    return Tile(VECTOR_BYTES // itemsize, 1)


class _Search:
    """The two lowest keys of each lane of some vectors."""

    def __init__(self, vectors: Vectors, n: int, mask: Any, nobody: Any) -> None:
        self._vectors, self._builder, self._mask = vectors, vectors.builder, vectors.whole(mask)
        start = vectors.splat(vectors.whole(nobody))
        self._found = [[variable(vectors.builder, start) for _ in range(2)] for _ in range(n)]

    def take(self, k: int, scores: Any, numbers: Any) -> None:
        """Look at scores of the k-th vector, and the numbers of their centres."""
        builder, vectors = self._builder, self._vectors
        bits = builder.bitcast(scores, vectors.wholes)
        key = builder.or_(builder.and_(bits, vectors.splat(self._mask)), numbers)
        low, next_low = (builder.load(each) for each in self._found[k])
        builder.store(vectors.lower(next_low, vectors.higher(low, key)), self._found[k][1])
        builder.store(vectors.lower(low, key), self._found[k][0])

    def write(self, first: Any, low: Any, next_low: Any, found: Any, *, fold: bool) -> None:
        """Write down the two lowest scores, rounded down, and the centre of the lowest, of each lane or each vector."""
        builder, vectors = self._builder, self._vectors
        pairs = [tuple(builder.load(each) for each in row) for row in self._found]
        if fold:
            pairs = vectors.fold(
                pairs, lambda a, b: (
                    vectors.lower(a[0], b[0]),
                    vectors.lower(vectors.higher(a[0], b[0]), vectors.lower(a[1], b[1])),
                )
            )  # fmt: skip
        for k, (key, second) in enumerate(pairs):
            some = Vectors(builder, vectors.scalar, key.type.count)
            keep, place = some.splat(self._mask), ir.Constant(first.type, k * some.lanes)
            for value, address in ((key, low), (second, next_low)):
                some.store(builder.bitcast(builder.and_(value, keep), some.floats), builder.gep(address, [place]))
            numbers, narrow = builder.and_(key, builder.not_(keep)), ir.VectorType(ir.IntType(32), some.lanes)
            numbers = numbers if vectors.single else builder.trunc(numbers, narrow)
            numbers = builder.add(numbers, some.splat(builder.trunc(first, ir.IntType(32))))
            some.store(numbers, builder.gep(found, [place]))


def _products_across(vectors: Vectors, n_vectors: int, rows: list[Any], n_columns: Any, factors: Any) -> list[Any]:
    """Products of rows with the centres of a tile: vectors of centres, by rows. O(rows · width · columns)."""
    builder, size = vectors.builder, n_columns.type
    sums = [[variable(builder, vectors.zero) for _ in rows] for _ in range(n_vectors)]
    width = ir.Constant(size, n_vectors * vectors.lanes)

    def add_column(column: Any, value_of: Callable[[int], Any]) -> None:
        line = builder.gep(factors, [builder.mul(column, width)])
        some = [
            vectors.load(builder.gep(line, [ir.Constant(size, v * vectors.lanes)]), vectors.lanes)
            for v in range(n_vectors)
        ]
        for row in range(len(rows)):
            value = value_of(row)
            for v in range(n_vectors):
                builder.store(vectors.multiply_add(value, some[v], builder.load(sums[v][row])), sums[v][row])

    done: Any = 0
    if BY_LANE:
        at_once = 16 // vectors.itemsize
        done = builder.and_(n_columns, ir.Constant(size, -at_once))
        with loop(builder, 0, done, at_once) as first:
            parts = [vectors.load(builder.gep(row, [first]), at_once) for row in rows]
            for k in range(at_once):
                values = [vectors.lane(part, k) for part in parts]
                add_column(builder.add(first, ir.Constant(size, k)), values.__getitem__)
    with loop(builder, done, n_columns, 1) as column:
        add_column(column, lambda row: vectors.splat(builder.load(builder.gep(rows[row], [column]))))
    return [[builder.load(address) for address in each] for each in sums]


def _products_along(vectors: Vectors, rows: list[Any], n_columns: Any, factors: Any) -> list[Any]:
    """Products of rows with a pair of centres: vectors of rows, by centres. O(rows · columns)."""
    builder, size = vectors.builder, n_columns.type
    sums = [[variable(builder, vectors.zero) for _ in rows] for _ in range(PAIR)]
    lines = [builder.gep(factors, [builder.mul(n_columns, ir.Constant(size, c))]) for c in range(PAIR)]
    done, at_once = ir.Constant(size, 0), vectors.lanes
    while at_once:  # the columns that are left over from whole vectors by half of one, a quarter, and so on
        stop = builder.and_(n_columns, ir.Constant(size, -at_once))
        with loop(builder, done, stop, at_once) as column:
            some = [vectors.load_widened(builder.gep(line, [column]), at_once) for line in lines]
            for row in range(len(rows)):
                value = vectors.load_widened(builder.gep(rows[row], [column]), at_once)
                for c in range(PAIR):
                    builder.store(vectors.multiply_add(value, some[c], builder.load(sums[c][row])), sums[c][row])
        done, at_once = stop, at_once // 2
    return [
        [
            total
            for (total,) in vectors.fold(
                [(builder.load(address),) for address in each], lambda a, b: (builder.fadd(a[0], b[0]),)
            )
        ]
        for each in sums
    ]


class _Rows:
    """`ROWS` rows and where their results go, for both ways to score them."""

    def __init__(self, builder: Any, x: Any, places: Any, *others: Any) -> None:
        self.builder = builder
        (
            self.at, self.squares, self.factors, self.norms, self.first, self.stop, self.mask, self.nobody,
            self.scores, self.low, self.next_low, self.found,
        ) = others  # fmt: skip
        self.size, self.n_columns = self.at.type, x.shape[1]
        last = builder.sub(places.shape[0], self.number(1))
        self.rows = []
        for row in range(ROWS):
            place = builder.add(self.at, self.number(row))
            place = builder.select(builder.icmp_signed("<", place, last), place, last)
            self.rows.append(x.at(builder.mul(builder.load(places.at(place)), self.n_columns)))

    def number(self, value: int) -> Any:
        """A constant index."""
        return ir.Constant(self.size, value)

    def _keeps_scores(self) -> Any:
        """A block that runs if scores are wanted."""
        return self.builder.if_then(self.builder.icmp_signed("!=", self.scores.shape[0], self.number(0)))

    def _score_at(self, row: int, position: Any) -> Any:
        """Where a score of a row is kept."""
        return self.scores.at(self.builder.add(self.builder.mul(self.number(row), self.scores.shape[1]), position))

    def _write(self, search: _Search, *, fold: bool) -> None:
        search.write(self.first, self.low.at(self.at), self.next_low.at(self.at), self.found.at(self.at), fold=fold)

    def search_across(self, tile: Tile) -> None:
        """Vectors of centres."""
        builder = self.builder
        vectors = Vectors(builder, self.squares.scalar, tile.lanes)
        search = _Search(vectors, ROWS, self.mask, self.nobody)
        lengths = [
            vectors.splat(builder.load(self.squares.at(builder.add(self.at, self.number(row))))) for row in range(ROWS)
        ]
        with loop(builder, self.first, self.stop, tile.width) as center:
            factors = self.factors.at(builder.mul(center, self.n_columns))
            scores = _products_across(vectors, tile.vectors, self.rows, self.n_columns, factors)
            done = builder.sub(center, self.first)
            for v in range(tile.vectors):
                ahead = self.number(v * tile.lanes)
                norms = vectors.load(self.norms.at(builder.add(center, ahead)), tile.lanes)
                numbers = vectors.numbers_from(builder.add(done, ahead))
                for row in range(ROWS):
                    scores[v][row] = builder.fadd(scores[v][row], builder.fadd(lengths[row], norms))
                    search.take(row, scores[v][row], numbers)
            with self._keeps_scores():
                for v in range(tile.vectors):
                    position = builder.add(done, self.number(v * tile.lanes))
                    for row in range(ROWS):
                        vectors.store(scores[v][row], self._score_at(row, position))
        self._write(search, fold=True)

    def search_along(self, tile: Tile) -> None:
        """Vectors of columns for the products, of rows for their scores."""
        builder, scalar = self.builder, self.squares.scalar
        vectors = Vectors(builder, scalar, tile.lanes)
        rows = Vectors(builder, scalar, min(tile.lanes, ROWS))
        n_parts = ROWS // rows.lanes
        search = _Search(rows, n_parts, self.mask, self.nobody)
        lengths = [
            rows.load(self.squares.at(builder.add(self.at, self.number(k * rows.lanes))), rows.lanes)
            for k in range(n_parts)
        ]
        with loop(builder, self.first, self.stop, PAIR) as pair:
            factors = self.factors.at(builder.mul(pair, self.n_columns))
            scores = _products_along(vectors, self.rows, self.n_columns, factors)
            for c in range(PAIR):
                center = builder.add(pair, self.number(c))
                position = builder.sub(center, self.first)
                norm, number = rows.splat(builder.load(self.norms.at(center))), rows.splat(rows.whole(position))
                for k in range(n_parts):
                    scores[c][k] = builder.fadd(scores[c][k], builder.fadd(lengths[k], norm))
                    search.take(k, scores[c][k], number)
                with self._keeps_scores():
                    for row in range(ROWS):
                        lane = ir.Constant(ir.IntType(32), row % rows.lanes)
                        score = builder.extract_element(scores[c][row // rows.lanes], lane)
                        builder.store(score, self._score_at(row, position))
        self._write(search, fold=False)


@procedure
def distances_to_tile(builder: Any, x: Any, row: Any, scale: Any, tile: Any, distances: Any) -> None:
    """distances[c] = ‖scale·x[row] − tile[:, c]‖², `scale` of the dtype of x; the tile is as wide as some of
    `line_tile`. O(D · width)."""
    n_columns, width = tile.shape
    vectors = Vectors(builder, x.scalar, line_tile(x.itemsize).lanes)
    begin = builder.mul(row, n_columns)
    with loop(builder, 0, width, vectors.lanes) as center:
        total = variable(builder, vectors.zero)
        with loop(builder, 0, n_columns, 1) as column:
            value = builder.fmul(scale, builder.load(x.at(builder.add(begin, column))))
            some = vectors.load(tile.at(builder.add(builder.mul(column, width), center)), vectors.lanes)
            difference = builder.fsub(vectors.splat(value), some)
            builder.store(vectors.multiply_add(difference, difference, builder.load(total)), total)
        vectors.store(builder.load(total), distances.at(center))


@procedure
def lowest_of_rows(
    builder: Any, x: Any, places: Any, at: Any, squares: Any, factors: Any, norms: Any, first: Any, stop: Any,
    mask: Any, nobody: Any, scores: Any, low: Any, next_low: Any, found: Any,
) -> None:  # fmt: skip
    """The two lowest scores of rows against the centres first … stop − 1, of `ROWS` rows: x[places[at]] and so on.

    low[at], next_low[at] and found[at] are those of a row: rounded down by the truncated bits, and the centre of the
    first. The last row stands for those that are missing; of `squares`, `low`, `next_low` and `found` there are `ROWS`
    entries from `at` on. Factors are (tiles, D, width); where `scores` has rows, (ROWS, ≥ stop − first), the scores of
    each are kept there as well.
    """
    rows = _Rows(
        builder, x, places, at, squares, factors, norms, first, stop, mask, nobody, scores, low, next_low, found
    )
    end = builder.append_basic_block("found")
    choice = builder.switch(factors.shape[2], end)
    for tile in tiles(squares.itemsize):
        block = builder.append_basic_block(f"width{tile.width}")
        choice.add_case(rows.number(tile.width), block)
        builder.position_at_end(block)
        if tile.vectors:
            rows.search_across(tile)
        else:
            rows.search_along(tile)
        builder.branch(end)
    builder.position_at_end(end)


@procedure
def lowest_of_scores(
    builder: Any, scores: Any, at: Any, first: Any, stop: Any, mask: Any, nobody: Any, low: Any, next_low: Any,
    found: Any,
) -> None:  # fmt: skip
    """The same of one row, whose scores with the centres first … stop − 1 lie in a line."""
    tile = line_tile(scores.itemsize)
    vectors = Vectors(builder, scores.scalar, tile.lanes)
    search = _Search(vectors, 1, mask, nobody)
    with loop(builder, 0, builder.sub(stop, first), tile.lanes) as position:
        search.take(0, vectors.load(scores.at(position), tile.lanes), vectors.numbers_from(position))
    search.write(first, low.at(at), next_low.at(at), found.at(at), fold=True)
