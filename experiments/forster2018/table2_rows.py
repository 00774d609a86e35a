"""The rows of Table 2: data sets, variants, the published numbers and where ours are expected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from experiments.common import Rows, real_rows
from experiments.forster2018.fits import Kind, Variant, birch_warmup
from globular import datasets


@dataclass(frozen=True, slots=True)
class Entry:
    """One cell pair of the table: a variant, what the paper prints for it, and what we expect to measure."""

    variant: Variant
    paper_savings: str = "–"
    paper_error: float | None = None

    @property
    def name(self) -> str:
        return f"{self.variant.algorithm} G={self.variant.size}"

    @property
    def measured_savings(self) -> float:
        """The last of the paper's numbers."""
        return float(self.paper_savings.split("/")[-1].strip(" ×"))


@dataclass(frozen=True, slots=True)
class Problem:
    """A data set with its entries."""

    name: str
    title: str
    n_clusters: int
    load: Callable[[], Rows]
    """Such that another process can call it, too."""
    entries: tuple[Entry, ...]
    max_iter: int = 200
    note: str = ""
    stand_in: bool = False
    """Whether the paper's numbers are of other data."""


@dataclass(frozen=True, slots=True)
class Config:
    """The whole table."""

    problems: tuple[Problem, ...]
    n_runs: int = 5
    only: tuple[str, ...] = field(default=())
    """Run only the entries whose "problem algorithm G " contains all of these; G ends with a blank."""
    without: tuple[str, ...] = field(default=())
    """And none of these."""

    def wanted(self, problem: Problem) -> list[Entry]:
        """The entries of a problem to run."""
        named = {f"{problem.name} {entry.name} ": entry for entry in problem.entries}
        return [
            entry
            for name, entry in named.items()
            if all(text in name for text in self.only) and not any(text in name for text in self.without)
        ]


def birch(side: int, n_per_cluster: int = 100) -> Callable[[], Rows]:
    """A loader of the grid data."""
    return partial(_birch_rows, side, n_per_cluster)


def _birch_rows(side: int, n_per_cluster: int) -> Rows:
    return np.asarray(datasets.birch_grid(side, n_per_cluster, random_state=0).X, np.float32)


def _entries(
    published: Sequence[tuple[Kind, int, str, float]],
    *,
    n_random: int = 1,
    n_warmup: int | Callable[[int], int] = 20,
    hard_tol: float = 0.0,
    soft_tol: float = 1e-4,
) -> tuple[Entry, ...]:
    tol = {"k-means": hard_tol, "GMM": soft_tol}
    entries = []
    for kind, G, savings, error in published:
        warmup = n_warmup if isinstance(n_warmup, int) else n_warmup(G)
        entries.append(Entry(Variant(kind, G, n_random, warmup, tol=tol[kind]), savings, error))
    return tuple(entries)


KDD = Problem(
    "kdd", "KDD-Cup 2004, protein homology", 200, partial(real_rows, "kddbio/kddbio.npz"),
    _entries(
        [("k-means", 2, "100×", 101.8), ("k-means", 5, "40×", 5.8), ("k-means", 20, "10×", 0.3),
         ("GMM", 2, "50× / 55×", 4.2), ("GMM", 5, "8× / 15×", -0.0), ("GMM", 20, "1× / 3.3×", -0.0)],
        n_random=0, n_warmup=0, hard_tol=1e-5, soft_tol=1e-3,
    ),
)  # fmt: skip
BIRCH_2025 = Problem(
    "birch-2025", "BIRCH 45 × 45", 2025, birch(45),
    _entries(
        [("k-means", 2, "675×", -2.8), ("k-means", 5, "338×", -4.3),
         ("GMM", 2, "405× / 458×", -4.6), ("GMM", 5, "78× / 143×", -9.1)],
        n_warmup=lambda G: birch_warmup(G, 2025),
    ),
)  # fmt: skip
BIRCH_4096 = Problem(
    "birch-4096", "BIRCH 64 × 64", 4096, birch(64),
    _entries(
        [("k-means", 2, "1365×", -3.7), ("k-means", 5, "683×", -4.0),
         ("GMM", 2, "819× / 927×", -4.4), ("GMM", 5, "158× / 287×", -11.7)],
        n_warmup=lambda G: birch_warmup(G, 4096),
    ),
    note="The paper tunes the length of the warm-up on the training error and does not print it; so did we, see "
    "`birch_warmup`.",
)  # fmt: skip
_SONG: tuple[tuple[Kind, int, str, float], ...] = (
    ("k-means", 2, "667×", 1.0), ("k-means", 5, "333×", 0.5), ("k-means", 10, "182×", 0.2),
    ("k-means", 20, "95×", 0.1), ("k-means", 50, "39×", 0.0),
    ("GMM", 2, "400× / 412×", 1.8), ("GMM", 5, "77× / 105×", -0.2), ("GMM", 10, "20× / 40×", -0.3),
    ("GMM", 20, "5× / 15×", -0.3),
)  # fmt: skip
_STAND_IN = "Stands in for SONG, whose published numbers are beside it; no band."
GLOVE = Problem(
    "glove50", "glove50 word vectors (for SONG)", 2000, partial(real_rows, "glove50/glove50_200k.npz"),
    _entries(_SONG, hard_tol=1e-5, soft_tol=1e-3), 500, _STAND_IN, True,
)  # fmt: skip
SIFT = Problem(
    "sift_photos", "sift_photos descriptors (for SONG)", 2000, partial(real_rows, "sift_photos/sift_photos.npz"),
    _entries(_SONG, hard_tol=1e-5, soft_tol=1e-3), 500, _STAND_IN, True,
)  # fmt: skip

FULL = Config((KDD, BIRCH_2025, BIRCH_4096, GLOVE, SIFT))
QUICK = Config(
    (
        Problem(
            "birch-256", "BIRCH 16 × 16", 256, birch(16, 50),
            tuple(Entry(Variant(kind, G, 1, 10, max_iter=60)) for kind in ("k-means", "GMM") for G in (2, 5)),
            60, "The small version: nothing published to compare with.",
        ),
    ),
    n_runs=2,
)  # fmt: skip
