"""Compiled kernels on disk: never stale, shared by processes, kept where there is a place to write."""

from __future__ import annotations

import gc
import itertools
import os
import pickle
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from numba import types

import globular
from globular.jit import inline, kernel
from globular.jit.target import LEVELS, Target, levels
from globular.kernels import cache, owners

HELPER = "from globular.kernels.compile import inline\n@inline\ndef added(x):\n    return x + {}\n"
CALLER = """
import numpy as np
from globular.jit import allocating_kernel
from globular.kernels.helper import added
@allocating_kernel
def total(x):
    sums = np.empty(2)
    sums[0], sums[1] = added(x[0]), added(x[1])
    return sums[0] + sums[1]
"""
CALL = "import numpy as np; from globular.kernels.caller import total; print(total(np.ones(2)))"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package of kernels that nobody else uses: a kernel and what it calls, in two files."""
    home = tmp_path / "globular"
    kernels = home / "kernels"
    kernels.mkdir(parents=True)
    source = Path(globular.__file__).parent / "kernels"
    for name in ("__init__", "brief", "cache", "compile", "linking", "owners", "queue", "quick", "sharing", "target"):
        shutil.copy(source / f"{name}.py", kernels)
    (home / "__init__.py").write_text("")
    (kernels / "helper.py").write_text(HELPER.format(1))
    (kernels / "caller.py").write_text(CALLER)
    return tmp_path


def start(package: Path, *, umask: int = -1, **variables: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment |= {"PYTHONPATH": str(package), "XDG_CACHE_HOME": str(package / "user"), **variables}
    return subprocess.Popen(
        [sys.executable, "-c", CALL], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        umask=umask,
    )  # fmt: skip


def answer(process: subprocess.Popen[str]) -> tuple[float, bool]:
    """What a process printed, and whether it has compiled."""
    number, said = words(process)
    return number, "compiling" in said


def words(process: subprocess.Popen[str]) -> tuple[float, str]:
    """What a process printed, and what it said in its log."""
    printed, said = process.communicate(timeout=600)
    assert process.returncode == 0, said
    return float(printed), said


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.kernel"))


def test_a_kernel_is_compiled_again_when_what_it_calls_has_changed(package: Path) -> None:
    assert answer(start(package)) == (4.0, True)
    assert answer(start(package)) == (4.0, False)
    (package / "globular/kernels/helper.py").write_text(HELPER.format(2))
    assert answer(start(package)) == (6.0, True)
    assert len(files(package / "globular")) == 2


def test_processes_at_once_share_the_work(package: Path) -> None:
    answers = [answer(process) for process in [start(package) for _ in range(3)]]
    assert [number for number, _ in answers] == [4.0] * 3
    folder = files(package)[0].parent
    assert len(list(folder.iterdir())) == 1  # no lock and no unfinished file is left behind
    if cache.fcntl is not None:
        assert sum(compiled for _, compiled in answers) == 1


def test_a_package_that_cannot_be_written_to_leaves_its_kernels_with_the_user(package: Path) -> None:
    (package / "globular/kernels/__pycache__").write_text("a file where the folder should be: no one can write there")
    variables = {"PYTHONDONTWRITEBYTECODE": "1"}
    assert answer(start(package, **variables)) == (4.0, True)
    assert not files(package / "globular") and len(files(package / "user" / "globular")) == 1
    assert answer(start(package, **variables)) == (4.0, False)


def test_a_damaged_file_is_compiled_again(package: Path) -> None:
    assert answer(start(package)) == (4.0, True)
    (file,) = files(package / "globular")
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    assert answer(start(package)) == (4.0, True)
    assert answer(start(package)) == (4.0, False)


def test_index_checks_have_kernels_of_their_own(package: Path) -> None:
    assert answer(start(package)) == (4.0, True)
    assert answer(start(package, NUMBA_BOUNDSCHECK="1")) == (4.0, True)
    assert len({file.parent for file in files(package)}) == 2


@pytest.mark.parametrize(("there", "kept"), [(cache.KEPT, cache.KEPT), (cache.KEPT + 3, cache.KEPT)])
def test_folders_that_were_not_used_for_long_are_removed(there: int, kept: int, tmp_path: Path) -> None:
    ours = [f"{cache.PREFIX}{i:020x}" for i in range(there)]
    others = [f"{cache.PREFIX}of-my-thesis", f"{cache.PREFIX}{'f' * 20}"]  # the name of the second might be ours
    for i, name in enumerate([*ours, *others]):
        folder = tmp_path / name
        folder.mkdir()
        (folder / ("data.txt" if name in others else "a.kernel")).write_text("")
        os.utime(folder, (time.time() - i, time.time() - i))
    (tmp_path / "something else").mkdir()
    cache._prune(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*ours[:kept], *others, "something else"}


class Evil:
    """A pickle that makes a folder when it is read."""

    def __init__(self, made: Path) -> None:
        self._made = made

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._made),)


HAS_OWNERS = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no owners on this system")
STRANGER = 54321


@HAS_OWNERS
def test_code_that_others_can_have_written_does_not_run(package: Path) -> None:
    root, made = package / "shared", package / "made by the stranger"
    root.mkdir()
    root.chmod(0o1777)  # as /tmp
    variables = {"NUMBA_CACHE_DIR": str(root)}
    assert answer(start(package, umask=0, **variables)) == (4.0, True)
    (file,) = files(root)
    assert (file.parent.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o755, 0o644)
    assert answer(start(package, **variables)) == (4.0, False)
    file.write_bytes(evil := pickle.dumps(Evil(made)))
    if os.geteuid() == 0:
        os.chown(file.parent, STRANGER, STRANGER)
    file.parent.chmod(0o777)
    number, said = words(start(package, **variables))
    assert number == 4.0 and not made.exists()
    assert said.count(f"{file.parent}: its compiled kernels are not used") == 1
    assert "kept for the next time" not in said and file.read_bytes() == evil


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a path belong to another user, neither root nor this one."""
    if os.geteuid() == 0:
        os.chown(path, STRANGER, STRANGER)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: STRANGER)


def replace_by_link(path: Path) -> None:
    path.rename(elsewhere := path.with_name("elsewhere"))
    path.symlink_to(elsewhere)


WAYS: dict[str, Callable[[Path, Path, pytest.MonkeyPatch], None]] = {
    "all may write the folder": lambda folder, file, _: folder.chmod(0o707),
    "its group may write the folder": lambda folder, file, _: folder.chmod(0o775),
    "all may write the file": lambda folder, file, _: file.chmod(0o606),
    "its group may write the file": lambda folder, file, _: file.chmod(0o664),
    "the folder is a link": lambda folder, file, _: replace_by_link(folder),
    "the file is a link": lambda folder, file, _: replace_by_link(file),
    "the folder is another user's": lambda folder, file, patch: give_away(folder, patch),
    "the file is another user's": lambda folder, file, patch: give_away(file, patch),
}


@HAS_OWNERS
@pytest.mark.parametrize("way", WAYS)
def test_files_of_others_are_not_read(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "kernels" / "a.kernel"
    file.parent.mkdir(0o755)
    assert owners.is_ours(file.parent) and owners.is_ours(tmp_path / "not there")
    with open(file, "xb", opener=owners.own) as opened:
        opened.write(b"code")
    assert owners.read(file.parent, file.name) == b"code"
    WAYS[way](file.parent, file, monkeypatch)
    with pytest.raises(OSError):
        owners.read(file.parent, file.name)
    assert "folder" not in way or not owners.is_ours(file.parent)


@HAS_OWNERS
def test_the_package_brings_and_keeps_what_whoever_installed_it_has_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owners, "PACKAGE", tmp_path)
    monkeypatch.setattr(owners, "BROUGHT", tmp_path / "brought")
    kept, brought = tmp_path / "__pycache__" / "kernels-0", tmp_path / "brought" / "kernels-0"
    for folder in (kept, brought):
        folder.mkdir(parents=True)
        (folder / "a.kernel").write_bytes(b"code")
    for path in (tmp_path, kept, kept / "a.kernel"):
        give_away(path, monkeypatch)
    brought.chmod(0o775)  # as pip leaves it where the group may write
    assert owners.read(kept, "a.kernel") == owners.read(brought, "a.kernel") == b"code"
    monkeypatch.setattr(owners, "PACKAGE", tmp_path / "elsewhere")
    with pytest.raises(PermissionError):
        owners.read(kept, "a.kernel")


def test_a_user_without_a_home_has_the_folder_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home(_: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(cache.config, "CACHE_DIR", "")
    assert len(cache.roots()) == 2
    monkeypatch.setattr(Path, "expanduser", no_home)
    assert cache.roots() == [Path(cache.__file__).parent / "__pycache__"]


def test_nothing_is_said_to_be_kept_where_nothing_can_be(package: Path) -> None:
    (package / "a file").touch()
    _, said = words(start(package, NUMBA_CACHE_DIR=str(package / "a file")))
    assert "compiling kernels" in said and "kept for the next time" not in said


def bring(package: Path, level: Target) -> Path:
    """Compile for a level of CPUs into the folder of the package that a wheel fills."""
    brought = package / "globular/kernels/brought"
    variables = {"NUMBA_CPU_NAME": level.cpu, "NUMBA_CPU_FEATURES": level.features, "NUMBA_CACHE_DIR": str(brought)}
    assert answer(start(package, **variables)) == (4.0, True)
    (file,) = files(brought)
    return file


@pytest.mark.skipif(not levels(), reason="no level is known for this processor")
def test_kernels_that_were_brought_are_not_compiled(package: Path) -> None:
    level = next(iter(levels().values()))
    file = bring(package, level)
    brought = file.read_bytes()
    assert answer(start(package)) == (4.0, False)
    assert files(package) == [file] and file.read_bytes() == brought
    # What was not brought is compiled for the same level, and kept elsewhere.
    file.unlink()
    assert answer(start(package)) == (4.0, True)
    (compiled,) = files(package)
    assert compiled.parent.name == file.parent.name and compiled.parent != file.parent
    assert answer(start(package)) == (4.0, False)
    # Who asks for a processor by name gets it.
    assert answer(start(package, NUMBA_CPU_NAME="generic")) == (4.0, True)


@pytest.mark.skipif(not levels(), reason="no level is known for this processor")
def test_brought_kernels_of_other_sources_are_compiled_again(package: Path) -> None:
    bring(package, next(iter(levels().values())))
    (package / "globular/kernels/helper.py").write_text(HELPER.format(2))
    number, said = words(start(package))
    assert number == 6.0 and "compiling" in said
    assert "kernels that came with the package are not used: they are for other versions, this is numba " in said


def test_it_says_which_versions_brought_kernels_are_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "BROUGHT", tmp_path)
    monkeypatch.setattr(cache, "asked_for", lambda: None)
    (tmp_path / cache.VERSIONS).write_text("numba 0.1")
    assert cache.why_not_brought() == f"they are for numba 0.1, this is {cache.versions()}"
    (tmp_path / cache.VERSIONS).write_text(cache.versions())
    assert cache.why_not_brought() == "they are for other processors"
    (tmp_path / cache.state()).mkdir()
    assert not cache.why_not_brought()


def test_a_level_runs_where_all_its_instructions_are() -> None:
    level = Target("level", "+a,+b,-c")
    assert level.runs_on(Target("same", "+a,+b,+c,-d")) and level.has("a", "b") and not level.has("a", "c")
    assert not level.runs_on(Target("older", "+a,-b"))
    for machine in LEVELS.values():
        for (_, higher), (_, lower) in itertools.pairwise(machine):
            assert lower.runs_on(higher) and not higher.runs_on(lower)


@inline
def _doubled(x: float) -> float:
    return 2 * x


@kernel
def _sum_of_doubled(x: np.ndarray) -> float:
    total = 0.0
    for i in range(len(x)):
        total += _doubled(x[i])
    return total


@kernel
def _smallest_of_both(x: np.ndarray) -> float:
    return min(x[0], x[1]) + _doubled(1)


def test_what_numba_wrote_still_serves_others() -> None:
    """Kernels have numba's own functions compiled for linking alone; whoever else compiles can link them too."""

    @numba.njit
    def ours(x: np.ndarray) -> float:
        return min(x[0], x[1])

    assert _smallest_of_both(np.array([3.0, 2.0])) == 4 and ours(np.array([3.0, 2.0])) == 2
    assert gc.isenabled()


def test_a_constant_is_compiled_as_a_number() -> None:
    assert _smallest_of_both(np.array([0.0, 2.0])) == 2
    assert all(not isinstance(kind, types.Literal) for kinds in _doubled.callee.overloads for kind in kinds)  # type: ignore[attr-defined]


def test_what_kernels_call_is_not_made_ready_for_python() -> None:
    assert _sum_of_doubled(np.arange(4.0)) == 12
    folder = cache.folder()
    assert folder is not None and not list(folder.glob("*_sum_of_doubled*"))  # the folder does not know this file
    assert not _doubled.overloads and _doubled.callee.overloads  # type: ignore[attr-defined]
    assert _doubled(3.0) == 6 and len(_doubled.overloads) == 1  # type: ignore[attr-defined]
