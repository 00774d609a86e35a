"""Kernels that are built ahead: what common fits call is among them, and none of these needs numba."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import types

import globular
from benchmarks.manifest import FITS, record, written
from globular.jit import build, library

LINES = build.lines()

FIT = """
import sys
import numpy as np, globular
for dtype in sys.argv[1:]:
    X = np.random.default_rng(0).normal(size=(20_000, 16)).astype(dtype)
    globular.KMeans(8, random_state=0).fit(X)
    globular.GaussianMixture(3, random_state=0).fit(X)
print("numba" in sys.modules)
"""


def test_the_manifest_reads_as_it_was_written() -> None:
    assert len(LINES) == len(set(LINES)) > 100 and sorted(LINES) == LINES
    for line in LINES:
        kinds = line.partition(" ")[2]
        assert " ".join(map(written, build.read_types(kinds))) == kinds


def test_scratch_is_found_among_words() -> None:
    text = "i8:1C seeds.Pair(f4:2C i8) b1 f8:1C"
    assert library.scratch_words(text, ["Queue", "Scratch", "bool", "Zeros"]) == [7, -1 - 18]
    assert library.unnamed("i8:1C a.B(f4:2C! (i8))") == "i8:1C (f4:2C (i8))"


@pytest.mark.parametrize("kind", [types.complex128, types.Array(types.float64, 2, "A"), types.unicode_type])
def test_other_types_have_no_text(kind: Any) -> None:
    with pytest.raises(ValueError, match="no text"):
        written(kind)


def missing(estimator: str, dtype: str) -> set[str]:
    """What the fits of the manifest call today that it does not have: `python benchmarks/manifest.py` mends it."""
    return record(estimator, dtype) - set(LINES)


def test_the_manifest_has_what_a_fit_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FITS, "KMeans", [({"n_clusters": 8}, 20_000)])
    assert not missing("KMeans", "float32")


@pytest.mark.slow
@pytest.mark.parametrize("estimator", FITS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_manifest_has_what_common_fits_call(estimator: str, dtype: str) -> None:
    assert not missing(estimator, dtype)


def test_a_library_is_up_to_date_or_says_so() -> None:
    if not (library.FOLDER / library.INDEX).is_file():
        pytest.skip("no library was built")
    entries = [library.Entry.read(line) for line in (library.FOLDER / library.INDEX).read_text().splitlines()]
    assert {f"{entry.kernel} {entry.types}" for entry in entries} <= set(LINES) or os.environ.get("CI") is None
    for entry in entries:
        assert entry.digest and set(entry.returns) <= set("dlb-")


@pytest.mark.skipif(library.level() is None, reason="no library was built, or it is switched off")
def test_common_fits_do_not_import_numba() -> None:
    command = [sys.executable, "-c", FIT, "float32", "float64"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.skipif(library.level() is None, reason="no library was built, or it is switched off")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("model", [globular.KMeans(30), globular.GaussianMixture(3)])
def test_the_library_finds_what_numba_finds(model: Any, tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(3000, 6)) + 8.0 * np.eye(3, 6)[np.arange(3000) % 3]
    model.set_params(random_state=0, max_iter=4).fit(X)
    np.save(tmp_path / "X.npy", X)
    code = (
        "import sys, numpy as np, warnings, globular\n"
        "warnings.simplefilter('ignore')\n"
        f"model = globular.{model}\n"
        "X = np.load(sys.argv[1] + '/X.npy')\n"
        "np.save(sys.argv[1] + '/labels.npy', model.fit(X).predict(X))\n"
    )
    environment = {**os.environ, "GLOBULAR_JIT": "fast"}
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=environment, check=True)
    assert np.array_equal(np.load(tmp_path / "labels.npy"), model.predict(X))


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no owners on this system")
def test_a_folder_that_others_can_write_to_is_not_loaded(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    monkeypatch.setenv("GLOBULAR_JIT", "auto")
    assert "no library" in str(library._load())
    (tmp_path / library.INDEX).write_text("")
    tmp_path.chmod(0o777)
    assert library._load() == "its folder is not safe" and "can be written by others" in caplog.text
    tmp_path.chmod(0o755)
    assert "cannot be loaded" in str(library._load())
    (tmp_path / library.INDEX).chmod(0o664)
    assert library._load() == "its folder is not safe"


@pytest.mark.parametrize(
    ("variable", "value", "why"),
    [("GLOBULAR_JIT", "stock", "GLOBULAR_JIT=stock"), ("NUMBA_BOUNDSCHECK", "1", "NUMBA_BOUNDSCHECK is set")],
)
def test_the_library_can_be_switched_off(variable: str, value: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOBULAR_JIT", "auto")
    monkeypatch.setenv(variable, value)
    assert library._load() == why


@pytest.mark.slow
@pytest.mark.skipif(library.level() is None, reason="no library was built, or it is switched off")
def test_nothing_is_left_when_the_package_is_uninstalled(tmp_path: Path) -> None:
    root = Path(globular.__file__).parents[2]
    if not (root / "pyproject.toml").is_file():
        pytest.skip("the package is not a checkout")
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    environment = {**os.environ, "GLOBULAR_LIBRARY": str(library.FOLDER), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    build_wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(tmp_path), str(root)]
    subprocess.run(build_wheel, check=True, env=environment)
    (wheel,) = tmp_path.glob("*.whl")
    assert "-py3-none-" in wheel.name and wheel.stat().st_size < 25_000_000
    assert any(name.endswith(library.INDEX) for name in zipfile.ZipFile(wheel).namelist())
    subprocess.run([python, "-m", "pip", "install", "--quiet", wheel], check=True)
    subprocess.run([python, "-c", FIT, "float16"], check=True, env=environment, cwd=tmp_path)
    subprocess.run([python, "-m", "pip", "uninstall", "--quiet", "-y", "globular"], check=True)
    assert not list((tmp_path / "venv").rglob("*globular*"))
    shutil.rmtree(tmp_path / "venv")
