"""Small data for the tests: the same rows in every form in which a user may hand them over."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

Rows = NDArray[np.float64]


def blobs(n: int = 300, C: int = 5, D: int = 4, seed: int = 0, spread: float = 1.0) -> Rows:
    """Overlapping round clusters of uneven size; no two rows are alike."""
    random = np.random.default_rng(seed)
    centers = 4.0 * random.normal(size=(C, D))
    return centers[np.minimum(random.geometric(0.3, size=n) - 1, C - 1)] + spread * random.normal(size=(n, D))


def raising(error: type[BaseException] | BaseException) -> Any:
    """A function that raises this whatever it is given."""

    def function(*_: Any, **__: Any) -> Any:
        raise error

    return function


def corners(n: int = 600, C: int = 4, D: int = 2, apart: float = 8.0, seed: int = 0) -> tuple[Rows, NDArray[np.int64]]:
    """Round clusters of one size around corners of a cube, in turn, and the cluster of each row."""
    random = np.random.default_rng(seed)
    centers = apart * (np.arange(C)[:, None] >> np.arange(D) & 1)
    labels = np.arange(n) % C
    return centers[labels] + random.normal(size=(n, D)), labels


def lattice(n: int = 200, D: int = 2, side: int = 4, seed: int = 0) -> Rows:
    """Points of a small grid of whole numbers: full of duplicates and of exact ties."""
    return np.random.default_rng(seed).integers(side, size=(n, D)).astype(np.float64)


def weights_for(n: int, seed: int = 0) -> Rows:
    """Weights between 0 and 3; every seventh row does not count at all."""
    weights = np.random.default_rng(seed + 1).uniform(0.1, 3.0, size=n)
    weights[::7] = 0.0
    return weights


FORMS = (
    "float64", "float32", "float16", "uint8", "int64", "bool", "fortran", "big-endian", "strided", "readonly",
    "csr64", "csr32", "csr array", "csr unsorted",
)  # fmt: skip
SHARD_FORMS = FORMS[:-1]
"""Sparse rows come to a shard in order: estimators see to that."""


def in_form(rows: Rows, form: str) -> Any:
    """The rows in one of the `FORMS`; whole numbers where the form holds nothing else."""
    small = np.clip(np.round(10.0 * rows), -100, 100)
    thinned = np.where(np.abs(rows) > 1.0, rows, 0.0)
    makers = {
        "float64": lambda: rows.copy(),
        "float32": lambda: rows.astype(np.float32),
        "float16": lambda: rows.astype(np.float16),
        "uint8": lambda: (small + 100).astype(np.uint8),
        "int64": lambda: small.astype(np.int64),
        "bool": lambda: rows > 0,
        "fortran": lambda: np.asfortranarray(rows),
        "big-endian": lambda: rows.astype(">f8"),
        "strided": lambda: np.repeat(np.repeat(rows, 2, axis=0), 3, axis=1)[::2, ::3],
        "readonly": lambda: _locked(rows.copy()),
        "csr64": lambda: sparse.csr_matrix(thinned),
        "csr32": lambda: sparse.csr_matrix(thinned.astype(np.float32)),
        "csr array": lambda: sparse.csr_array(thinned),
        "csr unsorted": lambda: _shuffled_entries(sparse.csr_matrix(thinned)),
    }
    return makers[form]()


def _locked(rows: Rows) -> Rows:
    rows.flags.writeable = False
    return rows


def _shuffled_entries(matrix: sparse.csr_matrix) -> sparse.csr_matrix:
    """The same matrix with the entries of every row backwards, and the first one of the matrix in two halves."""
    if matrix.nnz == 0:
        return matrix
    coordinates = matrix.tocoo()
    data = np.concatenate([coordinates.data, coordinates.data[:1] / 2])
    data[0] /= 2
    row, column = (np.concatenate([part, part[:1]]) for part in (coordinates.row, coordinates.col))
    order = np.lexsort((-column, row))
    pointers = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=matrix.shape[0]))])
    return sparse.csr_matrix((data[order], column[order], pointers), shape=matrix.shape)
