"""What the decorators make of a function: kernels to be called from Python, and what kernels call.

None of them needs numba until it has to be compiled. Then numba gets a copy of the function in which every name that
stands for one of these objects stands for what numba knows it by.
"""

from __future__ import annotations

import builtins
import functools
import logging
import types
from collections.abc import Callable
from pickle import UnpicklingError
from types import ModuleType
from typing import Any, TypeVar, cast

import numpy as np

from globular.jit import library
from globular.jit.library import VARIABLE, asked_for
from globular.jit.sources import OURS
from globular.lazy import cached_property
from globular.threads import on_all_threads

Function = TypeVar("Function", bound=Callable[..., Any])

logger = logging.getLogger("globular")

N_THREADS = 1
"""Where a queue says how many threads share it; the next number comes before."""


def compile_seconds() -> float:
    """Seconds that this process has spent on compiling our kernels so far, in whichever thread."""
    return sum(library.COMPILED)


@functools.cache
def compiler() -> ModuleType:
    """The module `linked` or `stock`, as GLOBULAR_JIT says; one log line says which."""
    from globular.jit import stock

    if asked_for() == "stock":
        return _chosen(stock, f"{VARIABLE}=stock")
    try:
        from globular.jit import linked
    except ImportError as error:
        return _chosen(stock, f"this numba has other insides than those that were tried: {error}")
    if asked_for() == "auto" and not linked.IS_TRIED:
        return _chosen(stock, f"numba {linked.VERSION} was not tried with it, only {linked.TRIED}")
    return _chosen(linked, "numba was tried with it")


def _chosen(module: ModuleType, why: str) -> ModuleType:
    name = module.__name__.rpartition(".")[2]
    logger.info("kernels that the library lacks are compiled by globular.jit.%s: %s", name, why)
    return module


class Compiled:
    """A function that numba compiles."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function

    @property
    def numba(self) -> Any:
        """What numba knows it by, made when it is first needed. Of two threads that make it, one is right."""
        found = self.__dict__.get("_numba")
        return self.__dict__.setdefault("_numba", self._make()) if found is None else found

    def _make(self) -> Any:
        raise NotImplementedError

    def __call__(self, *arguments: Any) -> Any:
        """Only kernels call most of these; numba needs to see a function that can be called."""
        return self.numba(*arguments)


class Kernel(Compiled):
    """A kernel or what it calls; `options` say how numba compiles it."""

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        super().__init__(function)
        self.options = options
        parameters = function.__code__.co_varnames[: function.__code__.co_argcount]
        self.roles = [str(function.__annotations__.get(name, "")) for name in parameters]
        self.is_shared = self.roles[:1] == ["Queue"] and function.__annotations__.get("return") == "None"

    def _make(self) -> Any:
        return compiler().dispatcher(resolved(self.function), **self.options)

    @cached_property
    def _ready(self) -> Callable[..., Any] | None:
        """The kernel as the library has it, for some types of arguments; for others it returns NotImplemented."""
        return library.find(self)

    def __call__(self, *arguments: Any) -> Any:
        if self._ready is not None:
            result = self._ready(*arguments)
            if result is not NotImplemented:
                return result
        n_threads = int(arguments[0][N_THREADS]) if self.is_shared else 1
        if n_threads <= 1:
            return self._call(arguments)

        def work() -> None:  # of one thread, whose scratch memory is its own
            self._call(tuple(map(_like, arguments, self.roles)))

        return on_all_threads(work, n_threads, calls_blas=False)

    def _call(self, arguments: tuple[Any, ...]) -> Any:
        try:
            return self.numba(*arguments)
        except OSError:  # numba has compiled it, and found no room on disk
            return self.numba(*arguments)
        except (EOFError, UnpicklingError):  # what numba has read from disk is damaged
            compiler().cache.forget()
            return self.numba(*arguments)


def _like(argument: Any, role: str) -> Any:
    if role not in ("Scratch", "Zeros"):
        return argument
    if isinstance(argument, tuple):
        members = [_like(each, role) for each in argument]
        return type(argument)(*members) if hasattr(argument, "_fields") else tuple(members)
    if not isinstance(argument, np.ndarray):
        return argument
    return np.zeros_like(argument) if role == "Zeros" else np.empty_like(argument)


class Instruction(Compiled):
    """An instruction for kernels in LLVM's language: takes types, returns a signature and what writes the code."""

    def _make(self) -> Any:
        return compiler().intrinsic(self.function)


class Twins(Compiled):
    """A function of dense rows, and with `for_csr` of CSR rows: the length of the tuple of rows says which it is."""

    def __init__(self, dense: Callable[..., Any]) -> None:
        super().__init__(dense)
        self.sparse = dense

    def _make(self) -> Any:
        return compiler().chosen_by_length(resolved(self.function), resolved(self.sparse))

    def for_csr(self, sparse: Function) -> Function:
        """Decorate the form for CSR rows, which has the same arguments."""
        self.sparse = sparse
        return sparse


def resolved(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of a function whose names stand for what numba knows them by."""

    def known(value: Any) -> Any:
        return value.numba if isinstance(value, Compiled) else value

    code, outer = function.__code__, function.__globals__
    names = {name: known(outer[name]) for name in _names(code) if name in outer}
    names |= {"__name__": function.__module__, "__builtins__": builtins}
    cells = [types.CellType(known(cell.cell_contents)) for cell in function.__closure__ or ()]
    copy = types.FunctionType(code, names, function.__name__, function.__defaults__, tuple(cells) or None)
    functools.update_wrapper(copy, function).__dict__[OURS] = True
    return copy


def _names(code: types.CodeType) -> set[str]:
    """Global names of a function and of the functions within it."""
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))


def kernel(function: Function) -> Function:
    """Compile a function that runs without the interpreter's lock, without Python objects and without allocating.

    It must not make arrays: scratch memory is an argument. No two arguments may share memory that it writes.
    """
    return cast(Function, Kernel(function))


def inline(function: Function) -> Function:
    """A small function that LLVM inlines into the kernels that call it."""
    return cast(Function, Kernel(function, forceinline=True))


def kernel_apart(function: Function) -> Function:
    """A large kernel that is called at several places: LLVM does not inline it, not even into inlined functions."""
    return cast(Function, Kernel(function, forceinline=False))


twin, instruction = Twins, Instruction
"""Decorators of functions in two forms, the one for dense rows here, and of instructions."""
