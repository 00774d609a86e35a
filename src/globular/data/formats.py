"""From a path to a source: the format is told by the suffix, a folder is its files one below the other."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from glob import glob
from pathlib import Path
from typing import Any, TypeAlias

from globular.data.arrow_files import ArrowSource, describe_arrow
from globular.data.binary_files import VecsSource, arrays_in_npz, open_npy, open_npz
from globular.data.blocks import Column, Source, check_not_empty
from globular.data.hdf5_files import HDF5Source, arrays_in_hdf5
from globular.data.sources import CSRSource, concatenate
from globular.data.streamed import FileVersion
from globular.data.text_files import JSONLinesSource, TextSource, describe_json, describe_text
from globular.errors import DataError, MemoryBudgetError
from globular.machine import check_fits

Columns: TypeAlias = Sequence[str] | None


_Table: TypeAlias = tuple[Callable[[Path, Columns], Source], Callable[[Path], tuple[int, list[Column]]]]
"""What opens and what describes a format whose columns have names."""
_TEXT: _Table = (TextSource, describe_text)
_JSON: _Table = (JSONLinesSource, describe_json)
_ARROW: _Table = (ArrowSource, describe_arrow)
_PLAIN: dict[str, Callable[[Path], Source]] = {
    ".npy": open_npy, ".fvecs": VecsSource, ".bvecs": VecsSource, ".ivecs": VecsSource
}  # fmt: skip
_TABLES: dict[str, _Table] = {
    ".csv": _TEXT, ".tsv": _TEXT, ".parquet": _ARROW, ".csv.gz": _TEXT, ".tsv.gz": _TEXT, ".feather": _ARROW,
    ".arrow": _ARROW, ".jsonl": _JSON, ".ndjson": _JSON,
}  # fmt: skip
_ARCHIVES: dict[str, Callable[[Path, str | None], Source]] = {".npz": open_npz, ".h5": HDF5Source, ".hdf5": HDF5Source}
SUFFIXES: tuple[str, ...] = (*_PLAIN, *_ARCHIVES, *_TABLES, ".svm", ".svmlight", ".libsvm")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


def open_path(path: str | os.PathLike[str], columns: Columns = None) -> Source:
    """Open a file, an array in a file (``file.h5::name``), a folder of parts or the files of a pattern (``x-*.npy``).

    The rows are not read yet.
    """
    _refuse_address(os.fspath(path))
    try:
        location, dataset = split_dataset(os.fspath(path))
        parts = files_in(location) if location.is_dir() else _matching(location)
        if parts is not None:
            source = _open_parts(parts, columns, dataset, str(location))
        else:
            _check_file(location)
            source = _open_files([location], columns, dataset)[0]
    except MemoryBudgetError:
        raise
    except (OSError, MemoryError) as error:
        what = "asks for more memory than there is; check that it is not corrupt"
        if isinstance(error, OSError):
            what = f"cannot be read ({error.strerror or error}); check the name and the permissions"
        raise DataError(f"{os.fspath(path)}: {what}") from error
    check_not_empty(source.n_rows, source.n_columns, source.name)
    return source


def expanded(path: str | os.PathLike[str]) -> Path:
    """The path as it is where something lies there, else with the home folder in place of a leading ``~``."""
    found = Path(path) if os.path.exists(path) else Path(os.path.expanduser(path))
    if found.parts[:1] and found.parts[0].startswith("~") and not found.exists():
        raise DataError(f"{os.fspath(path)}: no home folder is known for {found.parts[0]}; write the full path")
    return found


def split_dataset(text: str) -> tuple[Path, str | None]:
    """Take ``file.h5::name`` apart; a file whose own name has two colons wins."""
    file, colons, dataset = text.rpartition("::")
    if not colons or Path(text).exists():
        return expanded(text), None
    return expanded(file), dataset


def _refuse_address(text: str) -> None:
    if _URL.match(text) and not Path(text).exists():
        raise DataError(f"{text}: globular reads files and no addresses; download it first")


def described(path: str | os.PathLike[str]) -> tuple[int, list[Column]] | None:
    """The rows and the columns of a table, also of one that cannot be read as numbers; None without named columns."""
    files = parts_of(path)
    if not files or suffix_of(files[0]) not in _TABLES:
        return None
    found: list[tuple[int, list[Column]]] = []
    for file in files:
        _check_file(file)
        found.append(_TABLES[suffix_of(file)][1](file) if suffix_of(file) in _TABLES else (0, []))
    return sum(n_rows for n_rows, _ in found), found[0][1]


def arrays_in(path: str | os.PathLike[str]) -> list[tuple[str, tuple[int, ...], Any]]:
    """The arrays of a file that may have several, by name, shape and type; none for other formats."""
    location, dataset = split_dataset(os.fspath(path))
    if dataset is not None or location.is_dir() or suffix_of(location) not in _ARCHIVES:
        return []
    _check_file(location)
    return arrays_in_npz(location) if suffix_of(location) == ".npz" else arrays_in_hdf5(location)


def parts_of(path: str | os.PathLike[str]) -> list[Path]:
    """The files behind a path: those of a folder, those that match a pattern, or the one."""
    _refuse_address(os.fspath(path))
    location, _ = split_dataset(os.fspath(path))
    return files_in(location) if location.is_dir() else _matching(location) or [location]


def suffix_of(path: Path) -> str:
    """What the name ends in, in lower case; ``.csv.gz`` is one suffix."""
    ends = [suffix.lower() for suffix in path.suffixes[-2:]]
    return "".join(ends) if ends[1:] == [".gz"] else "".join(ends[-1:])


def _matching(location: Path) -> list[Path] | None:
    """The files that match a pattern, in the order of their names; None where it is a file or no pattern."""
    if location.exists() or not re.search(r"[*?\[]", str(location)):
        return None
    found = sorted(map(Path, glob(str(location), recursive=True)))
    if not found:
        raise DataError(f"{location}: no file matches this pattern; check the path")
    return found


def _check_file(path: Path) -> None:
    """Refuse what is missing, empty, or of a format that we do not read."""
    suffix = suffix_of(path)
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
    suffix = suffix_of(paths[0])
    if columns is not None and suffix not in _TABLES:
        raise DataError(
            f"{paths[0]}: columns= works only for {', '.join(_TABLES)}; the columns of a {suffix} file have no names"
        )
    if dataset is not None and suffix not in _ARCHIVES:
        raise DataError(f"{paths[0]}: ::{dataset} chooses an array of {', '.join(_ARCHIVES)} files only; leave it out")
    if suffix in _PLAIN:
        return [_PLAIN[suffix](path) for path in paths]
    if suffix in _TABLES:
        return [_TABLES[suffix][0](path, columns) for path in paths]
    if suffix in _ARCHIVES:
        return [_ARCHIVES[suffix](path, dataset) for path in paths]
    return _open_svmlight(paths)


def files_in(folder: Path) -> list[Path]:
    """What a folder holds, in the order of the names, but for names that begin with ``.`` or ``_``."""
    return sorted(path for path in folder.iterdir() if not path.name.startswith((".", "_")))


def _open_parts(paths: Sequence[Path], columns: Columns, dataset: str | None, name: str) -> Source:
    """Open files one below the other; all must have one format and the same columns."""
    if not paths:
        raise DataError(f"{name}: the folder is empty; globular reads folders of {', '.join(SUFFIXES)} files")
    for path in paths:
        if path.is_dir():
            raise DataError(f"{path}: a folder of parts must not hold folders; pass one of them instead")
        _check_file(path)
        if suffix_of(path) != suffix_of(paths[0]):
            raise DataError(
                f"{path}: is not a {suffix_of(paths[0])} file like {paths[0].name}; keep one format per folder"
            )
    return concatenate(_open_files(paths, columns, dataset), name)


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
