"""Arrays seen as others of the same memory, for which numba's own ways need its runtime or take long to compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir

from globular.jit import instructions
from globular.jit.functions import instruction
from globular.jit.instructions import types


def _same_memory(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """A value that refers to the memory of another array, which is counted where references are."""
    if context.enable_nrt:
        context.nrt.incref(builder, kind, value)
    return value


def _as_read_only(typing_context: Any, array: Any) -> Any:
    """The same array where it is only read, of the type that a user's rows have."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return _same_memory(context, builder, signature.return_type, values[0])

    return array.copy(readonly=True)(array), generate


def _as_matrix(typing_context: Any, line: Any, n: Any, m: Any) -> Any:
    """The first n · m numbers of a line as an (n, m) matrix."""
    kind = line.copy(ndim=2, layout="C")

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        given = instructions.array(context, builder, signature, values, 0)
        found = context.make_array(kind)(context, builder)
        n, m = values[1:]

        def pair(first: Any, second: Any) -> Any:
            both = ir.Constant(ir.ArrayType(first.type, 2), ir.Undefined)
            return builder.insert_value(builder.insert_value(both, first, 0), second, 1)

        for name in ("meminfo", "parent", "data", "itemsize"):
            setattr(found, name, getattr(given, name))
        found.nitems, found.shape = builder.mul(n, m), pair(n, m)
        found.strides = pair(builder.mul(m, given.itemsize), given.itemsize)
        return _same_memory(context, builder, kind, found._getvalue())

    return kind(line, types.intp, types.intp), generate


as_read_only = cast(Callable[[Any], Any], instruction(_as_read_only))
as_matrix = cast(Callable[[Any, int, int], Any], instruction(_as_matrix))
