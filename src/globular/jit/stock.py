"""Kernels by numba's public interface alone: whatever its version, they work."""

from __future__ import annotations

import functools
import gc
import logging
import time
from collections.abc import Callable
from typing import Any

import numba
from numba.core.compiler import Compiler
from numba.core.event import Listener, register
from numba.extending import intrinsic as intrinsic  # for linked, too
from numba.extending import overload

from globular.jit import cache, library
from globular.jit.sources import OURS

FASTMATH = {"reassoc", "contract", "arcp", "nsz"}
"""Sums may be reordered and fused; NaN and infinity keep their meaning."""
OPTIONS: dict[str, Any] = {"nogil": True, "fastmath": FASTMATH, "error_model": "numpy"}
"""Options of every kernel."""

logger = logging.getLogger("globular")


class Compilations(Listener):
    """Times the compilation of our kernels, not of other people's, and says once per process that there is one."""

    def __init__(self) -> None:
        self._began: list[float] = []
        self._said = self._collects = False

    def on_start(self, event: Any) -> None:
        if _is_ours(event):
            if not self._began:
                self._collects = gc.isenabled()
                gc.disable()  # a tenth of the time: what numba makes stays
            self._began.append(time.perf_counter())
            if not self._said:
                self._said = True
                kept = "kept for the next time" if cache.root() else "for this process alone: no folder can keep them"
                logger.warning("compiling kernels for this CPU: some seconds, %s", kept)

    def on_end(self, event: Any) -> None:
        if _is_ours(event):
            began = self._began.pop()
            if not self._began:  # what a kernel calls is compiled within it
                library.COMPILED.append(time.perf_counter() - began)
                if self._collects:
                    gc.enable()


def _is_ours(event: Any) -> bool:
    return hasattr(event.data["dispatcher"].py_func, OURS)


register("numba:compile", Compilations())
library.announce()


class KernelCompiler(Compiler):
    """A compiler that tells LLVM of our functions that no two arguments share memory.

    Else it would write each loop twice, and have the program compare addresses for which of the two to take. The two
    may add up in different orders: a fit would depend on where its arrays lie.
    """

    def compile_extra(self, function: Any) -> Any:
        self.state.flags.noalias = hasattr(function, OURS)
        return super().compile_extra(function)


def dispatcher(function: Callable[..., Any], **options: Any) -> Any:
    """A function that compiles at its first call, from Python or from a kernel.

    Kernels inline whatever they call. Otherwise each has a copy of its own of what it calls, and a process takes the
    copy that it has loaded first: the last digits of a fit would depend on which kernels were compiled here and which
    come from disk.
    """
    settings = {**OPTIONS, **options, "forceinline": True}
    return cache.kept(numba.njit(pipeline_class=KernelCompiler, **settings)(function))


def chosen_by_length(dense: Callable[..., Any], sparse: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """A function that is the one for rows of one array and the other for rows of three."""

    jit_options: Any = {**OPTIONS, "forceinline": True, **options}

    @overload(dense, jit_options=jit_options)
    @functools.wraps(dense)
    def choose(rows: Any, *_: Any) -> Callable[..., Any]:
        return dense if len(rows) == 1 else sparse

    return dense
