"""Named problems: data and a number of clusters.

Real sets are read from the folder named by the environment variable GLOBULAR_DATA, or else from
`../shared/data` beside the project; a problem whose file is absent is reported, never fatal. Generated ones
need nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.preprocessing import scale

from globular import datasets

Matrix = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Problem:
    """What to cluster, and into how many clusters; `file` is relative to the data folder (None: generated)."""

    name: str
    n_clusters: int
    make: Callable[[], Matrix]
    file: str | None = None

    def missing_file(self) -> Path | None:
        """The file that this problem needs and that is not there."""
        if self.file is None or (data_folder() / self.file).is_file():
            return None
        return data_folder() / self.file

    def load(self) -> NDArray[np.float32]:
        """The rows, float32 and C-contiguous."""
        return np.ascontiguousarray(self.make(), dtype=np.float32)


def data_folder() -> Path:
    """Where the real data sets are looked for."""
    named = os.environ.get("GLOBULAR_DATA")
    return Path(named) if named else Path(__file__).resolve().parents[4] / "shared" / "data"


def find_problem(name: str) -> Problem:
    """The problem of that name; an unknown one gets an error that lists the known ones."""
    if name not in PROBLEMS:
        raise ValueError(f"unknown problem {name!r}; known problems: {', '.join(PROBLEMS)}")
    return PROBLEMS[name]


def _real(name: str, file: str, n_clusters: int, *, standardize: bool = False) -> Problem:
    def make() -> Matrix:
        with np.load(data_folder() / file) as arrays:
            X = np.asarray(arrays["X"], dtype=np.float32)
        return scale(X.astype(np.float64)) if standardize else X

    return Problem(name, n_clusters, make, file)


def _birch(name: str, side: int, n_per_cluster: int) -> Problem:
    return Problem(name, side * side, lambda: datasets.birch_grid(side, n_per_cluster, random_state=0).X)


def _blobs(name: str, n_samples: int, n_features: int, n_clusters: int) -> Problem:
    shape = (n_samples, n_clusters, n_features)
    return Problem(name, n_clusters, lambda: datasets.many_blobs(*shape, center_std=2.0, random_state=0).X)


_PROBLEMS = (
    _real("mnist-1000", "mnist/mnist.npz", 1_000),
    _real("kddbio-2000", "kddbio/kddbio.npz", 2_000),
    _real("kddbio-standardized-2000", "kddbio/kddbio.npz", 2_000, standardize=True),
    _real("glove50-2000", "glove50/glove50_200k.npz", 2_000),
    _real("glove50-10000", "glove50/glove50_200k.npz", 10_000),
    _real("covtype-5000", "covtype/covtype.npz", 5_000),
    _real("sift-4096", "sift_photos/sift_photos.npz", 4_096),
    _real("sift-20000", "sift_photos/sift_photos.npz", 20_000),
    _birch("birch-4096", 64, 100),
    _birch("birch-102400", 320, 10),
    _blobs("blobs-100000", 2_000_000, 32, 100_000),
    _birch("quick-birch-1024", 32, 50),
    _blobs("quick-blobs-1000", 50_000, 32, 1_000),
)
PROBLEMS: Mapping[str, Problem] = MappingProxyType({problem.name: problem for problem in _PROBLEMS})

QUICK_PROBLEMS = tuple(name for name in PROBLEMS if name.startswith("quick-"))
FULL_PROBLEMS = tuple(name for name in PROBLEMS if name not in QUICK_PROBLEMS)
