"""How numba compiles our kernels in fewer seconds: what one kernel calls of another is compiled as a part of it.

numba makes a finished product of every function that a kernel calls: wrappers for Python, optimised code, machine code.
Then it links the code into the caller and optimises it again, once more for every caller above. A function that is
called from kernels alone needs none of that. So a `Kernel` is two dispatchers: itself, for calls from Python; and a
`callee` for calls from other kernels, whose code is typed and translated once and left to its callers to optimise.
This is 40 % of the time that a first fit takes to compile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import _dynfunc  # type: ignore[attr-defined]
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, Flags
from numba.core.compiler_machinery import register_pass
from numba.core.registry import CPUDispatcher
from numba.core.typed_passes import NativeLowering

from globular.kernels.cache import KernelCache


class _QuickFlags(Flags):
    """The options of a compilation, quick to compare: numba does so for every operation whose types it looks up."""

    def __hash__(self) -> int:
        return hash(_QuickFlags)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _QuickFlags) and self._values == other._values)


class KernelCompiler(Compiler):
    """Numba's compiler with options that are quick to compare."""

    def __init__(
        self, typing: Any, target: Any, library: Any, args: Any, return_type: Any, flags: Any, variables: Any
    ) -> None:
        super().__init__(typing, target, library, args, return_type, _QuickFlags(flags), variables)


class _LinkedLibrary(JITCodeLibrary):
    """Code that its callers link in, optimise and make machine code of."""

    def finalize(self) -> None:
        for library in dict.fromkeys(self._linking_libraries):
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _LinkedLowering(NativeLowering):
    """Numba's last step without what callers do: it ends with code that can be linked."""

    _name = "linked_lowering"

    def run_pass(self, state: Any) -> bool:
        state.library = library = _LinkedLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
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

    def define_pipelines(self) -> Any:
        pipelines = super().define_pipelines()
        for pipeline in pipelines:
            pipeline.passes = [
                (_LinkedLowering if step is NativeLowering else step, why) for step, why in pipeline.passes
            ]
            pipeline._finalized = False
            pipeline.finalize()
        return pipelines


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
        with self._cache.alone(sig):
            return super().compile(sig)

    def get_call_template(self, args: Any, kws: Any) -> Any:
        return self.callee.get_call_template(args, kws)

    def get_overload(self, sig: Any) -> Any:
        return self.callee.get_overload(sig)
