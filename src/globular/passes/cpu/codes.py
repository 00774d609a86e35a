"""Codes of rows by several codebooks, wherever the rows lie.

A row is described by the sum of one code word of each codebook. To take the closest word level by level is greedy; a
*beam* keeps the best few partial codes of a row at every level and goes on from each, as additive quantisers do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.passes.host import HostShard
from globular.seam.answers import Answer, Coding, Nearest
from globular.seam.passes import Assign
from globular.seam.shard import Shard, answer
from globular.threads import even_ranges


@HostShard.implements(Answer, Coding)
def codes(shard: HostShard, work: Answer) -> list[Any]:
    """The codes of all rows, (N, n, L), in the smallest type that holds them."""
    blocks = (
        rows[slice(*span)] for _, rows in shard.row_blocks() for span in even_ranges(len(rows), work.model.rows_at_once)
    )
    return [best_codes(shard.local, rows, work.model) for rows in blocks]


def best_codes(open_rows: Callable[[Any], Shard], rows: Any, coding: Coding) -> NDArray[Any]:
    """The best codes of some rows; `open_rows` makes a shard of them. O(n · beam · K · D) for each level."""
    n, D = rows.shape
    left, found = rows[:, None], np.empty((n, 1, 0), dtype=np.int64)
    for level, book in enumerate(coding.books):
        last = level == len(coding.books) - 1
        width = min(coding.n_codes if last else coding.beam, left.shape[1] * len(book))
        n_words = min(width, len(book))
        shard, centers = open_rows(left.reshape(-1, D)), book.astype(np.float64)
        if width == left.shape[1] == 1:  # greedy, in half of the time
            shard.run(Assign(centers, want="labels"))
            words: Any = shard.labels[:, None]
            branches = np.zeros_like(words)
        else:
            near = answer(shard, Nearest(centers, n_words), "nearest")
            best = np.argsort(near["square"].reshape(n, -1), axis=1, kind="stable")[:, :width]
            words = np.take_along_axis(near["center"].reshape(n, -1), best, axis=1)
            branches = best // n_words
        found = np.concatenate([np.take_along_axis(found, branches[..., None], axis=1), words[..., None]], axis=2)
        if not last:
            left = np.take_along_axis(left, branches[..., None], axis=1) - book[words]
    return np.asarray(found).astype(np.min_scalar_type(max(map(len, coding.books)) - 1))
