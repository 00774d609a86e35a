"""Data by name: sets for any number of clusters, and problems, which say into how many.

Real data are read from the folder that GLOBULAR_DATA names, or else from `../shared/data` beside the project. What is
not there is a `DataError` that says so; generated data need nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.preprocessing import scale

from globular import datasets
from globular.errors import DataError

from .fits import Rows


def data_folder() -> Path:
    """Where the real data sets are looked for."""
    named = os.environ.get("GLOBULAR_DATA")
    return Path(named) if named else Path(__file__).resolve().parents[3] / "shared" / "data"


def real_file(file: str) -> Path:
    """A file of the data folder."""
    path = data_folder() / file
    if not path.is_file():
        raise DataError(f"{file} not found; set GLOBULAR_DATA to the folder that holds it")
    return path


def real_array(file: str, key: str = "X") -> NDArray[Any]:
    """An array of an .npz file of the data folder."""
    with np.load(real_file(file)) as arrays:
        return arrays[key]


def _dense(X: NDArray[Any], weights: NDArray[np.float32] | None = None) -> Rows:
    return Rows(np.ascontiguousarray(X, dtype=np.float32), weights)


def _real(file: str, *, standardize: bool = False, weights: str | None = None) -> Rows:
    X = real_array(file)
    given = None if weights is None else real_array(file, weights).astype(np.float32)
    return _dense(scale(X.astype(np.float64)) if standardize else X, given)


def _text(file: str) -> Rows:
    return Rows(sparse.csr_matrix(sparse.load_npz(real_file(file)), dtype=np.float32))


def _blobs(n_samples: int, n_groups: int, n_features: int, center_std: float, unevenness: float = 0.0) -> Rows:
    """Groups of unit variance; in 16 columns their centres are √32 · `center_std` apart."""
    shape = (n_samples, n_groups, n_features)
    return _dense(datasets.many_blobs(*shape, center_std=center_std, unevenness=unevenness, random_state=0).X)


def _birch(side: int, n_per_cluster: int) -> Rows:
    return _dense(datasets.birch_grid(side, n_per_cluster, random_state=0).X)


def groups(n_samples: int, n_features: int, n_groups: int, spread: float = 2.0) -> NDArray[np.float32]:
    """Rows around random places, which overlap a little."""
    random = np.random.default_rng(0)
    places = random.normal(scale=spread, size=(n_groups, n_features))
    rows = places[random.integers(0, n_groups, n_samples)] + random.normal(size=(n_samples, n_features))
    return rows.astype(np.float32)


SETS: Mapping[str, Callable[[], Rows]] = MappingProxyType(
    {
        "covtype": partial(_real, "covtype/covtype.npz"),
        "mnist": partial(_real, "mnist/mnist.npz"),
        "glove50": partial(_real, "glove50/glove50_200k.npz"),
        "kddbio": partial(_real, "kddbio/kddbio.npz", standardize=True),
        "uber_nyc": partial(_real, "uber_nyc/uber_nyc.npz", weights="w"),
        "skin": partial(_real, "skin/skin.npz"),
        "shuttle": partial(_real, "shuttle/shuttle.npz", standardize=True),
        "newsgroups20": partial(_text, "newsgroups20/newsgroups20_tfidf.npz"),
        "geonames": partial(_real, "geonames500/geonames500.npz"),
        "groups-separate": partial(_blobs, 200_000, 200, 16, 4.0),
        "groups-overlapping": partial(_blobs, 200_000, 200, 16, 1.0),
        "groups-unequal": partial(_blobs, 200_000, 200, 16, 2.0, 1.5),
    }
)
"""Dense or sparse rows, with weights where they have some."""


@dataclass(frozen=True)
class Problem:
    """Dense rows without weights, and into how many clusters."""

    name: str
    n_clusters: int
    make: Callable[[], Rows]

    def load(self) -> NDArray[np.float32]:
        """The rows, float32 and C-contiguous."""
        return self.make().X


_SIFT = partial(_real, "sift_photos/sift_photos.npz")
_PROBLEMS = (
    Problem("mnist-1000", 1_000, SETS["mnist"]),
    Problem("kddbio-2000", 2_000, partial(_real, "kddbio/kddbio.npz")),
    Problem("kddbio-standardized-2000", 2_000, SETS["kddbio"]),
    Problem("glove50-2000", 2_000, SETS["glove50"]),
    Problem("glove50-10000", 10_000, SETS["glove50"]),
    Problem("covtype-5000", 5_000, SETS["covtype"]),
    Problem("sift-4096", 4_096, _SIFT),
    Problem("sift-20000", 20_000, _SIFT),
    Problem("birch-4096", 4_096, partial(_birch, 64, 100)),
    Problem("birch-102400", 102_400, partial(_birch, 320, 10)),
    Problem("blobs-100000", 100_000, partial(_blobs, 2_000_000, 100_000, 32, 2.0)),
    Problem("quick-birch-1024", 1_024, partial(_birch, 32, 50)),
    Problem("quick-blobs-1000", 1_000, partial(_blobs, 50_000, 1_000, 32, 2.0)),
)
PROBLEMS: Mapping[str, Problem] = MappingProxyType({problem.name: problem for problem in _PROBLEMS})
