"""Codes of rows by several codebooks, each for what those before it leave: the best few of them, and distinct ones.

A row is described by the sum of one code word of each codebook. To take the closest word level by level is greedy; a
*beam* keeps the best few partial codes of a row at every level and goes on from each, as additive quantisers do.

Where rows want the same code and every row shall have its own, the later rows get their closest free one. It is looked
for among the best codes of a row, first those that differ in the last level alone, then ever more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.data.residuals import Codebooks
from globular.model.statistics import I64, Floats
from globular.seam.answers import Nearest
from globular.seam.passes import Assign, Index
from globular.seam.shard import Shard, answer

BLOCK_NUMBERS = 1 << 23
"""Numbers that a block of rows keeps in all branches of its beam; larger = larger products, and more memory."""
WORDS_PER_BRANCH = 64
"""Codes that are tried for each branch of the beam of a row in search of a free one; larger = fewer changes before the
last level, and less work. With 16 rows of dense groups took 14 times as long, and the error after a refinement was that
of 64 (32,000 embeddings of words, 4 codes a row)."""
WIDENING = 4
"""How many times as many codes are tried of rows that found no free one."""
Encode = Callable[[Index, int, int], I64]
"""The best codes (n, n_codes, L) of some rows, the closest first, by a beam of this width."""


def best_codes(
    open_rows: Callable[[Floats], Shard], rows: Floats, codebooks: Codebooks, beam: int, n_codes: int = 1
) -> I64:
    """The best codes of every row that a beam finds, the closest first: (n, n_codes, L), or as many as there are.

    `open_rows` makes a shard of rows in memory. O(n · beam · K · D) for each level.
    """
    n, D = rows.shape
    left, codes = rows[:, None], np.empty((n, 1, 0), dtype=np.int64)
    for level, codebook in enumerate(codebooks):
        last = level == len(codebooks) - 1
        width = min(n_codes if last else beam, left.shape[1] * len(codebook))
        n_words = min(width, len(codebook))
        shard, centers = open_rows(left.reshape(-1, D)), codebook.astype(np.float64)
        if width == left.shape[1] == 1:  # greedy, in half of the time
            shard.run(Assign(centers, want="labels"))
            words: I64 = shard.labels[:, None].astype(np.int64)
            branches = np.zeros_like(words)
        else:
            found = answer(shard, Nearest(centers, n_words), "nearest")
            best = np.argsort(found["square"].reshape(n, -1), axis=1, kind="stable")[:, :width]
            words = np.take_along_axis(found["center"].reshape(n, -1), best, axis=1).astype(np.int64)
            branches = best // n_words
        codes = np.concatenate([np.take_along_axis(codes, branches[..., None], axis=1), words[..., None]], axis=2)
        if not last:
            left = np.take_along_axis(left, branches[..., None], axis=1) - codebook[words]
    return codes


def rows_per_block(n_columns: int, sizes: Sequence[int], beam: int, n_codes: int = 1) -> int:
    """Rows whose codes are looked for at once."""
    return max(1, BLOCK_NUMBERS // (beam * (2 * n_columns + 3 * min(max(beam, n_codes), max(sizes)))))


class CodeKeys:
    """One number for every code; different codes have different ones if there are fewer than 2⁶⁴ codes.

    Beyond that they are hashed: two codes of one number then count as the same, and neither is given to two rows.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.n_codes = 1
        factors = []
        for size in reversed(sizes):
            factors.append(self.n_codes)
            self.n_codes *= size
        if self.n_codes > 1 << 64:
            factors = (2 * np.random.default_rng(0).integers(1 << 62, size=len(sizes)) + 1).tolist()
        self._factors = np.array(factors[::-1], dtype=np.uint64)

    def check(self, n_rows: int) -> None:
        """Refuse more rows than there are codes."""
        if n_rows > self.n_codes:
            raise ValueError(f"unique=True: {n_rows} rows and {self.n_codes} codes; take more levels or more clusters")

    def of(self, codes: NDArray[Any]) -> NDArray[np.uint64]:
        """The numbers of codes (..., L)."""
        return np.asarray((codes.astype(np.uint64) * self._factors).sum(axis=-1, dtype=np.uint64))

    def repeated(self, codes: NDArray[Any]) -> Index:
        """The rows whose code an earlier row has, ascending."""
        keys = self.of(codes)
        order = np.argsort(keys, kind="stable")
        ascending = keys[order]
        return np.sort(order[1:][ascending[1:] == ascending[:-1]])


def make_unique(codes: NDArray[Any], sizes: Sequence[int], n_columns: int, beam: int, encode: Encode) -> int:
    """Give rows whose code an earlier row has the closest free one, in place; returns how many these are.

    Memory: two numbers for each row, and those of a block.
    """
    keys = CodeKeys(sizes)
    keys.check(len(codes))
    left = keys.repeated(codes)
    n_repeated, taken, n_codes = len(left), np.unique(keys.of(codes)), WORDS_PER_BRANCH
    while len(left):
        width, still, new = max(beam, n_codes // WORDS_PER_BRANCH), list[int](), set[int]()
        size = rows_per_block(n_columns, sizes, width, n_codes)
        for begin in range(0, len(left), size):
            rows = left[begin : begin + size]
            proposed = encode(rows, width, n_codes)
            wanted = keys.of(proposed)
            places = np.minimum(np.searchsorted(taken, wanted), len(taken) - 1)
            free = taken[places] != wanted
            for i, row in enumerate(rows.tolist()):
                choice = next((j for j in np.flatnonzero(free[i]) if int(wanted[i, j]) not in new), None)
                if choice is None:
                    still.append(row)
                else:
                    new.add(int(wanted[i, choice]))
                    codes[row] = proposed[i, choice]
        taken = np.union1d(taken, np.fromiter(new, np.uint64, len(new)))
        left, n_codes = np.array(still, dtype=np.intp), n_codes * WIDENING
    return n_repeated
