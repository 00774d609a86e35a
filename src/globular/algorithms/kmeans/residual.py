"""Codes that no two rows share.

Where rows want the same code and every row shall have its own, the later rows get their closest free one. It is looked
for among the best codes of a row, first those that differ in the last level alone, then ever more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.seam.answers import Coding
from globular.seam.passes import Index
from globular.seam.shard import Shard, answer

WORDS_PER_BRANCH = 64
"""Codes that are tried for each branch of the beam of a row in search of a free one; larger = fewer changes before the
last level, and less work. With 16 rows of dense groups took 14 times as long, and the error after a refinement was that
of 64 (32,000 embeddings of words, 4 codes a row)."""
WIDENING = 4
"""How many times as many codes are tried of rows that found no free one."""


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


def make_unique(shard: Shard, codes: NDArray[Any], books: Sequence[NDArray[Any]], beam: int) -> int:
    """Give rows whose code an earlier row has the closest free one, in place; returns how many these are.

    Memory: two numbers for each row, and those of a block.
    """
    keys = CodeKeys([len(book) for book in books])
    keys.check(len(codes))
    left = keys.repeated(codes)
    n_repeated, taken, n_codes = len(left), np.unique(keys.of(codes)), WORDS_PER_BRANCH
    while len(left):
        coding = Coding(books, max(beam, n_codes // WORDS_PER_BRANCH), n_codes)
        still, new = list[int](), set[int]()
        for begin in range(0, len(left), coding.rows_at_once):
            rows = left[begin : begin + coding.rows_at_once]
            proposed = answer(shard.subset(rows), coding, "codes")
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
