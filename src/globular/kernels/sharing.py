"""The way into a kernel that many threads share: machine code that calls it on all of them.

Python calls such a kernel once. What it calls is its entry, which puts the arguments where the threads of a `team` find
them, wakes two of these, does its own share of the work and waits until all have done theirs. Each of them wakes two
more and then calls the kernel by `join`, with the same arguments but for scratch memory, of which it has its own.
Nobody needs the interpreter meanwhile, which threads would have to wait for one after the other.

Memory that Python and this code share is arrays of 8-byte words; the constants say which word is what.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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


class Entry(PyCallWrapper):
    """The way from Python into a kernel; `roles` are the annotations of its parameters.

    Numba hands arrays and tuples over as the numbers and addresses that they consist of, one argument each. Here they
    lie one behind the other in memory, where Python's objects are written and every thread reads them. Numba would put
    them together and take them apart again, which is more machine code than many a kernel.
    """

    def __init__(self, *described: Any, roles: list[str], **options: Any) -> None:
        super().__init__(*described, **options)  # type: ignore[no-untyped-call]
        self._kind = self.func.function_type
        self._packed = ir.LiteralStructType(self._kind.args[2:])
        self._roles = roles

    def build_wrapper(self, api: Any, builder: Any, closure: Any, args: Any, kws: Any) -> None:
        """Unpack the arguments, call the kernel, on all threads that shall share it, and return what it does."""
        environment = self.get_env(api, builder)  # type: ignore[no-untyped-call]
        packed = builder.alloca(self._packed)
        self._unpack(api, builder, packed, self.fndesc.argtypes, args, 0)
        result, failure = (builder.alloca(kind.pointee) for kind in self._kind.args[:2])
        builder.store(ir.Constant(result.type.pointee, None), result)
        state = api.save_thread()
        called = self._call()
        if can_be_shared(self.fndesc, self._roles):
            called = self._shared(called)
        code = builder.call(called, [packed, result, failure])
        api.restore_thread(state)
        status = self.context.call_conv._get_return_status(builder, code, builder.load(failure))
        with builder.if_then(status.is_ok):
            value = self.context.get_returned_value(builder, self.fndesc.restype, builder.load(result))
            builder.ret(api.from_native_return(self.fndesc.restype, value, environment))
        self.context.call_conv.raise_error(builder, api, status)
        builder.ret(api.get_null_object())

    def _unpack(self, api: Any, builder: Any, packed: Any, kind: Any, given: Any, at: int) -> int:
        """Write a Python object as flat arguments from `at` on; the end of these. Numba has looked at its type."""
        if isinstance(kind, tuple | types.BaseTuple):
            for k, each in enumerate(cast(Any, kind)):
                at = self._unpack(api, builder, packed, each, api.tuple_getitem(given, k), at)
            return at
        place, n_flat = _field(builder, packed, at), len(self.context.get_arg_packer([kind]).argument_types)
        if isinstance(kind, types.Array):
            api.numba_array_adaptor(given, builder.bitcast(place, _POINTER))
        else:
            native = api.to_native_value(kind, given)
            with builder.if_then(native.is_error, likely=False):
                builder.ret(api.get_null_object())
            builder.store(self.context.get_value_as_argument(builder, kind, native.value), place)
        return at + n_flat

    def _function(self, name: str, returns: Any, *kinds: Any) -> tuple[Any, Any]:
        function = ir.Function(self.module, ir.FunctionType(returns, kinds), f"{name}.{self.func.name}")
        function.linkage = "internal"
        return function, ir.IRBuilder(function.append_basic_block())

    def _call(self) -> Any:
        """A function that calls the kernel: of its arguments in memory, and of where its result and failures go."""
        function, builder = self._function("call", _INT, self._packed.as_pointer(), *self._kind.args[:2])
        packed, *results = function.args
        flat = [builder.load(_field(builder, packed, k)) for k in range(len(self._packed))]
        builder.ret(builder.call(self.func, [*results, *flat]))
        return function

    def _scratch(self) -> list[tuple[int, str]]:
        """Where the scratch arrays begin in the flat arguments, and their roles."""
        at, found = 0, list[tuple[int, str]]()
        for kind, role in zip(self.fndesc.argtypes, self._roles, strict=True):
            begins, at = _arrays(self.context, kind, at)
            found += [(begin, role) for begin in begins if role in SCRATCH_ROLES]
        return found

    def _bytes(self, builder: Any, packed: Any, at: int) -> Any:
        """Of an array, in whole cache lines."""
        size = builder.mul(*(builder.load(_field(builder, packed, at + k)) for k in (_N_ITEMS, _ITEM_SIZE)))
        return builder.and_(builder.add(size, _WORD(CACHE_LINE - 1)), _WORD(-CACHE_LINE))

    def _join(self, call: Any) -> Any:
        """A function of a seat that calls the kernel as its team says."""
        function, builder = self._function("join", ir.VoidType(), _WORD.as_pointer())
        seat = function.args[0]
        team = _words(builder, _load(builder, seat, TEAM))
        given = builder.inttoptr(_load(builder, team, ARGUMENTS), self._packed.as_pointer())
        packed = builder.alloca(self._packed)
        size = self.context.get_abi_sizeof(self._packed)
        cgutils.raw_memcpy(builder, packed, given, _WORD(1), size)  # type: ignore[no-untyped-call]
        to = _load(builder, seat, SCRATCH)
        for at, role in self._scratch():
            size, data = self._bytes(builder, packed, at), _field(builder, packed, at + _DATA)
            if role == ZEROS:
                cgutils.memset(builder, builder.inttoptr(to, _POINTER), size, 0)  # type: ignore[no-untyped-call]
            builder.store(builder.inttoptr(to, data.type.pointee), data)
            to = builder.add(to, size)
        status = builder.call(call, [packed, *(builder.alloca(kind.pointee) for kind in self._kind.args[:2])])
        with builder.if_then(builder.icmp_signed("!=", status, status.type(0))):
            builder.store(builder.sext(status, _WORD), _word(builder, team, FAILED))
        builder.ret_void()
        return function

    def _shared(self, call: Any) -> Any:
        """A function that does what `call` does, on all threads of the team that the queue has."""
        function, builder = self._function("shared", _INT, *call.function_type.args)
        packed, address = function.args[0], builder.alloca(_WORD)
        n_items, waiting = (builder.load(_field(builder, packed, k)) for k in (_N_ITEMS, _DATA))
        builder.store(_WORD(0), address)
        with builder.if_then(builder.icmp_signed(">=", n_items, _WORD(queue.SIZE))):
            builder.store(_load(builder, waiting, queue.TEAM), address)
        team = _words(builder, builder.load(address))
        has_team = builder.icmp_signed("!=", builder.load(address), _WORD(0))
        with builder.if_then(has_team):
            needed = _WORD(0)
            for at, _ in self._scratch():
                needed = builder.add(needed, self._bytes(builder, packed, at))
            with builder.if_then(builder.icmp_signed(">", needed, _load(builder, team, ROOM))):
                builder.store(needed, _word(builder, waiting, queue.NEEDED))
                builder.ret(_INT(0))
            for word, value in ((FUNCTION, self._join(call)), (ARGUMENTS, packed)):
                builder.store(builder.ptrtoint(value, _WORD), _word(builder, team, word))
            builder.store(_WORD(0), _word(builder, team, FAILED))
            _wake_two(builder, team, _WORD(0))
        status = builder.call(call, function.args)
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
        for each in cast(Any, kind):
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
    return kind.layout in "CF" if isinstance(kind, types.Array) else all(map(_is_dense, getattr(kind, "types", ())))


def add_wrapper(
    context: Any, library: Any, kernel: Any, environment: Any, helper: Any, release_gil: bool, roles: list[str]
) -> None:
    """Numba's `create_cpython_wrapper`, by an `Entry` for kernels whose arrays are not counted."""
    module = context.create_module("wrapper")
    kind = context.call_conv.get_function_type(kernel.restype, kernel.argtypes)
    called = ir.Function(module, kind, kernel.llvm_func_name)
    wrapper: Any = PyCallWrapper if context.enable_nrt else partial(Entry, roles=roles)
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
