"""What an attack is made of: rows of awkward geometry in every form, weights of every kind, numbers of everything.

Hypothesis draws a `Case`; whatever it finds is shrunk to fewer rows, columns and clusters, and printed so that it can
be typed in again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from scipy import sparse

from makers import FORMS, Rows, blobs, in_form, lattice

Maker = Callable[[np.random.Generator, int, int], Rows]


def _some_rows_often(random: np.random.Generator, n: int, D: int) -> Rows:
    return random.normal(size=(max(1, n // 10), D))[random.integers(0, max(1, n // 10), size=n)]


def _with_a_far_row(random: np.random.Generator, n: int, D: int) -> Rows:
    rows = random.normal(size=(n, D))
    rows[-1] *= 1e5
    return rows


def _with_a_very_far_row(random: np.random.Generator, n: int, D: int) -> Rows:
    rows = random.normal(size=(n, D))
    rows[n // 2] = 10.0 ** random.integers(6, 13)
    return rows


def _periodic(random: np.random.Generator, n: int, D: int) -> Rows:
    period = int(random.integers(2, 6))
    return 9.0 * random.normal(size=(period, D))[np.arange(n) % period] + random.normal(size=(n, D))


def _columns_of_many_units(random: np.random.Generator, n: int, D: int) -> Rows:
    return random.normal(size=(n, D)) * 10.0 ** random.integers(-4, 5, size=D)


def _on_a_line(random: np.random.Generator, n: int, D: int) -> Rows:
    return np.outer(random.normal(size=n), random.normal(size=D))


def _with_constant_columns(random: np.random.Generator, n: int, D: int) -> Rows:
    rows = random.normal(size=(n, D))
    rows[:, : max(1, D // 3)] = 7.0
    return rows


GEOMETRIES: Mapping[str, Maker] = {
    "blobs": lambda random, n, D: blobs(n, 5, D, int(random.integers(1000))),
    "lattice": lambda random, n, D: lattice(n, D, 3, int(random.integers(1000))), "some rows often": _some_rows_often,
    "all rows alike": lambda random, n, D: np.tile(random.normal(size=D), (n, 1)), "a far row": _with_a_far_row,
    "heavy tails": lambda random, n, D: np.clip(random.standard_cauchy(size=(n, D)), -1e6, 1e6),
    "many units": _columns_of_many_units, "a line": _on_a_line, "constant columns": _with_constant_columns,
    "a very far row": _with_a_very_far_row, "periodic": _periodic,
    "far from zero": lambda random, n, D: 1e3 + random.normal(size=(n, D)),
    "tiny": lambda random, n, D: 1e-9 * random.normal(size=(n, D)),
    "huge": lambda random, n, D: 1e9 * random.normal(size=(n, D)),
    "sorted": lambda random, n, D: np.sort(random.normal(size=(n, D)), axis=0),
}  # fmt: skip
WEIGHTS: Mapping[str, Callable[[np.random.Generator, int], Any]] = {
    "none": lambda random, n: None, "ones": lambda random, n: np.ones(n),
    "uneven": lambda random, n: random.uniform(0.1, 3.0, size=n),
    "some zero": lambda random, n: np.where(np.arange(n) % 3 == 1, 0.0, random.uniform(0.1, 3.0, size=n)),
    "whole": lambda random, n: random.integers(1, 4, size=n),
    "large": lambda random, n: 1e9 * random.uniform(0.1, 3.0, size=n),
    "small": lambda random, n: 1e-9 * random.uniform(0.1, 3.0, size=n),
}  # fmt: skip
NARROW = ("float16", "uint8", "int64", "bool")
"""Forms that hold no tiny, huge or far numbers: they get what they can hold."""


@dataclass(frozen=True)
class Case:
    """Rows and weights; `k` clusters at most, and fewer where there are not as many rows that count."""

    n: int
    D: int
    k: int
    geometry: str
    form: str
    weights: str
    seed: int

    def rows(self) -> Any:
        """The rows as a user hands them over."""
        rows = GEOMETRIES[self.geometry](np.random.default_rng(self.seed), self.n, self.D)
        if self.form in NARROW:
            rows = np.clip(rows, -100.0, 100.0)
        return in_form(rows, self.form)

    def sample_weight(self) -> Any:
        """The weights, or None."""
        return WEIGHTS[self.weights](np.random.default_rng(self.seed + 1), self.n)

    @property
    def n_clusters(self) -> int:
        """No more than rows that count."""
        weights = self.sample_weight()
        return min(self.k, self.n if weights is None else int(np.count_nonzero(weights)))


def cases(forms: tuple[str, ...] = FORMS, *, max_rows: int = 300, max_clusters: int = 40) -> st.SearchStrategy[Case]:
    """Cases with rows of these forms."""
    return st.builds(
        Case, n=st.integers(2, max_rows), D=st.integers(1, 24), k=st.integers(1, max_clusters),
        geometry=st.sampled_from(tuple(GEOMETRIES)), form=st.sampled_from(forms),
        weights=st.sampled_from(tuple(WEIGHTS)), seed=st.integers(0, 9_999),
    )  # fmt: skip


def exactly(X: Any) -> Rows:
    """The rows as dense float64: what a form holds, it holds exactly."""
    return np.asarray(X.toarray() if sparse.issparse(X) else X, dtype=np.float64)
