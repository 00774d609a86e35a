"""Kernels that were compiled when the package was built: one library for each level of processors, called through C.

`python -m globular.jit.build` makes the folder `FOLDER`: `driver` reads arguments and has threads (`driver.c`), a file
for each level has machine code, and `INDEX` says of every kernel and types of arguments what its function is called,
what it returns, and of which sources it was made. A kernel whose sources have changed since is left to numba. Neither
Python's nor numba's version matters.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import stat
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from globular.jit import addresses
from globular.jit.choice import asked_for
from globular.jit.signatures import scratch_words, unnamed
from globular.jit.sources import closure_digest
from globular.threads import how_many

FOLDER = Path(__file__).parent / "lib"
SUFFIX = ".dylib" if sys.platform == "darwin" else ".dll" if sys.platform == "win32" else ".so"
INDEX = "index.txt"

logger = logging.getLogger("globular")


class Entry(NamedTuple):
    """A line of the index: a kernel for certain types of arguments."""

    kernel: str
    digest: str
    """Of its sources."""
    symbol: str
    returns: str
    """A letter for each number that it returns; "-" for nothing."""
    types: str

    @classmethod
    def read(cls, line: str) -> Entry:
        return cls(*line.split(" ", 4))

    def __str__(self) -> str:
        return " ".join(self)


class Driver:
    """The compiled `driver.c`."""

    def __init__(self, file: Path) -> None:
        self._calls = calls = ctypes.PyDLL(str(file))
        calls.globular_level.restype = ctypes.c_char_p
        calls.globular_new_kernel.restype = ctypes.c_void_p
        calls.globular_function.argtypes, calls.globular_function.restype = [ctypes.c_void_p], ctypes.py_object
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=calls.globular_forget_threads)

    def level(self) -> str:
        """The highest level that this processor reaches; empty if none."""
        return str(self._calls.globular_level().decode())

    def function(self, kernel: Any, code: ctypes.CDLL, entries: list[Entry]) -> Callable[..., Any]:
        """The Python function of a kernel, for the types of these entries; for others it returns NotImplemented."""
        record = ctypes.c_void_p(self._calls.globular_new_kernel())
        for entry in entries:
            scratch = scratch_words(entry.types, kernel.roles)
            texts = unnamed(entry.types).encode(), entry.returns.strip("-").encode()
            address = ctypes.cast(getattr(code, entry.symbol), ctypes.c_void_p)
            words = (ctypes.c_int * len(scratch))(*scratch)
            if not self._calls.globular_add_variant(record, *texts, address, kernel.is_shared, len(scratch), words):
                raise MemoryError("no memory for a table of kernels")
        function: Callable[..., Any] = self._calls.globular_function(record)
        return function


class _Library:
    """The library of a level."""

    def __init__(self, driver: Driver, level: str) -> None:
        self.level, self._driver = level, driver
        self._code = ctypes.CDLL(str(FOLDER / f"{level}{SUFFIX}"))
        for routine in addresses.ROUTINES:
            ctypes.c_void_p.in_dll(self._code, addresses.symbol(routine)).value = addresses.address_of(routine)
        self._entries: dict[str, list[Entry]] = {}
        for line in (FOLDER / INDEX).read_text().splitlines():
            entry = Entry.read(line)
            self._entries.setdefault(entry.kernel, []).append(entry)

    def find(self, kernel: Any) -> Callable[..., Any] | None:
        """The function of a kernel; None if the library has none of its sources."""
        digest = closure_digest(kernel.function.__module__)
        entries = [entry for entry in self._entries.get(name_of(kernel.function), ()) if entry.digest == digest]
        return self._driver.function(kernel, self._code, entries) if entries else None


def name_of(function: Callable[..., Any]) -> str:
    """What the index calls a kernel."""
    return f"{function.__module__.removeprefix('globular.')}.{function.__qualname__}"


def find(kernel: Any) -> Callable[..., Any] | None:
    """The function of a kernel; None if numba has to compile it."""
    here = _loaded()
    return None if here is None else here.find(kernel)


def level() -> str | None:
    """The level whose kernels are used; None if numba compiles all."""
    here = _loaded()
    return None if here is None else here.level


@functools.cache
def _loaded() -> _Library | None:
    found = _load()
    if isinstance(found, str):
        how_many.WAKING = how_many.WAITING  # then kernels are shared by Python threads
        logger.info("kernels are compiled by numba: %s", found)
        return None
    logger.info("kernels are those of the library for %s", found.level)
    return found


def _load() -> _Library | str:
    """The library, or why there is none."""
    if asked_for() != "auto":
        return f"GLOBULAR_JIT={asked_for()}"
    if os.environ.get("NUMBA_BOUNDSCHECK", "0") != "0":
        return "NUMBA_BOUNDSCHECK is set"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "the library needs a Python with the interpreter's lock"
    if not (FOLDER / INDEX).is_file():
        return "this installation has no library (`make kernels` builds one)"
    if open_to_others := [path for path in (FOLDER, *FOLDER.iterdir()) if not _is_safe(path)]:
        logger.warning(
            "%s belongs to another user or can be written by others, so the kernels that came with the package are not "
            "used; give it to the owner of the package, with write permission for nobody else",
            open_to_others[0],
        )
        return "its folder is not safe"
    try:
        driver = Driver(FOLDER / f"driver{SUFFIX}")
        reached = driver.level()
        if not (FOLDER / f"{reached}{SUFFIX}").is_file():
            return f"it has no kernels for {reached or 'processors as old as this one'}"
        return _Library(driver, reached)
    except OSError as error:
        return f"it cannot be loaded: {error}"


def _is_safe(path: Path) -> bool:
    """True if only its owner may write to a path, who is this user, root or whoever installed the package."""
    if not hasattr(os, "geteuid"):
        return True
    found, owners = path.lstat(), {0, os.geteuid(), Path(__file__).stat().st_uid}
    return found.st_uid in owners and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
