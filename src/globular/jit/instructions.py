"""What instructions in LLVM's language are written with, beside llvmlite itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from llvmlite import ir


class _Types:
    """`numba.types`, imported when a kernel is compiled."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module("numba.types"), name)


types = _Types()


def array(context: Any, builder: Any, signature: Any, values: Any, at: int) -> Any:
    """An argument that is an array: it has `data` and `shape`."""
    return context.make_array(signature.args[at])(context, builder, values[at])


def data_of(context: Any, builder: Any, signature: Any, values: Any, at: int) -> Any:
    """Where the numbers of an argument that is an array are."""
    return array(context, builder, signature, values, at).data


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
