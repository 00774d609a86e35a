"""Where numba keeps the kernels that it has compiled: the user's cache folder, apart for each state of their sources.

Numba looks at the file of a kernel alone, not at what it calls, nor at the variables that it compiles by. So every
module of kernels has a folder whose name is a digest of all that: of its own source, of those that it imports from this
package, and of versions and variables. An edit leaves the kernels that it does not touch where they are.

A kernel on disk is code that runs as whoever reads it. So these folders are the user's own, and only the user may look
into them. What belongs to somebody else, or what others can write to, is left aside: kernels are compiled in memory.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import re
import shutil
import stat
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import llvmlite
import numba

from globular.jit.sources import closure_digest

FOLDER_MODE = 0o700
"""Permissions of our folders: nobody but their owner may look into them."""
NAME = re.compile("kernels-[0-9a-f]{20}")
DAYS_KEPT = 30.0
"""Days after which a folder that nobody has used is removed, when a new one is made; larger = more disk."""

logger = logging.getLogger("globular")
_KEEPING = threading.Lock()


def base() -> Path | None:
    """NUMBA_CACHE_DIR if that is set, else the folder for caches of this user; None for a user without a home."""
    if asked := os.environ.get("NUMBA_CACHE_DIR"):
        return Path(asked)
    if sys.platform == "win32":
        folder = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        folder = "~/Library/Caches"
    else:
        folder = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    with contextlib.suppress(RuntimeError):
        return Path(folder).expanduser()
    return None


@functools.cache
def root() -> Path | None:
    """The folder that has those of all modules, made if need be; None if nothing can be kept."""
    above = base()
    if above is None:
        return None
    here = above / "globular"
    try:
        here.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
        if not is_own(here, stat.S_IWGRP | stat.S_IWOTH):
            return None
        with tempfile.TemporaryFile(dir=here, buffering=0) as tried:
            tried.write(b"0")
    except OSError:
        return None
    return here


def is_own(folder: Path, closed: int) -> bool:
    """True if a folder is no link, is this user's, and grants nobody else the permissions `closed`; else it says so.

    Windows has no such owners; there folders are below the user's own.
    """
    found = folder.lstat()
    is_folder = stat.S_ISDIR(found.st_mode)
    if not hasattr(os, "geteuid") or (is_folder and found.st_uid == os.geteuid() and not found.st_mode & closed):
        return True
    logger.warning(
        "%s belongs to another user or is open to others, so compiled kernels are neither read nor kept there; remove "
        "it, or set NUMBA_CACHE_DIR to a folder of your own",
        folder,
    )
    return False


def folder_for(module: str) -> Path | None:
    """The folder of a module's kernels, made if need be; None if they cannot be kept."""
    above, sources = root(), closure_digest(module)
    if above is None or sources is None:
        return None
    config: Any = numba.config
    settings = (config.OPT, config.BOUNDSCHECK, config.LOOP_VECTORIZE, config.SLP_VECTORIZE)
    state = f"{sources} {numba.__version__} {llvmlite.__version__} {settings} {os.environ.get('GLOBULAR_JIT')}"
    here = above / f"kernels-{hashlib.sha256(state.encode()).hexdigest()[:20]}"
    try:
        if not here.is_dir():
            here.mkdir(FOLDER_MODE, exist_ok=True)
            _prune(above)
        os.utime(here)
        return here if is_own(here, stat.S_IRWXG | stat.S_IRWXO) else None
    except OSError:
        return None


def _prune(above: Path) -> None:
    """Remove our folders that were not used for long."""
    oldest = time.time() - DAYS_KEPT * 86_400.0
    for path in above.iterdir():
        with contextlib.suppress(OSError):  # another process may be at it
            if NAME.fullmatch(path.name) and path.lstat().st_mtime < oldest:
                shutil.rmtree(path, ignore_errors=True)


def forget() -> None:
    """Remove all files that numba has written; their folders stay."""
    above = root()
    for file in above.rglob("*.nb[ic]") if above else ():
        file.unlink(missing_ok=True)


def kept(dispatcher: Any) -> Any:
    """A dispatcher of numba's that reads what it has compiled from disk, and writes it there."""
    if here := folder_for(dispatcher.py_func.__module__):
        config: Any = numba.config
        with _KEEPING:  # the variable is one for all threads
            before, config.CACHE_DIR = config.CACHE_DIR, str(here)
            try:
                with contextlib.suppress(RuntimeError, OSError):  # numba finds no way to keep it
                    dispatcher.enable_caching()
            finally:
                config.CACHE_DIR = before
    return dispatcher
