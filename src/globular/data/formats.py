"""From a path to a source: the format is told by the suffix, a folder is its files one below the other."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from globular.data.blocks import Source, check_not_empty
from globular.data.hdf5_files import HDF5Source
from globular.data.memory import check_fits
from globular.data.numpy_files import open_npy, open_npz
from globular.data.parquet_files import ParquetSource
from globular.data.sources import CSRSource, concatenate
from globular.data.text_files import TextSource
from globular.data.vecs_files import VecsSource
from globular.data.versions import FileVersion
from globular.errors import DataError, MemoryBudgetError

Columns: TypeAlias = Sequence[str] | None

_PLAIN: dict[str, Callable[[Path], Source]] = {
    ".npy": open_npy, ".npz": open_npz, ".fvecs": VecsSource, ".bvecs": VecsSource, ".ivecs": VecsSource
}  # fmt: skip
_WITH_COLUMN_NAMES: dict[str, Callable[[Path, Columns], Source]] = {
    ".csv": TextSource, ".tsv": TextSource, ".parquet": ParquetSource
}  # fmt: skip
_HDF5 = (".h5", ".hdf5")
SUFFIXES: tuple[str, ...] = (*_PLAIN, *_WITH_COLUMN_NAMES, *_HDF5, ".svm", ".svmlight", ".libsvm")


def open_path(path: str | os.PathLike[str], columns: Columns = None) -> Source:
    """Open a file, a dataset in a file (``file.h5::name``) or a folder of parts; the rows are not read yet."""
    try:
        location, dataset = _split_dataset(os.fspath(path))
        if location.is_dir():
            source = _open_folder(location, columns, dataset)
        else:
            _check_file(location)
            source = _open_files([location], columns, dataset)[0]
    except OSError as error:
        raise DataError(
            f"{os.fspath(path)}: cannot be read ({error.strerror or error}); check the name and the permissions"
        ) from error
    except MemoryBudgetError:
        raise
    except MemoryError as error:
        raise DataError(
            f"{os.fspath(path)}: asks for more memory than there is; check that it is not corrupt"
        ) from error
    check_not_empty(source.n_rows, source.n_columns, source.name)
    return source


def _split_dataset(text: str) -> tuple[Path, str | None]:
    """Take ``file.h5::name`` apart; a file whose own name has two colons wins."""
    file, colons, dataset = text.rpartition("::")
    if not colons or Path(text).exists():
        return Path(text).expanduser(), None
    return Path(file).expanduser(), dataset


def _check_file(path: Path) -> None:
    """Refuse what is missing, empty, or of a format that we do not read."""
    suffix = path.suffix.lower()
    if not path.exists():
        raise DataError(f"{path}: no such file or folder; check the path")
    if suffix not in SUFFIXES:
        raise DataError(
            f"{path}: format {suffix or 'without a suffix'} is not known; globular reads {', '.join(SUFFIXES)} "
            "and folders of such files"
        )
    if path.stat().st_size == 0:
        raise DataError(f"{path}: is empty (0 bytes); check that it was written completely")


def _open_files(paths: Sequence[Path], columns: Columns, dataset: str | None) -> list[Source]:
    """Open files of one format."""
    suffix = paths[0].suffix.lower()
    if columns is not None and suffix not in _WITH_COLUMN_NAMES:
        raise DataError(
            f"{paths[0]}: columns= works only for {', '.join(_WITH_COLUMN_NAMES)}; "
            f"the columns of a {suffix} file have no names"
        )
    if dataset is not None and suffix not in _HDF5:
        raise DataError(f"{paths[0]}: ::{dataset} chooses a dataset of {', '.join(_HDF5)} files only; leave it out")
    if suffix in _PLAIN:
        return [_PLAIN[suffix](path) for path in paths]
    if suffix in _WITH_COLUMN_NAMES:
        return [_WITH_COLUMN_NAMES[suffix](path, columns) for path in paths]
    if suffix in _HDF5:
        return [HDF5Source(path, dataset) for path in paths]
    return _open_svmlight(paths)


def files_in(folder: Path) -> list[Path]:
    """What a folder holds, in the order of the names, but for names that begin with ``.`` or ``_``."""
    return sorted(path for path in folder.iterdir() if not path.name.startswith((".", "_")))


def _open_folder(folder: Path, columns: Columns, dataset: str | None) -> Source:
    """Open the parts of a folder in the order of their names; all must have one format and the same columns."""
    paths = files_in(folder)
    if not paths:
        raise DataError(f"{folder}: the folder is empty; globular reads folders of {', '.join(SUFFIXES)} files")
    for path in paths:
        if path.is_dir():
            raise DataError(f"{path}: a folder of parts must not hold folders; pass one of them instead")
        _check_file(path)
        if path.suffix.lower() != paths[0].suffix.lower():
            raise DataError(f"{path}: is not a {paths[0].suffix} file like {paths[0].name}; keep one format per folder")
    parts = _open_files(paths, columns, dataset)
    head_names = getattr(parts[0], "column_names", None)
    for part in parts[1:]:
        names = getattr(part, "column_names", None)
        if names != head_names and part.n_columns == parts[0].n_columns:  # else the counts say it better
            raise DataError(
                f"{part.name}: its columns are not those of {parts[0].name}, or in another order; "
                "all parts need the same columns"
            )
    return concatenate(parts, str(folder))


def _open_svmlight(paths: Sequence[Path]) -> list[Source]:
    """Read svmlight files together: only so do they agree on the number of columns and on what is column one."""
    versions = [FileVersion.of(path) for path in paths]
    size = sum(version.size for version in versions)
    check_fits(size, f"{paths[0]}: all svmlight files here in memory", "write them as .npy or .parquet")
    try:
        loaded = _load_svmlight(paths)
        for version in versions:
            version.check()
    except DataError:
        raise
    except (ValueError, OverflowError) as error:
        raise DataError(
            f"{_faulty_svmlight(paths)}: is truncated or not in svmlight format ({error}); write it again, e.g. "
            "with sklearn.datasets.dump_svmlight_file"
        ) from error
    return [CSRSource(matrix, str(path)) for path, matrix in zip(paths, loaded, strict=True)]


def _load_svmlight(paths: Sequence[Path]) -> list[Any]:
    """The matrices without the labels; several labels per row are no obstacle."""
    from sklearn.datasets import load_svmlight_files

    matrices: list[Any] = load_svmlight_files([str(path) for path in paths], multilabel=True)[::2]
    return matrices


def _faulty_svmlight(paths: Sequence[Path]) -> Path:
    """The file that cannot be read alone."""
    for path in paths:
        try:
            _load_svmlight([path])
        except (ValueError, OverflowError):
            return path
    return paths[0]
