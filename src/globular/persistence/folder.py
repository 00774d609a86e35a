"""The model folder as files: ``model.json`` describes the model, ``model.safetensors`` holds its arrays.

A save puts the new arrays beside the old ones, then replaces ``model.json``, in one rename, and gives the arrays their
usual name: before that rename the folder holds the old model, after it the new one, and whatever else lies there is not
touched. The description names the place where its arrays have been written, and their digest: so a reader finds them at
every moment, and one who was overtaken by a save reads again. It ends with a digest of its own. Saves to the same
folder wait for each other; each first finishes what an earlier one has left that was killed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
from numpy.typing import NDArray

from globular._version import __version__
from globular.data.formats import expanded
from globular.errors import DataError

if sys.platform != "win32":  # folders cannot be opened there, so neither locked nor synced
    import fcntl

FORMAT = "globular-model"
FORMAT_VERSION = 2
JSON_NAME = "model.json"
ARRAYS_NAME = "model.safetensors"
_STAGED_NAME = re.compile(r"\.model\.[0-9a-f]{16}\.safetensors")
"""Arrays on their way to the usual name."""
_PART_NAME = re.compile(r"\.model\.[0-9a-f]{16}\.json")
_DAMAGE = (OSError, ValueError, TypeError, KeyError, RecursionError, MemoryError, OverflowError)
"""What comes out of files that are not what they should be."""

Arrays = dict[str, NDArray[Any]]


# --- places


def is_model(path: str | Path) -> bool:
    """Say whether this folder holds a model description of globular."""
    try:
        document = _read_json(_resolved(path) / JSON_NAME)
    except _DAMAGE:
        return False
    return isinstance(document, dict) and document.get("format") == FORMAT


def check_destination(path: str | Path, *, overwrite: bool = True) -> Path:
    """Refuse a place where a model cannot be saved; useful before a long fit rather than after it."""
    target = _resolved(path)
    if is_model(target):
        if not overwrite:
            raise DataError(f"{path} already holds a model; choose another folder or pass overwrite=True")
    elif target.is_dir():
        if not all(_is_leftover(entry.name) for entry in target.iterdir()):
            raise DataError(f"{path} holds something other than a globular model; choose a new folder")
    elif target.exists():
        raise DataError(f"{path} is a file; a model is saved as a folder, choose another name")
    return target


def existing_folder(path: str | Path) -> Path:
    """Return the model's folder, without links on the way."""
    folder = _resolved(path)
    if folder.is_dir():
        return folder
    if folder.exists():
        raise DataError(f"{path} is a file; a globular model is a folder with {JSON_NAME} and {ARRAYS_NAME}")
    raise DataError(f"{path}: no such model folder; check the path")


def _resolved(path: str | Path) -> Path:
    try:
        return expanded(path).resolve()
    except (OSError, RuntimeError) as error:  # links in a circle
        raise DataError(f"{path}: not a place for a model ({error}); check the path") from error


def _is_leftover(name: str) -> bool:
    """Whether a save that was killed may have left this file."""
    return bool(_STAGED_NAME.fullmatch(name) or _PART_NAME.fullmatch(name))


# --- reading


def read_model(folder: Path) -> tuple[dict[str, Any], Arrays]:
    """The description of a model and the arrays that belong to it, also while another process saves there."""
    while True:
        document = read_document(folder)
        place = _place_of_arrays(folder, document)
        try:
            arrays, damage = _read_arrays(place, document), None
        except DataError as error:
            arrays, damage = {}, error
        overtaken = read_document(folder).get("arrays") != document.get("arrays")
        if not overtaken and _place_of_arrays(folder, document) == place:
            if damage is not None:
                raise damage
            return document, arrays


def read_document(folder: Path) -> dict[str, Any]:
    """Read ``model.json`` and check that this version of the library understands it."""
    path = folder / JSON_NAME
    try:
        document = _read_json(path)
    except FileNotFoundError as error:
        raise DataError(f"{folder} is not a globular model: it has no {JSON_NAME}") from error
    except _DAMAGE as error:
        raise DataError(f"{path}: damaged or truncated ({error}); copy or save the model again") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise DataError(f"{path} was not written by globular")
    version = document.get("format_version")
    if type(version) is not int or version < 1:
        raise DataError(f"{path}: damaged (format version {version!r}); copy or save the model again")
    if version > FORMAT_VERSION:
        raise DataError(
            f"{path} has format version {version}, written by globular {document.get('library_version')}; "
            f"globular {__version__} reads up to {FORMAT_VERSION}: upgrade it (pip install -U globular)"
        )
    names = ("parameters", "attributes") if version == 1 else ("parameters", "attributes", "arrays")
    sections = [document.get(name) for name in names]
    if not (isinstance(document.get("class"), str) and all(isinstance(part, dict) for part in sections)):
        raise DataError(f"{path}: damaged (a section is missing); copy or save the model again")
    written = document.pop("sha256", None)  # descriptions of before had none
    try:
        is_whole = written is None or written == _digest_of(document)
    except _DAMAGE:  # what can be read, as 1e999, but was never written
        is_whole = False
    if not is_whole:
        raise DataError(f"{path}: damaged (its digest differs); copy or save the model again")
    return document


def _read_json(path: Path) -> Any:
    if path.exists() and not path.is_file():  # a pipe would never end
        raise ValueError("not a file")
    return json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)


def _text_of(document: dict[str, Any]) -> bytes:
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _digest_of(document: dict[str, Any]) -> str:
    """Digest of the text, which is the same when it was read and is written again."""
    return hashlib.sha256(_text_of(document)).hexdigest()


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _staged_arrays(folder: Path, document: dict[str, Any]) -> Path | None:
    """Where the arrays of a description were written, as long as they are there and not under their usual name."""
    arrays = document.get("arrays")
    name = arrays.get("written_as") if isinstance(arrays, dict) else None
    staged = folder / name if isinstance(name, str) and _STAGED_NAME.fullmatch(name) else None
    return staged if staged is not None and staged.exists() else None


def _place_of_arrays(folder: Path, document: dict[str, Any]) -> Path:
    return _staged_arrays(folder, document) or folder / ARRAYS_NAME


def _read_arrays(path: Path, document: dict[str, Any]) -> Arrays:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        if path.exists() and not path.is_file():
            raise ValueError("not a file")
        if document["format_version"] > 1:  # the first version had no digest
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != document["arrays"].get("sha256"):
                    raise ValueError(f"not the arrays that {JSON_NAME} describes: their digest differs")
        return load_file(path)
    except FileNotFoundError as error:
        raise DataError(f"{path.parent}: {ARRAYS_NAME} is missing; copy the whole model folder") from error
    except (SafetensorError, *_DAMAGE) as error:
        raise DataError(f"{path}: damaged or truncated ({error}); copy or save the model again") from error


# --- writing


def write_folder(document: dict[str, Any], arrays: Arrays, target: Path) -> None:
    """Write a model into its folder; `document` gets the name and the digest of the arrays."""
    try:
        made = [folder for folder in (target, *target.parents) if not folder.exists()]
        target.mkdir(parents=True, exist_ok=True)
        try:
            with _saving(target):
                _replace_model(document, arrays, target)
        except BaseException:
            if made:
                with suppress(OSError):  # somebody else has saved there
                    target.rmdir()
            raise
        for folder in made:
            _sync_folder(folder.parent)  # which has its name
    except OSError as error:
        raise DataError(
            f"{target}: the model could not be written ({error.strerror or error}); check the folder and the free space"
        ) from error


def _replace_model(document: dict[str, Any], arrays: Arrays, folder: Path) -> None:
    """Write both files under other names, then give them their own, the description first."""
    token = uuid.uuid4().hex[:16]
    staged, part = folder / f".model.{token}.safetensors", folder / f".model.{token}.json"
    try:
        with staged.open("xb") as file:
            document["arrays"] = {"written_as": staged.name, "sha256": _write_safetensors(file, arrays)}
            _sync(file)
        with part.open("xb") as file:
            file.write(_text_of(document | {"sha256": _digest_of(document)}))
            _sync(file)
        _sync_folder(folder)  # the arrays have a name on disk before the description tells it
        part.replace(folder / JSON_NAME)
        _sync_folder(folder)
    finally:
        _put_in_order(folder, [staged, part])  # also after an error, or Ctrl-C at whatever moment
    _sync_folder(folder)


def _put_in_order(folder: Path, written: list[Path]) -> None:
    """Give arrays that the description names their usual name, and remove what it does not name."""
    named = None
    with suppress(*_DAMAGE):  # there is none yet, or one that is about to be replaced
        named = _staged_arrays(folder, _read_json(folder / JSON_NAME))
    for path in written:
        if path == named:
            path.replace(folder / ARRAYS_NAME)
        else:
            path.unlink(missing_ok=True)


def _write_safetensors(file: BinaryIO, arrays: Arrays) -> str:
    """Write arrays in C order as safetensors, and return the digest of the file; no copy of them is made."""
    header: dict[str, Any] = {"__metadata__": {"format": FORMAT}}
    names = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))  # so that all are aligned
    end = 0
    for name in names:
        begin, end = end, end + arrays[name].nbytes
        kind, bits = arrays[name].dtype.kind.upper(), 8 * arrays[name].itemsize
        dtype = "BOOL" if kind == "B" else f"{kind}{bits}"
        header[name] = {"dtype": dtype, "shape": arrays[name].shape, "data_offsets": (begin, end)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    # the bytes of the arrays, the lowest first, without a copy
    little = (arrays[name].astype(arrays[name].dtype.newbyteorder("<"), copy=False) for name in names)
    contents: Iterator[Any] = (np.ravel(array).view(np.uint8).data for array in little)
    for piece in (len(text).to_bytes(8, "little"), text, *contents):
        digest.update(piece)
        file.write(piece)
    return digest.hexdigest()


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


@contextmanager
def _saving(folder: Path) -> Iterator[None]:
    """Lock the folder, and put in order what an interrupted save has left."""
    if sys.platform == "win32":
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some file systems have no locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        _put_in_order(folder, [entry for entry in folder.iterdir() if _is_leftover(entry.name)])
        yield
    finally:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)  # a child that was forked meanwhile holds a copy of the handle
        os.close(handle)


def _sync_folder(folder: Path) -> None:
    """Have the names in a folder on disk."""
    if sys.platform != "win32":
        with suppress(OSError):  # some file systems cannot
            handle = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
