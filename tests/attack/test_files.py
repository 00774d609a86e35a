"""Files that were cut, flipped or overwritten: they are read as they were, or refused by one error that names them.
And disks that are full after any number of bytes: what was there before stays, and nothing else.

A bit that flips in a number of a text or of uncompressed rows makes other rows, which nobody can notice; what must not
happen is a crash, an error without a name, or a model that loads and fails later.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import globular
from attack.counting import attack
from globular.errors import DataError
from globular.io import open_source
from models.make import FOLDER, rows_for

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # fewer distinct rows are left
damages = st.tuples(st.sampled_from(["cut", "flip", "zeros", "repeat"]), st.floats(0.0, 1.0), st.integers(0, 7))
MODELS = sorted({path.parent for path in FOLDER.glob("*/*/labels.npy")})
FILES = ("rows.npy", "rows.npz", "rows.csv", "rows.parquet", "rows.h5", "rows.fvecs")


def damage(path: Path, how: str, where: float, bit: int) -> None:
    """Change one place of a file."""
    data = bytearray(path.read_bytes())
    at = min(int(where * len(data)), len(data) - 1)
    if how == "cut":
        del data[at:]
    elif how == "flip":
        data[at] ^= 1 << bit
    elif how == "zeros":
        data[at : at + 64] = bytes(len(data[at : at + 64]))
    else:
        data += data[at:]
    path.write_bytes(data)


@pytest.mark.parametrize("model", MODELS, ids=lambda path: f"{path.parent.name}/{path.name}")
@attack
@given(changes=st.lists(damages, min_size=1, max_size=3), file=st.sampled_from(["model.json", "model.safetensors"]))
def test_a_damaged_model_loads_as_it_was_or_is_refused(model: Path, changes: list[Any], file: str) -> None:
    with TemporaryDirectory() as scratch:
        copy = Path(shutil.copytree(model, Path(scratch) / "model"))
        for change in changes:
            if (copy / file).stat().st_size:
                damage(copy / file, *change)
        loaded, refusal = None, ""
        try:
            loaded = globular.load(copy)
        except DataError as error:
            refusal = str(error)
        X = rows_for(model.name)
        assert str(copy) in refusal if loaded is None else len(loaded.predict(X)) == len(X)


@cache
def whole(name: str) -> bytes:
    """A file of that kind, as it is written."""
    with TemporaryDirectory() as scratch:
        path, X = Path(scratch) / name, np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
        if name.endswith("npz"):
            np.savez_compressed(path, X=X)
        elif name.endswith("parquet"):
            pyarrow = pytest.importorskip("pyarrow")
            table = pyarrow.table({f"column {j}": X[:, j] for j in range(X.shape[1])})
            pytest.importorskip("pyarrow.parquet").write_table(table, path)
        elif name.endswith("h5"):
            with pytest.importorskip("h5py").File(path, "w") as file:
                file["X"] = X
        elif name.endswith("fvecs"):
            np.hstack([np.full((len(X), 1), 4, np.int32).view(np.float32), X]).tofile(path)
        else:
            globular.io.write_array(path, X)
        return path.read_bytes()


@pytest.mark.parametrize("name", FILES)
@attack
@given(changes=st.lists(damages, min_size=1, max_size=3))
def test_damaged_rows_are_read_or_refused(name: str, changes: list[Any]) -> None:
    with TemporaryDirectory() as scratch:
        path = Path(scratch) / name
        path.write_bytes(whole(name))
        for change in changes:
            if path.stat().st_size:
                damage(path, *change)
        with suppress(DataError, ValueError):  # ValueError: numbers that are not finite, or too few rows
            globular.KMeans(3, random_state=0, max_iter=2).fit(open_source(path))


@contextmanager
def full_after(n_bytes: int) -> Iterator[None]:
    """No file can have more bytes than that."""
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def written_or_refused(write: Any, place: Path, n_bytes: int) -> bool:
    """Whether it was written on a disk that is full soon; if not, an error names the place, and all stays as it was."""
    before, refusal = contents(place.parent), ""
    try:
        with full_after(n_bytes):
            write()
    except DataError as error:
        refusal = str(error)
    assert not refusal or (str(place) in refusal and contents(place.parent) == before)
    return not refusal


def contents(folder: Path) -> dict[Path, bytes]:
    """All files of a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("is_there", [False, True])
@attack
@given(model=st.sampled_from(MODELS), n_bytes=st.integers(0, 30_000))
def test_a_full_disk_keeps_the_model_before(is_there: bool, model: Path, n_bytes: int) -> None:
    with TemporaryDirectory() as scratch:
        place = Path(scratch) / "model"
        if is_there:
            shutil.copytree(model, place)
        loaded = globular.load(model)
        if written_or_refused(lambda: globular.save(loaded, place), place, n_bytes) or is_there:
            X = rows_for(model.name)
            np.testing.assert_array_equal(globular.load(place).predict(X), loaded.predict(X))


@pytest.mark.parametrize("suffix", [".npy", ".csv", ".parquet"])
@attack
@given(n_bytes=st.integers(0, 8_000), is_there=st.booleans())
def test_a_full_disk_keeps_the_array_before(suffix: str, n_bytes: int, is_there: bool) -> None:
    X = np.arange(1200, dtype=np.float32).reshape(300, 4)
    with TemporaryDirectory() as scratch:
        place = Path(scratch) / f"rows{suffix}"
        if is_there:
            globular.io.write_array(place, X[:7])
        if written_or_refused(lambda: globular.io.write_array(place, X), place, n_bytes):
            np.testing.assert_array_equal(open_source(place).whole(), X)
