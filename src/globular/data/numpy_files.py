"""Files of NumPy and SciPy: .npy mapped into memory, .npz read. Pickled objects are refused, never loaded."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from globular.data.blocks import Source
from globular.data.sources import ArraySource, CSRSource, MemmapSource
from globular.errors import DataError

# what NumPy and zipfile raise on files that are truncated, corrupt or of another kind
_BROKEN = (ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError)


def open_npy(path: Path) -> Source:
    """Map a .npy file; C and Fortran order both work, the latter with more disk seeks."""
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except ValueError as error:
        raise _npy_error(path, str(error)) from error
    return MemmapSource(array, str(path))


def _npy_error(path: Path, reason: str) -> DataError:
    """Say in the user's terms why NumPy refused the file."""
    if "Python objects" in reason:
        return DataError(
            f"{path}: holds Python objects, which are refused because loading them could run code; "
            "save an array of numbers, e.g. np.save(path, X.astype('float32'))"
        )
    if "magic string" in reason:
        return DataError(f"{path}: is not a .npy file although its name says so; write it with numpy.save")
    return DataError(f"{path}: is truncated or corrupt ({reason}); copy or write it again")


def open_npz(path: Path) -> Source:
    """Read a .npz file: a matrix of scipy.sparse.save_npz, the only array, or the one called X."""
    if not zipfile.is_zipfile(path):
        raise DataError(f"{path}: is truncated or not a .npz file; write it with numpy.savez or scipy.sparse.save_npz")
    try:
        with np.load(path, allow_pickle=False) as archive:
            if {"format", "shape", "data"} <= set(archive.files):
                return CSRSource(_load_sparse(path), str(path))
            name = _choose_array(path, archive.files)
            array = archive[name]
    except DataError:
        raise
    except _BROKEN as error:
        if "allow_pickle" in str(error):
            raise _npy_error(path, "Python objects") from error
        raise _npy_error(path, str(error)) from error
    return ArraySource(array, f"{path}::{name}" if name != "X" else str(path))


def _load_sparse(path: Path) -> Any:
    """Read what scipy.sparse.save_npz wrote; indices out of range would crash the kernels, so look at all."""
    matrix: Any = sparse.load_npz(path)
    if matrix.format in ("csr", "csc", "bsr"):
        matrix.check_format(full_check=True)
    return matrix


def _choose_array(path: Path, names: list[str]) -> str:
    if "X" in names:
        return "X"
    if len(names) == 1:
        return names[0]
    listing = ", ".join(names) if names else "none"
    raise DataError(
        f"{path}: needs one array, or one called X, to know which to read; it holds: {listing}. "
        "Write it with numpy.savez(path, X=...)"
    )
