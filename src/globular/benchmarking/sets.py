"""Data sets for any number of clusters: dense or sparse rows, with weights where they have some.

Real sets are looked for as those of `problems` are; the others are generated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.preprocessing import scale

from globular import datasets
from globular.benchmarking.problems import data_folder


@dataclass(frozen=True)
class Rows:
    """Float32 rows, dense and C-contiguous or CSR, and their weights."""

    X: Any
    weights: NDArray[np.float32] | None = None

    @property
    def is_sparse(self) -> bool:
        """Whether X is CSR."""
        return bool(sparse.issparse(self.X))

    def write(self, folder: Path) -> None:
        """Leave the rows where another process can `read` them."""
        if self.is_sparse:
            sparse.save_npz(folder / "rows.npz", self.X, compressed=False)
        else:
            np.save(folder / "rows.npy", self.X)
        if self.weights is not None:
            np.save(folder / "weights.npy", self.weights)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """What `write` wrote."""
        dense, weights = folder / "rows.npy", folder / "weights.npy"
        X = np.load(dense) if dense.is_file() else sparse.load_npz(folder / "rows.npz")
        return cls(X, np.load(weights) if weights.is_file() else None)


@dataclass(frozen=True)
class DataSet:
    """A name, and how its rows are made; `file` is relative to the data folder (None: generated)."""

    name: str
    load: Callable[[], Rows]
    file: str | None = None

    def missing_file(self) -> str | None:
        """The file, relative to the data folder, that this set needs and that is not there."""
        return self.file if self.file is not None and not (data_folder() / self.file).is_file() else None


def find_set(name: str) -> DataSet:
    """The data set of that name; an unknown one gets an error that lists the known ones."""
    if name not in SETS:
        raise ValueError(f"unknown data set {name!r}; known data sets: {', '.join(SETS)}")
    return SETS[name]


def _real(name: str, file: str, *, standardize: bool = False, weights: str | None = None) -> DataSet:
    def load() -> Rows:
        with np.load(data_folder() / file) as arrays:
            X = arrays["X"]
            given = None if weights is None else arrays[weights].astype(np.float32)
        X = scale(X.astype(np.float64)) if standardize else X
        return Rows(np.ascontiguousarray(X, dtype=np.float32), given)

    return DataSet(name, load, file)


def _text(name: str, file: str) -> DataSet:
    return DataSet(name, lambda: Rows(sparse.csr_matrix(sparse.load_npz(data_folder() / file), dtype=np.float32)), file)


def _groups(name: str, *, center_std: float, unevenness: float = 0.0) -> DataSet:
    """200 groups of unit variance in 16 columns; their centres are √32 · `center_std` apart."""

    def load() -> Rows:
        data = datasets.many_blobs(
            200_000, 200, 16, center_std=center_std, unevenness=unevenness, random_state=0
        )  # fmt: skip
        return Rows(data.X.astype(np.float32))

    return DataSet(name, load)


_SETS = (
    _real("covtype", "covtype/covtype.npz"),
    _real("mnist", "mnist/mnist.npz"),
    _real("glove50", "glove50/glove50_200k.npz"),
    _real("kddbio", "kddbio/kddbio.npz", standardize=True),
    _real("uber_nyc", "uber_nyc/uber_nyc.npz", weights="w"),
    _real("skin", "skin/skin.npz"),
    _real("shuttle", "shuttle/shuttle.npz", standardize=True),
    _text("newsgroups20", "newsgroups20/newsgroups20_tfidf.npz"),
    _real("geonames", "geonames500/geonames500.npz"),
    _groups("groups-separate", center_std=4.0),
    _groups("groups-overlapping", center_std=1.0),
    _groups("groups-unequal", center_std=2.0, unevenness=1.5),
)
SETS: Mapping[str, DataSet] = MappingProxyType({one.name: one for one in _SETS})
