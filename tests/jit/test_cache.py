"""Compiled kernels on disk: never stale, of one user, kept where there is a place to write."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numba
import numpy as np
import pytest
from numba import types

import globular
from globular.jit import cache, inline, kernel, sources
from globular.jit.functions import compiler
from makers import raising

HELPER = "from globular.jit import inline\n@inline\ndef added(x):\n    return x + {}\n"
CALLER = """
from globular.jit import kernel
from globular.model.helper import added
@kernel
def total(x):
    return added(x[0]) + added(x[1])
"""
OTHER = "from globular.jit import kernel\n@kernel\ndef other(x):\n    return x[0]\n"
CALL = """
import logging
import numpy as np
from globular.jit import compile_seconds
logging.basicConfig(level=logging.INFO)
from globular.model.caller import total
from globular.model.other import other
print(total(np.ones(2)))
before = compile_seconds()
other(np.ones(2))
print(compile_seconds() > before)
"""


@pytest.fixture(params=["auto", "stock"])
def package(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of kernels that nobody else uses: one and what it calls in two files, and one that calls nothing."""
    monkeypatch.setenv("GLOBULAR_JIT", request.param)
    home, source = tmp_path / "globular", Path(globular.__file__).parent
    for name in ("jit", "threads"):
        shutil.copytree(source / name, home / name, ignore=shutil.ignore_patterns("lib", "__pycache__"))
    for name in ("machine.py", "errors.py", "lazy.py"):
        shutil.copy(source / name, home)
    (home / "model").mkdir()
    for name, code in {"helper": HELPER.format(1), "caller": CALLER, "other": OTHER, "__init__": ""}.items():
        (home / "model" / f"{name}.py").write_text(code)
    (home / "__init__.py").write_text("")
    return tmp_path


def run(package: Path, *, umask: int = -1, **variables: str) -> tuple[float, bool, bool, str]:
    """What the kernel returned, whether it and the one that calls nothing were compiled, and the log."""
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment |= {"PYTHONPATH": str(package), "XDG_CACHE_HOME": str(package / "user"), **variables}
    done = subprocess.run(
        [sys.executable, "-B", "-c", CALL], env=environment, capture_output=True, text=True, umask=umask, check=False,
        timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    number, other = done.stdout.split()
    return float(number), "compiling" in done.stderr, other == "True", done.stderr


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.nbc"))


def test_what_is_edited_damaged_or_checked_is_compiled_anew_and_nothing_else(package: Path) -> None:
    assert run(package)[:3] == (4.0, True, True)
    assert run(package)[:3] == (4.0, False, False)
    (package / "globular/model/helper.py").write_text(HELPER.format(2))
    assert run(package)[:3] == (6.0, True, False)
    kept = files(package)
    assert len(kept) >= 3 and all(package / "user" / "globular" in file.parents for file in kept)
    assert all(any(folder.iterdir()) for folder in (package / "user").rglob("*/"))
    assert run(package, NUMBA_BOUNDSCHECK="1")[:3] == (6.0, True, True)
    checked = {file.parent for file in files(package)} - {file.parent for file in kept}
    assert len(checked) >= 2  # index checks have kernels of their own
    for file in files(package):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    assert run(package)[:3] == (6.0, True, True)
    assert run(package)[:3] == (6.0, False, False)


def link(folder: Path) -> None:
    folder.rename(elsewhere := folder.with_name(f"elsewhere {folder.name}"))
    folder.symlink_to(elsewhere)


def restore(folder: Path) -> None:
    if folder.is_symlink():
        elsewhere = folder.readlink()
        folder.unlink()
        elsewhere.rename(folder)
    os.chown(folder, os.geteuid(), os.getegid())
    folder.chmod(0o700)


WAYS: dict[str, Callable[[Path], None]] = {
    "all may write it": lambda folder: folder.chmod(0o707),
    "its group may write it": lambda folder: folder.chmod(0o770),
    "it is a link": link,
    "it is another user's": lambda folder: os.chown(folder, 54321, 54321),
}


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no owners on this system")
@pytest.mark.parametrize("package", ["auto"], indirect=True)
def test_folders_that_others_can_write_to_are_left_aside(package: Path) -> None:
    run(package, umask=0)
    folder = package / "user" / "globular"
    assert all(file.parents[1].stat().st_mode & 0o077 == 0 for file in files(folder))
    modules = sorted(folder.iterdir())
    for way, changed in [*((way, [folder]) for way in WAYS), ("it is a link", modules)]:
        if "another" in way and os.geteuid() != 0:  # only root can give a folder away
            continue
        for each in changed:
            WAYS[way](each)
        before = {file: file.stat().st_mtime_ns for file in files(folder)}
        number, compiled, other, said = run(package)
        assert (number, compiled, other) == (4.0, True, True), way
        assert "neither read nor kept" in said, way
        assert {file: file.stat().st_mtime_ns for file in files(folder)} == before, way
        for each in changed:
            restore(each)
    assert run(package)[:3] == (4.0, False, False)


@pytest.mark.parametrize("package", ["stock"], indirect=True)
def test_fits_work_where_nothing_can_be_kept(package: Path) -> None:
    (package / "a file").touch()
    _, compiled, _, said = run(package, NUMBA_CACHE_DIR=str(package / "a file"))
    assert compiled and "for this process alone" in said


def test_a_full_disk_costs_nothing_but_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    @kernel
    def third(x: np.ndarray) -> float:
        return x[2]

    real, calls = third.numba, []  # type: ignore[attr-defined]

    def full(*arguments: object) -> float:
        calls.append(arguments)
        if len(calls) == 1:
            raise OSError("no space left on device")
        return float(real(*arguments))

    monkeypatch.setitem(third.__dict__, "_numba", full)
    assert third(np.arange(3.0)) == 2.0 and len(calls) == 2


def test_a_user_without_a_home_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    assert cache.base() is not None
    monkeypatch.setattr(Path, "expanduser", raising(RuntimeError("Could not determine home directory.")))
    assert cache.base() is None


def test_folders_that_were_not_used_for_long_are_removed(tmp_path: Path) -> None:
    days = {"kernels-" + "0" * 20: cache.DAYS_KEPT - 1, "kernels-" + "1" * 20: cache.DAYS_KEPT + 1, "mine": 900.0}
    for name, age in days.items():
        (tmp_path / name).mkdir()
        used = time.time() - 86_400.0 * age
        os.utime(tmp_path / name, (used, used))
    cache._prune(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"kernels-" + "0" * 20, "mine"}


def test_sources_of_a_kernel_are_all_that_it_imports() -> None:
    assert sources._imported("globular.passes.cpu.sums") >= {"globular.passes.cpu.engine.rows", "globular.jit"}
    assert sources.closure_digest("globular.passes.cpu.sums") != sources.closure_digest(
        "globular.passes.cpu.engine.rows"
    )
    assert sources.closure_digest("numba") is None and sources.closure_digest("tests.jit.test_cache") is None


@inline
def _doubled(x: float) -> float:
    return 2 * x


@kernel
def _smallest_of_both(x: np.ndarray) -> float:
    return min(x[0], x[1]) + _doubled(1)


def test_what_numba_wrote_still_serves_others() -> None:
    """Kernels have numba's own functions compiled for linking alone; whoever else compiles can link them too."""

    @numba.njit
    def ours(x: np.ndarray) -> float:
        return min(x[0], x[1])

    assert _smallest_of_both(np.array([3.0, 2.0])) == 4 and ours(np.array([3.0, 2.0])) == 2


def test_a_constant_is_compiled_as_a_number() -> None:
    if compiler().__name__ != "globular.jit.linked":
        pytest.skip("numba compiles for a constant by itself")
    assert _smallest_of_both(np.array([0.0, 2.0])) == 2
    callee = _doubled.numba.callee  # type: ignore[attr-defined]
    assert all(not isinstance(kind, types.Literal) for kinds in callee.overloads for kind in kinds)
