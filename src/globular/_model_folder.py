"""The model folder as files: two names, read with clear errors, written whole or not at all.

The new folder is built beside the target and renamed into place, so a reader sees the old model or the new
one, never half of one. While two renames swap an existing model, it lies for a moment as ``.NAME.previous``;
reading looks there as well, so that even a power cut in between loses nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from globular._version import __version__
from globular.errors import DataError

FORMAT = "globular-model"
FORMAT_VERSION = 1
JSON_NAME = "model.json"
ARRAYS_NAME = "model.safetensors"

Arrays = dict[str, NDArray[Any]]


def is_model(path: str | Path) -> bool:
    """Say whether this folder holds a model description of globular."""
    try:
        document = json.loads((Path(path) / JSON_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and document.get("format") == FORMAT


def check_destination(path: str | Path, *, overwrite: bool = True) -> Path:
    """Refuse a place where a model cannot be saved; useful before a long fit rather than after it."""
    target = Path(path).expanduser().resolve()
    if target.is_dir():
        if is_model(target):
            if not overwrite:
                raise DataError(f"{path} already holds a model; choose another folder or pass overwrite=True")
        elif any(target.iterdir()):
            raise DataError(f"{path} holds something other than a globular model; choose a new folder")
    elif target.exists():
        raise DataError(f"{path} is a file; a model is saved as a folder, choose another name")
    return target


def existing_folder(path: str | Path) -> Path:
    """Return the model's folder, or the one that an interrupted swap has left beside it."""
    folder = Path(path).expanduser().resolve()
    if folder.is_dir():
        return folder
    if folder.exists():
        raise DataError(f"{path} is a file; a globular model is a folder with {JSON_NAME} and {ARRAYS_NAME}")
    if is_model(_previous(folder)):
        return _previous(folder)
    raise DataError(f"{path}: no such model folder; check the path")


def read_document(folder: Path) -> dict[str, Any]:
    """Read ``model.json`` and check that this version of the library understands it."""
    path = folder / JSON_NAME
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"{folder} is not a globular model: it has no {JSON_NAME}") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: damaged or truncated ({error}); copy or save the model again") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise DataError(f"{path} was not written by globular")
    version = document.get("format_version")
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise DataError(
            f"{path} has format version {version}, written by globular {document.get('library_version')}; "
            f"globular {__version__} reads up to {FORMAT_VERSION}: upgrade it (pip install -U globular)"
        )
    sections = (document.get("parameters"), document.get("attributes"))
    if not (isinstance(document.get("class"), str) and all(isinstance(part, dict) for part in sections)):
        raise DataError(f"{path}: damaged (a section is missing); copy or save the model again")
    return document


def read_arrays(folder: Path) -> Arrays:
    """Read ``model.safetensors`` into memory."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    path = folder / ARRAYS_NAME
    try:
        return load_file(path)
    except FileNotFoundError as error:
        raise DataError(f"{folder}: {ARRAYS_NAME} is missing; copy the whole model folder") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise DataError(f"{path}: damaged or truncated ({error}); copy or save the model again") from error


def write_folder(document: dict[str, Any], arrays: Arrays, target: Path) -> None:
    """Write both files to a folder beside the target, then give it the target's name."""
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = target.with_name(f".{target.name}.{uuid.uuid4().hex[:12]}.tmp")
    staging.mkdir()
    try:
        _write_files(document, arrays, staging)
        _swap_in(staging, target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _write_files(document: dict[str, Any], arrays: Arrays, folder: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    with (folder / JSON_NAME).open("w", encoding="utf-8") as handle:
        json.dump(document, handle, indent=1, ensure_ascii=False, allow_nan=False)
        handle.write("\n")
        handle.flush()
        os.fsync(handle.fileno())
    try:
        save_file(arrays, folder / ARRAYS_NAME, metadata={"format": FORMAT})
    except SafetensorError as error:  # a full disk arrives as this, not as OSError
        raise DataError(f"{folder.parent}: the model could not be written ({error})") from error
    shutil.copymode(folder / JSON_NAME, folder / ARRAYS_NAME)  # safetensors gives its owner alone the right to read
    with (folder / ARRAYS_NAME).open("rb+") as arrays_handle:
        os.fsync(arrays_handle.fileno())


def _previous(target: Path) -> Path:
    return target.with_name(f".{target.name}.previous")


def _swap_in(staging: Path, target: Path) -> None:
    """Rename the finished folder to its name; at every moment one complete model is on disk."""
    previous = _previous(target)
    try:
        if target.exists():
            if previous.exists():
                shutil.rmtree(previous)
            target.rename(previous)
        staging.rename(target)
    except BaseException:  # Ctrl-C too: put the old one back
        if previous.exists() and not target.exists():
            previous.rename(target)
        raise
    if previous.exists():
        for entry in previous.iterdir():
            if entry.name not in (JSON_NAME, ARRAYS_NAME):
                entry.rename(target / entry.name)  # what else the user keeps there is not ours to delete
        shutil.rmtree(previous)
