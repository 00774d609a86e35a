"""Files written whole or not at all, and how to tell their size."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from globular.data.formats import expanded
from globular.errors import DataError


def check_file(path: str | os.PathLike[str], suffixes: tuple[str, ...], what: str) -> Path:
    """Refuse a place where a file cannot be written; useful before the work rather than after it."""
    target = expanded(path)
    if target.suffix.lower() not in suffixes:
        raise DataError(f"{path}: {what} is written to a file whose name ends in {' or '.join(suffixes)}")
    if target.is_dir():
        raise DataError(f"{path}: is a folder; choose the name of a file")
    if not target.absolute().parent.is_dir():
        raise DataError(f"{path}: the folder {target.parent} does not exist; create it first")
    return target


def file_size(n_bytes: float) -> str:
    """A number of bytes with three digits, in the unit that suits it."""
    return in_units(n_bytes, " bytes", " kB", " MB", " GB", " TB")


def in_units(value: float, *units: str) -> str:
    """A number with three digits, in the unit that suits it; each unit is a thousand of the one before."""
    for unit in units[:-1]:
        if value < 1000:
            return f"{value:.3g}{unit}"
        value /= 1000
    return f"{value:,.3g}{units[-1]}"


def write_whole(target: Path, write: Callable[[BinaryIO], object]) -> Path:
    """Write beside the target under a name of its own, then rename: readers see the old file or the new one."""
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
    try:
        with temporary.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except OSError as error:
        raise DataError(
            f"{target}: cannot be written ({error.strerror or error}); check the folder and the free space"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    return target
