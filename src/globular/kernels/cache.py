"""Compiled kernels on disk: a folder for each state of the sources, and a file for each kernel and types of arguments.

The folder's name is a hash of all kernel sources, the versions of numba, LLVM and Python, and the CPU. So no change of
a source leaves a stale kernel behind; numba's own cache looks at the file of a kernel alone, not at what it calls.
A file's name is a hash of the kernel and the types of its arguments, and it appears as a whole (it is renamed when it
is written), so that any number of processes may read and write at once. Kernels are looked for in all of `roots()` and
written to the first of them that can be written to: an installation that nobody may write to, warmed up by whoever
installed it, serves all its users. A wheel may bring kernels of levels of CPUs (`target.py`) in `BROUGHT`; nothing is
ever written there.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import pickle
import platform
import shutil
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numba
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.runtime.nrt import rtsys
from numba.core.serialize import dumps

from globular.kernels.target import Target, asked_for, config, host, levels

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

BROUGHT = Path(__file__).parent / "brought"
"""Where a wheel has kernels that were compiled when it was made."""
PREFIX = "kernels-"
SUFFIX = ".kernel"
KEPT = 8
"""So many folders stay when a new one is made; the least recently used go."""


def roots() -> list[Path]:
    """Where folders of kernels may lie: NUMBA_CACHE_DIR if that is set, else the package and the user's cache."""
    if config.CACHE_DIR:
        return [Path(config.CACHE_DIR)]
    return [Path(__file__).parent / "__pycache__", _user_cache()]


def _user_cache() -> Path:
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "globular"


@functools.cache
def target() -> Target:
    """What this process compiles for: what numba's variables ask for, a level whose kernels were brought, this CPU."""
    brought = (level for level in levels().values() if (BROUGHT / name_of(level)).is_dir())
    return asked_for() or next(brought, host())


def state() -> str:
    """The name of the folder for these sources and versions and the target of this process."""
    return name_of(target())


@functools.cache
def name_of(target: Target) -> str:
    """The name of the folder for a target."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        source = path.read_bytes()
        digest.update(f"{path.name} {len(source)} ".encode() + source)
    digest.update("|".join([*_versions(), *target]).encode())
    return PREFIX + digest.hexdigest()[:20]


def _versions() -> Iterator[str]:
    """What machine code depends on beside the sources and the target."""
    yield from (numba.__version__, llvmlite.__version__, sys.implementation.cache_tag, platform.machine(), sys.platform)
    yield from (str(config.OPT), str(config.BOUNDSCHECK), str(config.LOOP_VECTORIZE), str(config.SLP_VECTORIZE))


@functools.cache
def folder() -> Path | None:
    """Where kernels are written to, made if need be; None if nothing can be written anywhere."""
    for root in roots():
        here = root / state()
        with contextlib.suppress(OSError):
            if not here.is_dir():
                here.mkdir(parents=True, exist_ok=True)
                _prune(root)
            with tempfile.TemporaryFile(dir=here):
                return here
    return None


def count() -> int:
    """How many kernels of this state are on disk, each for one set of types."""
    return len({file.name for source in _sources() for file in source.glob(f"*{SUFFIX}")})


def _prune(root: Path) -> None:
    """Remove the folders of states that were used least recently."""
    states = sorted(root.glob(PREFIX + "*"), key=lambda state: state.stat().st_mtime, reverse=True)
    for unused in states[KEPT:]:
        shutil.rmtree(unused, ignore_errors=True)


@functools.cache
def _sources() -> list[Path]:
    """The folders that have kernels of this state, what was brought first; they count as used now."""
    sources = [root / state() for root in (BROUGHT, *roots())]
    for source in sources:
        with contextlib.suppress(OSError):
            os.utime(source)
    return sources


_WORK: list[Callable[[], bool]] = []


@contextlib.contextmanager
def meanwhile(work: Callable[[], bool]) -> Iterator[None]:
    """While this holds, whoever waits for another process does this first, as long as it says that there was some."""
    _WORK.append(work)
    try:
        yield
    finally:
        _WORK.remove(work)


def _is_taken(file: Any) -> bool:
    """Whether another process has the lock; if not, this one has it now."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


class KernelCache(NullCache):
    """The files of one kernel, in the way that numba's dispatchers ask for them."""

    def __init__(self, function: Any) -> None:
        self._name = f"{function.__module__}.{function.__qualname__}".removeprefix("globular.kernels.")
        # The name of the folder knows nothing of sources elsewhere: their kernels are not kept.
        self._kept = Path(function.__code__.co_filename).parent == Path(__file__).parent

    @property
    def cache_path(self) -> str | None:
        here = folder()
        return None if here is None else str(here)

    def _file(self, types: Any) -> str:
        return f"{self._name}-{hashlib.sha256(str(types).encode()).hexdigest()[:20]}{SUFFIX}"

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled kernel for these types, or None.

        Of numba's own preparations it needs the memory of kernels that make arrays; filling its tables of types would
        take ten times as long.
        """
        rtsys.initialize(target_context)
        name = self._file(sig)
        for source in _sources() if self._kept else ():
            try:
                compiled = CompileResult._rebuild(target_context, *pickle.loads((source / name).read_bytes()))
            except Exception:  # not there, or not what was written: it is compiled again
                continue
            if tuple(compiled.signature.args) == tuple(sig):
                return compiled
        return None

    def is_free(self, sig: Any) -> bool:
        """Whether this kernel is neither on disk nor being compiled; a process that was killed at it may deceive."""
        here, name = folder(), self._file(sig)
        return here is not None and not (
            (here / f"{name}.lock").exists() or any((source / name).exists() for source in _sources())
        )

    @contextlib.contextmanager
    def alone(self, sig: Any) -> Iterator[None]:
        """Wait while another process compiles this kernel for these types; then the kernel is there to be read.

        Whoever waits does what else there is to do (`meanwhile`). Where there are no locks on files, two processes may
        compile the same.
        """
        here, name = folder() if self._kept else None, self._file(sig)
        if fcntl is None or here is None or any((source / name).exists() for source in _sources()):
            yield
            return
        lock = here / f"{name}.lock"
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                file = stack.enter_context(lock.open("w"))
                while _is_taken(file) and any(work() for work in list(_WORK)):
                    pass
                fcntl.flock(file, fcntl.LOCK_EX)
                stack.callback(fcntl.flock, file, fcntl.LOCK_UN)  # closing is not enough if the process has forked
                stack.callback(lock.unlink, missing_ok=True)
            yield

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write a compiled kernel under another name, then rename it: no process ever reads half of it."""
        here = folder() if self._kept else None
        if here is None or data.library.has_dynamic_globals:
            return
        with contextlib.suppress(OSError):
            here.mkdir(parents=True, exist_ok=True)
            unfinished = here / f"{uuid.uuid4().hex}.part"
            try:
                unfinished.write_bytes(dumps(_reduced(data)))
                unfinished.replace(here / self._file(sig))
            except OSError:
                unfinished.unlink(missing_ok=True)


def _reduced(compiled: Any) -> tuple[Any, ...]:
    """What is written of a compiled kernel: machine code and the names in it.

    Nobody links a kernel that was read from disk, so its code before compilation is replaced by empty functions of
    the same names, which are read much faster. The annotated source is left out as well.
    """
    (name, kind, (machine_code, _)), *rest = compiled._reduce()
    wrapper = compiled.fndesc.llvm_cpython_wrapper_name
    names = llvm.parse_assembly(f'define void @"{wrapper}"() {{ ret void }}').as_bitcode()
    rest[5] = ""
    return ((name, kind, (machine_code, names)), *rest)
