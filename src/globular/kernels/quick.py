"""Numba's compiler without the work that our kernels do not need: the same code, a fifth sooner.

More than half of the time that a kernel takes to compile is numba's own, in Python. Most of it is needed. What is not:
reports and checks between its passes, passes that look for what is not there, where variables live and die, which only
matters for those that are counted, types of the same operation on the same types found again at every place and in
every round, searches for ways to see arrays as arrays, searches for declarations where no module is new, and colours
for messages that nobody reads. All of this reaches into numba, so a version that was not tried compiles as it does by
itself.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import sys
from collections.abc import Iterator
from types import CodeType, ModuleType
from typing import Any, ClassVar

from numba import types, version_info
from numba.core import errors, postproc
from numba.core.compiler import Compiler, Flags
from numba.core.compiler_machinery import PassManager
from numba.core.cpu import CPUContext
from numba.core.postproc import PostProcessor
from numba.core.targetconfig import ConfigStack
from numba.core.transforms import canonicalize_cfg
from numba.core.typed_passes import IRLegalization, NativeLowering, NopythonRewrites
from numba.core.typing.context import Context
from numba.core.untyped_passes import InlineClosureLikes

from globular.kernels.brief import BriefLowering
from globular.kernels.sharing import add_wrapper

NEWEST_KNOWN = (0, 68)
"""The newest version of numba that all of this was tried with; for others there is tests/passes/test_quick.py."""
IS_KNOWN = version_info.short <= NEWEST_KNOWN
"""True if kernels are compiled by this quick compiler and shared by a team; else by numba alone and Python threads."""


class _QuickFlags(Flags):
    """The options of a compilation, quick to compare: numba does so for every operation whose types it looks up."""

    def __hash__(self) -> int:
        return hash(_QuickFlags)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _QuickFlags) and self._values == other._values)


class _BarePasses(PassManager):
    """Numba's passes, one after the other, without what it reports and checks about each of them."""

    def __init__(self, passes: list[Any]) -> None:
        super().__init__("kernels")
        self.passes = passes
        self.finalize()

    def run(self, state: Any) -> None:
        # Numba compiles one function at a time in all threads, so nobody else sees this.
        numbas, postproc.PostProcessor = postproc.PostProcessor, _BarePostProcessor  # type: ignore[misc]
        try:
            super().run(state)
        finally:
            postproc.PostProcessor = numbas  # type: ignore[misc]

    def _runPass(self, index: int, step: Any, state: Any) -> None:
        step.analysis = self._analysis
        step.run_initialization(state)
        step.run_pass(state)
        step.run_finalizer(state)


class _BarePostProcessor(PostProcessor):
    """Says where variables live and die only if somebody will ask, and not after each of four passes."""

    def run(self, emit_dels: bool = False, extend_lifetimes: bool = False) -> None:
        if emit_dels or self.func_ir.is_generator:
            super().run(emit_dels, extend_lifetimes)
        else:
            self.func_ir.blocks, self.func_ir.generator_info = canonicalize_cfg(self.func_ir.blocks), None


def _is_idle(step: Any, state: Any) -> bool:
    """Whether a pass would leave this function as it is, however long it looked through it."""
    if step is InlineClosureLikes:
        return not any(isinstance(constant, CodeType) for constant in state.func_id.code.co_consts)
    # The one joins expressions that make arrays, the other says where references to variables end.
    return step in (NopythonRewrites, IRLegalization) and not state.flags.nrt


def _is_of_numba(function: Any) -> bool:
    return type(function) is types.Function


class _QuickTyping(Context):
    """Numba's typing with a memory: of attributes, of modules and functions, and of what functions of numba return."""

    _of_numba: Context
    _known: dict[Any, Any]
    """What was found, with what was asked for: the key has its address, which nobody else may get."""
    _n_modules: int
    """Of Python, when it looked for declarations last."""

    def refresh(self) -> None:
        """Look for new declarations: these come with modules."""
        if self._n_modules != len(sys.modules):
            self._of_numba.refresh()
            self._n_modules = len(sys.modules)

    def resolve_value_type(self, val: Any) -> Any:
        """Of a constant; numbers are typed each time."""
        if id(val) in self._known:
            return self._known[id(val)][1]
        found = super().resolve_value_type(val)
        if callable(val) or isinstance(val, ModuleType):
            self._known[id(val)] = val, found
        return found

    def resolve_getattr(self, typ: Any, attr: str) -> Any:
        """Of an attribute; methods are looked up each time."""
        if (id(typ), attr) in self._known:
            return self._known[id(typ), attr][1]
        found = super().resolve_getattr(typ, attr)
        if not isinstance(found, types.Callable | None):
            self._known[id(typ), attr] = typ, found
        return found

    def resolve_function_type(self, func: Any, args: Any, kws: Any) -> Any:
        function: Any = func if type(func) is types.Function else self._lookup_global(func)
        if kws or not _is_of_numba(function):
            return super().resolve_function_type(func, args, kws)
        key = id(function), tuple(args), ConfigStack.top_or_none()
        if key in self._known:
            _, signature, implementation = self._known[key]
            function._impl_keys[signature.args] = implementation
            return signature
        signature = super().resolve_function_type(func, args, kws)
        implementation = None if signature is None else function._impl_keys.get(signature.args)
        if implementation is not None:
            self._known[key] = function, signature, implementation
        return signature


@functools.cache
def _quick(typing: Any) -> Any:
    """The same tables of types, with a memory."""
    if type(typing) is not Context:
        return typing
    quick: Any = copy.copy(typing)
    quick.__class__, quick._of_numba, quick._known, quick._n_modules = _QuickTyping, typing, {}, 0
    return quick


class _Unoptimised:
    """Takes the code that unpacks Python's arguments as it is: LLVM would spend a tenth of its time there."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def add_ir_module(self, module: Any) -> None:
        for function in module.functions:
            if not function.is_declaration:
                function.attributes.add("noinline")
                function.attributes.add("optnone")
        self._library.add_ir_module(module)


class _QuickContext(CPUContext):
    """Numba's target, which knows that arrays are arrays: numba looks everywhere for a way to turn them into some."""

    _sizes: ClassVar[dict[Any, int]] = {}

    def get_function(self, fn: Any, sig: Any, _firstcall: bool = True) -> Any:
        if fn == "__array__" and isinstance(sig.args[0], types.Array):
            raise NotImplementedError
        return super().get_function(fn, sig, _firstcall)

    def get_abi_sizeof(self, ty: Any) -> Any:
        """Of a type; numba has LLVM read a program for each."""
        if ty not in self._sizes:
            self._sizes[ty] = super().get_abi_sizeof(ty)
        return self._sizes[ty]

    roles: list[str]
    """How the parameters of the function are annotated."""

    def create_cpython_wrapper(
        self, library: Any, kernel: Any, environment: Any, helper: Any, release_gil: bool = False
    ) -> None:
        add_wrapper(self, _Unoptimised(library), kernel, environment, helper, release_gil, self.roles)


class QuickCompiler(Compiler):
    """Numba's compiler with all of this."""

    def __init__(
        self, typing: Any, target: Any, library: Any, args: Any, return_type: Any, flags: Any, variables: Any
    ) -> None:
        if IS_KNOWN:
            typing, flags = _quick(typing), _QuickFlags(flags)
        super().__init__(typing, target, library, args, return_type, flags, variables)
        if IS_KNOWN and type(self.state.targetctx) is CPUContext:  # a copy for this function alone
            self.state.targetctx.__class__ = _QuickContext

    def compile_extra(self, function: Any) -> Any:
        code = function.__code__
        names = code.co_varnames[: code.co_argcount]
        self.state.targetctx.roles = [str(function.__annotations__.get(name, "")) for name in names]
        return super().compile_extra(function)

    def define_pipelines(self) -> Any:
        pipelines = super().define_pipelines()
        if not IS_KNOWN:
            return pipelines
        return [
            _BarePasses(
                [
                    (BriefLowering if step is NativeLowering else step, why)
                    for step, why in pipeline.passes
                    if not _is_idle(step, self.state)
                ]
            )
            for pipeline in pipelines
        ]


COLOURS = "_termcolor_inst"
"""Where numba has its colours for messages."""


class _Plain:
    """Messages as they are: numba colours even those of errors that it catches itself."""

    def __getattr__(self, name: str) -> Any:
        return lambda message: message


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """While this holds nobody searches for garbage, among objects that stay, and errors have no colours."""
    collects = gc.isenabled()
    gc.disable()
    setattr(errors, COLOURS, _Plain() if IS_KNOWN else None)
    try:
        yield
    finally:
        setattr(errors, COLOURS, None)  # numba takes them anew when it needs them
        if collects:
            if not gc.get_freeze_count():
                gc.freeze()  # counts what is there as old without looking through it:
                gc.unfreeze()  # else the search that waited would come now
            gc.enable()
