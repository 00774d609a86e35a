"""How numba compiles our kernels in fewer seconds: what one kernel calls of another is compiled as a part of it.

numba makes a finished product of every function that a kernel calls: wrappers for Python, optimised code, machine code.
Then it links the code into the caller and optimises it again, once more for every caller above. A function that is
called from kernels alone needs none of that. So a `Kernel` is two dispatchers: itself, for calls from Python; and a
`callee` for calls from other kernels, whose code is typed and translated once and left to its callers to optimise.
What numba itself writes in Python (`min`, `np.argmin`) is treated like a callee. LLVM goes through a kernel once, when
all of it is there. This is 40 % of the time that a first fit took to compile; `quick.py` has what else can be left out.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from llvmlite.binding import Linkage
from numba import _dynfunc, types, version_info  # type: ignore[attr-defined]
from numba.core.codegen import JITCodeLibrary, JITCPUCodegen
from numba.core.compiler import Compiler
from numba.core.compiler_machinery import register_pass
from numba.core.event import Listener, install_listener
from numba.core.registry import CPUDispatcher
from numba.core.typed_passes import NativeLowering

from globular.kernels.brief import BriefLowering
from globular.kernels.cache import KernelCache, target
from globular.kernels.quick import IS_KNOWN, QuickCompiler, undisturbed
from globular.kernels.target import asked_for, host


class _LevelCodegen(JITCPUCodegen):
    """Makes machine code for the target of this process, where that is a level and not the processor itself."""

    def _get_host_cpu_name(self) -> str:
        return target().cpu

    def _get_host_cpu_features(self) -> str:
        return target().features


@functools.cache
def _level_codegen() -> _LevelCodegen | None:
    """Shared by all kernels; None where numba's own does the same."""
    return None if target() == (asked_for() or host()) else _LevelCodegen("globular.kernels")


PACKAGE = __name__.rpartition(".")[0]
OPTIMISES_ONCE = IS_KNOWN and version_info.short >= (0, 62)
"""Whether `_KernelLibrary` is for this version of numba; older ones arrange LLVM's passes otherwise."""


class _KernelLibrary(JITCodeLibrary):
    """Code of a kernel, which LLVM optimises once, when what it calls is linked in.

    Numba has LLVM go over it by itself before, and over the whole twice, to find references to be counted in pairs;
    kernels count none. (What kernels call needs to be gone over by itself: short loops are up to a quarter slower when
    they are inlined first.) And it does not tell LLVM that nobody else calls these functions: what is called at one
    place can be inlined, and nobody has to hand on what nobody reads. Arrays are seven arguments each and tuples have
    dozens of them, so that this was half of the machine code.
    """

    def _optimize_functions(self, module: Any) -> None:
        module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage is Linkage.linkonce_odr:
                function.linkage = "internal"
        passes, options = self._codegen._module_pass_manager()
        passes.run(self._final_module, options)


class _LinkedLibrary(JITCodeLibrary):
    """Code that its callers link in, optimise and make machine code of."""

    def finalize(self) -> None:
        for library in dict.fromkeys(self._linking_libraries):
            if hasattr(self, "_reload_init"):  # since numba 0.62: what is to be initialised when a kernel is read
                self._reload_init.update(library._reload_init)
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._finalized = True


class KernelCompiler(QuickCompiler):
    """A quick compiler for the target of our kernels, which believes that no two of their arguments share memory.

    Else LLVM would write each loop twice, and have the program compare addresses for which of the two to take. Its
    guess is a coarse one, and the two may add up in different orders: a fit would depend on where its arrays lie. So
    what a kernel writes may be reached by one of its arguments only (`tests/passes/test_addresses.py`).
    """

    library = _KernelLibrary if OPTIMISES_ONCE else JITCodeLibrary
    """Where its code goes."""

    def __init__(
        self, typing: Any, target: Any, library: Any, args: Any, return_type: Any, flags: Any, variables: Any
    ) -> None:
        super().__init__(typing, target, library, args, return_type, flags, variables)
        self.state.targetctx._internal_codegen = _level_codegen() or self.state.targetctx._internal_codegen

    def compile_extra(self, function: Any) -> Any:
        self.state.flags.noalias = function.__module__.startswith(f"{PACKAGE}.")
        self.state.library = self.library(self.state.targetctx.codegen(), function.__qualname__)
        self.state.library.enable_object_caching()
        return super().compile_extra(function)


@register_pass(mutates_CFG=True, analysis_only=False)
class _LinkedLowering(BriefLowering if IS_KNOWN else NativeLowering):  # type: ignore[misc]
    """Numba's last step without what callers do: it ends with code that can be linked."""

    _name = "linked_lowering"

    def run_pass(self, state: Any) -> bool:
        library, state.flags.no_compile = state.library, True
        super().run_pass(state)
        lowered = state["cr"]
        described = lowered.fndesc
        name = described.qualname.split(".")[-1]
        # A function that cannot be called from Python stands for the code in numba's tables.
        entry = _dynfunc.make_function(described.lookup_module(), name, name, 0, lowered.env, (library,))
        state.targetctx.insert_user_function(entry, described, [library])
        state["cr"] = lowered._replace(cfunc=entry)
        return True


class CalleeCompiler(KernelCompiler):
    """Compiles what other kernels call, as far as linking needs."""

    library = _LinkedLibrary

    def define_pipelines(self) -> Any:
        pipelines = super().define_pipelines()
        for pipeline in pipelines:
            pipeline.passes = [
                (_LinkedLowering if issubclass(step, NativeLowering) else step, why) for step, why in pipeline.passes
            ]
        return pipelines


class _AsCallees(Listener):
    """Has what numba wrote in Python compiled as far as linking needs, when kernels of this thread call it."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def on_start(self, event: Any) -> None:
        compiler = event.data["dispatcher"]._compiler
        if compiler.pipeline_class is Compiler and threading.get_ident() == self._thread:
            compiler.pipeline_class = CalleeCompiler
            compiler.targetoptions |= {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}

    def on_end(self, event: Any) -> None:
        pass


@contextlib.contextmanager
def _compiling() -> Iterator[None]:
    """What holds while a kernel is compiled."""
    with undisturbed(), install_listener("numba:compile", _AsCallees()):
        yield


class Kernel(CPUDispatcher):
    """A function that is compiled at its first call: from Python by this dispatcher, from kernels by its callee."""

    def __init__(self, function: Callable[..., Any], variables: Any = None, options: Any = None) -> None:
        super().__init__(function, variables or {}, {**options, "no_cfunc_wrapper": True}, KernelCompiler)
        self._cache = KernelCache(function)
        self._callee: Any = None

    @property
    def callee(self) -> Any:
        """The dispatcher of calls from other kernels."""
        if self._callee is None:
            options = {**self.targetoptions, "no_cpython_wrapper": True}
            self._callee = CPUDispatcher(self.py_func, self.locals, options, CalleeCompiler)
        return self._callee

    def compile(self, sig: Any) -> Any:
        with self._cache.alone(sig), _compiling():
            return super().compile(sig)

    def compile_if_free(self, sig: Any) -> bool:
        """Compile for these types, unless that is done or another process is at it; whether it was to be done."""
        is_free = self._cache.is_free(sig)
        if is_free:
            self.compile(sig)
        return is_free

    def get_call_template(self, args: Any, kws: Any) -> Any:
        # A constant is a number like others here: LLVM will see it, and nothing is compiled for it alone.
        values = tuple(types.unliteral(kind) for kind in args)
        return self.callee.get_call_template(values, {name: types.unliteral(kind) for name, kind in kws.items()})

    def get_overload(self, sig: Any) -> Any:
        return self.callee.get_overload(sig)
