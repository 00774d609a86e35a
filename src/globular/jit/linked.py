"""Kernels by numba's private interface: compiled in half the time, and a twentieth faster.

Numba makes a finished product of every function that a kernel calls: wrappers for Python, optimised code, machine code.
Then it links the code into the caller and optimises it again, once more for every caller above. A function that is
called from kernels alone needs none of that. So a kernel is two dispatchers: itself, for calls from Python; and a
`callee` for calls from other kernels, whose code is typed and translated once and left to its callers to optimise.
What numba itself writes in Python (`min`, `np.argmin`) is treated like a callee. LLVM goes through a kernel once, when
all of it is there.

Items of arrays are read and written without a look whether the index is negative, which makes fits that search among
neighbours up to 18 % faster. **Indices must not be negative**: as in C nobody looks, unless NUMBA_BOUNDSCHECK asks for
it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from llvmlite.binding import Linkage
from numba import __version__, _dynfunc, types, version_info  # type: ignore[attr-defined]
from numba.core.cgutils import do_boundscheck
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_machinery import register_pass
from numba.core.event import Listener, install_listener
from numba.core.lowering import Lower
from numba.core.registry import CPUDispatcher
from numba.core.typed_passes import NativeLowering
from numba.np.arrayobj import load_item, store_item

from globular.jit import cache, stock

TRIED = "0.62 to 0.68"
"""The versions of numba that this was tried with."""
VERSION, IS_TRIED = str(__version__), (0, 62) <= version_info.short <= (0, 68)
OPTIONS = {**stock.OPTIONS, "nopython": True, "_nrt": False}
"""Options of every kernel: arrays are not counted, since a counter is what threads on one array would fight for."""
AS_CALLEE: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


class _Lower(Lower):
    """Numba's lowering, with items of C-contiguous arrays whose indices are not negative."""

    def lower_getitem(self, resty: Any, expr: Any, value: Any, index: Any, signature: Any) -> Any:
        place = self._find_item(value, index)
        if place is None:
            return super().lower_getitem(resty, expr, value, index, signature)
        kind = self.typeof(value.name)
        return self.context.cast(self.builder, load_item(self.context, self.builder, kind, place), kind.dtype, resty)

    def lower_setitem(self, target_var: Any, index_var: Any, value_var: Any, signature: Any) -> Any:
        place = self._find_item(target_var, index_var)
        if place is None:
            return super().lower_setitem(target_var, index_var, value_var, signature)
        kind, given = self.typeof(target_var.name), self.typeof(value_var.name)
        value = self.context.cast(self.builder, self.loadvar(value_var.name), given, kind.dtype)
        return store_item(self.context, self.builder, kind, value, place)

    def _find_item(self, array: Any, index: Any) -> Any:
        """The address of an item; None if this is no single item, or its array has another layout."""
        kind, index_kind, write = self.typeof(array.name), self.typeof(index.name), self.builder
        several = isinstance(index_kind, types.BaseTuple)
        kinds: Any = tuple(index_kind) if several else (index_kind,)
        if not kinds or not all(isinstance(each, types.Integer) for each in kinds):
            return None
        if any(getattr(each, "literal_value", 0) < 0 for each in kinds):
            return None  # it counts from the end
        if not isinstance(kind, types.Array) or kind.layout != "C" or kind.ndim != len(kinds):
            return None
        given = self.loadvar(index.name)
        view = self.context.make_array(kind)(self.context, write, self.loadvar(array.name))
        place = None
        for axis, each in enumerate(kinds):
            number = self.context.cast(write, write.extract_value(given, axis) if several else given, each, types.intp)
            size = write.extract_value(view.shape, axis)
            if self.context.enable_boundscheck:
                do_boundscheck(self.context, write, number, size, axis)
            place = number if place is None else write.add(write.mul(place, size), number)
        return write.gep(view.data, [place])


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(NativeLowering):
    """Numba's last step."""

    _name = "globular_lowering"
    lowering_class = _Lower


@register_pass(mutates_CFG=True, analysis_only=False)
class _LinkedLowering(_Lowering):
    """Numba's last step without what callers do: it ends with code that can be linked."""

    _name = "globular_linked_lowering"

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


class _KernelLibrary(JITCodeLibrary):
    """Code of a kernel, which LLVM optimises once, when what it calls is linked in.

    Numba has LLVM go over it by itself before, and over the whole twice, to find references to be counted in pairs;
    kernels count none. And it does not tell LLVM that nobody else calls these functions: what is called at one place
    can be inlined, and nobody has to hand on what nobody reads.
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
            self._reload_init.update(library._reload_init)
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._finalized = True


class KernelCompiler(stock.KernelCompiler):
    """Numba's compiler with our library and our lowering."""

    library: Any = _KernelLibrary
    lowering: Any = _Lowering

    def compile_extra(self, function: Any) -> Any:
        self.state.library = self.library(self.state.targetctx.codegen(), function.__qualname__)
        self.state.library.enable_object_caching()
        return super().compile_extra(function)

    def define_pipelines(self) -> Any:
        pipelines = super().define_pipelines()
        for pipeline in pipelines:
            steps = pipeline.passes
            pipeline.passes = [(self.lowering if step is NativeLowering else step, why) for step, why in steps]
        return pipelines


class _CalleeCompiler(KernelCompiler):
    """Compiles what other kernels call, as far as linking needs."""

    library = _LinkedLibrary
    lowering = _LinkedLowering


class _WholeKernelLibrary(_LinkedLibrary):
    """Code of a kernel with all that it calls, before LLVM goes through it."""

    _optimize_functions = _KernelLibrary._optimize_functions


class WholeKernelCompiler(_CalleeCompiler):
    """Compiles kernels for `build`, which has LLVM optimise them."""

    library = _WholeKernelLibrary


class _AsCallees(Listener):
    """Has what numba wrote in Python compiled as far as linking needs, when kernels of this thread call it."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def on_start(self, event: Any) -> None:
        compiler = event.data["dispatcher"]._compiler
        if compiler.pipeline_class is Compiler and threading.get_ident() == self._thread:
            compiler.pipeline_class = _CalleeCompiler
            compiler.targetoptions |= AS_CALLEE

    def on_end(self, event: Any) -> None:
        pass


class Dispatcher(CPUDispatcher):
    """A function that is compiled at its first call: from Python by this dispatcher, from kernels by its callee."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        super().__init__(function, {}, {**options, "no_cfunc_wrapper": True}, KernelCompiler)
        self._is_kept = False

    @functools.cached_property
    def callee(self) -> Any:
        """The dispatcher of calls from other kernels."""
        return CPUDispatcher(self.py_func, self.locals, {**self.targetoptions, **AS_CALLEE}, _CalleeCompiler)

    def compile(self, sig: Any) -> Any:
        if not self._is_kept:  # not before: of most functions the callee alone is compiled, and nothing is written
            self._is_kept = bool(cache.kept(self))
        with install_listener("numba:compile", _AsCallees()):
            return super().compile(sig)

    def get_call_template(self, args: Any, kws: Any) -> Any:
        # A constant is a number like others here: LLVM will see it, and nothing is compiled for it alone.
        values = tuple(types.unliteral(kind) for kind in args)
        return self.callee.get_call_template(values, {name: types.unliteral(kind) for name, kind in kws.items()})

    def get_overload(self, sig: Any) -> Any:
        return self.callee.get_overload(sig)


def dispatcher(function: Callable[..., Any], **options: Any) -> Any:
    """A function that compiles at its first call, from Python or from a kernel."""
    return Dispatcher(function, {**OPTIONS, **options})


intrinsic = stock.intrinsic


chosen_by_length = functools.partial(stock.chosen_by_length, _nrt=False, pipeline_class=_CalleeCompiler, **AS_CALLEE)
