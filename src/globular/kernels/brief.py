"""Loops and items of arrays in a quarter of the instructions that numba writes for them.

Kernels are loops over numbers, and items of arrays in them. For each loop numba writes a hundred instructions, which
allow for steps of any size and sign, and for every item of a matrix seventy, which allow for negative indices and for
any layout; LLVM finds out that hardly any of it is needed. That took a fifth of the time in which kernels compile. Here
are loops that count up, and items of arrays whose rows lie one behind the other. **Indices must not be negative**: as
in C nobody looks, unless NUMBA_BOUNDSCHECK asks for it.
"""

from __future__ import annotations

import operator
from functools import partial
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.cgutils import alloca_once, do_boundscheck
from numba.core.compiler_machinery import register_pass
from numba.core.ir import Assign, Expr, Var
from numba.core.ir_utils import find_const, guard
from numba.core.lowering import Lower
from numba.core.typed_passes import NativeLowering
from numba.np.arrayobj import load_item, store_item

_ARITHMETIC = {operator.add: "add", operator.sub: "sub", operator.mul: "mul"}
_COMPARISONS = {
    operator.lt: "<", operator.le: "<=", operator.gt: ">", operator.ge: ">=", operator.eq: "==", operator.ne: "!=",
}  # fmt: skip


def _index_types(index: Any) -> tuple[Any, ...]:
    """Of an index that is one whole number or several; none of others, and of those that count from the end."""
    found = tuple(index) if isinstance(index, types.BaseTuple) else (index,)
    ahead = all(
        isinstance(each, types.Integer) and not (isinstance(each, types.IntegerLiteral) and each.literal_value < 0)
        for each in found
    )
    return found if ahead else ()


class BriefLower(Lower):
    """Writes the instructions of a function; numba writes what is not here."""

    def pre_lower(self) -> None:
        super().pre_lower()
        self._given: dict[str, list[Any]] = {}
        for block in self.func_ir.blocks.values():
            for each in block.find_insts(Assign):
                self._given.setdefault(each.target.name, []).append(each.value)

    def _counts_up(self, name: str) -> bool:
        """Whether a variable is nothing but a range, or an iterator of one, whose step is known to be positive."""
        names, seen = [name], set[str]()
        while names:
            seen.add(name := names.pop())
            for value in self._given.get(name, [None]):
                source = value.value if isinstance(value, Expr) and value.op == "getiter" else value
                if not isinstance(source, Var):
                    if not self._is_ascending(source):
                        return False
                elif source.name not in seen:
                    names.append(source.name)
        return True

    def _is_ascending(self, value: Any) -> bool:
        """Whether a value is range(stop), range(start, stop) or one with a step that is known to be positive."""
        if not isinstance(value, Expr) or value.op != "call":
            return False
        if getattr(self.typeof(value.func.name), "typing_key", None) is not range:
            return False
        step = guard(find_const, self.func_ir, value.args[2]) if len(value.args) == 3 else 1
        return step is not None and step > 0

    def lower_expr(self, resty: Any, expr: Any) -> Any:
        if isinstance(expr, Expr) and expr.op in ("getiter", "iternext", "pair_first", "pair_second", "getattr"):
            kind, write = self.typeof(expr.value.name), self.builder
            if expr.op == "getiter" and isinstance(kind, types.RangeType) and self._counts_up(expr.value.name):
                return self._begin_range(resty, self.loadvar(expr.value.name))
            if expr.op == "iternext" and isinstance(kind, types.RangeIteratorType) and self._counts_up(expr.value.name):
                return self._next_of_range(kind, resty, self.loadvar(expr.value.name))
            if expr.op in ("pair_first", "pair_second") and isinstance(kind.first_type, types.Integer):
                return write.extract_value(self.loadvar(expr.value.name), int(expr.op == "pair_second"))
            if expr.op == "getattr" and expr.attr == "shape" and isinstance(kind, types.Array):
                return write.extract_value(self.loadvar(expr.value.name), self._place(kind, "shape"))
        return super().lower_expr(resty, expr)

    def _place(self, kind: Any, name: str) -> int:
        """Of a field in the values of a type."""
        return int(self.context.data_model_manager[kind].get_field_position(name))

    def _begin_range(self, kind: Any, state: Any) -> Any:
        """An iterator: where the next number is, the end, and the step."""
        write = self.builder
        start, stop, step = (write.extract_value(state, place) for place in range(3))
        here = alloca_once(write, start.type)
        write.store(start, here)
        iterator = ir.Constant(self.context.get_value_type(kind), ir.Undefined)
        for name, value in (("iter", here), ("stop", stop), ("step", step)):
            iterator = write.insert_value(iterator, value, self._place(kind, name))
        return iterator

    def _next_of_range(self, kind: Any, pair: Any, iterator: Any) -> Any:
        """The next number, and whether there is one."""
        write = self.builder
        names = "iter", "stop", "step"
        here, stop, step = (write.extract_value(iterator, self._place(kind, name)) for name in names)
        number = write.load(here)
        compare = write.icmp_signed if kind.yield_type.signed else write.icmp_unsigned
        write.store(write.add(number, step), here)
        found = ir.Constant(self.context.get_value_type(pair), ir.Undefined)
        found = write.insert_value(found, number, 0)
        return write.insert_value(found, compare("<", number, stop), 1)

    def lower_binop(self, resty: Any, expr: Any, op: Any) -> Any:
        signature, write = self.fndesc.calltypes[expr], self.builder
        kind = signature.args[0]
        if signature.args[1] != kind or kind not in (types.int64, types.float64):
            return super().lower_binop(resty, expr, op)
        is_real = kind == types.float64
        if op in _ARITHMETIC:
            combine = getattr(write, ("f" if is_real else "") + _ARITHMETIC[op])
        elif op in _COMPARISONS:
            real = write.fcmp_unordered if op is operator.ne else write.fcmp_ordered
            combine = partial(real if is_real else write.icmp_signed, _COMPARISONS[op])
        else:
            return super().lower_binop(resty, expr, op)
        result = combine(*(self._loaded(side, kind) for side in (expr.lhs, expr.rhs)))
        return self.context.cast(write, result, signature.return_type, resty)

    def _loaded(self, variable: Any, kind: Any) -> Any:
        """What a variable holds, as a type."""
        return self.context.cast(self.builder, self.loadvar(variable.name), self.typeof(variable.name), kind)

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
        kind = self.typeof(target_var.name)
        return store_item(self.context, self.builder, kind, self._loaded(value_var, kind.dtype), place)

    def _find_item(self, array: Any, index: Any) -> Any:
        """Where an item lies; None if this is no single item, or its array has another layout."""
        kind, write = self.typeof(array.name), self.builder
        kinds = _index_types(self.typeof(index.name))
        if not kinds or not isinstance(kind, types.Array) or kind.layout != "C" or kind.ndim != len(kinds):
            return None
        given, values = self.loadvar(index.name), self.loadvar(array.name)
        several = isinstance(self.typeof(index.name), types.BaseTuple)
        place = None
        for axis, each in enumerate(kinds):
            number = write.extract_value(given, axis) if several else given
            number = self.context.cast(write, number, each, types.intp)
            if axis > 0 or self.context.enable_boundscheck:
                size = write.extract_value(values, (self._place(kind, "shape"), axis))
            if self.context.enable_boundscheck:
                do_boundscheck(self.context, write, number, size, axis)
            place = number if place is None else write.add(write.mul(place, size), number)
        return write.gep(write.extract_value(values, self._place(kind, "data")), [place])


@register_pass(mutates_CFG=True, analysis_only=False)
class BriefLowering(NativeLowering):
    """Numba's last step, with fewer instructions."""

    _name = "brief_lowering"
    lowering_class = BriefLower
