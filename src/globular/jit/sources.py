"""Which sources a kernel is made of: its module, and what that imports from this package, directly or not.

The door (`globular.jit`) stands for how kernels are compiled. What calls kernels, looks for them or keeps them is no
part of their machine code.
"""

from __future__ import annotations

import functools
import hashlib
import re
from pathlib import Path

OURS = "is_of_globular"
"""Marks functions that numba gets from us."""
PACKAGE = Path(__file__).parents[1]
DOOR = "globular.jit"
COMPILERS = (f"{DOOR}.linked", f"{DOOR}.stock")
OUTSIDE = {f"{DOOR}.{name}" for name in ("functions", "library", "sharing")}
"""What instructions import and no machine code depends on; the width of vectors is that of a level."""
_IMPORTS = re.compile(rb"^from (globular\.(?:jit|model|passes)(?:\.\w+)*) import (\([^)]*\)|[^\n]+)", re.MULTILINE)
_HAS_KERNELS = re.compile(rb"^from globular\.jit\b", re.MULTILINE)


@functools.cache
def _source(module: str) -> bytes | None:
    """The source of a module of this package; None for what is no such module."""
    path = PACKAGE.joinpath(*module.split(".")[1:])
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if module.startswith("globular.") and file.is_file():
            return file.read_bytes()
    return None


@functools.cache
def _imported(module: str) -> frozenset[str]:
    """Modules of kernels, and of what they are written with, that a module imports."""
    if module == DOOR:
        return frozenset(COMPILERS)
    if module in COMPILERS:
        return frozenset()
    found = set()
    for package, names in _IMPORTS.findall(_source(module) or b""):
        found.add(package.decode())
        found.update(f"{package.decode()}.{name}" for name in re.findall(r"\w+", names.decode()))
    return frozenset(name for name in found - OUTSIDE if _is_of_kernels(name))


def _is_of_kernels(module: str) -> bool:
    """True for a module that kernels may be made of; passes import others that only their drivers need."""
    source = _source(module)
    return source is not None and (module.startswith(DOOR) or bool(_HAS_KERNELS.search(source)))


@functools.cache
def closure_digest(module: str) -> str | None:
    """A digest of all sources that a module's kernels are made of; None if it is none of this package."""
    if _source(module) is None:
        return None
    found, left = {module}, [module]
    while left:
        new = _imported(left.pop()) - found
        found |= new
        left += new
    digest = hashlib.sha256()
    for name in sorted(found):
        source = _source(name) or b""
        digest.update(f"{name} {len(source)} ".encode() + source)
    return digest.hexdigest()[:20]
