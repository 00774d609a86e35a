"""Files of NumPy and SciPy: .npy read piece by piece, .npz read whole. Pickled objects are refused, never loaded."""

from __future__ import annotations

import math
import zipfile
import zlib
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from scipy import sparse

from globular.data.binary_files import BinarySource, Places
from globular.data.blocks import Source
from globular.data.sources import ArraySource, CSRSource
from globular.data.streamed import FileVersion
from globular.errors import DataError
from globular.machine import check_fits

# what NumPy and zipfile raise on headers and archives that are truncated, corrupt or of another kind
_BAD_HEADER = (ValueError, TypeError, SyntaxError, TokenError, OverflowError)
_BROKEN = (*_BAD_HEADER, EOFError, KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError)


def open_npy(path: Path) -> Source:
    """Open a .npy file; C and Fortran order both work, the latter with more disk seeks."""
    version = FileVersion.of(path)
    try:
        array = np.lib.format.open_memmap(path, mode="r")  # for its header alone: no value is touched
    except _BAD_HEADER as error:
        raise _npy_error(path, str(error)) from error
    return BinarySource(version, Places(array.offset, array.shape, array.strides, array.dtype), str(path))


def _npy_error(path: Path, reason: str) -> DataError:
    """Say in the user's terms why NumPy refused the file."""
    if "Python objects" in reason or "allow_pickle" in reason:
        return DataError(
            f"{path}: holds Python objects, which are refused because loading them could run code; "
            "save an array of numbers, e.g. np.save(path, X.astype('float32'))"
        )
    if "magic string" in reason:
        return DataError(f"{path}: is not a .npy file although its name says so; write it with numpy.save")
    return DataError(f"{path}: is truncated or corrupt ({reason}); copy or write it again")


def open_npz(path: Path, wanted: str | None = None) -> Source:
    """Read a .npz file: the array asked for, a matrix of scipy.sparse.save_npz, the only array, or the one called X."""
    if not zipfile.is_zipfile(path):
        raise DataError(f"{path}: is truncated or not a .npz file; write it with numpy.savez or scipy.sparse.save_npz")
    version = FileVersion.of(path)
    with version.reading():
        try:
            return _read_npz(path, wanted)
        except DataError:
            raise
        except _BROKEN as error:
            raise _npy_error(path, str(error)) from error


def _read_npz(path: Path, wanted: str | None) -> Source:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        if wanted is None and {"format", "shape", "data"} <= set(archive.files):
            _check_sizes(path, archive, archive.files)
            file.seek(0)
            return CSRSource(sparse.load_npz(file), str(path))
        name = _choose_array(path, archive.files, wanted)
        _check_sizes(path, archive, [name])
        return ArraySource(archive[name], f"{path}::{name}" if name != "X" else str(path))


def arrays_in_npz(path: Path) -> list[tuple[str, tuple[int, ...], np.dtype[Any]]]:
    """The name, shape and type of every array of a .npz file."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return [(name, *_read_header(archive, name)[:2]) for name in archive.files]
    except _BROKEN as error:
        raise _npy_error(path, str(error)) from error


def _read_header(archive: Any, name: str) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Shape and type that an array declares, and the bytes that it has in the archive."""
    member = archive.zip.getinfo(name if name in archive.zip.namelist() else f"{name}.npy")
    with archive.zip.open(member) as file:
        major, _ = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
        return shape, dtype, member.file_size - file.tell()


def _check_sizes(path: Path, archive: Any, names: list[str]) -> None:
    """Refuse arrays that are larger than their place in the archive or than memory, before they are asked for."""
    total = 0
    for name in names:
        shape, dtype, rest = _read_header(archive, name)
        size = math.prod(shape) * dtype.itemsize
        if not dtype.hasobject and size != rest:
            raise DataError(
                f"{path}: is truncated or corrupt ({name} declares {size:,} bytes of numbers and has {rest:,}); "
                "copy or write it again"
            )
        total += size
    check_fits(total, f"{path}: its {' and '.join(names)}", "write it as .npy, which is read in parts")


def _choose_array(path: Path, names: list[str], wanted: str | None) -> str:
    listing = ", ".join(names) if names else "none"
    if wanted is not None:
        if wanted not in names:
            raise DataError(f"{path}: has no array {wanted!r}; it holds: {listing}")
        return wanted
    if "X" in names:
        return "X"
    if len(names) == 1:
        return names[0]
    raise DataError(
        f"{path}: needs one array, or one called X, to know which to read; it holds: {listing}. "
        f"Choose one with {path}::NAME"
    )
