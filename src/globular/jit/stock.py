"""Kernels by numba's public interface alone: whatever its version, they work."""

from __future__ import annotations

import ast
import functools
import gc
import inspect
import logging
import textwrap
import time
import types
from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba.core.event import Listener, register
from numba.extending import intrinsic as numba_intrinsic
from numba.extending import overload

from globular.jit import addresses, cache, clock
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
                clock.add(time.perf_counter() - began)
                if self._collects:
                    gc.enable()


def _is_ours(event: Any) -> bool:
    return hasattr(event.data["dispatcher"].py_func, OURS)


register("numba:compile", Compilations())
addresses.announce()


def dispatcher(function: Callable[..., Any], **options: Any) -> Any:
    """A function that compiles at its first call, from Python or from a kernel."""
    return cache.kept(numba.njit(**{**OPTIONS, **options})(_apart(function)))


def intrinsic(function: Callable[..., Any]) -> Any:
    """An instruction for kernels."""
    return numba_intrinsic(function)


def chosen_by_length(dense: Callable[..., Any], sparse: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """A function that is the one for rows of one array and the other for rows of three."""

    jit_options: Any = {**OPTIONS, "forceinline": True, **options}

    @overload(dense, jit_options=jit_options)
    @functools.wraps(dense)
    def choose(rows: Any, *_: Any) -> Callable[..., Any]:
        return dense if len(rows) == 1 else sparse

    return dense


@numba_intrinsic
def no_argument_shares_memory(typing_context: Any) -> Any:
    """Tell LLVM so of the function that calls this.

    Else it would write each loop twice, and have the program compare addresses for which of the two to take. The two
    may add up in different orders: a fit would depend on where its arrays lie.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        for argument in builder.function.args:
            if isinstance(argument.type, ir.PointerType) and "noalias" not in argument.attributes:
                argument.add_attribute("noalias")
        return context.get_dummy_value()

    return numba.types.void(), generate


def _apart(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, beginning with `no_argument_shares_memory`."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    (definition,) = tree.body
    if not isinstance(definition, ast.FunctionDef):  # but a line with a lambda
        return function
    call = ast.Expr(ast.Call(ast.Name("no_argument_shares_memory", ast.Load()), [], []))
    definition.body.insert(0, call)
    definition.decorator_list = []
    ast.fix_missing_locations(ast.increment_lineno(tree, function.__code__.co_firstlineno - 1))
    space = {**function.__globals__, "no_argument_shares_memory": no_argument_shares_memory}
    if function.__closure__:
        space |= dict(zip(function.__code__.co_freevars, (c.cell_contents for c in function.__closure__), strict=True))
    names: dict[str, Any] = {}
    exec(compile(tree, function.__code__.co_filename, "exec"), space, names)
    made: types.FunctionType = names[function.__name__]
    return functools.update_wrapper(made, function)
