"""What a fitted model says of every row: one pass, and the models that can be asked beside mixtures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from globular.model.gaussian import GaussianParameters
from globular.model.graph import Graph
from globular.model.low_rank import LowRankParameters
from globular.model.statistics import F64
from globular.seam.passes import Pass


@dataclass(frozen=True, eq=False)
class Answer(Pass[list[Any]]):
    """What a fitted model says of every row: arrays for consecutive rows, to be joined (see `answer`).

    `model` is a mixture of any family, an infinite one, `Truncated`, `LowRank`, `Blurred`, `Centers`, `Nearest`,
    `Own` or `Coding`; who carries the pass out is chosen by its type, and knows what can be wanted of it.
    """

    model: Any
    want: str

    @property
    def variant(self) -> type:
        return type(self.model)


@dataclass(frozen=True, eq=False)
class Centers:
    """Centres to be asked for the "distances" of all rows to them."""

    centers: NDArray[np.floating[Any]]
    metric: str = "euclidean"


NEAREST = np.dtype([("center", np.int32), ("square", np.float64)])
"""One of the closest centres of a row: its number, and ‖x − μ‖²."""


@dataclass(frozen=True, eq=False)
class Nearest:
    """Centres to be asked for the `n` "nearest" ones of every row, the closest first: (N, n) of `NEAREST`.

    With a graph (C, G), G ≥ n, those are enough that are named at the row's label.
    """

    centers: F64
    n: int
    graph: Graph | None = None


@dataclass(frozen=True, eq=False)
class Own:
    """Centres to be asked for the "squares" ‖x − μ‖² of every row and the centre of its label."""

    centers: F64


CODED_AT_ONCE = 1 << 23
"""Numbers that a block of rows keeps in all branches of its beam; larger = larger products, and more memory."""


@dataclass(frozen=True, eq=False)
class Coding:
    """Codebooks to be asked for the `n_codes` best "codes" of every row that a beam finds, (N, n, L).

    The closest come first; there are fewer than `n_codes` where no more exist. Each codebook describes what those
    before it leave of the rows.
    """

    books: Sequence[NDArray[Any]]
    beam: int
    n_codes: int = 1

    @property
    def rows_at_once(self) -> int:
        """Rows whose codes are looked for at once."""
        sizes = [len(book) for book in self.books]
        width = min(max(self.beam, self.n_codes), max(sizes))
        return max(1, CODED_AT_ONCE // (self.beam * (2 * self.books[0].shape[1] + 3 * width)))


@dataclass(frozen=True, eq=False)
class Truncated:
    """A mixture to be asked with the K(n) of `n_candidates` components that the last pass has left."""

    mixture: GaussianParameters
    n_candidates: int


@dataclass(frozen=True, eq=False)
class LowRank:
    """A mixture of factor analysers to be asked, with the K(n) that the last pass has left or with all components."""

    mixture: LowRankParameters
    n_candidates: int | None = None
    """Components of K(n); None for all."""
    noise: F64 | None = None
    """What a "reconstruction" takes for noise: variances of components and columns, (C, D), (1, D) or (1, 1)."""


@dataclass(frozen=True, eq=False)
class Blurred:
    """A mixture of rows to which noise has been added, to be asked for the "reconstruction" of those before."""

    mixture: GaussianParameters
    """With full covariances, those of the noise included."""
    noise: F64
    """Variances of the noise, (D,)."""
    n_candidates: int | None = None
    """Components of K(n) that the last pass has left; None for all."""
