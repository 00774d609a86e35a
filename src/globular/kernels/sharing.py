"""The way into a kernel that many threads share: machine code that calls it on all of them.

Python calls such a kernel once. What it calls is its entry, which puts the arguments where the threads of a `team` find
them, wakes two of these, does its own share of the work and waits until all have done theirs. Each of them wakes two
more and then calls the kernel by `join`, with the same arguments but for scratch memory, of which it has its own.
Nobody needs the interpreter meanwhile, which threads would have to wait for one after the other.

Memory that Python and this code share is arrays of 8-byte words; the constants say which word is what.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.callwrapper import PyCallWrapper
from numba.extending import intrinsic

from globular.kernels import queue

ACQUIRE, RELEASE, N_OTHERS, ROOM, FUNCTION, ARGUMENTS, FAILED, SEATS = range(8)
"""Of a team: addresses of Python's functions for locks, threads to wake, bytes of scratch that each has, the `join` of
the kernel, its arguments, the status of a call that has failed; then the address of every thread's seat."""
CALLED, DONE, TEAM, NUMBER, SCRATCH, SEAT_SIZE = range(6)
"""Of a seat: locks that open when the thread is called and when it has done its share, its team, which of the threads
it is, and where its scratch memory is."""
CACHE_LINE = 64

_WORD, _INT, _BYTE = ir.IntType(64), ir.IntType(32), ir.IntType(8)
_POINTER = _BYTE.as_pointer()


def _load(builder: Any, words: Any, k: Any) -> Any:
    return builder.load(_word(builder, words, k))


def _word(builder: Any, words: Any, k: Any) -> Any:
    return builder.gep(words, [_WORD(k) if isinstance(k, int) else k])


def _field(builder: Any, packed: Any, k: int) -> Any:
    return builder.gep(packed, [_INT(0), _INT(k)])


def _words(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, _WORD.as_pointer())


def _call(builder: Any, address: Any, returns: Any, *arguments: Any) -> Any:
    kind = ir.FunctionType(returns, [each.type for each in arguments])
    return builder.call(builder.inttoptr(address, kind.as_pointer()), arguments)


def _acquire(builder: Any, team: Any, lock: Any) -> None:
    _call(builder, _load(builder, team, ACQUIRE), _INT, builder.inttoptr(lock, _POINTER), _INT(1))


def _release(builder: Any, team: Any, lock: Any) -> None:
    _call(builder, _load(builder, team, RELEASE), ir.VoidType(), builder.inttoptr(lock, _POINTER))


def _wake_two(builder: Any, team: Any, first: Any) -> None:
    """The threads `first` and `first` + 1, if they are to be woken."""
    for number in (first, builder.add(first, _WORD(1))):
        with builder.if_then(builder.icmp_signed("<", number, _load(builder, team, N_OTHERS))):
            seat = _words(builder, _load(builder, team, builder.add(number, _WORD(SEATS))))
            _release(builder, team, _load(builder, seat, CALLED))


def _in_cache_lines(builder: Any, n: Any) -> Any:
    return builder.and_(builder.add(n, _WORD(CACHE_LINE - 1)), _WORD(-CACHE_LINE))


def _members(kind: Any) -> list[Any]:
    """The types of a tuple's members; of anything else none."""
    return list(kind) if isinstance(kind, types.BaseTuple) else []


class Entry:
    """Makes the way into a kernel; `roles` are the annotations of its parameters."""

    def __init__(self, context: Any, module: Any, kernel: Any, roles: list[str]) -> None:
        self._context, self._types, self._roles = context, kernel.argtypes, roles
        self._packer = context.get_arg_packer(kernel.argtypes)
        self._kind = context.call_conv.get_function_type(kernel.restype, kernel.argtypes)
        self._packed = ir.LiteralStructType(self._kind.args[2:])
        self.kernel = ir.Function(module, self._kind, kernel.llvm_func_name)
        self._module, self._name = module, kernel.llvm_func_name

    def _scratch(self, builder: Any, values: list[Any]) -> Iterator[tuple[int, Any]]:
        """Which arguments are scratch, and bytes of all arrays among them."""
        for k, role in enumerate(self._roles):
            if role in SCRATCH_ROLES:
                yield k, self._size(builder, self._types[k], values[k])

    def _size(self, builder: Any, kind: Any, value: Any) -> Any:
        if isinstance(kind, types.Array):
            array = self._context.make_array(kind)(self._context, builder, value)
            return _in_cache_lines(builder, builder.mul(array.nitems, array.itemsize))
        size = _WORD(0)
        for k, each in enumerate(_members(kind)):
            size = builder.add(size, self._size(builder, each, builder.extract_value(value, k)))
        return size

    def _moved(self, builder: Any, kind: Any, value: Any, to: Any) -> tuple[Any, Any]:
        """A value whose arrays lie elsewhere, one after the other, and where they end."""
        if isinstance(kind, types.Array):
            array = self._context.make_array(kind)(self._context, builder, value)
            end = builder.add(to, self._size(builder, kind, value))
            array.data = builder.inttoptr(to, array.data.type)
            return array._getvalue(), end
        for k, each in enumerate(_members(kind)):
            moved, to = self._moved(builder, each, builder.extract_value(value, k), to)
            value = builder.insert_value(value, moved, k)
        return value, to

    def join(self) -> Any:
        """A function of a seat that calls the kernel as its team says."""
        function = ir.Function(self._module, ir.FunctionType(ir.VoidType(), [_WORD.as_pointer()]), f"join.{self._name}")
        function.linkage = "internal"
        builder = ir.IRBuilder(function.append_basic_block())
        seat = function.args[0]
        team = _words(builder, _load(builder, seat, TEAM))
        packed = builder.inttoptr(_load(builder, team, ARGUMENTS), self._packed.as_pointer())
        arguments = [builder.load(_field(builder, packed, k)) for k in range(len(self._packed))]
        values, to = self._packer.from_arguments(builder, arguments), _load(builder, seat, SCRATCH)
        for k, size in self._scratch(builder, values):
            if self._roles[k] == ZEROS:
                cgutils.memset(builder, builder.inttoptr(to, _POINTER), size, 0)  # type: ignore[no-untyped-call]
            values[k], to = self._moved(builder, self._types[k], values[k], to)
        results = [builder.bitcast(builder.alloca(_WORD, 8), kind) for kind in self._kind.args[:2]]
        status = builder.call(self.kernel, [*results, *self._packer.as_arguments(builder, values)])
        with builder.if_then(builder.icmp_signed("!=", status, status.type(0))):
            builder.store(builder.sext(status, _WORD), _word(builder, team, FAILED))
        builder.ret_void()
        return function

    def shared(self) -> Any:
        """A function of the same arguments that calls the kernel, on all threads of the team that the queue has."""
        function = ir.Function(self._module, self._kind, f"shared.{self._name}")
        function.linkage = "internal"
        builder = ir.IRBuilder(function.append_basic_block())
        packed = builder.alloca(self._packed)
        values = self._packer.from_arguments(builder, function.args[2:])
        waiting = self._context.make_array(self._types[0])(self._context, builder, values[0])
        with builder.if_then(builder.icmp_signed("<", waiting.nitems, _WORD(queue.SIZE))):
            builder.ret(builder.call(self.kernel, function.args))
        address = _load(builder, waiting.data, queue.TEAM)
        with builder.if_then(builder.icmp_signed("==", address, _WORD(0))):
            builder.ret(builder.call(self.kernel, function.args))
        team, needed = _words(builder, address), _WORD(0)
        for _, size in self._scratch(builder, values):
            needed = builder.add(needed, size)
        with builder.if_then(builder.icmp_signed(">", needed, _load(builder, team, ROOM))):
            builder.store(needed, _word(builder, waiting.data, queue.NEEDED))
            builder.ret(self._kind.return_type(0))
        for k, argument in enumerate(function.args[2:]):
            builder.store(argument, _field(builder, packed, k))
        for word, value in ((FUNCTION, self.join()), (ARGUMENTS, packed)):
            builder.store(builder.ptrtoint(value, _WORD), _word(builder, team, word))
        builder.store(_WORD(0), _word(builder, team, FAILED))
        _wake_two(builder, team, _WORD(0))
        status = builder.call(self.kernel, function.args)
        with cgutils.for_range(builder, _load(builder, team, N_OTHERS)) as loop:
            seat = _words(builder, _load(builder, team, builder.add(loop.index, _WORD(SEATS))))
            _acquire(builder, team, _load(builder, seat, DONE))
        builder.store(_load(builder, team, FAILED), _word(builder, waiting.data, queue.FAILED))
        builder.ret(status)
        return function


SCRATCH_ROLES = ("Scratch", ZEROS := "Zeros")
"""Annotations of parameters that each thread has its own of."""


def can_be_shared(kernel: Any, roles: list[str]) -> bool:
    """Whether a kernel takes its work from a queue and returns nothing, and its scratch memory has no gaps."""
    scratch = [kind for kind, role in zip(kernel.argtypes, roles, strict=True) if role in SCRATCH_ROLES]
    return roles[:1] == ["Queue"] and kernel.restype == types.none and all(map(_is_dense, scratch))


def _is_dense(kind: Any) -> bool:
    return kind.layout in "CF" if isinstance(kind, types.Array) else all(map(_is_dense, _members(kind)))


def add_wrapper(
    context: Any, library: Any, kernel: Any, environment: Any, helper: Any, release_gil: bool, roles: list[str]
) -> None:
    """Numba's `create_cpython_wrapper`, which calls a kernel that can be shared by its entry."""
    module = context.create_module("wrapper")
    entry = Entry(context, module, kernel, roles)
    called = entry.shared() if can_be_shared(kernel, roles) else entry.kernel
    wrapper: Any = PyCallWrapper
    wrapper(context, module, called, kernel, environment, call_helper=helper, release_gil=release_gil).build()
    library.add_ir_module(module)


def _serve(typing_context: Any, seat: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        seat = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        again, work, end = (builder.append_basic_block() for _ in range(3))
        builder.branch(again)
        builder.position_at_end(again)
        lock = _load(builder, seat, CALLED)
        builder.cbranch(builder.icmp_signed("==", lock, _WORD(0)), end, work)
        builder.position_at_end(work)
        _acquire(builder, _words(builder, _load(builder, seat, TEAM)), lock)
        team = _words(builder, _load(builder, seat, TEAM))  # it may have grown meanwhile
        _wake_two(builder, team, builder.add(builder.mul(_load(builder, seat, NUMBER), _WORD(2)), _WORD(2)))
        _call(builder, _load(builder, team, FUNCTION), ir.VoidType(), seat)
        _release(builder, team, _load(builder, seat, DONE))
        builder.branch(again)
        builder.position_at_end(end)
        return context.get_dummy_value()

    return types.none(seat), generate


serve_seat = cast(Callable[[Any], None], intrinsic(_serve))
"""Join whatever the team of a seat is called to, for ever; nothing where the seat has no lock yet."""
