"""What instructions in LLVM's language are written with, beside llvmlite itself."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from llvmlite import ir

from globular.jit.functions import instruction

CACHE_LINE = 64
"""Bytes that memory hands over at once."""


class _Types:
    """`numba.types`, imported when a kernel is compiled."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module("numba.types"), name)


types = _Types()


class Array:
    """An array inside a kernel."""

    def __init__(self, context: Any, builder: Any, kind: Any, value: Any) -> None:
        self._builder, self._kind = builder, kind
        array = context.make_array(kind)(context, builder, value)
        self.data = array.data
        self.scalar = context.get_data_type(kind.dtype)
        self.shape = [builder.extract_value(array.shape, axis) for axis in range(kind.ndim)]

    @property
    def itemsize(self) -> int:
        """Bytes of a number."""
        return int(self._kind.dtype.bitwidth) // 8

    def at(self, index: Any) -> Any:
        """The address of an entry, counted from the first."""
        return self._builder.gep(self.data, [index])

    def row(self, index: Any) -> Any:
        """The address of a row of a C-contiguous matrix, or of a matrix of which each lies in a row."""
        return self.at(self._builder.mul(index, self.shape[1]))


def procedure(write: Callable[..., None]) -> Any:
    """Decorate what writes the code of an instruction that returns nothing, from a builder and the arguments.

    Arrays come as `Array`s, and whole numbers as wide as an index.
    """

    @functools.wraps(write)
    def typed(typing_context: Any, *kinds: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            given = zip(signature.args, values, strict=True)
            write(
                builder,
                *(Array(context, builder, *each) if isinstance(each[0], types.Array) else each[1] for each in given),
            )
            return context.get_dummy_value()

        return types.void(*(types.intp if isinstance(kind, types.Integer) else kind for kind in kinds)), generate

    return instruction(typed)


def variable(builder: Any, value: Any) -> Any:
    """The address of a variable with this value, which LLVM keeps in a register where it can."""
    with builder.goto_entry_block():
        address = builder.alloca(value.type)
    builder.store(value, address)
    return address


@contextmanager
def loop(builder: Any, start: Any, stop: Any, step: int) -> Iterator[Any]:
    """A loop over start, start + step, … below stop."""
    size = stop.type
    index = variable(builder, ir.Constant(size, start) if isinstance(start, int) else start)
    head, body, end = (builder.append_basic_block(f"loop.{name}") for name in ("head", "body", "end"))
    builder.branch(head)
    builder.position_at_end(head)
    here = builder.load(index)
    builder.cbranch(builder.icmp_signed("<", here, stop), body, end)
    builder.position_at_end(body)
    yield here
    builder.store(builder.add(here, ir.Constant(size, step)), index)
    builder.branch(head)
    builder.position_at_end(end)


def declared(builder: Any, name: str, kind: Any) -> Any:
    """A function or variable of another module, by its name."""
    module = builder.module
    if name in module.globals:
        return module.globals[name]
    return (
        ir.Function(module, kind, name) if isinstance(kind, ir.FunctionType) else ir.GlobalVariable(module, kind, name)
    )
