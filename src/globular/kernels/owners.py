"""Compiled code is read only where nobody else can have written it.

A kernel on disk is code that runs as whoever reads it. So its folder and the file itself must belong to this user or to
root, or, inside the package, to whoever installed that, and only the owner may write to them. Folders above may be
anybody's, such as /tmp: a file is opened through the folder that was looked at, so that no other folder can take its
place in between, and links are not followed. What came with the package is trusted as its sources are. Windows has no
such owners; there the folders are below the user's own.
"""

from __future__ import annotations

import functools
import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path

PACKAGE = Path(__file__).parent
BROUGHT = PACKAGE / "brought"
"""Where a wheel has kernels that were compiled when it was made."""
FOLDER_MODE = 0o755
"""Permissions of a new folder: all may read it, so that one warm-up by root serves everybody; its owner may write."""

logger = logging.getLogger("globular")


def is_ours(folder: Path) -> bool:
    """True if kernels may be kept in a folder: it is not there yet, or nobody else can have written into it."""
    try:
        return not hasattr(os, "geteuid") or _is_safe(folder, folder.lstat(), stat.S_ISDIR)
    except OSError:
        return True


def read(folder: Path, name: str) -> bytes:
    """The content of a file in a folder; an OSError if it is not there, or if anybody else can have written it."""
    if not hasattr(os, "geteuid") or folder.parent == BROUGHT:
        return (folder / name).read_bytes()
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if _is_safe(folder, os.fstat(at), stat.S_ISDIR):
            with open(name, "rb", opener=functools.partial(own, dir_fd=at)) as file:
                if _is_safe(folder, os.fstat(file.fileno()), stat.S_ISREG):
                    return file.read()
        say_refused(folder)
        raise PermissionError(f"{folder / name}: another user can have written it")
    finally:
        os.close(at)


def own(path: str, flags: int, dir_fd: int | None = None) -> int:
    """The opener of our files: it follows no link, and a new file can be written by its owner alone."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o644, dir_fd=dir_fd)


def _is_safe(folder: Path, found: os.stat_result, is_of_kind: Callable[[int], bool]) -> bool:
    """True if a folder, or a file in it, is what it should be, belongs to us and can be written by its owner alone."""
    owners = {0, os.geteuid()} | ({PACKAGE.stat().st_uid} if PACKAGE in folder.parents else set())
    others_write = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return found.st_uid in owners and is_of_kind(found.st_mode) and not others_write


@functools.cache
def say_refused(folder: Path) -> None:
    """Say in the log, once per folder, that it is left aside and what to do."""
    logger.warning(
        "%s: its compiled kernels are not used, because it, or a file in it, belongs to another user or can be written "
        "by others; remove it, or set NUMBA_CACHE_DIR to a folder of your own",
        folder,
    )
