"""The bits of numbers: operations of one instruction each, for which numba's `view` takes long to compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from globular.jit.functions import instruction
from globular.jit.instructions import types


def _bits_of(context: Any, builder: Any, value: Any, kind: Any) -> Any:
    return builder.bitcast(value, context.get_value_type(kind))


def _float_bits(typing_context: Any, value: Any) -> Any:
    """The bits of a float as an integer: sorts like the floats themselves where these are not negative.

    Minima over integers vectorise, those over floats do not. Negative values, which stand for distances of zero that
    rounding has spoilt, come before all others, in some order.
    """
    signature = types.int32(types.float32) if value == types.float32 else types.int64(types.float64)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return _bits_of(context, builder, values[0], signature.return_type)

    return signature, generate


def _bits_float(typing_context: Any, bits: Any) -> Any:
    """The float64 of these bits."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return _bits_of(context, builder, values[0], types.float64)

    return types.float64(types.int64), generate


def _order_key(typing_context: Any, value: Any) -> Any:
    """An integer that sorts like the float it comes from, of either sign."""
    signature, of_bits = _float_bits(typing_context, value)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        bits = of_bits(context, builder, signature, values)
        width = bits.type.width
        sign = builder.ashr(bits, bits.type(width - 1))
        return builder.xor(bits, builder.and_(sign, bits.type(2 ** (width - 1) - 1)))

    return signature, generate


float_bits = cast(Callable[[float], int], instruction(_float_bits))
bits_float = cast(Callable[[int], float], instruction(_bits_float))
order_key = cast(Callable[[float], int], instruction(_order_key))
