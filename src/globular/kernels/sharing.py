"""The way into a kernel that many threads share: machine code that calls it on all of them.

Python calls such a kernel once. What it calls is its entry, which puts the arguments where the threads of a `team` find
them, wakes two of these, does its own share of the work and waits until all have done theirs. Each of them wakes two
more and then calls the kernel by `join`, with the same arguments but for scratch memory, of which it has its own.
Nobody needs the interpreter meanwhile, which threads would have to wait for one after the other.

Memory that Python and this code share is arrays of 8-byte words; the constants say which word is what.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.callwrapper import PyCallWrapper
from numba.extending import intrinsic

from globular.kernels import queue
from globular.kernels.target import CACHE_LINE

RELEASE, N_OTHERS, ROOM, FUNCTION, ARGUMENTS, FAILED, SEATS = range(7)
"""Of a team: the address of Python's function that releases locks, threads to wake, bytes of scratch that each has, the
`join` of the kernel, its arguments, the status of a call that has failed; then the address of every thread's seat."""
ACQUIRE, CALLED, DONE, TEAM, NUMBER, SCRATCH, SEAT_SIZE = range(7)
"""Of a seat: the address of what acquires locks, the two that open when the thread is called and when it has done its
share, its team, which of the threads it is, and where its scratch memory is."""
_N_ITEMS, _ITEM_SIZE, _DATA = 2, 3, 4
"""Of an array: behind two addresses how many numbers it has, the bytes of one, and where they are."""

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


def _acquire(builder: Any, seat: Any, lock: int) -> None:
    """Wait until a lock of a seat opens."""
    address = builder.inttoptr(_load(builder, seat, lock), _POINTER)
    _call(builder, _load(builder, seat, ACQUIRE), _INT, address, _INT(1))


def _release(builder: Any, team: Any, lock: Any) -> None:
    _call(builder, _load(builder, team, RELEASE), ir.VoidType(), builder.inttoptr(lock, _POINTER))


def _wake_two(builder: Any, team: Any, first: Any) -> None:
    """The threads `first` and `first` + 1, if they are to be woken."""
    for number in (first, builder.add(first, _WORD(1))):
        with builder.if_then(builder.icmp_signed("<", number, _load(builder, team, N_OTHERS))):
            seat = _words(builder, _load(builder, team, builder.add(number, _WORD(SEATS))))
            _release(builder, team, _load(builder, seat, CALLED))


def _members(kind: Any) -> list[Any]:
    """The types of a tuple's members; of anything else none."""
    return list(kind) if isinstance(kind, types.BaseTuple) else []


class Entry:
    """Makes the way into a kernel; `roles` are the annotations of its parameters.

    Numba hands arrays and tuples over as the numbers and addresses that they consist of, one argument each. They stay
    so here: to put them together and take them apart again would take longer to compile than most kernels.
    """

    def __init__(self, context: Any, function: Any, kernel: Any, roles: list[str]) -> None:
        self._kernel, self._kind = function, function.function_type
        self._packed = ir.LiteralStructType(self._kind.args[2:])
        at, self._scratch = 0, list[tuple[int, str]]()
        for kind, role in zip(kernel.argtypes, roles, strict=True):
            begins, at = _arrays(context, kind, at)
            self._scratch += [(begin, role) for begin in begins if role in SCRATCH_ROLES]

    def _function(self, name: str, kind: Any) -> Any:
        function = ir.Function(self._kernel.module, kind, f"{name}.{self._kernel.name}")
        function.linkage = "internal"
        return function

    def _bytes(self, builder: Any, flat: Any, at: int) -> Any:
        """Of an array, in whole cache lines."""
        size = builder.mul(flat[at + _N_ITEMS], flat[at + _ITEM_SIZE])
        return builder.and_(builder.add(size, _WORD(CACHE_LINE - 1)), _WORD(-CACHE_LINE))

    def join(self) -> Any:
        """A function of a seat that calls the kernel as its team says."""
        function = self._function("join", ir.FunctionType(ir.VoidType(), [_WORD.as_pointer()]))
        builder = ir.IRBuilder(function.append_basic_block())
        seat = function.args[0]
        team = _words(builder, _load(builder, seat, TEAM))
        packed = builder.inttoptr(_load(builder, team, ARGUMENTS), self._packed.as_pointer())
        flat = [builder.load(_field(builder, packed, k)) for k in range(len(self._packed))]
        to = _load(builder, seat, SCRATCH)
        for at, role in self._scratch:
            size = self._bytes(builder, flat, at)
            if role == ZEROS:
                cgutils.memset(builder, builder.inttoptr(to, _POINTER), size, 0)  # type: ignore[no-untyped-call]
            flat[at + _DATA] = builder.inttoptr(to, flat[at + _DATA].type)
            to = builder.add(to, size)
        results = [builder.bitcast(builder.alloca(_WORD, 8), kind) for kind in self._kind.args[:2]]
        status = builder.call(self._kernel, [*results, *flat])
        with builder.if_then(builder.icmp_signed("!=", status, status.type(0))):
            builder.store(builder.sext(status, _WORD), _word(builder, team, FAILED))
        builder.ret_void()
        return function

    def shared(self) -> Any:
        """A function of the same arguments that calls the kernel, on all threads of the team that the queue has."""
        function = self._function("shared", self._kind)
        builder = ir.IRBuilder(function.append_basic_block())
        packed, flat = builder.alloca(self._packed), function.args[2:]
        waiting, address = flat[_DATA], builder.alloca(_WORD)
        builder.store(_WORD(0), address)
        with builder.if_then(builder.icmp_signed(">=", flat[_N_ITEMS], _WORD(queue.SIZE))):
            builder.store(_load(builder, waiting, queue.TEAM), address)
        team = _words(builder, builder.load(address))
        has_team = builder.icmp_signed("!=", builder.load(address), _WORD(0))
        with builder.if_then(has_team):
            needed = _WORD(0)
            for at, _ in self._scratch:
                needed = builder.add(needed, self._bytes(builder, flat, at))
            with builder.if_then(builder.icmp_signed(">", needed, _load(builder, team, ROOM))):
                builder.store(needed, _word(builder, waiting, queue.NEEDED))
                builder.ret(self._kind.return_type(0))
            for k, argument in enumerate(flat):
                builder.store(argument, _field(builder, packed, k))
            for word, value in ((FUNCTION, self.join()), (ARGUMENTS, packed)):
                builder.store(builder.ptrtoint(value, _WORD), _word(builder, team, word))
            builder.store(_WORD(0), _word(builder, team, FAILED))
            _wake_two(builder, team, _WORD(0))
        status = builder.call(self._kernel, function.args)
        with builder.if_then(has_team):
            with cgutils.for_range(builder, _load(builder, team, N_OTHERS)) as loop:
                seat = _words(builder, _load(builder, team, builder.add(loop.index, _WORD(SEATS))))
                _acquire(builder, seat, DONE)
            builder.store(_load(builder, team, FAILED), _word(builder, waiting, queue.FAILED))
        builder.ret(status)
        return function


def _arrays(context: Any, kind: Any, at: int) -> tuple[list[int], int]:
    """Where the arrays begin in the flat arguments of one, which begin at `at`, and where these end."""
    found: list[int] = []
    if isinstance(kind, types.BaseTuple):
        for each in _members(kind):
            begins, at = _arrays(context, each, at)
            found += begins
        return found, at
    if isinstance(kind, types.Array):
        found.append(at)
    return found, at + len(context.get_arg_packer([kind]).argument_types)


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
    kind = context.call_conv.get_function_type(kernel.restype, kernel.argtypes)
    called = ir.Function(module, kind, kernel.llvm_func_name)
    if can_be_shared(kernel, roles):
        called = Entry(context, called, kernel, roles).shared()
    wrapper: Any = PyCallWrapper
    wrapper(context, module, called, kernel, environment, call_helper=helper, release_gil=release_gil).build()
    library.add_ir_module(module)


def _serve(typing_context: Any, seat: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        seat = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        again, work, end = (builder.append_basic_block() for _ in range(3))
        builder.branch(again)
        builder.position_at_end(again)
        builder.cbranch(builder.icmp_signed("==", _load(builder, seat, CALLED), _WORD(0)), end, work)
        builder.position_at_end(work)
        _acquire(builder, seat, CALLED)
        team = _words(builder, _load(builder, seat, TEAM))
        _wake_two(builder, team, builder.add(builder.mul(_load(builder, seat, NUMBER), _WORD(2)), _WORD(2)))
        _call(builder, _load(builder, team, FUNCTION), ir.VoidType(), seat)
        _release(builder, team, _load(builder, seat, DONE))
        builder.branch(again)
        builder.position_at_end(end)
        return context.get_dummy_value()

    return types.none(seat), generate


serve_seat = cast(Callable[[Any], None], intrinsic(_serve))
"""Join whatever the team of a seat is called to, for ever; nothing where the seat has no lock yet."""
