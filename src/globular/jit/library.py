"""Kernels that were compiled when the package was built: one library for each level of processors, called through C.

`python -m globular.jit.build` makes the folder `FOLDER`: `driver` reads arguments and has threads (`driver.c`), a file
for each level has machine code, and `INDEX` says of every kernel and types of arguments what its function is called,
what it returns, and of which sources it was made. A kernel whose sources have changed since is left to numba. Neither
Python's nor numba's version matters.

A level is a set of instructions that all newer processors of a kind have; numba compiles for the processor of the
process. Vectors are equally wide in both, because the tiles that centres are laid out in depend on it.

Types of a kernel's arguments are text, in the index and in the list of kernels that are built (`manifest.txt`):

    passes.cpu.seeds.seed_cells i8:1C f4:2C! f8:1C i8:1C

A type is a letter and bytes, for arrays with dimensions, layout and "!" if they are read-only; tuples are "(…)", named
ones have their name in front. The library knows types without names and "!": to machine code they are the same.

Kernels find SciPy's BLAS by variables such as `globular_dgemm`, which have its addresses in this process: a number in
compiled code would be wrong in the next one, which reads the code from disk.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import platform
import re
import stat
import sys
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from globular.jit.sources import closure_digest
from globular.threads import pool

VARIABLE = "GLOBULAR_JIT"
CHOICES = ("auto", "fast", "stock")
COMPILED: list[float] = []
"""Seconds that this process has spent on each compilation of our kernels."""
FOLDER = Path(__file__).parent / "lib"
SUFFIX = ".dylib" if sys.platform == "darwin" else ".dll" if sys.platform == "win32" else ".so"
INDEX = "index.txt"
ROUTINES = ("dgemm", "dsyrk", "dtrmm", "sgemm")
"""What is called of BLAS, always with 32-bit numbers and everything by reference, as Fortran has it."""
V3 = "+avx,+avx2,+bmi,+bmi2,+cx16,+f16c,+fma,+fxsr,+lzcnt,+movbe,+popcnt,+sahf,+sse3,+sse4.1,+sse4.2,+ssse3,+xsave"
V4 = f"{V3},+avx512bw,+avx512cd,+avx512dq,+avx512f,+avx512vl"
LEVELS: dict[tuple[str, str], dict[str, tuple[str, str]]] = {
    ("Linux", "x86_64"): {"x86-64-v4": ("x86-64-v4", V4), "x86-64-v3": ("x86-64-v3", V3)},
    # What LLVM cannot tell of a processor under Linux, no code may need.
    ("Linux", "aarch64"): {"armv8.2": ("neoverse-n1", "+crc,+fp-armv8,+lse,+neon,-dotprod,-fullfp16,-rcpc,-ssbs")},
    ("Darwin", "arm64"): {"apple-m1": ("apple-m1", "")},
}
"""The levels of each kind of machine, the highest first: a processor as LLVM calls it, and its instructions."""
PIECES = re.compile(r"[\w.]*\(|[^() ]+|\)")

logger = logging.getLogger("globular")


def asked_for() -> str:
    """The value of GLOBULAR_JIT; an error if it is none of `CHOICES`."""
    asked = os.environ.get(VARIABLE) or "auto"
    if asked not in CHOICES:
        raise ValueError(f"{VARIABLE}={asked!r} must be one of {', '.join(CHOICES)}")
    return asked


def levels() -> dict[str, tuple[str, str]]:
    """The levels of this kind of machine; none where no library is built."""
    return LEVELS.get((platform.system(), platform.machine()), {})


def unnamed(text: str) -> str:
    """The same text as the library writes it."""
    return re.sub(r"[\w.]*\(", "(", text).replace("!", "")


def scratch_words(text: str, roles: list[str]) -> list[int]:
    """Where in the words of a call the arrays begin that each thread has its own of; −1 − that place for zeros."""
    at, argument, depth, found = 0, 0, 0, []
    for piece in PIECES.findall(text):
        if piece.endswith("("):
            depth += 1
        elif piece == ")":
            depth -= 1
        else:
            array = piece.partition(":")[2]
            if array and roles[argument] in ("Scratch", "Zeros"):
                found.append(at if roles[argument] == "Scratch" else -1 - at)
            at += 5 + 2 * int(array[0]) if array else 1  # five words come before shape and strides
        argument += depth == 0
    return found


@functools.cache
def address_of(routine: str) -> int:
    """The address of a routine in this process: SciPy's BLAS."""
    from scipy.linalg import cython_blas

    routines: Mapping[str, object] = cython_blas.__pyx_capi__
    capsule = routines[routine]
    name, pointer = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return int(pointer(capsule, name(capsule)))


def symbol(routine: str) -> str:
    """The name of the variable that has the address of a routine."""
    return f"globular_{routine}"


@functools.cache
def announce() -> list[ctypes.c_void_p]:
    """Let machine code that numba makes or reads from disk find the addresses; the variables stay for good."""
    import llvmlite.binding as llvm

    variables = [ctypes.c_void_p(address_of(routine)) for routine in ROUTINES]
    for routine, each in zip(ROUTINES, variables, strict=True):
        llvm.add_symbol(symbol(routine), ctypes.addressof(each))
    return variables


class Entry(NamedTuple):
    """A line of the index: a kernel for certain types of arguments."""

    kernel: str
    digest: str
    """Digest of its sources."""
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
        for routine in ROUTINES:
            ctypes.c_void_p.in_dll(self._code, symbol(routine)).value = address_of(routine)
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
        pool.WAKING = pool.WAITING  # then kernels are shared by Python threads
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


@functools.cache
def vector_bytes() -> int:
    """Bytes of a vector of this process, as the library has them, else as numba will."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return 16
    reached = level()
    if reached is not None:
        features = levels()[reached][1]
    else:
        import llvmlite.binding as llvm

        asked = os.environ.get("NUMBA_CPU_FEATURES")
        features = asked if asked is not None else llvm.get_host_cpu_features().flatten()
    return 64 if "+avx512f" in features else 32 if "+avx2" in features else 16
