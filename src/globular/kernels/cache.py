"""Compiled kernels on disk: a folder for each state of the sources, and a file for each kernel and types of arguments.

The folder's name is a hash of all kernel sources, the versions of numba, LLVM and Python, and the CPU. So no change of
a source leaves a stale kernel behind; numba's own cache looks at the file of a kernel alone, not at what it calls.
A file's name is a hash of the kernel and the types of its arguments, and it appears as a whole (it is renamed when it
is written), so that any number of processes may read and write at once. Kernels are looked for in all of `roots()` and
written to the first of them that can be written to: an installation that nobody may write to, warmed up by whoever
installed it, serves all its users. A wheel may bring kernels of levels of CPUs (`target.py`) in `BROUGHT`; nothing is
ever written there. What another user can have written is never read (`owners.py`).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import pickle
import platform
import re
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numba
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.event import trigger_event
from numba.core.runtime.nrt import rtsys
from numba.core.serialize import dumps

from globular.kernels.owners import BROUGHT, FOLDER_MODE, PACKAGE, is_ours, own, read, say_refused
from globular.kernels.target import Target, asked_for, config, host, levels

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

PREFIX = "kernels-"
SUFFIX = ".kernel"
LOCK, PART = ".lock", ".part"
"""Endings of what lies beside kernels: locks of those being compiled, and files that are being written."""
VERSIONS = "versions.txt"
"""The file in `BROUGHT` that says what its kernels were compiled with."""
KEPT = 8
"""Folders that stay when a new one is made, the most recently used; larger = more disk."""
LONGEST_WAIT = 30.0
"""Seconds to wait for a kernel that another process compiles, ten times what the largest takes; larger = a longer hang
behind a process that was stopped."""
LOOK_AGAIN = 0.005
"""Seconds between two looks whether that process is done; larger = a later start."""
WAIT = "globular:wait"
"""The event, in numba's sense, of waiting for another process that compiles."""

logger = logging.getLogger("globular")


def roots() -> list[Path]:
    """Where folders of kernels may lie: NUMBA_CACHE_DIR if that is set, else the package and the user's cache."""
    if config.CACHE_DIR:
        return [Path(config.CACHE_DIR)]
    return [PACKAGE / "__pycache__", *_user_cache()]


def _user_cache() -> Iterator[Path]:
    """The user's cache; none for a user without a home, as in some containers."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    with contextlib.suppress(RuntimeError):
        yield Path(base).expanduser() / "globular"


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
    for path in sorted(PACKAGE.glob("*.py")):
        source = path.read_bytes()
        digest.update(f"{path.name} {len(source)} ".encode() + source)
    digest.update("|".join([*_versions(), *target]).encode())
    return PREFIX + digest.hexdigest()[:20]


def versions() -> str:
    """What compiles kernels, for people to read."""
    return f"numba {numba.__version__}, llvmlite {llvmlite.__version__}, {sys.implementation.cache_tag}"


def why_not_brought() -> str:
    """Why the kernels that came with the package are not used; empty if they are, or if there are none."""
    if asked_for() or not BROUGHT.is_dir() or (BROUGHT / state()).is_dir():
        return ""
    theirs = (BROUGHT / VERSIONS).read_text() if (BROUGHT / VERSIONS).is_file() else "other versions"
    return f"they are for {theirs}, this is {versions()}" if theirs != versions() else "they are for other processors"


def _versions() -> Iterator[str]:
    """What machine code depends on beside the sources and the target."""
    yield from (versions(), platform.machine(), sys.platform)
    yield from (str(config.OPT), str(config.BOUNDSCHECK), str(config.LOOP_VECTORIZE), str(config.SLP_VECTORIZE))


@functools.cache
def folder() -> Path | None:
    """Where kernels are written to, made if need be; None if nothing can be kept anywhere."""
    for root in roots():
        here = root / state()
        with contextlib.suppress(OSError):
            if not here.is_dir():
                here.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
                with contextlib.suppress(OSError):  # another process may be at it
                    _prune(root)
            if not is_ours(here):
                say_refused(here)
            else:
                with tempfile.TemporaryFile(dir=here, buffering=0) as tried:
                    tried.write(b"0")
                    return here
    return None


def count() -> int:
    """How many kernels of this state are on disk, each for one set of types."""
    return len({file.name for source in _sources() for file in source.glob(f"*{SUFFIX}")})


def _prune(root: Path) -> None:
    """Remove the folders of states that were used least recently; none that has anything but our files in it."""
    states = [path for path in root.iterdir() if re.fullmatch(PREFIX + "[0-9a-f]{20}", path.name) and path.is_dir()]
    for unused in sorted(states, key=lambda state: state.stat().st_mtime, reverse=True)[KEPT:]:
        if is_ours(unused) and all(file.suffix in (SUFFIX, LOCK, PART) for file in unused.iterdir()):
            shutil.rmtree(unused, ignore_errors=True)


@functools.cache
def _sources() -> list[Path]:
    """The folders that have kernels of this state, what was brought first; they count as used now."""
    sources = [BROUGHT / state(), *(root / state() for root in roots() if is_ours(root / state()))]
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


def _gets(file: Any) -> bool:
    """Wait for the lock on a file, doing what else there is to do; False if it takes longer than `LONGEST_WAIT`."""
    if not _is_taken(file):
        return True
    with trigger_event(WAIT):
        until = time.monotonic() + LONGEST_WAIT
        while _is_taken(file):
            if any(work() for work in list(_WORK)):
                continue
            if time.monotonic() > until:
                logger.warning("%s: held by another process for %.0f s; not waiting", file.name, LONGEST_WAIT)
                return False
            time.sleep(LOOK_AGAIN)
    return True


class KernelCache(NullCache):
    """The files of one kernel, in the way that numba's dispatchers ask for them."""

    def __init__(self, function: Any) -> None:
        self._name = f"{function.__module__}.{function.__qualname__}".removeprefix("globular.kernels.")
        # The name of the folder knows nothing of sources elsewhere: their kernels are not kept.
        self._kept = Path(function.__code__.co_filename).parent == PACKAGE

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
                compiled = CompileResult._rebuild(target_context, *pickle.loads(read(source, name)))
            except Exception:  # not there, not what was written, or not ours: it is compiled again
                continue
            if tuple(compiled.signature.args) == tuple(sig):
                return compiled
        return None

    def is_free(self, sig: Any) -> bool:
        """True if this kernel is neither on disk nor being compiled; a lock that nobody holds was left by the dead."""
        here, name = folder(), self._file(sig)
        if here is None or any((source / name).exists() for source in _sources()):
            return False
        with contextlib.suppress(OSError), open(here / f"{name}{LOCK}", "r+", opener=own) as file:
            if _is_taken(file):
                return False
            fcntl.flock(file, fcntl.LOCK_UN)
        return True

    @contextlib.contextmanager
    def alone(self, sig: Any) -> Iterator[None]:
        """Wait while another process compiles this kernel for these types; then the kernel is there to be read.

        Whoever waits does what else there is to do (`meanwhile`). Where there are no locks on files, or where one is
        held for too long, two processes may compile the same.
        """
        here, name = folder() if self._kept else None, self._file(sig)
        if fcntl is None or here is None or any((source / name).exists() for source in _sources()):
            yield
            return
        lock = here / f"{name}{LOCK}"
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                file = stack.enter_context(open(lock, "a", opener=own))
                if _gets(file):
                    stack.callback(fcntl.flock, file, fcntl.LOCK_UN)  # closing is not enough if the process has forked
                    stack.callback(lock.unlink, missing_ok=True)
            yield

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write a compiled kernel under another name, then rename it: no process ever reads half of it."""
        here = folder() if self._kept else None
        if here is None or data.library.has_dynamic_globals:
            return
        with contextlib.suppress(OSError):
            here.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
            unfinished = here / f"{uuid.uuid4().hex}{PART}"
            try:
                with open(unfinished, "xb", opener=own) as file:
                    file.write(dumps(_reduced(data)))
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
