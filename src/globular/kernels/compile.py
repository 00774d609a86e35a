"""One decorator for every kernel, and the word to the user when the first call has to compile.

Kernels are compiled for the CPU they run on and cached on disk; only the first fit on a machine waits for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba.core.event import Listener, register

from globular.kernels import cache
from globular.kernels.linking import CalleeCompiler, Kernel
from globular.kernels.quick import IS_KNOWN, NEWEST_KNOWN

logger = logging.getLogger("globular")


class _CompilationNotice(Listener):
    """Says once per process that kernels are being compiled (they were not in the cache), and what is unusual."""

    def __init__(self) -> None:
        self._said = False

    def on_start(self, event: Any) -> None:
        dispatcher = event.data["dispatcher"]
        if not self._said and dispatcher.py_func.__module__.startswith("globular."):
            self._said = True
            kept = "kept for the next time" if cache.folder() else "for this process alone: no folder can keep them"
            logger.warning("compiling kernels for this CPU: some seconds, %s", kept)
            if why := cache.why_not_brought():
                logger.warning("kernels that came with the package are not used: %s", why)
            if not IS_KNOWN:
                logger.warning(
                    "numba %s is newer than %d.%d, the newest that was tried: kernels take longer to compile, and are "
                    "shared by threads of Python, fewer for small passes",
                    numba.__version__, *NEWEST_KNOWN,
                )  # fmt: skip

    def on_end(self, event: Any) -> None:
        pass


register("numba:compile", _CompilationNotice())


FASTMATH = {"reassoc", "contract", "arcp", "nsz"}
"""Sums may be reordered and fused; NaN and infinity keep their meaning."""

COMPILED: dict[str, Any] = {"nogil": True, "fastmath": FASTMATH, "error_model": "numpy"}
"""Options of every kernel."""
INLINED = {**COMPILED, "_nrt": False, "forceinline": True}
"""Options of what LLVM shall inline."""
OVERLOADED = {**INLINED, "no_cpython_wrapper": True, "no_cfunc_wrapper": True, "pipeline_class": CalleeCompiler}
"""The same for numba's `overload`."""

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Compile a function that runs without the GIL, without Python objects and without allocating.

    Reference counting is switched off: it would cost an atomic operation per array and call, and two threads on the
    same array would fight for the counter. A kernel must therefore not make arrays; scratch memory is an argument.
    """
    return _compiled(function, {**COMPILED, "_nrt": False})


def allocating_kernel(function: Function) -> Function:
    """The same for the rare kernel that makes an array of its own, outside its loops; none that threads share."""
    return _compiled(function, COMPILED)


def strict_kernel(function: Function) -> Function:
    """A kernel whose quotients are divisions: by way of an inverse the mean of equal rows would not be these rows."""
    return _compiled(function, {**COMPILED, "_nrt": False, "fastmath": False})


def inline(function: Function) -> Function:
    """The same as `kernel` for small helpers that LLVM shall inline into the kernels that call them."""
    return _compiled(function, INLINED)


def kernel_apart(function: Function) -> Function:
    """The same as `kernel` for what is large and called at several places, some of them in what is inlined.

    What numba compiles for an inlined function it has inlined too, so there would be a copy at each of these places.
    """
    return _compiled(function, {**COMPILED, "_nrt": False, "forceinline": False})


def _compiled(function: Function, options: dict[str, Any]) -> Function:
    return cast(Function, Kernel(function, {}, {**options, "nopython": True}))
